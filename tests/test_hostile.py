"""A target process under attack by peers without manners: what it costs in memory, files, CPU and
log. PDU by PDU the attacks are in crates/iscsi/tests/hostile_*.rs; docs/security.md lists them all.
"""

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import MIB, empty, noise

from enkaku_lab.peers import Target, enkaku
from enkaku_lab.process import accepts, free_port, peer

SIZE = 8 * MIB
LOGIN_TIMEOUT_S = 2
PATIENCE_S = 20.0
GROWTH_BYTES_MAX = 32 * MIB
"""A connection that has logged in costs 64 KiB to receive in, and up to 512 KiB of answers queued; of
a thousand that come and go some dozens are there at once. What was once used stays with the allocator."""
CPU_S_MAX = 0.5
"""Of some two seconds in which nothing happens: a loop that spins takes all of them."""
LINES_MAX = 300
"""The target writes 256 lines a minute about one address."""

CONFIG = """
[server]
admin_socket = "{folder}/admin.sock"
[limits]
login_timeout = "{timeout}s"
[[portal]]
name = "here"
listen = "127.0.0.1:{port}"
[[target]]
name = "{iqn}"
anyone = true
[[target.lun]]
number = 0
path = "{disk}"
"""


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    """`enkaku target run` with one disk."""
    port, disk = free_port(), empty(tmp_path / "lun0.img", SIZE)
    config = tmp_path / "target.toml"
    values = {"folder": tmp_path, "port": port, "iqn": enkaku.IQN, "disk": disk}
    config.write_text(CONFIG.format(timeout=LOGIN_TIMEOUT_S, **values))
    argv = [enkaku.binary(), "target", "run", "--config", config]
    with peer(argv, tmp_path / "daemon.log") as running:
        running.wait_until(lambda: accepts("127.0.0.1", port), "its portal accepts nobody")
        yield Target("enkaku", running, "127.0.0.1", port, enkaku.IQN)


def resident_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) << 10


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def sessions(folder: Path) -> list:
    return enkaku.report("target", "sessions", "--socket", folder / "admin.sock")


def login_pdu(name: str, text: str = "", number: int = 1) -> bytes:
    """A login that needs one request: operational stage, then the full-feature phase."""
    pairs = f"InitiatorName={name}\0TargetName={enkaku.IQN}\0SessionType=Normal\0{text}".encode()
    isid = b"\x80" + struct.pack(">I", number)[1:] + b"\0\1"
    head = struct.pack(">BBBBI6sHIHHII", 0x43, 0x87, 0, 0, len(pairs), isid, 0, 1, 1, 0, 1, 0)
    return head.ljust(48, b"\0") + pairs + b"\0" * (-len(pairs) % 4)


def connect(target: Target) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", target.port), timeout=PATIENCE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def log_in(target: Target, number: int) -> socket.socket:
    """A target that is busy still has those that left in its count, and refuses; not for long."""
    admitted: list[socket.socket] = []

    def tried() -> bool:
        connection = connect(target)
        try:
            connection.sendall(login_pdu("iqn.2026-11.org.example:storm", number=number))
            answer = connection.recv(48, socket.MSG_WAITALL)
        except ConnectionResetError:
            answer = b""
        if len(answer) < 48 or answer[36:38] != b"\0\0":
            connection.close()
            return False
        assert answer[0] == 0x23, answer.hex()
        length = int.from_bytes(answer[5:8])
        assert len(connection.recv(length + -length % 4, socket.MSG_WAITALL)) >= length
        admitted.append(connection)
        return True

    until(tried, "an honest login is let in")
    return admitted[0]


def write_command(number: int) -> bytes:
    """WRITE (10) of a megabyte, far from what the healthy session uses; its data never comes."""
    cdb = struct.pack(">BBIBHB", 0x2A, 0, (SIZE - 2 * MIB) // 512, 0, 2048, 0).ljust(16, b"\0")
    head = struct.pack(">BBHIQIIII", 1, 0xA1, 0, 0, 0, number, MIB, number, 0)
    return head + cdb


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def until(condition, what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.02)


@contextmanager
def healthy(target: Target, folder: Path) -> Iterator[list[int]]:
    """Writes the disk's first half and reads it back, compared byte by byte, while the block runs
    and at least once after it began; yields the rounds so far."""
    source = noise(folder / "source", SIZE // 2)
    rounds, errors, stop = [], [], threading.Event()

    def work() -> None:
        try:
            while not stop.is_set() or not rounds:
                enkaku.command("copy", source, target.url(), "--force")
                enkaku.command("copy", target.url(), folder / "back", "--force")
                back = (folder / "back").read_bytes()
                assert back[: SIZE // 2] == source.read_bytes(), "the healthy session's data"
                assert not any(back[SIZE // 2 :]), "somebody else wrote"
                rounds.append(1)
        except BaseException as error:  # told to the test, whatever it is
            errors.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        yield rounds
    finally:
        stop.set()
        worker.join()
    assert not errors, errors
    assert rounds


def test_a_thousand_connections_and_a_storm_of_resets(target: Target, tmp_path: Path):
    """In order and by reset, at every point of a login and with a write under way."""
    pid = target.peer.pid
    with healthy(target, tmp_path):
        pass  # what a session costs once, it has cost now
    until(lambda: not sessions(tmp_path), "the first session has ended")
    memory, files = resident_bytes(pid), open_files(pid)
    hello = login_pdu("iqn.2026-11.org.example:storm")
    peers, most = [], 0
    with healthy(target, tmp_path):
        for n in range(1000):
            connection = connect(target)
            peers.append(connection.getsockname()[1])
            connection.sendall(hello[: n * 7 % len(hello)])
            reset(connection) if n % 2 else connection.close()
        for n in range(200):
            connection = log_in(target, n)
            connection.sendall(write_command(1))
            if n % 20 == 0:
                most = max(most, resident_bytes(pid))
            reset(connection)
    until(lambda: not sessions(tmp_path), "sessions have ended")
    until(lambda: open_files(pid) <= files, f"{open_files(pid)} files are open, not {files}")
    most = max(most, resident_bytes(pid))
    growth = most - memory
    print(f"RSS before {memory >> 10} KiB, most {most >> 10} KiB, files {files}")
    assert growth < GROWTH_BYTES_MAX, f"{growth} bytes more than before"
    log = target.peer.output()
    named = [line for line in log.splitlines() if "127.0.0.1" in line]
    assert any(f"127.0.0.1:{peers[0]}" in line and "login failed" in line for line in named), log
    assert len(named) < LINES_MAX, f"{len(named)} lines about one address"
    assert any("too many lines about this peer" in line for line in named)
    assert target.peer.running() and "panicked" not in log


def test_idle_and_half_closed_connections_cost_no_cpu(target: Target, tmp_path: Path):
    """Nothing spins on a socket that has no more to say (the POLLHUP loop of other stacks)."""
    logged_in = [log_in(target, n) for n in range(20)]
    begun = target.peer.cpu_s()
    stalled = []
    for n in range(60):
        connection = connect(target)
        connection.sendall(login_pdu("iqn.2026-11.org.example:stalled")[: n % 47])
        if n % 3 == 0:
            connection.shutdown(socket.SHUT_WR)
        stalled.append(connection)
    # Ends when the time for a login has passed; until then the process has nothing to do.
    assert all(connection.recv(1) == b"" for connection in stalled)
    spent = target.peer.cpu_s() - begun
    print(f"{spent:.2f} s of CPU")
    assert spent < CPU_S_MAX
    assert len(sessions(tmp_path)) == len(logged_in), "idle sessions stay"
    for connection in logged_in:
        connection.shutdown(socket.SHUT_WR)  # half-closed: the target closes the other half
        assert connection.recv(1) == b""
    until(lambda: not sessions(tmp_path), "sessions have ended")
    for connection in stalled + logged_in:
        connection.close()
