"""`enkaku monitor` and `enkaku diagnose` beside real sessions: each cause is built on an emulated
link, for our own stack and for tgt with libiscsi (qemu-img), and has to be named."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from enkaku_lab import wan
from enkaku_lab.experiment import Link
from enkaku_lab.peers import disk_url, enkaku, need, tgt
from enkaku_lab.process import Peer, free_port, peer, run

FAR = "10.77.0.2"
PORT = 3260
KIB, MIB = 1 << 10, 1 << 20
READY_S_MAX = 20.0
NOTHING_TO_JUDGE = 3

LARGE = Link(rate="200mbit", rtt_ms=30, loss=0.0, wmem="4k 64k 16M", rmem="4k 128k 16M",
             queue_packets=2000)


@dataclass(frozen=True)
class Case:
    """A cause, and what builds it. Diagnosed at the end that the data leave."""

    link: Link
    block_bytes: int = 512 * KIB
    depth: int = 8
    write: bool = True
    congestion_control: str = "cubic"
    disk_delay_ms: int = 0
    window_scaling: bool = True


CASES = {
    "send_buffer": Case(replace(LARGE, rtt_ms=40, wmem="4k 64k 128k")),
    "receive_window": Case(replace(LARGE, rtt_ms=40, rmem="4k 64k 256k")),
    "congestion_loss": Case(replace(LARGE, loss=4e-3)),
    "queue_depth": Case(LARGE, block_bytes=16 * KIB, depth=1),
    "storage": Case(replace(LARGE, rtt_ms=6), block_bytes=32 * KIB, depth=1, disk_delay_ms=60),
    "line_rate": Case(replace(LARGE, rate="50mbit", rtt_ms=20), depth=16),
}


SLOW_DISK = pytest.mark.needs("/dev/fuse", "nbdfuse", "nbdkit")


@pytest.mark.serial
@pytest.mark.needs("root", "/dev/net/tun", "qemu-img", "tgtd")
@pytest.mark.parametrize("stack", ["enkaku", "tgt+libiscsi"])
@pytest.mark.parametrize(
    "cause",
    [pytest.param(name, marks=SLOW_DISK) if name == "storage" else name for name in CASES],
)
def test_the_cause_of_a_write_is_named_at_the_initiator(cause: str, stack: str, tmp_path: Path):
    with _transfer(CASES[cause], stack, tmp_path) as lab:
        found = _diagnosed(lab, "near", cause)
    assert found["cause"] == cause, found
    _check(found)


@pytest.mark.serial
@pytest.mark.needs("root", "/dev/net/tun", "iscsi-perf", "tgtd")
@pytest.mark.parametrize("stack", ["enkaku", "tgt+libiscsi"])
@pytest.mark.parametrize("cause", ["send_buffer", "queue_depth"])
def test_the_cause_of_a_read_is_named_at_the_target(cause: str, stack: str, tmp_path: Path):
    case = replace(CASES[cause], write=False)
    with _transfer(case, stack, tmp_path) as lab:
        found = _diagnosed(lab, "far", cause)
    assert found["cause"] == cause, found
    _check(found)


@pytest.mark.serial
@pytest.mark.needs("root", "/dev/net/tun")
@pytest.mark.parametrize("end", ["near", "far"])
def test_a_window_without_scale_is_named_at_both_ends(end: str, tmp_path: Path):
    """Reads one at a time whose last round trip does not fill the window."""
    link = replace(LARGE, rate="1gbit", rtt_ms=16)
    case = Case(link, block_bytes=240 * KIB, depth=1, write=False, window_scaling=False)
    with _transfer(case, "enkaku", tmp_path) as lab:
        found = _diagnosed(lab, end, "receive_window")
    assert found["cause"] == "receive_window", found
    _check(found)


def _check(found: dict) -> None:
    """What stands beside the name of the cause has to agree with it."""
    assert found["bytes_per_s"] > 0
    assert found["advice"].endswith(".")
    expected = found["expected_bytes_per_s"]
    if found["cause"] == "line_rate":
        assert expected is None
    elif expected is not None:
        assert expected > found["bytes_per_s"]
    assert found["evidence"]["rtt_min_us"] > 1000


def _diagnosed(lab: wan.Lab, end: str, cause: str) -> dict:
    argv = lab.exec(end, [enkaku.binary(), "diagnose", "--port", PORT, "--time", "2s", "--json"])
    return json.loads(run(argv, timeout_s=30).stdout)


@contextmanager
def _transfer(case: Case, stack: str, folder: Path) -> Iterator[wan.Lab]:
    """The transfer while it runs, from the first byte that the far end has seen."""
    with wan.up(case.link, folder) as lab:
        lab.set(case.link)
        for end in ("near", "far"):
            argv = [sys.executable, __file__, "congctl", case.congestion_control]
            run(lab.exec(end, argv))
            scaling = f"echo {int(case.window_scaling)} > /proc/sys/net/ipv4/tcp_window_scaling"
            run(lab.exec(end, ["sh", "-c", scaling]))
        with _disk(case, folder) as disk, _target(lab, stack, disk, folder) as url:
            with peer(lab.exec("near", _load(case, stack, url)), folder / "load.log") as load:
                load.wait_until(lambda: _moves(lab), "nothing is transferred")
                yield lab


def _moves(lab: wan.Lab) -> bool:
    argv = [enkaku.binary(), "monitor", "--port", PORT, "--interval", "200ms", "--count", 1]
    seen = json.loads(run(lab.exec("near", [*argv, "--json"])).stdout)
    return max(seen["sent_bytes_per_s"], seen["received_bytes_per_s"]) > 50_000


@contextmanager
def _disk(case: Case, folder: Path) -> Iterator[Path]:
    """A file for the target; with a delay, one whose every request takes so long."""
    path = folder / "disk"
    path.touch()
    if not case.disk_delay_ms:
        os.truncate(path, 256 * MIB)
        yield path
        return
    delay = f"{case.disk_delay_ms}ms"
    argv = [need("nbdfuse"), path, "--command", need("nbdkit"), "-s", "--filter=delay"]
    argv += ["memory", 256 * MIB, f"wdelay={delay}", f"rdelay={delay}"]
    with peer(argv, folder / "nbdfuse.log") as fuse:
        fuse.wait_until(lambda: os.path.ismount(path), "its file is not mounted")
        try:
            yield path
        finally:
            run([need("fusermount3"), "-u", "-z", path], check=False)


@contextmanager
def _target(lab: wan.Lab, stack: str, disk: Path, folder: Path) -> Iterator[str]:
    portal = f"{FAR}:{PORT}"
    if stack == "enkaku":
        argv = [enkaku.binary(), "serve", "--listen", portal, "--iqn", enkaku.IQN, "--lun", disk]
        # A page cache in front of the slow disk would hide it.
        argv += ["--direct"] if os.path.ismount(disk) else []
        with peer(lab.exec("far", argv), folder / "serve.log") as serving:
            serving.wait_for_output("listening on")
            yield disk_url(portal, enkaku.IQN, 0)
        return
    # tgt's adapter looks at the portal, so it has to be inside.
    argv = [sys.executable, "-u", __file__, "tgt", disk, folder]
    with peer(lab.exec("far", argv), folder / "tgt.log") as serving:
        serving.wait_for_output("ready")
        yield disk_url(portal, tgt.IQN, tgt.FIRST_LUN)


def _load(case: Case, stack: str, url: str) -> list[object]:
    """Longer than anybody looks; it is stopped."""
    if stack == "enkaku":
        argv = [enkaku.binary(), "bench", url, "--rw", "write" if case.write else "read"]
        argv += ["--force", "--bs", case.block_bytes, "--depth", case.depth, "--time", "60s"]
        return [*argv, "--connections", 1, "--congestion-control", case.congestion_control]
    if not case.write:
        blocks = case.block_bytes // 512
        return [need("iscsi-perf"), "-m", case.depth, "-b", blocks, "-t", 60, url]
    argv = [need("qemu-img"), "bench", "-w", "-f", "raw", "-t", "none", "-d", case.depth]
    return [*argv, "-c", 1_000_000, "-s", case.block_bytes, "-S", case.block_bytes, url]


# What follows needs no emulated link.


@contextmanager
def _session(tmp_path: Path) -> Iterator[tuple[int, Peer]]:
    """A target on loopback and a client that reads from it: its port, and the client."""
    with enkaku.serve(["mem:64M"], tmp_path) as target:
        argv = [enkaku.binary(), "bench", target.url(), "--rw", "read", "--bs", "64k"]
        argv += ["--depth", 4, "--time", "60s", "--connections", 2]
        with peer(argv, tmp_path / "bench.log") as client:
            deadline = time.monotonic() + READY_S_MAX
            while len(_once(target.port)["connections"]) < 4:
                assert client.running() and time.monotonic() < deadline, client.output()
            yield target.port, client


def _once(port: int, *more: object) -> dict:
    words = ["monitor", "--port", port, "--interval", "200ms", "--count", 1]
    return enkaku.report(*words, *more)


def test_lines_are_objects_of_all_connections(tmp_path: Path):
    with _session(tmp_path) as (port, client):
        words = ["monitor", "--port", port, "--interval", "200ms", "--count", 3, "--json"]
        lines = [json.loads(line) for line in enkaku.command(*words).stdout.splitlines()]
        assert len(lines) == 3
        for line in lines:
            rows = line["connections"]
            # Two connections, both ends of each on this host.
            assert len(rows) == 4, rows
            assert {row["process"]["comm"] for row in rows} == {"enkaku"}
            assert sum(row["serves"] for row in rows) == 2
            assert line["received_bytes_per_s"] > 1e6
        assert lines[-1]["connections"][0]["cause"]
        of_client = enkaku.report(
            "monitor", "--pid", client.pid, "--interval", "200ms", "--count", 1
        )
        assert len(of_client["connections"]) == 2
        assert not any(row["serves"] for row in of_client["connections"])
        text = enkaku.command("monitor", "--port", port, "--interval", "200ms", "--count", 2)
        head, *rows = text.stdout.splitlines()
        assert head.split()[:3] == ["TIME", "PROCESS", "LOCAL"] and len(rows) == 8


def test_metrics_are_those_of_the_connections(tmp_path: Path):
    with _session(tmp_path) as (port, _):
        page = free_port()
        argv = [enkaku.binary(), "monitor", "--port", port, "--interval", "200ms", "--json"]
        with peer([*argv, "--prometheus", f"127.0.0.1:{page}"], tmp_path / "monitor.log") as seen:
            seen.wait_until(lambda: '"connections"' in seen.output(), "no interval has ended")
            with urllib.request.urlopen(f"http://127.0.0.1:{page}/metrics", timeout=10) as answer:
                text = answer.read().decode()
        label = f'remote="127.0.0.1:{port}"'
        rates = [
            float(line.split()[-1])
            for line in text.splitlines()
            if line.startswith("enkaku_tcp_received_bytes_per_second{") and label in line
        ]
        assert len(rates) == 2 and min(rates) > 1e5, text
        assert text.rstrip().endswith("# EOF")


@pytest.mark.parametrize("ending", ["q", "SIGTERM"])
@pytest.mark.parametrize("size", [(24, 80), (50, 160)])
def test_the_terminal_is_left_as_it_was(ending: str, size: tuple[int, int], tmp_path: Path):
    with _session(tmp_path) as (port, _):
        main, terminal = pty.openpty()
        try:
            termios.tcsetwinsize(terminal, size)
            before = termios.tcgetattr(terminal)
            argv = [enkaku.binary(), "monitor", "--port", str(port), "--interval", "200ms"]
            viewing = subprocess.Popen(argv, stdin=terminal, stdout=terminal, stderr=terminal)
            try:
                # The head of the table comes with the first connections.
                shown = _read_until(main, b"LIMIT")
                assert b"\x1b[?1049h" in shown
                if ending == "q":
                    os.write(main, b"q")
                else:
                    viewing.send_signal(signal.SIGTERM)
                _read_until(main, b"\x1b[?1049l")
                assert viewing.wait(READY_S_MAX) == 0
            finally:
                viewing.kill()
                viewing.wait()
            assert termios.tcgetattr(terminal) == before
        finally:
            os.close(main)
            os.close(terminal)


def _read_until(descriptor: int, text: bytes) -> bytes:
    deadline, seen = time.monotonic() + READY_S_MAX, b""
    while text not in seen:
        left = deadline - time.monotonic()
        assert left > 0 and select.select([descriptor], [], [], left)[0], seen[-2000:]
        seen += os.read(descriptor, 65536)
    return seen


def test_what_cannot_be_judged_is_said_in_a_line(tmp_path: Path):
    def said(*words: object) -> tuple[int, str]:
        done = enkaku.command(*words, check=False)
        assert done.stdout == "" and len(done.stderr.splitlines()) == 1, done
        return done.code, done.stderr

    assert said("diagnose")[0] == 2
    code, line = said("diagnose", "--pid", 2**22 + 1)
    assert code == 2 and str(2**22 + 1) in line
    code, line = said("monitor", "--interval", "1ms")
    assert code == 2 and "100ms" in line
    port = free_port()
    code, line = said("diagnose", "--port", port, "--time", "200ms")
    assert code == NOTHING_TO_JUDGE and f"port {port}" in line
    with enkaku.serve(["mem:1M"], tmp_path) as target:
        argv = [enkaku.binary(), "attach", target.url(), "--nbd", tmp_path / "nbd.sock"]
        with peer(argv, tmp_path / "attach.log") as idle:
            idle.wait_for_output("listening on")
            code, line = said("diagnose", "--port", target.port, "--time", "300ms")
    assert code == NOTHING_TO_JUDGE and "nothing was transferred" in line


@pytest.mark.needs("root", "ip")
def test_a_knob_of_a_device_is_turned_when_asked_for():
    ip, name = need("ip"), f"tm{os.getpid()}"
    run([ip, "link", "add", name, "type", "veth", "peer", "name", f"{name}p"])
    try:

        def tso(*words: object) -> int:
            read = enkaku.report("nic", name, *words)
            assert (read["driver"], read["hardware"]) == ("veth", False)
            assert "virtual" in read["note"]
            return next(knob["value"] for knob in read["offloads"] if knob["name"] == "tso")

        assert tso() == 1
        assert tso("--set-offload", "tso=off") == 0
        assert tso() == 0
        refused = enkaku.command("nic", name, "--set-ring", "rx=4096", check=False)
        assert refused.code == 1 and name in refused.stderr and "rx" in refused.stderr
    finally:
        run([ip, "link", "del", name])
    for words in (["nic", name], ["nic", "lo", "--set-offload", "tsx=on"]):
        wrong = enkaku.command(*words, check=False)
        assert wrong.code == 2 and len(wrong.stderr.splitlines()) == 1, wrong


@pytest.mark.needs("root", "/dev/net/tun")
def test_a_process_of_another_namespace_is_not_taken_for_idle(tmp_path: Path):
    with wan.up(LARGE, tmp_path) as lab:
        argv = [enkaku.binary(), "serve", "--listen", f"{FAR}:{PORT}", "--lun", "mem:1M"]
        with peer(lab.exec("far", argv), tmp_path / "serve.log") as serving:
            serving.wait_for_output("listening on")
            done = enkaku.command("diagnose", "--pid", serving.pid, check=False)
    assert done.code == 2 and "nsenter" in done.stderr


def _inside(words: list[str]) -> None:
    """What this file does inside a namespace of the lab."""
    match words:
        case ["congctl", name]:
            wan.set_congestion_control(name)
        case ["tgt", disk, folder]:
            signal.signal(signal.SIGTERM, lambda *_: sys.exit())
            with tgt.serve([Path(disk)], Path(folder), address=FAR, port=PORT):
                print("ready")
                signal.pause()


if __name__ == "__main__":
    _inside(sys.argv[1:])
