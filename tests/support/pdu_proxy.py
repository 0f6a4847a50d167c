"""A proxy that cuts both directions of iSCSI connections into PDUs and lets a function change them:
it makes a broken target out of a good one. It knows the framing, with digests, and nothing else.
`pdu_faults` has functions that break the connection itself at chosen PDUs.
"""

import re
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

BHS = 48
PATIENCE_S = 20.0
LOGIN_RESPONSE = 0x23
NO_TIME = struct.pack("ii", 1, 0)
"""SO_LINGER: closing sends RST instead of FIN."""


@dataclass
class Pdu:
    """Header, AHS, data without padding, and what follows the data (padding, digest) as it came."""

    bhs: bytearray
    ahs: bytes = b""
    data: bytes = b""
    trailer: bytes | None = None
    header_digest: bytes = b""

    @property
    def opcode(self) -> int:
        return self.bhs[0] & 0x3F

    def number(self, at: int) -> int:
        return struct.unpack_from(">I", self.bhs, at)[0]

    def put(self, at: int, value: int) -> None:
        struct.pack_into(">I", self.bhs, at, value & 0xFFFFFFFF)

    def replace(self, data: bytes) -> None:
        """Other data; without a digest, which nobody here can compute."""
        self.data, self.trailer = data, None

    def encoded(self) -> bytes:
        self.bhs[5:8] = len(self.data).to_bytes(3)
        trailer = self.trailer if self.trailer is not None else bytes(-len(self.data) % 4)
        return bytes(self.bhs) + self.ahs + self.header_digest + self.data + trailer


@dataclass
class Link:
    """One connection of the initiator, by its number in the order they came."""

    number: int
    client: socket.socket
    server: socket.socket
    framing: dict[str, bool] = field(default_factory=dict)
    notes: dict = field(default_factory=dict)
    """What the function remembers of this connection."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    was_reset: bool = False

    def reset(self) -> None:
        """Both ends get a TCP reset. What is still to be read here is thrown away."""
        self.was_reset = True
        for end in (self.client, self.server):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_TIME)
            # Only wakes whoever waits for it here; nothing of it is on the wire.
            with suppress(OSError):
                end.shutdown(socket.SHUT_RD)
            end.close()

    def to_client(self, *pdus: Pdu) -> None:
        with self.lock:
            self.client.sendall(b"".join(pdu.encoded() for pdu in pdus))


Change = Callable[["PduProxy", Link, Pdu, bool], list[Pdu] | None]
"""(proxy, link, PDU, whether it comes from the target) → PDUs to pass on; None closes the link."""


class PduProxy:
    """Listens on a port of its own; a context manager."""

    def __init__(self, port: int, change: Change, keep_open: bool = False):
        """With `keep_open`, an end of the connection by the target does not reach the initiator."""
        self.links: list[Link] = []
        self.notes: dict = {}
        self._target, self._change, self._keep_open = port, change, keep_open
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._accepting = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> "PduProxy":
        self._accepting.start()
        return self

    def __exit__(self, *_) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join(PATIENCE_S)
        for link in self.links:
            _shut(link.client)
            _shut(link.server)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._target), timeout=PATIENCE_S)
            except OSError:
                client.close()  # nobody is there, as the initiator would find by itself
                continue
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                end.settimeout(None)
            link = Link(len(self.links), client, server)
            self.links.append(link)
            for from_target in (False, True):
                arguments = (link, from_target)
                threading.Thread(target=self._pump, args=arguments, daemon=True).start()

    def _pump(self, link: Link, from_target: bool) -> None:
        source, sink = link.client, link.server
        if from_target:
            source, sink = sink, source
        try:
            while pdu := _read(source, link):
                passed = self._change(self, link, pdu, from_target)
                if passed is None:
                    _shut(link.client)
                    break
                if from_target:
                    # Before the initiator has it and answers with a digest.
                    _learn(link, pdu)
                    link.to_client(*passed)
                else:
                    sink.sendall(b"".join(each.encoded() for each in passed))
        except OSError:
            pass
        if not (link.was_reset or from_target and self._keep_open):
            _shut(sink)


def _learn(link: Link, pdu: Pdu) -> None:
    """Digests begin behind the final Login Response."""
    if pdu.opcode != LOGIN_RESPONSE:
        return
    names = ("HeaderDigest", "DataDigest")
    for name in names:
        if re.search(rb"(^|\0)%s=CRC32C\0" % name.encode(), pdu.data):
            link.notes[name] = True
    if pdu.bhs[1] & 0x83 == 0x83:
        link.framing = {name: link.notes.get(name, False) for name in names}


def _read(source: socket.socket, link: Link) -> Pdu | None:
    bhs = _exactly(source, BHS)
    if bhs is None:
        return None
    framing = link.framing
    length = int.from_bytes(bhs[5:8])
    ahs = _exactly(source, bhs[4] * 4)
    digest = _exactly(source, 4 if framing.get("HeaderDigest") else 0)
    data = _exactly(source, length)
    more = -length % 4 + (4 if framing.get("DataDigest") and length else 0)
    trailer = _exactly(source, more)
    if ahs is None or digest is None or data is None or trailer is None:
        return None
    return Pdu(bytearray(bhs), ahs, data, trailer, digest)


def _exactly(source: socket.socket, length: int) -> bytes | None:
    found = bytearray()
    while len(found) < length:
        piece = source.recv(length - len(found))
        if not piece:
            return None
        found += piece
    return bytes(found)


def _shut(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # the other side was quicker
