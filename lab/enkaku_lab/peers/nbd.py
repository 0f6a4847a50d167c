"""NBD servers of others: nbdkit with its filters, and qemu-nbd, each on a Unix socket of its own, that can
be killed and started again.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from enkaku_lab.peers import need
from enkaku_lab.process import Peer


class Server:
    """A server on a Unix socket."""

    def __init__(self, peer: Peer, socket: Path):
        self.peer, self.socket = peer, socket
        self._wait()

    def _wait(self) -> None:
        self.peer.wait_until(self.socket.exists, "makes no socket")

    @property
    def url(self) -> str:
        return f"nbd+unix:///?socket={self.socket}"

    def kill(self) -> None:
        """As `kill -9` does; what is left of its socket goes, as an init script would see to."""
        self.peer.kill()
        self.socket.unlink(missing_ok=True)

    def restart(self) -> None:
        self.peer.restart()
        self._wait()


@contextmanager
def _server(argv: list[object], socket: Path, logs: Path, name: str) -> Iterator[Server]:
    peer = Peer(argv, logs / f"{name}.log")
    try:
        yield Server(peer, socket)
    finally:
        peer.stop()
        socket.unlink(missing_ok=True)


@contextmanager
def nbdkit(logs: Path, *words: object, name: str = "nbdkit") -> Iterator[Server]:
    """`nbdkit WORDS`, in the foreground."""
    socket = logs / f"{name}.sock"
    argv = [need("nbdkit"), "-f", "-U", socket, *words]
    with _server(argv, socket, logs, name) as server:
        yield server


@contextmanager
def qemu_nbd(logs: Path, image: Path, *words: object, name: str = "qemu-nbd") -> Iterator[Server]:
    """`qemu-nbd WORDS IMAGE`, for any number of clients, one after the other and together."""
    socket = logs / f"{name}.sock"
    argv = [need("qemu-nbd"), "-t", "-e", "8", "-k", socket, *words, image]
    with _server(argv, socket, logs, name) as server:
        yield server
