"""The stacks in the guest (lab/enkaku_lab/in_guest): the protocol of its orders, the reading of its kernel's log, the
meter, and for a moment the real line with the kernel's iSCSI and NFS on it."""

import base64
import json
import re
import socket
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support import stock_guest

from enkaku_lab import claims, commands, data, experiments, runner, sockets, stale
from enkaku_lab.experiment import FULL, GUEST, KIB, MIB, QUICK, STRETCH, Cell, Link, Load
from enkaku_lab.experiments import s0_guest_queue
from enkaku_lab.in_guest import kernel_log, laboratory, line, meter, nfs, recipe, senders
from enkaku_lab.peers.guest import Guest
from enkaku_lab.process import CommandFailed, LabError
from enkaku_lab.stacks import GaveUp, Place
from enkaku_lab.stacks.all import STACKS
from enkaku_lab.store import Store

OURS = [one for one in experiments.load().values() if any(series.stack.startswith(GUEST) for series in one.series)]
NEEDS_GUEST = pytest.mark.needs("qemu-system-x86_64", "busybox", "cc", "iperf3", "tc")


# The orders


@pytest.fixture
def talking() -> Iterator[tuple[Guest, socket.socket]]:
    """A guest's near half, and the other end of its port."""
    ours, theirs = socket.socketpair()
    guest = Guest.__new__(Guest)
    guest._orders, guest._channel, guest._hello, guest._patience = {}, ours, threading.Event(), 1
    reader = threading.Thread(target=guest._read, daemon=True)
    reader.start()
    yield guest, theirs
    theirs.close()
    reader.join(10)
    ours.close()


def test_an_order_is_a_line_and_its_output_comes_back_by_its_number(talking):
    guest, theirs = talking
    theirs.sendall(b"hello\n")
    assert guest._hello.wait(10)
    first, second = guest.start("echo 'a b'\nfalse"), guest.start("true")
    received = b""
    while received.count(b"\n") < 2:
        received += theirs.recv(4096)
    word, number, script = received.splitlines()[0].decode().split()
    assert (word, number) == ("run", "0") and base64.b64decode(script).decode() == "echo 'a b'\nfalse"
    # Two at a time, mixed, a line in two pieces, an empty one.
    theirs.sendall(b"out 0 a b\nout 1 \nou")
    first.wait_for("a b", 10)
    assert first.running() and second.running()
    theirs.sendall(b"t 0 more\nend 1 0\nend 0 1\n")
    assert second.wait(10) == "" and second.code == 0
    with pytest.raises(CommandFailed, match="ended with code 1"):
        first.wait(10)
    assert first.wait(10, check=False) == "a b\nmore"


def test_orders_end_when_the_guest_is_gone(talking):
    guest, theirs = talking
    order = guest.start("sleep 1000")
    theirs.shutdown(socket.SHUT_RDWR)
    with pytest.raises(CommandFailed, match="the guest is gone"):
        order.wait(10)


# The meter


def _metered(*words: object) -> dict:
    done = subprocess.run([str(word) for word in (meter(), *words)], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.needs("cc")
def test_the_meter_reads_what_it_filled_and_notices_what_is_not_that(tmp_path: Path):
    path = tmp_path / "disk"
    subprocess.run([meter(), "fill", path, str(2 * MIB)], check=True)
    found = _metered("read", path, 64 * KIB, 2 * MIB, 10, 0)
    assert found["bytes"] == 2 * MIB and found["right"] and found["calls"] == 32 and not found["error"]
    reached = laboratory.of_meter(json.dumps(found | {"seconds": 3.0}), Load())
    assert reached.seconds == pytest.approx(3.0 / STRETCH) and reached.verified
    with path.open("r+b") as file:
        file.seek(MIB)
        file.write(b"x")
    wrong = _metered("read", path, 64 * KIB, 2 * MIB, 10, 0)
    assert not wrong["right"]
    with pytest.raises(LabError, match="not what is written"):
        laboratory.of_meter(json.dumps(wrong | {"seconds": 1.0}), Load())
    with pytest.raises(GaveUp, match="nothing arrived in 1.0 s"):
        laboratory.of_meter(json.dumps(wrong | {"bytes": 0, "all_seconds": float(STRETCH)}), Load())
    with pytest.raises(LabError, match="after 5 bytes: Input/output error"):
        laboratory.of_meter(json.dumps(wrong | {"all_bytes": 5, "error": "Input/output error"}), Load())
    missing = subprocess.run([meter(), "read", tmp_path / "none", "1", "1", "1", "0"], capture_output=True, text=True)
    assert missing.returncode == 1 and "none: No such file" in missing.stderr


def test_plain_tcp_of_the_guest_is_read_as_elsewhere():
    end = {"sum_received": {"bytes": 5000, "seconds": 4.0}, "sender_tcp_congestion": "reno"}
    reached, algorithms = laboratory.of_iperf3(json.dumps({"end": end}))
    assert (reached.bytes, reached.seconds, algorithms) == (5000, 4.0 / STRETCH, {"reno"})
    nothing = end | {"sum_received": {"bytes": 0, "seconds": 4.0}}
    with pytest.raises(GaveUp, match="nothing arrived"):
        laboratory.of_iperf3(json.dumps({"end": nothing}))
    with pytest.raises(LabError, match="iperf3: unable to connect"):
        laboratory.of_iperf3(json.dumps({"end": {}, "error": "unable to connect"}))
    listed = "0 0 10.77.0.1:40000 10.77.1.2:3260\n\t cubic wscale:7,7 cwnd:10\n0 0 10.77.0.1:40001 10.77.1.2:3260\n\t reno cwnd:10\n"
    assert sockets.seen(listed) == ({"cubic", "reno"}, 2) and sockets.seen("") == (set(), 0)


# The line


def test_the_line_is_stretched_and_its_queue_is_not_what_is_on_its_way():
    link = Link(rtt_ms=20, rate="1gbit", queue_packets=2000)
    assert line.rate_bits(link) == 1e9 / STRETCH and line.delay_ms(link) == 10 * STRETCH
    assert line.queue_packets(link) == 2000 + 833
    assert line._sizes("4k 16k 4M") == "4096 16384 4194304"


# The kernel's log


def _line(time: str, task: str, rest: str, *frames: str) -> str:
    head = f"     {task}      [000] ..... {time}: "
    stack = [f"{head}<stack trace>", *(f" => {frame}" for frame in frames)] if frames else []
    return "\n".join([f"{head}{rest}", *stack])


STATE = "write_seq=5000 snd_nxt=4000 snd_una=4294966296 snd_cwnd=10 queued=9000 limit=8000 dport=48140"
LOG = "\n".join(
    [
        "# tracer: nop",
        _line("10.000000", "kworker/u4:1-29", f"state: (tcp_rcv_established+0x4/0x7a0) {STATE}"),
        _line("10.000001", "kworker/u4:1-29", f"wait: (sk_stream_wait_memory+0x4/0x400) {STATE}"),
        _line("10.000002", "kworker/u4:1-29", "sleep: (schedule_timeout+0x4/0x170) timeout=3750"),
        _line(
            "10.000003",
            "kworker/u4:1-29",
            "sched_switch: prev_comm=kworker/u4:1 prev_pid=29 prev_prio=120 prev_state=S ==> next_comm=swapper/0",
            *("trace_event_raw_event_sched_switch+0x1/0x2", "__schedule+0x5bc/0xbf0", "schedule_timeout+0x9e/0x170", "sk_stream_wait_memory+0x33c/0x400"),
        ),
        # Another one sleeps and wakes meanwhile.
        _line("10.100000", "dd-7", "sleep: (schedule_timeout+0x4/0x170) timeout=15000"),
        _line(
            "10.400000",
            "<idle>-0",
            "sched_waking: comm=kworker/u4:1 pid=29 prio=120 target_cpu=000",
            *("try_to_wake_up+0x343/0x680", "sk_stream_write_space+0xb4/0xf0", "tcp_rcv_established+0x4ac/0x7a0"),
        ),
        _line("10.400100", "kworker/u4:1-29", "waited: (tcp_sendmsg_locked+0x607/0xe00 <- sk_stream_wait_memory)"),
        # This one found room before it slept.
        _line("10.500000", "kworker/u4:1-29", f"wait: (sk_stream_wait_memory+0x4/0x400) {STATE}"),
        _line("10.500001", "kworker/u4:1-29", "waited: (tcp_sendmsg_locked+0x607/0xe00 <- sk_stream_wait_memory)"),
    ]
)


def test_a_log_tells_where_a_sender_slept_and_what_woke_it():
    log = kernel_log.read(LOG)
    assert len(log.queues) == 3
    (sleep,) = log.sleeps
    # Sequence numbers wrap.
    assert (sleep.begin.unsent_bytes, sleep.begin.in_flight_bytes) == (1000, 5000)
    assert sleep.seconds == pytest.approx(0.4001, abs=1e-3) and sleep.timeout_ticks == 3750
    assert sleep.line == "schedule_timeout+0x9e/0x170" and sleep.by_acknowledgement
    assert sleep.stack[0].startswith("__schedule")
    assert kernel_log.port_as_read(3260) == 48140
    with pytest.raises(LabError, match="has no snd_una"):
        kernel_log.read(LOG.replace("snd_una", "una"))
    assert kernel_log.read("").sleeps == []


def _queue(ms: float, written: int, sent: int, acknowledged: int, event: str) -> kernel_log.Queue:
    """At a time of the line that is not stretched, in KiB."""
    written, sent, acknowledged = (number * KIB for number in (written, sent, acknowledged))
    return kernel_log.Queue(ms / 1e3 * STRETCH, written - sent, sent - acknowledged, 100, written - acknowledged, MIB, written, event)


def _iscsi_log() -> kernel_log.Log:
    """Writes of 4 MiB with a buffer of 1 MiB and a round trip of 20 ms: full at once, all away after 7 ms, and each
    acknowledgement makes room."""
    queues, sleeps = [_queue(-1, 0, 0, 0, kernel_log.ACKNOWLEDGED)], []
    for number in range(4):
        base, begin = number * 4096, number * 120.0
        queues.append(_queue(begin, base + 512, base + 16, base, kernel_log.SENT))
        queues.append(full := _queue(begin + 1, base + 1024, base + 128, base, kernel_log.FULL))
        queues.append(_queue(begin + 7, base + 1024, base + 1008, base, kernel_log.SENT))
        for step in range(1, 5):
            at, sent = begin + 20 * step, base + 1024 * step
            queues.append(_queue(at, sent, sent, sent - 1024, kernel_log.ACKNOWLEDGED))
            if step < 4:
                queues.append(_queue(at + 1, sent + 1024, sent, sent - 500, kernel_log.SENT))
        queues.append(_queue(begin + 100, base + 4096, base + 4096, base + 4095, kernel_log.ACKNOWLEDGED))
        sleeps.append(kernel_log.Sleep(full, (begin + 20.1) / 1e3 * STRETCH, 3750, ("schedule_timeout+0x9e/0x170",), ("tcp_ack+0x1/0x2",)))
    queues.append(_queue(500, 4 * 4096 + 512, 4 * 4096 + 16, 4 * 4096, kernel_log.SENT))
    return kernel_log.Log(queues, sleeps)


def test_a_queue_is_told_write_by_write(tmp_path: Path):
    log = _iscsi_log()
    every = s0_guest_queue.writes(log)
    assert len(every) == 4 and all(len(one.sleeps) == 1 for one in every)
    first = every[0]
    assert (first.stop_s - first.begin_s) / STRETCH == pytest.approx(7e-3)
    socket = kernel_log.Log([_queue(ms, 1000 + ms, ms + 900, ms, kernel_log.ACKNOWLEDGED) for ms in range(100)], [])
    logs = {s0_guest_queue.ISCSI: log, s0_guest_queue.SOCKET: socket}
    bursts, apart, window, stops, restarts, moves, settles = judged = s0_guest_queue.claims(logs)
    assert bursts.verdict == claims.CONFIRMED and "4 of 724" in bursts.found and "1.00 RTT" in apart.found
    assert window.verdict == claims.NOT_CONFIRMED and "100 packets" in window.found
    assert stops.verdict == claims.CONFIRMED and "in 4 of 4 writes; sending goes on for 6.0 ms" in stops.found
    assert restarts.verdict == claims.CONFIRMED and moves.verdict == claims.CONFIRMED
    assert settles.verdict == claims.NOT_CONFIRMED and "reaches 1000 KiB" in settles.found
    assert {one.verdict for one in s0_guest_queue.claims({})} == {claims.NOT_MEASURED}
    head = {"guest": "Linux", "commit": "1234567", "taken": "2026-01-02", "run": "a run"}
    for which in (logs, {}):
        s0_guest_queue.draw(which, tmp_path / "s0-guest-queue", head)
    s0_guest_queue.draw(logs, tmp_path / "s0-guest-queue", head)
    kept = data.read(tmp_path / "s0-guest-queue.csv").head
    assert claims.of_head(kept) == judged and kept["figure"] == "s0-guest-queue"
    assert [kept[f"axes {number}"].partition(":")[0] for number in range(1, 8)] == ["figures 9 and 10", *(f"figure {number}" for number in range(11, 17))]


def test_a_log_is_judged_by_its_csv(tmp_path: Path):
    (one,) = senders.load().values()
    sender = one.senders[1]
    path = tmp_path / f"{one.name}.csv"
    head = {"figure": one.name, "taken": "now", "machine": "abacus", "commit": "0", "guest": "Linux", "run": "1"}
    data.write(path, head, senders.COLUMNS, senders.rows(one, {sender.name: kernel_log.read(LOG)}))
    (row,) = senders.of_csv(path).values()
    assert row["line"] == "schedule_timeout+0x9e/0x170" and row["limit_kib"] == pytest.approx(8000 / KIB, rel=1e-4)
    assert row["median_rtt"] == pytest.approx(1.0, abs=0.01)
    # One sender alone is nothing to compare.
    assert [claim.verdict for claim in one.claims(senders.of_csv(path))][:3] == [claims.NOT_MEASURED] * 3
    assert all(claim.verdict == claims.NOT_MEASURED for claim in one.claims({}))
    assert "15 s" in senders.section(one, path, "x.svg")
    one.draw({sender.name: kernel_log.read(LOG)}, tmp_path / "figure", head)
    assert (tmp_path / "figure.svg").exists()


# Experiments


def test_cells_in_the_guest_share_one_boot_and_say_why_there_is_none(tmp_path: Path):
    work = runner.jobs(OURS, QUICK)
    labs = {runner._lab(job.cell) for job in work}
    assert labs == {runner.IN_GUEST} and len(OURS) == 6
    store = Store(tmp_path / "results.jsonl")
    booted = []

    def no_guest(*_):
        booted.append(1)
        return _Context(laboratory.NoLaboratory("apt-get is not installed"))

    present = {name: _Present() for name in STACKS}
    failed = runner.measure(work[:3], store, store.begin({"taken": "now"}), present, no_guest, Place(tmp_path))
    assert failed == 3 and booted == [1]
    assert "no stock-kernel guest: apt-get" in store.of(work[0].cell)[0]["failed"]
    # They are tried again when there is one.
    assert not store.finished(work[0].cell, 0)


class _Context:
    def __init__(self, value):
        self._value = value

    def __enter__(self):
        return self._value

    def __exit__(self, *_):
        pass


class _Present:
    label, port = "present", None

    def missing(self) -> None:
        return None


def test_a_stack_runs_where_it_belongs(monkeypatch):
    monkeypatch.setattr(commands.guest, "laboratory", lambda: "guest")
    monkeypatch.setattr(commands, "laboratory", lambda *_: "namespaces")
    assert commands.laboratories(Link(), Place(Path()), iter([f"{GUEST}nfs"])) == "guest"
    assert commands.laboratories(Link(), Place(Path()), iter(["tcp", "nfs"])) == "namespaces"
    with pytest.raises(LabError, match="runs in the guest"):
        STACKS[f"{GUEST}nfs"].opened(Place(Path()), Link(), Load())


def test_a_figure_of_the_guest_does_not_age_with_the_product():
    assert stale.sources({f"{GUEST}iscsi", f"{GUEST}tcp"}) == []
    assert stale.sources({f"{GUEST}iscsi", "tcp"}) == ["crates/wanlab/src"]


@pytest.mark.parametrize("one", OURS, ids=lambda one: one.name)
def test_an_experiment_in_the_guest_is_short(one):
    assert runner.seconds(runner.jobs([one], QUICK)) < 120
    assert runner.seconds(runner.jobs([one], FULL)) < 900
    assert all(series.stack.startswith(GUEST) for series in one.series)


REFUSED = "NFS over UDP: NFS: Unsupported transport protocol udp"


def _judged(name: str, folder: Path, rates: dict[str, dict[float, float]], udp_why: str = "") -> list[claims.Claim]:
    """What is said of curves of these rates, by stack."""
    experiment = experiments.load()[name]
    labels = {one.stack: one.label for one in experiment.series}
    rows = [("", labels[stack], stack, x, mbit, mbit, mbit, 1, 1, "", "yes", "") for stack, curve in rates.items() for x, mbit in curve.items()]
    if udp_why:
        rows += [("", labels[f"{GUEST}nfs-udp"], f"{GUEST}nfs-udp", x, "", "", "", 0, "", "", "no", udp_why) for x in rates[f"{GUEST}nfs"]]
    head = {"figure": name, "limit_mbit": "941", "taken": "now"}
    path = data.write(folder / f"{name}.csv", head, data.COLUMNS, rows)
    return experiment.claims(data.read_curves(path, experiment))


def test_nfs_over_udp_is_what_the_paper_had_and_is_judged_where_the_client_has_it(tmp_path: Path):
    tcp = {f"{GUEST}iscsi": {0.001: 300.0}, f"{GUEST}nfs": {0.001: 200.0}}
    favoured = _judged("s1-guest-loss", tmp_path, tcp, REFUSED)[0]
    assert favoured.verdict == claims.NOT_MEASURED and "the client refuses" in favoured.found
    assert _judged("s1-guest-loss", tmp_path, tcp | {f"{GUEST}nfs-udp": {0.001: 90.0}})[0].verdict == claims.CONFIRMED
    # Its repairs come too early in the guest, so that it wins says nothing.
    helped = _judged("s1-guest-loss", tmp_path, tcp | {f"{GUEST}nfs-udp": {0.001: 290.0}})[0]
    assert helped.verdict == claims.NOT_MEASURED and "a 20th of that" in helped.found
    assert _judged("s1-guest-loss", tmp_path, {f"{GUEST}iscsi": {0.001: 300.0}})[0].verdict == claims.NOT_MEASURED

    rtt = {f"{GUEST}iscsi": {16: 40.0}, f"{GUEST}nfs": {16: 50.0}, f"{GUEST}nfs-ahead": {2: 500.0, 16: 450.0, 100: 100.0}}
    faster, knee, _ = _judged("s1-guest-rtt", tmp_path, rtt, REFUSED)
    assert faster.verdict == claims.CONFIRMED and "with 128 KiB, too, NFS has 50 Mbit/s" in faster.found and "the client refuses" in faster.found
    assert knee.verdict == claims.CONFIRMED
    # Over UDP it is told, and not judged: its repairs begin before answers can be there.
    rtt |= {f"{GUEST}nfs-udp": {16: 90.0}, f"{GUEST}nfs-udp-ahead": {2: 500.0, 16: 30.0, 100: 10.0}}
    assert [one.verdict for one in _judged("s1-guest-rtt", tmp_path, rtt)[:2]] == [claims.CONFIRMED] * 2
    assert "Over UDP NFS has 90 Mbit/s and 30 Mbit/s, whose client asks again" in _judged("s1-guest-rtt", tmp_path, rtt)[0].found
    rtt[f"{GUEST}nfs-ahead"][16] = 60.0
    assert [one.verdict for one in _judged("s1-guest-rtt", tmp_path, rtt)[:2]] == [claims.NOT_CONFIRMED] * 2


# The real line


@NEEDS_GUEST
def test_the_kernels_stacks_over_the_stretched_line():
    """One boot: the line's time is the guest's own, contents arrive, what is refused says so."""
    # Debian's modules, also where `nfs-udp` has built others.
    image = stock_guest.image(replace(recipe(), replaced=()))
    with Guest(image, counted=True) as guest:
        line.set_up(guest)
        lab = laboratory.GuestLaboratory(guest)
        line.become(guest, Link(rtt_ms=10))
        pinged = guest.run(f"ping -c 3 {line.FAR}", 120)
        # The first one has to ask for addresses, another round trip.
        _, *times = (float(ms) for ms in re.findall(r"time=([\d.]+) ms", pinged))
        assert times and all(10 * STRETCH <= ms <= 10 * STRETCH + 5 for ms in times), pinged
        load = Load(block_bytes=64 * KIB, connections=1, bytes_max=2 * MIB, seconds_max=1.0)
        link = Link(rtt_ms=2, cc="reno")
        for stack in (f"{GUEST}nfs", f"{GUEST}iscsi"):
            found = lab.measure(Cell(stack, link, load))
            assert found["reached"]["verified"] and found["reached"]["bytes"] > MIB
            assert found["congestion_control"] == ["reno"], found
        with pytest.raises(GaveUp, match="Unsupported transport protocol udp"):
            lab.measure(Cell(f"{GUEST}nfs-udp", link, load))
        with STACKS[f"{GUEST}iscsi-1m"].opened_in(guest) as path:
            text, _ = kernel_log.record(guest, 3260, "kworker/u*", f"meter write {path} {4 * MIB} {4 * MIB} 100 0")
        log = kernel_log.read(text)
        assert log.queues[-1].limit_bytes == MIB
        assert log.sleeps and all(sleep.line for sleep in log.sleeps)
        assert all(nfs.EXPORT not in mounted for mounted in guest.run("mount").splitlines() if "10.77" in mounted)
