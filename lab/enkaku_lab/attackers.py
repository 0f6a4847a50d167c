"""Peers without manners, for tests and experiments that attack a target of their own: a network that
nothing leaves, connections of one host from as many addresses as it has, and a session of plain PDUs
that does as it is told.
"""

import ctypes
import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

from enkaku_lab.peers import enkaku, need
from enkaku_lab.process import run

PORT = 3260
"""Of the target; in a network of one's own nobody else has it."""
PATIENCE_S = 30.0
CLONE_NEWNET = 0x4000_0000
IPV6_FREEBIND = 78

_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def network() -> Iterator[None]:
    """A network of this thread, and of the threads and processes that it starts: loopback only, on
    which every address of 2001:db8::/64 is ours."""
    with open("/proc/thread-self/ns/net") as before:
        assert _libc.unshare(CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
        try:
            run([need("ip"), "link", "set", "lo", "up"])
            run([need("ip"), "-6", "route", "add", "local", "2001:db8::/64", "dev", "lo"])
            yield
        finally:
            assert _libc.setns(before.fileno(), CLONE_NEWNET) == 0


def one_host(family: str) -> Callable[[], socket.socket]:
    """What makes a connection of one host: from its IPv4 address, or each from another address of its
    IPv6 /64."""
    numbers = count(1)

    def connect() -> socket.socket:
        if family == "ipv4":
            return dial("127.0.0.66")
        return dial(f"2001:db8::bad:{next(numbers):x}")

    return connect


def dial(source: str) -> socket.socket:
    is_ipv6 = ":" in source
    connection = socket.socket(socket.AF_INET6 if is_ipv6 else socket.AF_INET)
    connection.settimeout(PATIENCE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if is_ipv6:  # routed to us, although no interface has it
        connection.setsockopt(socket.IPPROTO_IPV6, IPV6_FREEBIND, 1)
    connection.bind((source, 0))
    connection.connect(("2001:db8::1" if is_ipv6 else "127.0.0.1", PORT))
    return connection


def login_pdu(name: str, number: int, text: str = "", transit: bool = True) -> bytes:
    """A login that needs one request; without `transit` it goes no further."""
    pairs = f"InitiatorName={name}\0TargetName={enkaku.IQN}\0SessionType=Normal\0{text}".encode()
    isid = b"\x80" + struct.pack(">I", number)[1:] + b"\0\1"
    flags = 0x87 if transit else 0x04
    head = struct.pack(">BBBBI6sHIHHII", 0x43, flags, 0, 0, len(pairs), isid, 0, 1, 1, 0, 1, 0)
    return head.ljust(48, b"\0") + pairs + b"\0" * (-len(pairs) % 4)


class Session:
    """A session of one connection that does as it is told. ITT and CmdSN are one number."""

    def __init__(self, connection: socket.socket, name: str, number: int, text: str = ""):
        self.connection = connection
        self.number = 0
        connection.sendall(login_pdu(name, number, text))
        answer = self.read()
        assert answer[0] == 0x23 and answer[36:38] == b"\0\0", answer[:48].hex()

    def read(self) -> bytes:
        """One PDU, without padding."""
        head = self.exactly(48)
        length = int.from_bytes(head[5:8])
        return head + self.exactly(length + -length % 4)[:length]

    def exactly(self, length: int) -> bytes:
        got = b""
        while len(got) < length:
            more = self.connection.recv(length - len(got))
            assert more, "the connection has ended"
            got += more
        return got

    def pdu(
        self, cdb: bytes, data: bytes = b"", expects: int = 0, sends: int | None = None, lun: int = 0
    ):
        """A command: with data, or data that is only promised (`sends`), or room for an answer."""
        self.number += 1
        flags = 0x80 | (0x40 if expects else 0) | (0x20 if sends or data else 0) | 1
        length = expects or sends or len(data)
        head = struct.pack(
            ">BBHIQIIII", 1, flags, 0, len(data), lun << 48, self.number, length, self.number, 0
        )
        return head + cdb.ljust(16, b"\0") + data

    def command(
        self, cdb: bytes, data: bytes = b"", expects: int = 0, lun: int = 0
    ) -> tuple[int, bytes]:
        """Status, and the data that came."""
        self.connection.sendall(self.pdu(cdb, data, expects, lun=lun))
        came = b""
        while True:
            answer = self.read()
            if answer[0] == 0x25:
                came += answer[48:]
            if answer[0] == 0x21 or answer[0] == 0x25 and answer[1] & 1:
                return answer[3], came

    def hears_the_news(self, lun: int = 0) -> None:
        """Unit attentions come first."""
        while self.command(bytes(6), lun=lun)[0] != 0:
            pass

    def writes_and_reads(self, number: int, rounds: int = 5, lun: int = 0) -> None:
        lba = number * 8
        for turn in range(rounds):
            data = bytes([number, turn]) * 2048
            write = struct.pack(">BBIBHB", 0x2A, 0, lba, 0, 8, 0)
            assert self.command(write, data, lun=lun)[0] == 0
            read = struct.pack(">BBIBHB", 0x28, 0, lba, 0, 8, 0)
            assert self.command(read, expects=len(data), lun=lun) == (0, data)
