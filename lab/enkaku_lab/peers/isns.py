"""iSNS: our server, and Open-iSNS's isnsd and isnsadm, without keys (`Security=0`).

What is read of what `isnsadm` prints is names.
"""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from enkaku_lab.peers import enkaku, log_path, need
from enkaku_lab.process import Completed, Peer, accepts, free_port, run

SERVER = "iqn.2026-01.lab.enkaku:isnsd"


class Server:
    """An iSNS server on loopback that can be killed and started again."""

    def __init__(self, name: str, peer: Peer, port: int, folder: Path):
        self.name, self.peer, self.port, self.folder = name, peer, port, folder
        self.address = f"127.0.0.1:{port}"
        self._wait()

    def _wait(self) -> None:
        self.peer.wait_until(
            lambda: accepts("127.0.0.1", self.port), "does not accept connections"
        )

    def restart(self) -> None:
        """Killed, or stopped, it comes back on the same port."""
        shutil.rmtree(self.folder / "db", ignore_errors=True)
        self.peer.restart()
        self._wait()

    def isnsadm(self, source: str, *words: object, check: bool = True) -> Completed:
        """Open-iSNS's client, as the node `source`."""
        config = self.folder / f"isnsadm-{re.sub('[^a-z0-9]', '-', source)}.conf"
        config.write_text(
            f"SourceName = {source}\nServerAddress = {self.address}\nSecurity = 0\n"
            f"ControlSocket = {self.folder}/isnsctl\nNetwork.MaxSockets = 64\n"
            "Network.ConnectTimeout = 5\nNetwork.CallTimeout = 10\nSLPRegister = 0\n"
        )
        return run([need("isnsadm"), "-c", config, *words], check=check, timeout_s=30)

    def names(self, source: str) -> set[str]:
        """The names of nodes that `source` is told of."""
        listed = self.isnsadm(source, "--list", "nodes", check=False)
        return set(re.findall(r"(?:iqn|eui|naa)\.[\w.:-]+", listed.stdout)) - {SERVER}


@contextmanager
def ours(logs: Path, *options: object) -> Iterator[Server]:
    """`enkaku isns serve`."""
    port = free_port()
    argv = [enkaku.binary(), "isns", "serve", "--listen", f"127.0.0.1:{port}", *options]
    peer = Peer(argv, log_path(logs, "isns", port))
    try:
        yield Server("enkaku", peer, port, logs)
    finally:
        peer.stop()


@contextmanager
def isnsd(logs: Path) -> Iterator[Server]:
    """Open-iSNS's server. It forgets everything over a restart: what it keeps is removed."""
    port = free_port()
    folder = logs / f"isnsd-{port}"
    folder.mkdir()
    config = folder / "isnsd.conf"
    config.write_text(
        f"SourceName = {SERVER}\nBindAddress = 127.0.0.1:{port}\nDatabase = {folder}/db\n"
        f"PIDFile = {folder}/pid\nControlSocket = {folder}/isnsctl\nSecurity = 0\n"
        "SLPRegister = 0\nDefaultDiscoveryDomain = 1\nRegistrationPeriod = 600\n"
        "ESIMinInterval = 5s\nESIMaxInterval = 10m\nESIRetries = 3\n"
    )
    peer = Peer([need("isnsd"), "-f", "-c", config], folder / "isnsd.log")
    try:
        yield Server("isnsd", peer, port, folder)
    finally:
        peer.kill()
