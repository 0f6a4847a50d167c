"""`make bench`: targets, clients and limits side by side on loopback, in one run.

Both targets serve an equal file in the page cache, so what is compared is the path of a command
through client, protocol and target, not a disk; ours has a disk in its own memory, too. Runs are
interleaved (A B C A B C …), so that a change of the machine's mood meets all of them; the table has
medians and half ranges, and names rows beside which others used the machine. Every number of ours
is given as a ratio to tgt with the same client, and to a limit: two processes that only move the
bytes of 4 KiB I/O (`peers.limit`), and iperf3, whose four streams tell what four connections can
bring on this machine. How close its processors are to each other is measured beside it, for a host
may change that from run to run.

BENCH_PEER="spdk:PATH" puts another target beside them, if there is such a program.
"""

import argparse
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path

from enkaku_lab import OUT, bench_table, machine, neighbours
from enkaku_lab.bench_rows import (
    ALL,
    FOUR,
    MANY,
    MEMORY,
    OURS,
    POLLING,
    SESSIONS,
    SPDK,
    SPINNING,
    STREAMS,
    Cell,
    cells,
)
from enkaku_lab.foreign import Foreign
from enkaku_lab.peers import Measurement, Target, Workload
from enkaku_lab.peers import enkaku, iperf3, libiscsi, limit, qemu, spdk, tgt
from enkaku_lab.process import LabError, Peer, run
from enkaku_lab.progress import Progress, say
from enkaku_lab.results import Results, median

FOLDER = OUT / "bench"
DISK_BYTES = 512 << 20
DISKS_MAX = 4
"""At once, and what is left of them in memory."""
PROBE_COMMANDS_MIN = 256
"""qemu-img counts commands, not seconds: a short probe tells how many fill the time."""
SESSIONS_READY_S = 4.0
"""All sessions have begun by then, and from then on they are measured."""
PEER_VARIABLE = "BENCH_PEER"
POLL = ["--poll", "50us"]
Client = Callable[[Target, Workload, int], tuple[Measurement, dict]]
"""What it reached, and what else is in the record."""


class QemuBench:
    """qemu-img bench for a time: the rate of a cell is probed once and remembered."""

    def __init__(self) -> None:
        self._commands_per_s: dict[tuple[str, Workload], float] = {}

    def __call__(self, target: Target, workload: Workload, seconds: int):
        cell = (target.name, workload)
        if cell not in self._commands_per_s:
            probe = self._run(target, workload, PROBE_COMMANDS_MIN * workload.depth)
            self._commands_per_s[cell] = probe.bytes / workload.block_bytes / probe.seconds
        return self._run(target, workload, int(self._commands_per_s[cell] * seconds)), {}

    def _run(self, target: Target, workload: Workload, commands: int) -> Measurement:
        commands = max(commands, PROBE_COMMANDS_MIN)
        return qemu.bench(target.url(), workload, commands, DISK_BYTES)


def _many_sessions(target: Target, workload: Workload, seconds: int) -> tuple[Measurement, dict]:
    """A process for each session. All measure the same seconds, however long it took to start them."""
    ready_s = time.monotonic() + SESSIONS_READY_S
    url = _url(target)
    words = ["bench", url, "--rw", workload.rw, "--bs", workload.block_bytes]
    words += ["--depth", workload.depth, "--connections", 1, "--path-memory", "off"]
    words += ["--time", f"{seconds}s", "--json"]
    running = []
    with ExitStack() as stack:
        for number in range(SESSIONS):
            ramp_s = max(ready_s - time.monotonic(), 0.001)
            argv = [enkaku.binary(), *words, "--ramp", f"{ramp_s * 1000:.0f}ms"]
            client = Peer(argv, FOLDER / f"session-{number}.log")
            stack.callback(client.stop)
            running.append(client)
        for client in running:
            if client.wait(SESSIONS_READY_S + seconds + 60):
                raise LabError(f"{' '.join(client.argv)}:\n{client.output()}")
    if time.monotonic() < ready_s:
        raise LabError(f"{SESSIONS} sessions were measured before all had begun")
    said = [json.loads(client.output().splitlines()[-1]) for client in running]
    lat_us = {name: median([one["lat_us"][name] for one in said]) for name in ("p50", "p99")}
    each = [one["bytes"] / one["seconds"] for one in said]
    reached = Measurement(int(sum(each) * seconds), seconds, 0.0, lat_us, SESSIONS)
    # Their processor time is of starting, too.
    return reached, {"slowest_to_mean": min(each) / (sum(each) / SESSIONS), "client_cpu_s": None}


def _url(target: Target) -> str:
    """The disk that is measured: our own target's second one is the memory."""
    return target.url(1 if target.name == MEMORY else 0)


def _clients() -> dict[str, Client]:
    def ours(connections: int) -> Client:
        def client(target: Target, load: Workload, seconds: int):
            options = POLL if target.name == POLLING else []
            got = enkaku.bench(_url(target), load, seconds, connections, options=options)
            return got, {}

        return client

    return {
        "iscsi-perf": lambda target, load, s: (libiscsi.perf(target.url(), load, s), {}),
        "qemu-img bench": QemuBench(),
        OURS: ours(1),
        FOUR: ours(4),
        ALL: _many_sessions,
    }


def _peer() -> Path | None:
    """The program of BENCH_PEER, if it is there."""
    wanted = os.environ.get(PEER_VARIABLE, "")
    if not wanted:
        return None
    kind, _, path = wanted.partition(":")
    if kind != SPDK or not path:
        raise LabError(f"{PEER_VARIABLE}={wanted}: it is {SPDK}:/path/to/iscsi_tgt")
    if not os.access(path, os.X_OK):
        say(f"{path} is not there: its rows are left out")
        return None
    return Path(path)


def measure(wanted: list[Cell], repetitions: int, seconds: int) -> Path:
    """Runs everything; returns the file of raw results."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    progress = Progress(repetitions * len(wanted))
    results = Results(FOLDER / "results.jsonl", machine.facts())
    with ExitStack() as stack:
        stack.callback(results.close)
        runs = _Runs(stack, {cell.target for cell in wanted})
        for repetition in range(repetitions):
            if rate := neighbours.overwrite_rate():
                results.add({"repetition": repetition} | _between_processors(rate))
            for cell in wanted:
                progress.step(cell.name)
                foreign = Foreign()
                record = runs.cell(cell, seconds)
                record |= {"foreign": foreign.share(), "repetition": repetition}
                results.add(record)
        progress.end()
    return results.path


class _Runs:
    """The servers that some cells need, and a run of a cell."""

    def __init__(self, stack: ExitStack, targets: set[str]):
        self._clients = _clients()
        self._targets: dict[str, Target] = {}
        disks = stack.enter_context(_memory())
        say(f"disks in {disks}")
        if "tgt" in targets:
            disk = stack.enter_context(_disk(disks, "tgt"))
            self._targets["tgt"] = stack.enter_context(tgt.serve([disk], FOLDER))
        if targets & {"enkaku", MEMORY}:
            disk = stack.enter_context(_disk(disks, "enkaku"))
            ours = stack.enter_context(enkaku.serve([disk, f"mem:{DISK_BYTES}"], FOLDER))
            self._targets["enkaku"] = ours
            self._targets[MEMORY] = replace(ours, name=MEMORY)
        if MEMORY in targets:
            enkaku.command("copy", ours.url(0), ours.url(1), "--force")
        if POLLING in targets:
            disk = stack.enter_context(_disk(disks, "poll"))
            memory = f"mem:{DISK_BYTES}"
            polling = stack.enter_context(enkaku.serve([memory], FOLDER, options=POLL))
            enkaku.command("copy", disk, polling.url(), "--force")
            self._targets[POLLING] = replace(polling, name=POLLING)
        if SPDK in targets:
            serving = spdk.serve(_peer(), DISK_BYTES, FOLDER)
            self._targets[SPDK] = stack.enter_context(serving)
        if "loopback" in targets:
            self._iperf3 = stack.enter_context(iperf3.serve(FOLDER))

    def cell(self, cell: Cell, seconds: int) -> dict:
        if cell.target == "loopback":
            return self._stream(cell.client, seconds)
        head = {"workload": asdict(cell.workload), "target": cell.target, "client": cell.client}
        if cell.target == "limit":
            connections = SESSIONS if cell.workload == MANY else 1
            spin = cell.client == SPINNING
            got, more = limit.move(cell.workload, seconds, spin=spin, connections=connections)
            return {"kind": "limit", **head, **asdict(got), **more}
        target = self._targets[cell.target]
        before = target.peer.cpu_s()
        got, more = self._clients[cell.client](target, cell.workload, seconds)
        server_cpu_s = target.peer.cpu_s() - before
        return {"kind": "bench", **head, **asdict(got), "server_cpu_s": server_cpu_s, **more}

    def _stream(self, client: str, seconds: int) -> dict:
        before = self._iperf3.peer.cpu_s()
        streams, server = STREAMS[client], self._iperf3
        got = iperf3.transfer(server.address, server.port, seconds=seconds, streams=streams)
        return {
            "kind": "limit",
            "target": "loopback",
            "client": client,
            "bytes": got.bytes,
            "seconds": got.seconds,
            "client_cpu_s": got.cpu_s,
            "server_cpu_s": server.peer.cpu_s() - before,
            "congestion_control": got.congestion_control,
        }


def _between_processors(bytes_per_s: float) -> dict:
    return {
        "kind": "limit",
        "target": "memory",
        "client": "processor to processor",
        "bytes": bytes_per_s,
        "seconds": 1,
    }


@contextmanager
def _disk(folder: Path, name: str) -> Iterator[Path]:
    """A file with data in every block, so that a read is never a hole."""
    path = folder / f"enkaku-bench-{os.getpid()}-{name}.img"
    block = bytes(range(256)) * (1 << 12)
    with path.open("wb") as disk:
        for _ in range(DISK_BYTES // len(block)):
            disk.write(block)
    try:
        yield path
    finally:
        path.unlink()


@contextmanager
def _memory() -> Iterator[Path]:
    """A folder for disks: in memory, with large pages where we may mount it.

    On a disk's file system 4 KiB writes measure the file system (three quarters of the target's
    time on ext4), not the targets. With pages of 4 KiB the rate of a file depends on which ones it
    got, by a third between two files of one run, and a tenth of all time goes into one page after
    the other.
    """
    shared, ours = Path("/dev/shm"), FOLDER / "disks"
    _unmount(ours)  # of a run that was killed
    ours.mkdir(parents=True, exist_ok=True)
    how = f"huge=always,size={DISKS_MAX * DISK_BYTES}"
    mounted = shutil.disk_usage(shared).free > DISKS_MAX * DISK_BYTES if shared.is_dir() else False
    if mounted:
        command = ["mount", "-t", "tmpfs", "-o", how, "enkaku-bench", ours]
        mounted = run(command, check=False).code == 0
    try:
        yield ours if mounted or not shared.is_dir() else shared
    finally:
        _unmount(ours)


def _unmount(folder: Path) -> None:
    if folder.is_mount():
        run(["umount", folder])


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="enkaku_lab bench", description=__doc__)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=3, help="length of each run")
    parser.add_argument(
        "--only",
        metavar="WORDS",
        action="append",
        help='only rows with all of these words: --only "randread d32 bench" --only "d32 limit"',
    )
    parser.add_argument("--list", action="store_true", help="print the names of the rows")
    options = parser.parse_args(arguments)
    program = _peer()
    wanted = cells(options.only or [""], program is not None)
    if not wanted:
        raise LabError(f"no row has {options.only!r} in its name; --list prints them")
    if options.list:
        print("\n".join(cell.name for cell in wanted))
        return
    path = measure(wanted, options.repetitions, options.seconds)
    text = bench_table.report(path)
    (FOLDER / "table.txt").write_text(text + "\n")
    print(text)
    print(f"\nRaw results: {path}")
