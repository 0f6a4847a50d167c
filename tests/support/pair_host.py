"""What a host does at the daemons of a pair: logins, persistent reservations, access states (SPC-4)."""

import struct
from collections.abc import Iterator
from contextlib import contextmanager

from support.daemon import NAME_A, Daemon
from support.faulty_volume import until

from enkaku_lab.peers.libiscsi_session import Outcome, Session, session

ONE, TWO = (f"iqn.2026-11.org.example:host{number}" for number in (1, 2))
GOOD, CHECK_CONDITION, BUSY, RESERVATION_CONFLICT = 0, 2, 8, 0x18
NOT_READY, UNIT_ATTENTION = 2, 6
IN_STANDBY, STATE_CHANGED, PREEMPTED = 0x040B, 0x2A06, 0x2A05
REGISTER, RESERVE, PREEMPT = 0, 1, 4
WRITE_EXCLUSIVE = 1
ACTIVE, STANDBY = 0, 2


@contextmanager
def login(daemon: Daemon, host: str) -> Iterator[Session]:
    with session(daemon.portal, NAME_A, host) as made:
        # Until it has heard of the other: that is a unit attention, too.
        become(made, {1, 2})
        yield made


def ready(host: Session) -> None:
    """Takes what it is told first."""
    until(lambda: host.test_unit_ready().status == GOOD, "unit attentions have no end")


def reserve_out(host: Session, action: int, key: int = 0, new: int = 0, kind: int = 0) -> Outcome:
    cdb = struct.pack(">BBB2xIx", 0x5F, action, kind, 24)
    return host.command(cdb, struct.pack(">QQ8x", key, new))


def keys(host: Session) -> list[int]:
    data = host.command(struct.pack(">BB5xHx", 0x5E, 0, 256), room=256).data
    length = struct.unpack_from(">I", data, 4)[0]
    return [key for (key,) in struct.iter_unpack(">Q", data[8 : 8 + length])]


def write(host: Session) -> Outcome:
    return host.command(struct.pack(">BBQIBB", 0x8A, 0, 0, 1, 0, 0), bytes(512))


def read(host: Session) -> Outcome:
    done = host.command(struct.pack(">BBQIBB", 0x88, 0, 0, 1, 0, 0), room=512)
    return Outcome(done.status, done.key, done.ascq)


def port_groups(host: Session) -> dict[int, int]:
    """REPORT TARGET PORT GROUPS: states by group."""
    data = host.command(struct.pack(">BB4xIxx", 0xA3, 0x0A, 64), room=64).data
    if not data:  # a unit attention came first
        return {}
    length = struct.unpack_from(">I", data)[0]
    return {
        group: state & 0xF
        for state, _, group, _, _, ports, _ in struct.iter_unpack(">BBHBBxBI", data[4 : 4 + length])
        if ports == 1
    }


def become(host: Session, groups: dict[int, int] | set[int]) -> None:
    """Waits until it is told of these groups, with these states."""

    def told() -> bool:
        ready(host)
        found = port_groups(host)
        return found == groups if isinstance(groups, dict) else set(found) == groups

    until(told, f"it is not told of {groups}")
    ready(host)
