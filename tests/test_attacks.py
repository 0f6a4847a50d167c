"""A target under attack, in a network namespace of the test's own: whatever one host does, from one
IPv4 address or from all of an IPv6 /64, ten honest initiators log in at their first attempt and read
back what they wrote, memory stays within `limits.memory` and a constant, the log within a rate, and
/health answers. PDU by PDU the attacks are in crates/iscsi/tests; docs/security.md lists them.

Load is bounded in number and time, and never leaves the namespace.
"""

import os
import resource
import socket
import struct
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest
from conftest import MIB
from support.storage import Storage

from enkaku_lab.attackers import PORT, Session, dial, login_pdu, network, one_host
from enkaku_lab.peers import enkaku, need
from enkaku_lab.process import Peer, peer

pytestmark = pytest.mark.needs("root", "ip")

METRICS_PORT = 9260
SIZE = 64 * MIB
HONEST = 10
HONEST_FROM = "127.0.1."
"""Ten addresses of their own."""
MEMORY = 128 * MIB
"""`limits.memory`: the least that is allowed."""
BEYOND_MEMORY = 160 * MIB
"""Resident memory that is not charged to anybody: the program, buffers kept for reuse (32 MiB for each
size of 4 KiB to 4 MiB that is in use), 256 KiB to receive in for each connection, the allocator's own."""
LINES_A_MINUTE = 1200
"""docs/security.md, "Limits"."""
HEALTH_S = 1.0
PATIENCE_S = 30.0

CONFIG = """
[server]
admin_socket = "{folder}/admin.sock"
[metrics]
listen = "127.0.0.1:{metrics}"
[limits]
memory = "{memory}"
[[portal]]
name = "here"
listen = "[::]:{port}"
[[target]]
name = "{iqn}"
anyone = true
[[target.lun]]
number = 0
path = "{disk}"
write_cache = false
"""

@dataclass
class Fortress:
    """A daemon that is attacked."""

    peer: Peer
    folder: Path

    def resident_bytes(self) -> int:
        status = Path(f"/proc/{self.peer.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) << 10

    def memory_charged(self) -> int:
        return enkaku.report("target", "status", "--socket", self.folder / "admin.sock")[
            "memory_bytes"
        ]

    def lines(self) -> int:
        return len(self.peer.output().splitlines())

    def health_s(self) -> float:
        begin = time.monotonic()
        url = f"http://127.0.0.1:{METRICS_PORT}/health"
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            assert answer.status == 200
        return time.monotonic() - begin

    def holds(self, begin: float) -> None:
        """What has to hold at any time after an attack that began then."""
        assert self.peer.running() and "panicked" not in self.peer.output(), self.peer.output()
        resident = self.resident_bytes()
        assert resident <= MEMORY + BEYOND_MEMORY, f"{resident >> 20} MiB resident"
        minutes = 1 + (time.monotonic() - begin) / 60
        assert self.lines() <= LINES_A_MINUTE * minutes, f"{self.lines()} lines"
        health_s = min(self.health_s() for _ in range(3))  # the machine may be busy otherwise
        assert health_s <= HEALTH_S, f"/health took {health_s:.2f} s"


@contextmanager
def fortress(
    folder: Path,
    disk: Path | str,
    open_files: int | None = None,
    more: str = "",
    env: dict[str, str] | None = None,
) -> Iterator[Fortress]:
    config = folder / "target.toml"
    values = {"port": PORT, "metrics": METRICS_PORT, "iqn": enkaku.IQN, "memory": MEMORY}
    config.write_text(CONFIG.format(folder=folder, disk=disk, **values) + more)
    argv = [enkaku.binary(), "target", "run", "--config", config]
    if open_files:
        argv = [need("prlimit"), f"--nofile={open_files // 2}:{open_files}", *argv]
    with network(), peer(argv, folder / "daemon.log", env=env) as running:
        running.wait_for_output("metrics on")
        yield Fortress(running, folder)


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Fortress]:
    disk = tmp_path / "lun0.img"
    with open(disk, "wb") as file:
        file.truncate(SIZE)
    with fortress(tmp_path, disk) as made:
        yield made


@pytest.fixture(params=["ipv4", "ipv6"])
def attacker(request) -> Callable[[], socket.socket]:
    """Connections of one host: from its IPv4 address, or each from another of its /64."""
    return one_host(request.param)


def honest(number: int) -> Session:
    """Logs in at the first attempt."""
    name = f"iqn.2026-11.org.example:honest-{number}"
    session = Session(dial(f"{HONEST_FROM}{number + 1}"), name, number)
    session.hears_the_news()
    return session


def all_is_well(target: Fortress, begin: float) -> None:
    """Ten honest initiators come, write and read; memory, log and health are as promised."""
    for number in range(HONEST):
        session = honest(number)
        session.writes_and_reads(number)
        session.connection.close()
        target.holds(begin)


@contextmanager
def meanwhile(attack: Callable[[], None]) -> Iterator[None]:
    """Repeats the attack, in another thread, until the block ends."""
    stop, errors = threading.Event(), []

    def work() -> None:
        try:
            while not stop.is_set():
                attack()
        except Exception as error:  # told to the test
            errors.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        yield
    finally:
        stop.set()
        worker.join()
    assert not errors, errors


@pytest.mark.parametrize("said", ["nothing", "half a login"])
def test_logins_that_go_nowhere(target: Fortress, attacker, said: str):
    """Connections that say nothing, or begin a login and stop, hundreds at a time and without end."""
    begin = time.monotonic()
    crowd: list[socket.socket] = []
    hello = b"" if said == "nothing" else login_pdu("iqn.2026-11.org.example:x", 1, transit=False)

    def attack() -> None:
        crowd.append(attacker())
        try:
            crowd[-1].sendall(hello)
        except ConnectionError:
            pass  # shown out already
        if len(crowd) > 400:
            crowd.pop(0).close()

    for _ in range(300):
        attack()
    with meanwhile(attack):
        all_is_well(target, begin)
    for connection in crowd:
        connection.close()


def test_write_same_by_the_hundred(target: Fortress, attacker):
    """Two sessions of 500 WRITE SAME(16) of 16 MiB each, with a block of data."""
    begin = time.monotonic()
    sessions = []
    cdb = struct.pack(">BBQIBB", 0x93, 0, (SIZE - 16 * MIB) // 512, 16 * MIB // 512, 0, 0)
    for number in range(2):
        session = Session(attacker(), "iqn.2026-11.org.example:same", number)
        session.hears_the_news()
        session.connection.sendall(
            b"".join(session.pdu(cdb, b"\x5a" * 512) for _ in range(500))
        )
        sessions.append(session)
    all_is_well(target, begin)
    for session in sessions:
        session.connection.close()


def test_a_fragmented_unit_is_asked_for_its_holes(target: Fortress, attacker):
    """500 GET LBA STATUS that want eight bytes each, on a file with 8,192 holes."""
    with open(target.folder / "lun0.img", "r+b") as file:
        for at in range(0, SIZE, 8192):
            os.pwrite(file.fileno(), b"\1" * 4096, at)
    begin = time.monotonic()
    session = Session(attacker(), "iqn.2026-11.org.example:holes", 1)
    session.hears_the_news()
    cdb = struct.pack(">BBQIBB", 0x9E, 0x12, 0, 8, 0, 0)
    session.connection.sendall(b"".join(session.pdu(cdb, expects=8) for _ in range(500)))
    all_is_well(target, begin)
    threads = len(list(Path(f"/proc/{target.peer.pid}/task").iterdir()))
    assert threads < 40, f"{threads} threads"
    session.connection.close()


def test_ping_data_that_is_never_acknowledged(target: Fortress, attacker):
    """48 sessions at error recovery level 1, of 31 pings with 256 KiB each."""
    begin = time.monotonic()
    text = "ErrorRecoveryLevel=1\0MaxRecvDataSegmentLength=262144\0"
    kept, length = [], 256 << 10
    for number in range(48):
        session = Session(attacker(), "iqn.2026-11.org.example:pings", number, text)
        kept.append(session)
        try:
            for itt in range(1, 32):
                head = struct.pack(">BBHIQIIII", 0x40, 0x80, 0, length, 0, itt, 0xFFFFFFFF, 1, 0)
                session.connection.sendall(head.ljust(48, b"\0") + bytes(length))
                assert session.read()[0] == 0x20
        except (AssertionError, ConnectionError):
            pass  # shown out: its name has no more memory
    assert target.memory_charged() > 16 * MIB
    all_is_well(target, begin)
    for session in kept:
        session.connection.close()


def test_promises_of_data_that_never_comes(target: Fortress, attacker):
    """84 writes of 16 MiB of which 512 bytes come, from six sessions of two names."""
    begin = time.monotonic()
    cdb = struct.pack(">BBQIBB", 0x8A, 0, 0, 16 * MIB // 512, 0, 0)
    kept = []
    for number in range(6):
        session = Session(attacker(), f"iqn.2026-11.org.example:p{number % 2}", number)
        session.hears_the_news()
        promises = (session.pdu(cdb, b"\1" * 512, sends=16 * MIB) for _ in range(14))
        session.connection.sendall(b"".join(promises))
        kept.append(session)
    all_is_well(target, begin)
    assert target.memory_charged() < 4 * MIB
    # A long write of somebody else is not told to come again: it has its memory at once.
    source = target.folder / "source"
    source.write_bytes(os.urandom(16 * MIB))
    url = f"iscsi://127.0.0.1:{PORT}/{enkaku.IQN}/0"
    enkaku.command("copy", source, url, "--force", timeout_s=PATIENCE_S)
    for session in kept:
        session.connection.close()


def test_memory_that_others_wait_for_is_taken_back(target: Fortress):
    """Six names fill the common half with writes that go no further: they are ended when others wait
    for it, and only they."""
    begin = time.monotonic()
    length = 256 << 10
    cdb = struct.pack(">BBQIBB", 0x8A, 0, 0, 16 * MIB // 512, 0, 0)
    hoarders = []
    for number in range(6):
        name = f"iqn.2026-11.org.example:hoarder-{number}"
        text = f"FirstBurstLength={length}\0MaxBurstLength={length}\0"
        session = Session(dial("127.0.0.66"), name, number, text)
        session.hears_the_news()
        for _ in range(64):
            session.connection.sendall(session.pdu(cdb, bytes(length), sends=16 * MIB))
        hoarders.append(session)
    deadline = begin + PATIENCE_S
    while target.memory_charged() < MEMORY // 2:
        assert time.monotonic() < deadline, f"{target.memory_charged() >> 20} MiB charged"
        time.sleep(0.1)
    idle = honest(0)
    # A read that needs more than a session's own share waits until then, and no longer. The rule is
    # thirty seconds without progress, looked at every five.
    patient = Session(dial(f"{HONEST_FROM}9"), "iqn.2026-11.org.example:patient", 9)
    patient.hears_the_news()
    patient.connection.settimeout(2 * PATIENCE_S)  # a session that answers no ping goes after 90 s
    read = struct.pack(">BBIBHB", 0x28, 0, 0, 0, 4 * MIB // 512, 0)
    status, data = patient.command(read, expects=4 * MIB)
    assert status == 0 and len(data) == 4 * MIB
    said = target.peer.output()
    dropped = [line for line in said.splitlines() if "it holds memory that others wait for" in line]
    assert dropped and all("hoarder-" in line for line in dropped), said
    # One that had come further within the thirty seconds keeps what it has: nobody waits for it
    # any more.
    assert target.memory_charged() < MEMORY // 2
    idle.writes_and_reads(0)
    all_is_well(target, begin)
    for session in [idle, patient, *hoarders]:
        session.connection.close()


@pytest.mark.needs("cc")
def test_flushes_of_a_disk_that_hangs(tmp_path: Path):
    """512 of them, from two sessions: they take no thread, memory or lock that another disk needs, and
    are answered when the disk goes on."""
    storage = Storage(tmp_path, 4 * MIB)
    other = tmp_path / "other.img"
    with open(other, "wb") as file:
        file.truncate(SIZE)
    more = f'[[target.lun]]\nnumber = 1\npath = "{other}"\n'
    flush = struct.pack(">BBIBHB", 0x35, 0, 0, 0, 0, 0)
    with fortress(tmp_path, storage.image, more=more, env=storage.env) as target:
        begin = time.monotonic()
        waiting = []
        for number in range(2):
            name = f"iqn.2026-11.org.example:flushes-{number}"
            session = Session(dial("127.0.0.66"), name, number)
            session.hears_the_news()
            session.writes_and_reads(number)
            waiting.append(session)
        storage.order("hang_sync", 1)
        for session in waiting:
            session.connection.sendall(b"".join(session.pdu(flush) for _ in range(256)))
        deadline = time.monotonic() + PATIENCE_S
        while storage.count("hanging") == 0:
            assert time.monotonic() < deadline, "no flush has come to the disk"
            time.sleep(0.01)
        for number in range(HONEST):
            session = honest(number)
            session.hears_the_news(lun=1)
            session.writes_and_reads(number, lun=1)
            assert session.command(flush, lun=1)[0] == 0
            session.connection.close()
            target.holds(begin)
        threads = len(list(Path(f"/proc/{target.peer.pid}/task").iterdir()))
        assert threads < 100, f"{threads} threads"
        storage.order("hang", 0)
        for session in waiting:
            answers = [session.read() for _ in range(256)]
            assert all(answer[0] == 0x21 and answer[3] == 0 for answer in answers)
            session.connection.close()
        target.holds(begin)
    storage.close()


def test_more_connections_than_descriptors(tmp_path: Path):
    """One host opens sessions as long as it is let in; descriptors are left for those that the
    operator and the load balancer need, and the log does not tell of each failure."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    try:
        with fortress(tmp_path, "mem:64M", open_files=256) as target:
            begin = time.monotonic()
            kept, refused = [], 0
            for number in count():
                try:
                    name = f"iqn.2026-11.org.example:d{number % 8}"
                    kept.append(Session(dial("127.0.0.66"), name, number))
                except (AssertionError, ConnectionError):
                    refused += 1
                if refused == 100:
                    break
                assert number < 1000, "there seems to be no limit"
            target.holds(begin)
            assert target.memory_charged() >= 0, "the admin socket answers"
            assert target.peer.output().count("cannot accept") <= 1
            kept.pop().connection.close()
            deadline = time.monotonic() + PATIENCE_S
            while True:  # the place is free when the daemon has seen the end
                try:
                    honest(0).writes_and_reads(0)
                    break
                except (AssertionError, ConnectionError):
                    assert time.monotonic() < deadline
            for session in kept:
                session.connection.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_log_under_a_flood_from_many_addresses(target: Fortress):
    """4,000 connections of noise from 50 addresses."""
    begin = time.monotonic()
    for n in range(4000):
        connection = dial(f"127.0.2.{n % 50 + 1}")
        connection.sendall(bytes(48))
        connection.close()
    all_is_well(target, begin)
    assert target.lines() > 500, "the log names them"


def test_slow_clients_of_the_metrics(target: Fortress):
    """Forty that never end their request, and more of them all the time."""
    begin = time.monotonic()
    slow: list[socket.socket] = []

    def attack() -> None:
        slow.append(socket.create_connection(("127.0.0.1", METRICS_PORT), PATIENCE_S))
        slow[-1].sendall(b"GET /heal")
        if len(slow) > 400:
            slow.pop(0).close()
        time.sleep(0.02)  # 50 a second; more would be a flood, which is not the point

    for _ in range(40):
        attack()
    with meanwhile(attack):
        all_is_well(target, begin)
    for connection in slow:
        connection.close()
