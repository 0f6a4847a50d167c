"""Ceph of one machine: a monitor and one OSD that keeps everything in memory, each in the foreground, in a
folder and on ports of their own, without systemd, a manager or authentication.

Without a manager `ceph -s` and `ceph osd df` hang; nothing here asks them. Ceph 16 (Debian 12) has been
ready after eleven seconds.
"""

import json
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from enkaku_lab.peers import need
from enkaku_lab.process import Completed, LabError, Peer, run

PROGRAMS = ("ceph-mon", "ceph-osd", "ceph", "rbd", "ceph-authtool", "monmaptool")
"""What has to be installed: Debian's ceph-mon, ceph-osd and ceph-common; librbd1 comes with them."""
POOL = "rbd"
READY_S_MAX = 60.0
POLL_S = 0.1
WATCH_TIMEOUT_S = 5
"""After so long an owner of an image that is silent counts as dead (30 s, unless it is configured)."""

CONFIGURATION = """[global]
fsid = {fsid}
mon initial members = a
mon host = [v2:127.0.0.1:{v2},v1:127.0.0.1:{v1}]
public addr = 127.0.0.1
auth cluster required = none
auth service required = none
auth client required = none
osd pool default size = 1
mon allow pool size one = true
osd crush chooseleaf type = 0
osd objectstore = memstore
memstore device bytes = 4294967296
osd client watch timeout = {watch}
run dir = {folder}/run
admin socket = {folder}/run/$name.$pid.asok
log file = {folder}/log/$name.$pid.log
keyring = {folder}/keyring
[mon.a]
mon data = {folder}/mon
# A full disk of the host is no reason to end: what it keeps here is some MiB.
mon data avail crit = 1
mon data avail warn = 2
[osd.0]
osd data = {folder}/osd
"""


class Cluster:
    """A cluster that runs, with the pool `rbd`."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.conf = folder / "ceph.conf"
        self.peers: list[Peer] = []

    def start(self) -> None:
        for name in ("mon", "osd", "run", "log"):
            (self.folder / name).mkdir(parents=True)
        fsid, (v2, v1) = uuid.uuid4(), _free_ports()
        self.conf.write_text(
            CONFIGURATION.format(
                folder=self.folder, fsid=fsid, v2=v2, v1=v1, watch=WATCH_TIMEOUT_S
            )
        )
        keyring, monmap = self.folder / "keyring", self.folder / "monmap"
        key = [need("ceph-authtool"), keyring, "--gen-key"]
        run([*key, "--create-keyring", "-n", "mon.", "--cap", "mon", "allow *"])
        run([*key, "-n", "client.admin", "--cap", "mon", "allow *", "--cap", "osd", "allow *"])
        address = f"[v2:127.0.0.1:{v2},v1:127.0.0.1:{v1}]"
        made = [need("monmaptool"), "--create", "--clobber", "--fsid", fsid]
        run([*made, "--addv", "a", address, monmap])
        mon = [need("ceph-mon"), "-c", self.conf, "-i", "a"]
        run([*mon, "--mkfs", "--monmap", monmap, "--keyring", keyring])
        self._peer(mon, "mon")
        self._until(lambda: self.ceph("mon", "stat", check=False, timeout_s=5).code == 0, "monitor")
        osd_id = uuid.uuid4()
        self.ceph("osd", "new", osd_id)
        osd = [need("ceph-osd"), "-c", self.conf, "-i", "0"]
        run([*osd, "--mkfs", "--osd-uuid", osd_id])
        self.ceph("osd", "crush", "add", "osd.0", "1", "root=default", "host=one")
        self._peer(osd, "osd")
        self._until(lambda: "1 up" in self.ceph("osd", "stat").stdout, "storage")
        self.ceph("osd", "pool", "create", POOL, "8")

    def _peer(self, argv: list[object], name: str) -> None:
        self.peers.append(Peer([*argv, "-f"], self.folder / f"{name}.out"))

    def _until(self, condition, what: str) -> None:
        deadline = time.monotonic() + READY_S_MAX
        while True:
            try:
                if condition():
                    return
            except LabError:
                pass  # asked too early
            ended = [peer for peer in self.peers if not peer.running()]
            if ended or time.monotonic() > deadline:
                said = "\n".join(peer.output()[-1000:] for peer in self.peers)
                raise LabError(f"Ceph's {what} is not ready:\n{said}")
            time.sleep(POLL_S)

    def stop(self) -> None:
        """Nothing is worth a goodbye: it is all in memory."""
        for peer in self.peers:
            peer.kill()

    def ceph(self, *words: object, check: bool = True, timeout_s: float = 30.0) -> Completed:
        return run([need("ceph"), "-c", self.conf, *words], check=check, timeout_s=timeout_s)

    def rbd(self, *words: object, check: bool = True, timeout_s: float = 60.0) -> Completed:
        return run([need("rbd"), "-c", self.conf, *words], check=check, timeout_s=timeout_s)

    def create(self, name: str, size: int, *options: object) -> str:
        """An image of so many bytes; its URL. Options are those of `rbd create`."""
        self.rbd("create", "--size", f"{size}B", *options, f"{POOL}/{name}")
        return self.url(name)

    def url(self, image: str) -> str:
        return f"rbd:{POOL}/{image}?conf={self.conf}"

    def watchers(self, image: str) -> int:
        """Clients that have the image open for writing, as far as the cluster knows."""
        told = json.loads(self.rbd("status", f"{POOL}/{image}", "--format", "json").stdout)
        return len(told["watchers"])


def _free_ports() -> tuple[int, int]:
    """Two that nobody listens on; held together, so that they differ."""
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """One for the length of a `with` block."""
    made = Cluster(folder)
    try:
        made.start()
        yield made
    finally:
        made.stop()
