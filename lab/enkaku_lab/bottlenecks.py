"""`python -m enkaku_lab bottlenecks`: transfers with a known bottleneck, diagnosed twice.

Each case builds one cause on an emulated link (a small buffer, losses, a slow disk …) and runs a
transfer. While it runs, `enkaku diagnose` is asked for the cause at the end that the data leave, from
the kernel's samples and, where those cannot tell, from packets; a capture of the same transfer is given
to `enkaku diagnose --pcap`. Over
several seeds, which vary round trip, rate and the place of the capture, that is a confusion matrix
(`enkaku_lab.confusion`). Thresholds were tuned on seeds 0 to 9: only others say how good they are.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from enkaku_lab import OUT, confusion, machine, wan
from enkaku_lab.peers import NotSupported, disk_url, enkaku, need, tgt
from enkaku_lab.process import CommandFailed, LabError, Peer, peer, run
from enkaku_lab.progress import Progress, say

KIB, MIB = 1 << 10, 1 << 20
PORT = 3260
DISK_BYTES = 256 * MIB
SNAPLEN = 262144
"""PDU headers may be anywhere in a super-packet."""
STACKS = ("enkaku", "tgt+libiscsi")
SAMPLED = "2s"
"""How long `enkaku diagnose` watches a transfer; every case runs longer, and twice as long where
packets are looked at for the same time."""
MOVES_BYTES_PER_S = 50_000
NOTHING_TO_JUDGE = 3
TUNED_SEEDS = range(10)
"""The thresholds of the verdicts were chosen with these."""
FOLDER = OUT / "bottlenecks"


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
            "r2t", "InitialR2T=Yes, one R2T of 64 KiB at a time", MIB, 1, seconds=6.0,
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


@dataclass(frozen=True)
class Found:
    """What was said of one transfer; `live` is None where nothing was there to judge."""

    capture: dict
    live: dict | None
    report: dict

    @property
    def samples(self) -> dict | None:
        """What the kernel's counters said by themselves."""
        return self.live and self.live.get("counters", self.live)


def diagnose(one: Run, folder: Path) -> Found:
    """Runs it and asks all sources."""
    path = folder / f"{one.case.cause}-{one.stack}-{one.seed}.pcap"
    live = transfer(one, path, folder)
    verdict = enkaku.report("diagnose", "--pcap", path, "--port", PORT)
    return Found(verdict, live, enkaku.report("monitor", "report", path))


def transfer(one: Run, capture: Path, folder: Path) -> dict | None:
    """The transfer with its capture; returns the verdict of who watched it."""
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
            lab.choose_congestion_control(case.cc)
            disk = stack.enter_context(_disk(case, folder))
            url = stack.enter_context(target(one, lab, disk, folder))
            if one.where != "line":
                stack.enter_context(captured(lab, one.where, capture, folder))
            return _load(one, lab, url, folder)
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
            yield disk_url(f"{wan.FAR}:{PORT}", enkaku.IQN, 0)
        return
    # tgtd is started by its adapter, which must run inside the namespace to see the portal.
    argv = [sys.executable, "-m", "enkaku_lab.bottlenecks", "--tgt", disk, "--logs", folder]
    argv += ["--keys", json.dumps(one.case.keys)]
    with peer(lab.exec("far", argv), folder / "tgt.log") as serving:
        serving.wait_for_output("ready")
        yield disk_url(f"{wan.FAR}:{PORT}", tgt.IQN, tgt.FIRST_LUN)


def _enkaku_target(one: Run, disk: Path, folder: Path) -> list[object]:
    if not one.case.keys:
        direct = ["--direct"] if one.case.disk_delay_ms else []
        listen = ["--listen", f"{wan.FAR}:{PORT}", "--iqn", enkaku.IQN]
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
        f'[[portal]]\nname = "far"\nlisten = "{wan.FAR}:{PORT}"\n'
        "[parameters]\n" + "\n".join(lines) + "\n"
        f'[[target]]\nname = "{enkaku.IQN}"\nportals = ["far"]\nanyone = true\n'
        f'[[target.lun]]\nnumber = 0\npath = "{disk}"\n'
    )
    return [enkaku.binary(), "target", "run", "--config", config]


def _load(one: Run, lab: wan.Lab, url: str, folder: Path) -> dict | None:
    """Runs the transfer to its end; the verdict of who watched it meanwhile."""
    case = one.case
    if case.pause_s:
        argv = _pausing(one, url)
    elif one.stack == "enkaku":
        argv = [enkaku.binary(), "bench", url, "--rw", "write" if case.write else "read"]
        argv += ["--force", "--bs", case.block_bytes, "--depth", case.depth, "--time", f"{case.seconds}s"]
        # The causes are to be met, not avoided.
        argv += ["--connections", 1, "--congestion-control", case.cc, "--pacing", "off"]
    else:
        # qemu-img counts commands and has no time limit: it is stopped when the time is over.
        argv = [need("timeout"), "-s", "INT", case.seconds]
        argv += [need("qemu-img"), "bench", "-f", "raw", "-t", "none", "-d", case.depth]
        argv += ["-c", 1_000_000, "-s", case.block_bytes, "-S", case.block_bytes]
        argv += [*(["-w"] if case.write else []), url]
    end = "near" if case.write else "far"
    with peer(lab.exec("near", argv), folder / "load.log") as load:
        load.wait_until(lambda: _moves(lab, end), "nothing is transferred")
        verdict = sampled(lab, end)
        code = load.wait(case.seconds + 60)
    if code != 0 and one.stack == "enkaku":
        raise CommandFailed(load.argv, code, load.output(), "")
    return verdict


def sampled(lab: wan.Lab, end: str) -> dict | None:
    """The verdict of this end's kernel; None where it saw no transfer."""
    argv = [enkaku.binary(), "diagnose", "--port", PORT, "--time", SAMPLED, "--json"]
    try:
        return json.loads(run(lab.exec(end, argv), timeout_s=30).stdout)
    except CommandFailed as error:
        if error.code == NOTHING_TO_JUDGE:
            return None
        raise


def _moves(lab: wan.Lab, end: str) -> bool:
    argv = [enkaku.binary(), "monitor", "--port", PORT, "--interval", "200ms", "--count", 1]
    seen = json.loads(run(lab.exec(end, [*argv, "--json"])).stdout)
    return max(seen["sent_bytes_per_s"], seen["received_bytes_per_s"]) > MOVES_BYTES_PER_S


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


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="enkaku_lab bottlenecks", description=__doc__)
    parser.add_argument("--seeds", type=int, help="how many (10; with --quick 1)")
    parser.add_argument("--first-seed", type=int, default=0, help="tuned: 0 to 9; unseen: 10 on")
    parser.add_argument("--quick", action="store_true", help="one seed")
    parser.add_argument("--cause", action="append", choices=list(CASES))
    parser.add_argument("--stack", action="append", choices=STACKS)
    parser.add_argument("--fresh", action="store_true", help="measure again what is finished")
    parser.add_argument("--keep", type=Path, help="keep captures and reports here")
    parser.add_argument("--out", type=Path, default=FOLDER, help=f"default: {FOLDER}")
    parser.add_argument("--docs", type=Path, help="also write bottlenecks.md and .json there")
    parser.add_argument("--note", default="", help="a sentence for the head of the page")
    options = parser.parse_args(arguments)
    seeds = options.seeds if options.seeds is not None else 1 if options.quick else 10
    if seeds < 1 or options.first_seed < 0:
        raise LabError("--seeds must be at least 1, --first-seed at least 0")
    wan.need()
    work = [
        plan(CASES[cause], stack, seed)
        for seed in range(options.first_seed, options.first_seed + seeds)
        for cause in options.cause or CASES
        for stack in options.stack or STACKS
    ]
    store = confusion.Store(options.out / "results.jsonl", enkaku.binary())
    if options.fresh:
        store.forget()
    failed = _run(work, store, options.keep)
    tables = confusion.Tables(store.of(work), list(CASES), TUNED_SEEDS)
    print(tables.text())
    for folder in filter(None, (options.out, options.docs)):
        words = f"--first-seed {options.first_seed} --seeds {seeds} --docs docs"
        page = confusion.write(tables, folder, machine.facts(), words, options.note)
        say(f"Report: {page}")
    if failed:
        raise LabError(f"{failed} cells failed; the same command tries them again")


def _run(work: list[Run], store: confusion.Store, keep: Path | None) -> int:
    """Measures what the store does not have yet; returns how many cells failed."""
    todo = [one for one in work if not store.has(one)]
    say(f"{len(work)} cells, {len(work) - len(todo)} of them finished before")
    progress, failed, missing = Progress(len(todo)), 0, {}
    for one in todo:
        progress.step(f"{one.stack} {one.case.cause}, seed {one.seed}")
        begin = time.monotonic()
        try:
            with tempfile.TemporaryDirectory() as temporary:
                folder = keep or Path(temporary)
                folder.mkdir(parents=True, exist_ok=True)
                found = diagnose(one, folder)
        except NotSupported as error:
            missing[one.stack] = str(error)
            continue
        except LabError as error:
            failed += 1
            say(f"{one.stack} {one.case.cause}, seed {one.seed}: {error}")
            continue
        line = store.add(one, found.samples, found.live, found.capture, time.monotonic() - begin)
        say(confusion.sentence(line))
        if keep:
            name = f"{one.case.cause}-{one.stack}-{one.seed}.json"
            (keep / name).write_text(json.dumps([found.live, found.capture, found.report]))
    progress.end()
    for stack, why in missing.items():
        say(f"{stack}: {why}")
    return failed


def _inside(arguments: list[str]) -> None:
    """What runs inside a namespace of the lab."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tgt", type=Path)
    parser.add_argument("--logs", type=Path)
    parser.add_argument("--keys", type=json.loads, default={})
    options = parser.parse_args(arguments)
    more = {"address": wan.FAR, "port": PORT, "parameters": options.keys}

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
