"""`python -m enkaku_lab bottlenecks`: transfers with a known bottleneck, captured and diagnosed.

Each case builds one cause on an emulated link (a small buffer, losses, a slow disk …), runs a
transfer with a capture beside, and asks `enkaku diagnose --pcap` for the name of the cause. Over
several seeds, which vary round trip, rate and the place of the capture, that is a confusion matrix.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from enkaku_lab import wan
from enkaku_lab.peers import NotSupported, disk_url, enkaku, need, tgt
from enkaku_lab.process import LabError, Peer, peer, run
from enkaku_lab.progress import say
from enkaku_lab.table import render

KIB, MIB = 1 << 10, 1 << 20
FAR = "10.77.0.2"
PORT = 3260
DISK_BYTES = 256 * MIB
SNAPLEN = 262144
"""PDU headers may be anywhere in a super-packet."""
STACKS = ("enkaku", "tgt+libiscsi")


@dataclass(frozen=True)
class Case:
    """One cause, constructed. Buffers are `tcp_wmem` and `tcp_rmem` of both ends."""

    cause: str
    what: str
    block_bytes: int
    depth: int
    write: bool = True
    cc: str = "cubic"
    rtts_ms: tuple[float, ...] = (20, 30, 40)
    rates: tuple[str, ...] = ("200mbit", "300mbit")
    loss: float = 0.0
    wmem: str = "4k 64k 16M"
    rmem: str = "4k 128k 16M"
    seconds: float = 3.0
    keys: dict[str, str] = field(default_factory=dict)
    """iSCSI keys of the target, by RFC 7143's names."""
    disk_delay_ms: float = 0.0
    pause_s: float = 0.0
    """The application sleeps so long between writes."""


CASES = {
    one.cause: one
    for one in [
        Case(
            "send_buffer", "send buffer of 128 KiB at most", 512 * KIB, 8,
            wmem="4k 64k 128k", rtts_ms=(30, 40, 50),
        ),
        Case(
            "receive_window", "receive buffer of 256 KiB at most", 512 * KIB, 8,
            rmem="4k 64k 256k", rtts_ms=(30, 40, 50),
        ),
        Case(
            "congestion_loss", "losses of 4e-3 and cubic", 512 * KIB, 8,
            loss=4e-3, seconds=4.0,
        ),
        Case(
            "r2t", "InitialR2T=Yes, one R2T of 64 KiB at a time", MIB, 1,
            keys={
                "InitialR2T": "Yes", "ImmediateData": "No", "MaxOutstandingR2T": "1",
                "FirstBurstLength": "65536", "MaxBurstLength": "65536",
            },
        ),
        Case("queue_depth", "one read of 16 KiB at a time", 16 * KIB, 1, write=False),
        Case(
            "storage", "a disk that takes 60 ms for each request", 32 * KIB, 1,
            disk_delay_ms=60, rtts_ms=(4, 6, 8),
        ),
        Case(
            "line_rate", "a line of 50 Mbit/s, large buffers", 512 * KIB, 16,
            rates=("50mbit",), rtts_ms=(10, 20), seconds=4.0,
        ),
        Case(
            "application", "a write of 64 KiB every 0.3 s", 64 * KIB, 1,
            pause_s=0.3, rtts_ms=(10, 20), seconds=4.0,
        ),
    ]
}


@dataclass(frozen=True)
class Run:
    """What a seed makes of a case."""

    case: Case
    stack: str
    rtt_ms: float
    rate: str
    where: str
    """near, far: tcpdump there; line: the emulator's own log of packets."""
    seed: int


def plan(case: Case, stack: str, seed: int) -> Run:
    draw = random.Random(f"{case.cause} {stack} {seed}")
    where = "near" if seed == 0 else draw.choice(["near", "far", "line"])
    return Run(case, stack, draw.choice(case.rtts_ms), draw.choice(case.rates), where, seed)


def diagnose(one: Run, folder: Path) -> tuple[dict, dict]:
    """Runs it; returns the verdict and the whole report."""
    capture = folder / f"{one.case.cause}-{one.stack}-{one.seed}.pcap"
    transfer(one, capture, folder)
    verdict = enkaku.report("diagnose", "--pcap", capture)
    report = enkaku.report("monitor", "report", capture)
    return verdict, report


def transfer(one: Run, capture: Path, folder: Path) -> None:
    """The transfer with its capture."""
    name = f"bottleneck-{os.getpid()}"
    case = one.case
    words = ["--rate", one.rate, "--rtt", f"{one.rtt_ms}ms", "--loss", repr(case.loss)]
    words += ["--queue", 2000, "--seed", one.seed + 1]
    words += ["--wmem", case.wmem, "--rmem", case.rmem]
    words += ["--sysctl", "net.ipv4.tcp_no_metrics_save=1"]
    if one.where == "line":
        words += ["--pcap", capture, "--snaplen", 65_589]
    guardian = wan.guard(name)
    lab = wan.Lab(name)
    try:
        enkaku.command("wan", "up", name, *words, timeout_s=20)
        with ExitStack() as stack:
            for end in ("near", "far"):
                argv = [sys.executable, "-m", "enkaku_lab.bottlenecks", "--congctl", case.cc]
                run(lab.exec(end, argv))
            disk = stack.enter_context(_disk(case, folder))
            url = stack.enter_context(target(one, lab, disk, folder))
            if one.where != "line":
                stack.enter_context(captured(lab, one.where, capture, folder))
            _load(one, lab, url, folder)
    finally:
        lab.down()
        guardian.stdin.close()
        guardian.wait()


@contextmanager
def captured(lab: wan.Lab, end: str, path: Path, logs: Path) -> Iterator[None]:
    """tcpdump at an end, from its readiness on; all that passed is in the file afterwards."""
    argv = [need("tcpdump"), "-i", "wan0", "-s", SNAPLEN, "-B", 65536, "-U", "-w", path]
    argv += ["tcp", "port", PORT]
    dumping = Peer(lab.exec(end, argv), logs / f"tcpdump-{end}.log")
    try:
        dumping.wait_for_output("listening on")
        yield
    finally:
        dumping.signal(signal.SIGINT)
        dumping.wait(20)


@contextmanager
def _disk(case: Case, folder: Path) -> Iterator[Path]:
    """A file for the target; with a delay, one below nbdkit and FUSE."""
    if not case.disk_delay_ms:
        path = folder / "disk"
        with path.open("wb") as file:
            file.truncate(DISK_BYTES)
        yield path
        return
    path = folder / "slow"
    path.touch()
    delay = f"{case.disk_delay_ms:g}ms"
    argv = [need("nbdfuse"), path, "--command", need("nbdkit"), "-s", "--filter=delay"]
    argv += ["memory", DISK_BYTES, f"wdelay={delay}", f"rdelay={delay}"]
    with peer(argv, folder / "nbdfuse.log") as fuse:
        fuse.wait_until(lambda: os.path.ismount(path), "its file is not mounted")
        try:
            yield path
        finally:
            run([need("fusermount3"), "-u", "-z", path], check=False)


@contextmanager
def target(one: Run, lab: wan.Lab, disk: Path, folder: Path) -> Iterator[str]:
    if one.stack == "enkaku":
        with peer(lab.exec("far", _enkaku_target(one, disk, folder)), folder / "t.log") as serving:
            serving.wait_for_output("listening on")
            yield disk_url(f"{FAR}:{PORT}", enkaku.IQN, 0)
        return
    # tgtd is started by its adapter, which must run inside the namespace to see the portal.
    argv = [sys.executable, "-m", "enkaku_lab.bottlenecks", "--tgt", disk, "--logs", folder]
    argv += ["--keys", json.dumps(one.case.keys)]
    with peer(lab.exec("far", argv), folder / "tgt.log") as serving:
        serving.wait_for_output("ready")
        yield disk_url(f"{FAR}:{PORT}", tgt.IQN, tgt.FIRST_LUN)


def _enkaku_target(one: Run, disk: Path, folder: Path) -> list[object]:
    if not one.case.keys:
        direct = ["--direct"] if one.case.disk_delay_ms else []
        listen = ["--listen", f"{FAR}:{PORT}", "--iqn", enkaku.IQN]
        return [enkaku.binary(), "serve", *listen, "--lun", disk, *direct]
    names = {
        "InitialR2T": "initial_r2t", "ImmediateData": "immediate_data",
        "MaxOutstandingR2T": "max_outstanding_r2t",
        "FirstBurstLength": "first_burst_length", "MaxBurstLength": "max_burst_length",
    }
    toml = {"Yes": "true", "No": "false"}
    lines = [f"{names[key]} = {toml.get(value, value)}" for key, value in one.case.keys.items()]
    config = folder / "target.toml"
    config.write_text(
        f'[server]\nadmin_socket = "{folder}/admin.sock"\n'
        f'[[portal]]\nname = "far"\nlisten = "{FAR}:{PORT}"\n'
        "[parameters]\n" + "\n".join(lines) + "\n"
        f'[[target]]\nname = "{enkaku.IQN}"\nportals = ["far"]\nanyone = true\n'
        f'[[target.lun]]\nnumber = 0\npath = "{disk}"\n'
    )
    return [enkaku.binary(), "target", "run", "--config", config]


def _load(one: Run, lab: wan.Lab, url: str, folder: Path) -> None:
    case = one.case
    if case.pause_s:
        argv = _pausing(one, url)
    elif one.stack == "enkaku":
        argv = [enkaku.binary(), "bench", url, "--rw", "write" if case.write else "read"]
        argv += ["--bs", case.block_bytes, "--depth", case.depth, "--time", f"{case.seconds}s"]
        argv += ["--connections", 1, "--congestion-control", case.cc]
    else:
        # qemu-img counts commands and has no time limit: it is stopped when the time is over.
        argv = [need("timeout"), "-s", "INT", case.seconds]
        argv += [need("qemu-img"), "bench", "-f", "raw", "-t", "none", "-d", case.depth]
        argv += ["-c", 1_000_000, "-s", case.block_bytes, "-S", case.block_bytes]
        argv += [*(["-w"] if case.write else []), url]
    run(lab.exec("near", argv), timeout_s=case.seconds + 60, check=one.stack == "enkaku")


def _pausing(one: Run, url: str) -> list[object]:
    """An application that writes a block now and then, and waits for it."""
    case = one.case
    writes = int(case.seconds / case.pause_s)
    if one.stack == "enkaku":
        feed = (
            f"for n in $(seq {writes}); do head -c {case.block_bytes} /dev/urandom; "
            f"sleep {case.pause_s}; done | {enkaku.binary()} copy - '{url}' --connections 1 "
            f"--block-size {case.block_bytes} --depth 1"
        )
        return ["sh", "-c", feed]
    words = []
    for number in range(writes):
        at = number * case.block_bytes
        words += ["-c", f"write {at} {case.block_bytes}", "-c", f"sleep {case.pause_s * 1000:.0f}"]
    return [need("qemu-io"), "-f", "raw", "-t", "none", *words, url]


def matrix(results: list[tuple[str, str, str]]) -> str:
    """Rows: what was built (and by which stack); columns: what was found."""
    found = sorted({verdict for _, _, verdict in results} | set(CASES))
    rows = []
    for stack in dict.fromkeys(stack for stack, _, _ in results):
        for cause in CASES:
            mine = Counter(v for s, c, v in results if (s, c) == (stack, cause))
            if mine:
                rows.append([stack, cause, *(str(mine[one] or "·") for one in found)])
    right = sum(cause == verdict for _, cause, verdict in results)
    total = f"{right} of {len(results)} right ({right / max(1, len(results)):.0%})"
    return render(["stack", "built", *found], rows) + "\n" + total


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="enkaku_lab bottlenecks", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--cause", action="append", choices=list(CASES))
    parser.add_argument("--stack", action="append", choices=STACKS)
    parser.add_argument("--keep", type=Path, help="keep captures and reports here")
    options = parser.parse_args(arguments)
    results = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for seed in range(options.seeds):
            for cause in options.cause or CASES:
                for stack in options.stack or STACKS:
                    one = plan(CASES[cause], stack, seed)
                    try:
                        verdict, report = diagnose(one, folder)
                    except NotSupported as error:
                        say(f"{stack} {cause}: {error}")
                        continue
                    results.append((stack, cause, verdict["cause"]))
                    mark = "" if verdict["cause"] == cause else "   <-- WRONG"
                    say(
                        f"{stack} seed {seed} RTT {one.rtt_ms:g} ms {one.rate} at {one.where}: "
                        f"{cause} -> {verdict['cause']}{mark}"
                    )
                    if options.keep:
                        name = f"{cause}-{stack}-{seed}.json"
                        (folder / name).write_text(json.dumps([verdict, report]))
    print(matrix(results))


def _inside(arguments: list[str]) -> None:
    """What runs inside a namespace of the lab."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--congctl")
    parser.add_argument("--tgt", type=Path)
    parser.add_argument("--logs", type=Path)
    parser.add_argument("--keys", type=json.loads, default={})
    options = parser.parse_args(arguments)
    if options.congctl:
        wan.set_congestion_control(options.congctl)
        return
    more = {"address": FAR, "port": PORT, "parameters": options.keys}

    def stop(*_: object) -> None:
        raise SystemExit

    signal.signal(signal.SIGTERM, stop)
    with tgt.serve([options.tgt], options.logs, **more) as serving:
        print("ready", flush=True)
        serving.peer.wait(3600)


if __name__ == "__main__":
    try:
        _inside(sys.argv[1:])
    except LabError as error:
        sys.exit(str(error))
