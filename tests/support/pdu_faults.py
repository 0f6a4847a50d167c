"""Faults at chosen PDUs of a connection: it is reset, half closed, held up, or the PDU is damaged or lost.

For tests that ask what happens when the network fails at exactly this point. A fault is a point and an
action; each strikes once, in the order given, and `struck` tells which have.

    faults = PduFaults((TUR_ANSWER, reset), (TUR_ANSWER, reset), (FLUSH_ANSWER, damage))
    with PduProxy(target.port, faults) as proxy: …

Points are looked for in either direction. That a PDU is the answer to a command is known from its tag,
so both have to pass on the same connection (error recovery levels 0 and 1).
"""

import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass

from support.pdu_proxy import Link, Pdu, PduProxy

LOGIN, SCSI_COMMAND = 0x03, 0x01
LOGIN_RESPONSE, SCSI_RESPONSE, NOP_IN = 0x23, 0x21, 0x20
TEST_UNIT_READY, FLUSHES = 0x00, (0x35, 0x91)
WRITES = (0x0A, 0x2A, 0x8A)
FUA = 0x08
CHECK_CONDITION = 0x02
TAG, STATUS, CDB = 16, 3, 32
HOLD_S_MAX = 20.0


@dataclass(frozen=True)
class Point:
    """A PDU of one direction that `chosen` knows; the command's CDB is known for its answers, too."""

    name: str
    from_target: bool
    chosen: Callable[[Pdu, bytes], bool]

    def __str__(self) -> str:
        return self.name


def _answer(operations: tuple[int, ...]) -> Callable[[Pdu, bytes], bool]:
    return lambda pdu, cdb: pdu.opcode == SCSI_RESPONSE and cdb[:1] != b"" and cdb[0] in operations


def _command(operations: tuple[int, ...]) -> Callable[[Pdu, bytes], bool]:
    return lambda pdu, cdb: pdu.opcode == SCSI_COMMAND and cdb[0] in operations


LOGIN_REQUEST = Point("login", False, lambda pdu, _: pdu.opcode == LOGIN)
LOGIN_ANSWER = Point("login answer", True, lambda pdu, _: pdu.opcode == LOGIN_RESPONSE)
TUR = Point("TUR", False, _command((TEST_UNIT_READY,)))
TUR_ANSWER = Point("TUR answer", True, _answer((TEST_UNIT_READY,)))
SENSE = Point(
    "sense", True,
    lambda pdu, _: pdu.opcode == SCSI_RESPONSE and pdu.bhs[STATUS] == CHECK_CONDITION,
)
WRITE = Point("write", False, _command(WRITES))
WRITE_ANSWER = Point("write answer", True, _answer(WRITES))
FLUSH = Point("flush", False, _command(FLUSHES))
FLUSH_ANSWER = Point("flush answer", True, _answer(FLUSHES))

Action = Callable[["PduFaults", Link, Pdu, bool], list[Pdu] | None]
"""What becomes of the PDU: others in its place, none, or None for the end of this direction."""


def reset(_: "PduFaults", link: Link, __: Pdu, ___: bool) -> None:
    """Both ends get a TCP reset; the PDU does not arrive."""
    link.reset()


def half_close(_: "PduFaults", link: Link, __: Pdu, from_target: bool) -> list[Pdu]:
    """The receiver of the PDU gets an end of file in its place, and may go on to send."""
    (link.client if from_target else link.server).shutdown(socket.SHUT_WR)
    return []


def lose(_: "PduFaults", __: Link, ___: Pdu, ____: bool) -> list[Pdu]:
    """The PDU is gone, the connection stays: somebody has to give up waiting."""
    return []


def damage(_: "PduFaults", __: Link, pdu: Pdu, ___: bool) -> list[Pdu]:
    """One bit of the last field of the header that is common to all: the digest has to see it, or, in
    a login, which has none, the receiver."""
    pdu.bhs[TAG + 3] ^= 0x40
    return [pdu]


def hold(faults: "PduFaults", _: Link, pdu: Pdu, __: bool) -> list[Pdu]:
    """This and all behind it wait until the test calls `let_go`, with a bound."""
    faults.released.wait(HOLD_S_MAX)
    return [pdu]


class PduFaults:
    """The `Change` of a PduProxy. Without faults, or when all have struck, it passes everything on."""

    def __init__(self, *faults: tuple[Point, Action]):
        self._faults = list(faults)
        self._lock = threading.Lock()
        self.released = threading.Event()
        self.struck: list[str] = []

    def arm(self, *faults: tuple[Point, Action]) -> None:
        """These as well, behind what is armed."""
        with self._lock:
            self._faults += faults

    @property
    def left(self) -> int:
        with self._lock:
            return len(self._faults)

    def let_go(self) -> None:
        self.released.set()

    def __call__(self, _: PduProxy, link: Link, pdu: Pdu, from_target: bool) -> list[Pdu] | None:
        cdbs = link.notes.setdefault("cdb", {})
        tag = pdu.number(TAG)
        if pdu.opcode == SCSI_COMMAND and not from_target:
            cdbs[tag] = bytes(pdu.bhs[CDB : CDB + 16])
        cdb = cdbs.get(tag, b"") if pdu.opcode in (SCSI_COMMAND, SCSI_RESPONSE) else b""
        with self._lock:
            if not self._faults:
                return [pdu]
            point, action = self._faults[0]
            if point.from_target != from_target or not point.chosen(pdu, cdb):
                return [pdu]
            self._faults.pop(0)
            self.struck.append(f"{point} {action.__name__}")
        return action(self, link, pdu, from_target)
