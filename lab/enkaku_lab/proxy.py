"""A TCP proxy that harms chosen connections: it swallows what one of them carries, then resets it.

For faults of single connections of a session with a peer whose own machine cannot be told to drop
packets. Bytes pass unchanged otherwise.
"""

import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from enkaku_lab.process import POLL_S, LabError

PIECE_BYTES = 65536
CONDITION_S_MAX = 60.0
LOOK_MS = 20
"""How soon a link notices that it is to be reset."""
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER of no time: closing sends RST instead of FIN."""


class _Way:
    """One direction of a link: what was read and not yet written."""

    def __init__(self, source: socket.socket, sink: socket.socket):
        self.source = source
        self.sink = sink
        self.waiting = b""
        self.bytes = 0
        self.ended = False


class Link:
    """One proxied connection, served by a thread of its own."""

    def __init__(
        self, client: socket.socket, server: socket.socket, opened_beside: int, pause_s: float = 0.0
    ):
        self.pause_s = pause_s
        """After each piece."""
        self.opened_beside = opened_beside
        """Connections of the initiator that were open when this one came."""
        self.dropped = 0
        """Bytes that were swallowed."""
        self.open = True
        self._there = _Way(client, server)
        self._back = _Way(server, client)
        self._dropping = False
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def to_target(self) -> int:
        return self._there.bytes

    @property
    def from_target(self) -> int:
        return self._back.bytes

    @property
    def client_open(self) -> bool:
        """Whether the initiator still has its end open."""
        return self.open and not self._there.ended

    @property
    def carried(self) -> int:
        return self.to_target + self.from_target

    def drop(self) -> None:
        """From now on nothing arrives, in either direction; neither end is told."""
        self._dropping = True

    def reset(self) -> None:
        """Both ends get a TCP reset."""
        self.open = False
        self._thread.join()

    def _serve(self) -> None:
        ways = (self._there, self._back)
        try:
            while self.open and not all(way.ended for way in ways):
                self._step(ways)
        except OSError:
            pass  # one end was reset, so the other one is, too
        if not all(way.ended for way in ways):
            for way in ways:
                way.source.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self.open = False
        for way in ways:
            way.source.close()

    def _step(self, ways: tuple[_Way, _Way]) -> None:
        poller = select.poll()
        wanted: dict[int, int] = {}
        for way in ways:
            if way.waiting:
                wanted[way.sink.fileno()] = wanted.get(way.sink.fileno(), 0) | select.POLLOUT
            elif not way.ended:
                wanted[way.source.fileno()] = wanted.get(way.source.fileno(), 0) | select.POLLIN
        for descriptor, events in wanted.items():
            poller.register(descriptor, events)
        ready = dict(poller.poll(LOOK_MS))
        for way in ways:
            if way.waiting and way.sink.fileno() in ready:
                self._write(way)
            elif not way.waiting and not way.ended and way.source.fileno() in ready:
                self._read(way)

    def _read(self, way: _Way) -> None:
        with suppress(BlockingIOError):
            way.waiting = way.source.recv(PIECE_BYTES)
            time.sleep(self.pause_s)
            if not way.waiting:
                way.ended = True
                if not self._dropping:
                    way.sink.shutdown(socket.SHUT_WR)
        if self._dropping:
            self.dropped += len(way.waiting)
            way.waiting = b""

    def _write(self, way: _Way) -> None:
        with suppress(BlockingIOError):
            sent = way.sink.send(way.waiting)
            way.bytes += sent
            way.waiting = way.waiting[sent:]


class Proxy:
    """Listens on a free port of 127.0.0.1 and leads to another one; a context manager."""

    def __init__(self, target_port: int):
        self.links: list[Link] = []
        self._target = ("127.0.0.1", target_port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0.1)
        self._closing = False
        self._down = False
        self._pause_s = 0.0
        self._changing = threading.Lock()
        self._thread = threading.Thread(target=self._accept, daemon=True)

    @property
    def port(self) -> int:
        return self._listener.getsockname()[1]

    def __enter__(self) -> "Proxy":
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._closing = True
        self._thread.join()
        self._listener.close()
        for link in self.links:
            link.reset()

    def carried(self) -> int:
        """Bytes of all connections so far, both directions."""
        return sum(link.carried for link in self.links)

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + CONDITION_S_MAX
        while not condition():
            if time.monotonic() > deadline:
                seen = ", ".join(f"{link.to_target}/{link.from_target}" for link in self.links)
                raise LabError(f"never: {what}; bytes to/from the target by connection: {seen}")
            time.sleep(POLL_S)

    def limit(self, bytes_per_s: float | None) -> None:
        """So much a connection from now on, about; without a number as much as there is."""
        self._pause_s = PIECE_BYTES / bytes_per_s if bytes_per_s else 0.0
        for link in list(self.links):
            link.pause_s = self._pause_s

    def cut(self, *, reset: bool) -> None:
        """The line is down until `mend`: every connection gets a reset, or loses its bytes without a
        word to either end; a new one is closed at once."""
        with self._changing:
            self._down = True
        for link in list(self.links):
            if link.open and reset:
                link.reset()
            elif link.open:
                link.drop()

    def mend(self) -> None:
        """New connections lead to the target again. Those that lost bytes are reset."""
        for link in list(self.links):
            if link.open:
                link.reset()
        with self._changing:
            self._down = False

    def cut_one(self, after_bytes: int) -> Link:
        """When so much has passed: the busiest connection loses bytes, then is reset."""
        self.wait_until(lambda: self.carried() >= after_bytes, f"{after_bytes} bytes pass")
        link = max(self.links, key=lambda each: each.carried if each.open else -1)
        link.drop()
        self.wait_until(lambda: link.dropped > 0, "the connection loses bytes")
        link.reset()
        return link

    def _accept(self) -> None:
        while not self._closing:
            try:
                client, _ = self._listener.accept()
            except TimeoutError:
                continue
            with self._changing:
                self._connect(client)

    def _connect(self, client: socket.socket) -> None:
        try:
            if self._down:
                raise ConnectionRefusedError
            server = socket.create_connection(self._target)
        except OSError:
            client.close()
            return
        for end in (client, server):
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        beside = sum(link.client_open for link in self.links)
        self.links.append(Link(client, server, beside, self._pause_s))
