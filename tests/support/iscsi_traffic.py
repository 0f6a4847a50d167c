"""A capture of any length, made up: valid pcap with iSCSI sessions, for pipes.

    python tests/support/iscsi_traffic.py 5G | enkaku diagnose --pcap - --port 3260

Sixteen connections take turns with writes of 64 KiB (command, R2T, Data-Out, response) and reads of
64 KiB, in segments of 1448 bytes with an acknowledgement for every second one. Of every eight
transactions one has a segment that the capture missed, and one a segment that was lost and sent
again. A connection ends after some megabytes and another one takes its place, with handshake and
login. The same length gives the same bytes.
"""

import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

INITIATOR, TARGET = 0, 1
PORT = 3260
SEGMENT = 1448
BLOCK = 64 << 10
DATA_SEGMENT = 8 << 10
SIDES = 16
CONNECTION_BYTES = 16 << 20
GAP_US, ROUND_TRIP_US = 12, 10_000
"""Between segments of a burst; between a question and its answer."""
FIN, SYN, PSH, ACK = 1, 2, 8, 16
PCAP_HEADER = struct.pack("<IHHIIII", 0xA1B2C3D4, 2, 4, 0, 0, 262_144, 101)
# Offsets in a record: pcap's header, IPv4, TCP with timestamps.
IP, TCP, PAYLOAD = 16, 36, 68
SECOND, AFTER_LOSS = 3, 5
"""Which of eight transactions misses a segment in the capture, and which one on the line."""


def bhs(opcode: int, flags: int, length: int, tag: int, *words: int) -> bytes:
    """A Basic Header Segment (RFC 7143 §11.2): `words` fill bytes 20 to 47."""
    head = struct.pack(">BBHB3sQI", opcode, flags, 0, 0, length.to_bytes(3, "big"), 0, tag)
    return head + struct.pack(f">{len(words)}I", *words).ljust(28, b"\0")


def command(write: bool, tag: int) -> bytes:
    cdb = (0x2A if write else 0x28) << 24
    return bhs(0x01, 0xA0 if write else 0xC0, 0, tag, BLOCK, tag, 1, cdb)


def write_turns(tag: int) -> list[tuple[int, bytes]]:
    """What each side says in turn for a write of one block."""
    r2t = bhs(0x31, 0x80, 0, tag, tag, 1, 1, 64, 0, 0, BLOCK)
    data = b"".join(
        bhs(0x05, 0x80 if at + DATA_SEGMENT == BLOCK else 0, DATA_SEGMENT, tag, tag, 0, 1, 0,
            at // DATA_SEGMENT, at) + bytes(DATA_SEGMENT)
        for at in range(0, BLOCK, DATA_SEGMENT)
    )
    response = bhs(0x21, 0x80, 0, tag, 0, 1, 1, 64)
    return [(INITIATOR, command(True, tag)), (TARGET, r2t), (INITIATOR, data), (TARGET, response)]


def read_turns(tag: int) -> list[tuple[int, bytes]]:
    """The same for a read; the last Data-In carries the status."""
    data = b"".join(
        bhs(0x25, 0x81 if at + DATA_SEGMENT == BLOCK else 0, DATA_SEGMENT, tag, 0xFFFFFFFF, 1, 1,
            64, at // DATA_SEGMENT, at) + bytes(DATA_SEGMENT)
        for at in range(0, BLOCK, DATA_SEGMENT)
    )
    return [(INITIATOR, command(False, tag)), (TARGET, data)]


def login_turns() -> list[tuple[int, bytes]]:
    """One Login Request and Response, straight to full-feature phase."""
    turns = []
    for side, opcode, text in (
        (INITIATOR, 0x43, b"InitiatorName=iqn.2026-01.lab:a\0SessionType=Normal\0"
                          b"TargetName=iqn.2026-01.lab:b\0HeaderDigest=None\0DataDigest=None\0"),
        (TARGET, 0x23, b"HeaderDigest=None\0DataDigest=None\0"),
    ):
        padded = text.ljust(-(-len(text) // 4) * 4, b"\0")
        turns.append((side, bhs(opcode, 0x87, len(text), 0) + padded))
    return turns


@dataclass
class Packet:
    """Where a packet of a template is, and what of it changes from use to use."""

    at: int
    side: int
    time_us: int
    seq: int
    ack: int


@dataclass
class Template:
    """Packets of one transaction, ready to be written again with other numbers."""

    connection: int
    out: bytearray = field(default_factory=bytearray)
    packets: list[Packet] = field(default_factory=list)
    sent: list[int] = field(default_factory=lambda: [0, 0])
    time_us: int = 0

    def packet(
        self, side: int, payload: bytes, flags: int, seq: int | None = None, ack: int | None = None
    ) -> None:
        ports = (10_000 + self.connection % 50_000, PORT)
        seq = self.sent[side] if seq is None else seq
        ack = self.sent[1 - side] if ack is None else ack
        self.packets.append(Packet(len(self.out), side, self.time_us, seq, ack))
        length = PAYLOAD - IP + len(payload)
        self.out += struct.pack("<IIII", 0, 0, length, length)
        addresses = bytes((10, 0, 0, 1 + side, 10, 0, 0, 2 - side))
        self.out += struct.pack(">BBHHHBBH", 0x45, 0, length, 0, 0x4000, 64, 6, 0) + addresses
        self.out += struct.pack(
            ">HHIIBBHHHBBBBII", ports[side], ports[1 - side], 0, 0, 0x80, flags, 0xFFFF, 0, 0,
            1, 1, 8, 10, 1, 1,
        )
        self.out += payload
        self.time_us += GAP_US

    def say(self, side: int, stream: bytes, missed: int | None, lost: int | None) -> None:
        """A turn in segments, captured at the initiator: what answers it comes a round trip later.

        `missed` is not captured; `lost` is sent again.
        """
        again, acks = None, []
        for number, at in enumerate(range(0, len(stream), SEGMENT)):
            payload = stream[at : at + SEGMENT]
            if number == lost:
                again = (self.sent[side], payload)
            elif number != missed:
                self.packet(side, payload, PSH | ACK)
            self.sent[side] += len(payload)
            # Behind a loss the receiver has nothing new to acknowledge.
            if number % 2 and again is None:
                acks.append(self.sent[side])
                if side == TARGET:
                    self.packet(INITIATOR, b"", ACK)
        if side == INITIATOR:
            self._acknowledge(acks)
        if again:
            self.time_us += ROUND_TRIP_US
            self.packet(side, again[1], PSH | ACK, again[0])
            self._acknowledge([self.sent[side]])

    def _acknowledge(self, acks: list[int]) -> None:
        """What the target acknowledges, a round trip after it was sent."""
        self.time_us += ROUND_TRIP_US
        for ack in acks:
            self.packet(TARGET, b"", ACK, ack=ack)

    def write(self, time_us: int, ip_id: int, base: list[int]) -> bytes:
        """The packets at this time; `base`: sequence numbers of both sides."""
        out = self.out
        for number, one in enumerate(self.packets):
            seconds, micros = divmod(time_us + one.time_us, 1_000_000)
            struct.pack_into("<II", out, one.at, seconds, micros)
            struct.pack_into(">H", out, one.at + IP + 4, (ip_id + number) % 0xFFFF + 1)
            seq = (base[one.side] + one.seq) & 0xFFFFFFFF
            ack = (base[1 - one.side] + one.ack) & 0xFFFFFFFF
            struct.pack_into(">II", out, one.at + TCP + 4, seq, ack)
        base[0] += self.sent[0]
        base[1] += self.sent[1]
        return bytes(out)


def template(connection: int, turns: list[tuple[int, bytes]], kind: int = 0) -> Template:
    made = Template(connection)
    for side, stream in turns:
        # In the middle of data there is no header to lose.
        long = len(stream) > 10 * SEGMENT
        made.say(side, stream, 3 if long and kind == SECOND else None,
                 3 if long and kind == AFTER_LOSS else None)
    return made


class Connection:
    """One TCP connection, from its handshake to its end."""

    def __init__(self, number: int):
        self.base = [number * 7919, number * 104_729]
        opening = Template(number)
        for side, flags in ((INITIATOR, SYN), (TARGET, SYN | ACK), (INITIATOR, ACK)):
            opening.packet(side, b"", flags)
            if flags & SYN:
                opening.sent[side] += 1
                opening.time_us += ROUND_TRIP_US * (side == INITIATOR)
        for side, stream in login_turns():
            opening.say(side, stream, None, None)
        self.opening = opening
        turns = {True: write_turns(number), False: read_turns(number)}
        self.kinds = {
            (write, kind): template(number, turns[write], kind)
            for write in turns for kind in (0, SECOND, AFTER_LOSS)
        }
        self.ending = Template(number)
        for side, flags in ((INITIATOR, FIN | ACK), (TARGET, FIN | ACK), (INITIATOR, ACK)):
            self.ending.packet(side, b"", flags)
            self.ending.sent[side] += bool(flags & FIN)
            self.ending.time_us += ROUND_TRIP_US * (side == INITIATOR)
        self.bytes = 0
        self.done = 0


@dataclass
class Traffic:
    """Makes the capture; what it holds is counted as it goes."""

    length: int
    sides: int = SIDES
    """Connections at a time. They take turns: of many, each is idle for most of the time."""
    packets: int = 0
    writes: int = 0
    reads: int = 0
    connections: int = 0

    def chunks(self) -> Iterator[bytes]:
        """The capture in pieces, of `length` bytes and what the last transaction has beyond."""
        yield PCAP_HEADER
        written, time_us = len(PCAP_HEADER), 1_700_000_000_000_000
        live: list[Connection | None] = [None] * self.sides
        turn = 0
        while written < self.length:
            one = live[turn % self.sides]
            if one is None:
                one = live[turn % self.sides] = Connection(self.connections)
                self.connections += 1
                made = one.opening
            elif one.bytes > CONNECTION_BYTES:
                made, live[turn % self.sides] = one.ending, None
            else:
                write, kind = one.done % 3 != 0, one.done % 8
                made = one.kinds[write, kind if kind in (SECOND, AFTER_LOSS) else 0]
                one.done += 1
                self.writes += write
                self.reads += not write
            chunk = made.write(time_us, self.packets % 60_000, one.base)
            one.bytes += len(chunk)
            self.packets += len(made.packets)
            time_us += made.time_us
            written += len(chunk)
            turn += 1
            yield chunk


def main() -> None:
    units = {"K": 10, "M": 20, "G": 30}
    text = sys.argv[1]
    shift = units.get(text[-1:].upper(), 0)
    length = int(float(text.rstrip("kKmMgG")) * (1 << shift))
    traffic = Traffic(length)
    for chunk in traffic.chunks():
        sys.stdout.buffer.write(chunk)
    sys.stdout.buffer.flush()
    print(traffic, file=sys.stderr)


if __name__ == "__main__":
    main()
