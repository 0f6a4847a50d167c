"""`make bench`: two targets, three clients and the limit side by side on loopback, in one run.

Both targets serve an equal file in the page cache, so what is compared is the path of a command
through client, protocol and target, not a disk. Runs are interleaved (A B C A B C …), so that a
change of the machine's mood meets all of them; the table has medians and half ranges. Every number
of ours is given as a ratio to tgt with the same client, or to iperf3, whose four streams tell what
four connections can bring on this machine. How close its processors are to each other is measured
beside it, for a host may change that from run to run.
"""

import argparse
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path

from enkaku_lab import OUT, machine, neighbours, table
from enkaku_lab.peers import Measurement, NotSupported, Target, Workload
from enkaku_lab.peers import enkaku, iperf3, libiscsi, qemu, tgt
from enkaku_lab.progress import Progress
from enkaku_lab.results import Results, median, read, spread

FOLDER = OUT / "bench"
DISK_BYTES = 512 << 20
KIB = 1024
SMALL = [
    Workload(write, True, 4 * KIB, depth) for write in (False, True) for depth in (1, 32)
]
LARGE = [Workload(write, False, 256 * KIB, 8) for write in (False, True)]
WORKLOADS = SMALL + LARGE
PROBE_COMMANDS_MIN = 256
"""qemu-img counts commands, not seconds: a short probe tells how many fill the time."""

Client = Callable[[Target, Workload, int], Measurement]
OURS, FOUR = "enkaku bench", "enkaku bench ×4"

# What issue and README promise: (workload, target and client, over which, at least).
REACH = [
    (SMALL[1], ("enkaku", "iscsi-perf"), ("tgt", "iscsi-perf"), 3.0),
    (SMALL[1], ("enkaku", OURS), ("tgt", "iscsi-perf"), 8.0),
    (LARGE[0], ("enkaku", OURS), ("loopback", "iperf3"), 0.6),
    (LARGE[0], ("enkaku", FOUR), ("enkaku", OURS), 1.3),
    (LARGE[1], ("enkaku", FOUR), ("enkaku", OURS), 1.3),
]
STREAMS = {"iperf3": 1, "iperf3 ×4": 4}


class QemuBench:
    """qemu-img bench for a time: the rate of a cell is probed once and remembered."""

    def __init__(self) -> None:
        self._commands_per_s: dict[tuple[str, Workload], float] = {}

    def __call__(self, target: Target, workload: Workload, seconds: int) -> Measurement:
        cell = (target.name, workload)
        if cell not in self._commands_per_s:
            probe = self._run(target, workload, PROBE_COMMANDS_MIN * workload.depth)
            self._commands_per_s[cell] = probe.bytes / workload.block_bytes / probe.seconds
        return self._run(target, workload, int(self._commands_per_s[cell] * seconds))

    def _run(self, target: Target, workload: Workload, commands: int) -> Measurement:
        commands = max(commands, PROBE_COMMANDS_MIN)
        return qemu.bench(target.url(), workload, commands, DISK_BYTES)


def _clients() -> dict[str, Client]:
    return {
        "iscsi-perf": lambda target, load, seconds: libiscsi.perf(target.url(), load, seconds),
        "qemu-img bench": QemuBench(),
        OURS: lambda target, load, seconds: enkaku.bench(target.url(), load, seconds),
        FOUR: lambda target, load, seconds: enkaku.bench(target.url(), load, seconds, 4),
    }


def _is_asked(workload: Workload, target: str, client: str) -> bool:
    """iscsi-perf only reads; connections are compared where data is much."""
    if client == FOUR:
        return target == "enkaku" and workload in LARGE
    return not (workload.write and client == "iscsi-perf")


def measure(repetitions: int, seconds: int) -> Path:
    """Runs everything; returns the file of raw results."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    clients = _clients()
    cells = [
        (workload, target, client)
        for workload in WORKLOADS
        for client in clients
        for target in ("tgt", "enkaku")
        if _is_asked(workload, target, client)
    ]
    progress = Progress(repetitions * (len(cells) + len(STREAMS)))
    results = Results(FOLDER / "results.jsonl", machine.facts())
    with ExitStack() as stack:
        stack.callback(results.close)
        disks = {name: stack.enter_context(_disk(name)) for name in ("tgt", "enkaku")}
        targets = {
            "tgt": stack.enter_context(tgt.serve([disks["tgt"]], FOLDER)),
            "enkaku": stack.enter_context(enkaku.serve([disks["enkaku"]], FOLDER)),
        }
        limit = stack.enter_context(iperf3.serve(FOLDER))
        for repetition in range(repetitions):
            if rate := neighbours.overwrite_rate():
                results.add({"repetition": repetition} | _between_processors(rate))
            for client in STREAMS:
                progress.step(client)
                results.add({"repetition": repetition} | _iperf3(limit, client, seconds))
            for workload, target, client in cells:
                progress.step(f"{target} with {client}: {workload.label}")
                one = _cell(targets[target], workload, clients[client], seconds)
                results.add({"repetition": repetition, "client": client} | one)
        progress.end()
    return results.path


def _cell(target: Target, workload: Workload, client: Client, seconds: int) -> dict:
    before = target.peer.cpu_s()
    got = client(target, workload, seconds)
    return {
        "kind": "bench",
        "target": target.name,
        "workload": asdict(workload),
        **asdict(got),
        "server_cpu_s": target.peer.cpu_s() - before,
    }


def _between_processors(bytes_per_s: float) -> dict:
    return {
        "kind": "limit",
        "target": "memory",
        "client": "processor to processor",
        "bytes": bytes_per_s,
        "seconds": 1,
    }


def _iperf3(limit: iperf3.Server, client: str, seconds: int) -> dict:
    before = limit.peer.cpu_s()
    streams = STREAMS[client]
    got = iperf3.transfer(limit.address, limit.port, seconds=seconds, streams=streams)
    return {
        "kind": "limit",
        "target": "loopback",
        "client": client,
        "bytes": got.bytes,
        "seconds": got.seconds,
        "client_cpu_s": got.cpu_s,
        "server_cpu_s": limit.peer.cpu_s() - before,
        "congestion_control": got.congestion_control,
    }


@contextmanager
def _disk(name: str) -> Iterator[Path]:
    """A file with data in every block, so that a read is never a hole.

    In memory where there is a file system for that: on a disk's one, 4 KiB writes measure the file
    system (three quarters of the target's time on ext4), not the targets.
    """
    path = _disk_folder() / f"enkaku-bench-{os.getpid()}-{name}.img"
    block = bytes(range(256)) * (1 << 12)
    with path.open("wb") as disk:
        for _ in range(DISK_BYTES // len(block)):
            disk.write(block)
    try:
        yield path
    finally:
        path.unlink()


def _disk_folder() -> Path:
    memory = Path("/dev/shm")
    if memory.is_dir() and shutil.disk_usage(memory).free > 4 * DISK_BYTES:
        return memory
    return FOLDER


class Summary:
    """Raw results, grouped by what was measured."""

    def __init__(self, records: list[dict]):
        self.machine = records[0]
        self._groups: dict[tuple, list[dict]] = {}
        for record in records[1:]:
            load = Workload(**record["workload"]) if "workload" in record else None
            key = (load, record["target"], record["client"])
            self._groups.setdefault(key, []).append(record)

    def rows(self) -> list[list[str]]:
        """In the order of the workloads; the limit last."""
        keys = sorted(self._groups, key=lambda key: key[0] is None)
        return [self._row(*key, self._groups[key]) for key in keys]

    def rate(self, workload: Workload | None, target: str, client: str) -> float:
        """Bytes per second, the median."""
        runs = self._groups[(None if target == "loopback" else workload, target, client)]
        return median([run["bytes"] / run["seconds"] for run in runs])

    def _row(self, load: Workload | None, target: str, client: str, runs: list[dict]) -> list[str]:
        rates = [run["bytes"] / run["seconds"] for run in runs]
        rate = median(rates)
        return [
            load.label if load else "limit",
            target,
            client,
            f"{rate / load.block_bytes:,.0f}" if load else table.GAP,
            f"{rate / 1e6:,.1f}",
            f"{spread(rates):.0%}",
            self._to_tgt(rate, load, target, client),
            f"{load.depth / (rate / load.block_bytes) * 1e6:,.0f}" if load else table.GAP,
            _percentile(runs, "p50"),
            _percentile(runs, "p99"),
            _cpu_per_gb(runs),
        ]

    def _to_tgt(self, rate: float, load: Workload | None, target: str, client: str) -> str:
        if target != "enkaku" or (load, "tgt", client) not in self._groups:
            return table.GAP
        return f"×{rate / self.rate(load, 'tgt', client):.2f}"


HEAD = [
    *("workload", "target", "client", "IOPS", "MB/s", "±", "to tgt"),
    *("mean µs", "p50 µs", "p99 µs", "CPU s/GB"),
]


def _percentile(runs: list[dict], name: str) -> str:
    values = [run["lat_us"][name] for run in runs if name in run.get("lat_us", {})]
    return f"{median(values):,.0f}" if values else table.GAP


def _cpu_per_gb(runs: list[dict]) -> str:
    both_ends = [
        (run["client_cpu_s"] + run["server_cpu_s"]) / run["bytes"] * 1e9
        for run in runs
        if "client_cpu_s" in run
    ]
    return f"{median(both_ends):,.2f}" if both_ends else table.GAP


def report(path: Path) -> str:
    """The table and the ratios, as text."""
    summary = Summary(read(path))
    lines = [
        table.render(HEAD, summary.rows()),
        "",
        "Medians; ± is half the range; ‘to tgt’ is the ratio with the same client. Mean latency is",
        "depth / IOPS; percentiles are the client's own (iscsi-perf and qemu-img have none).",
        "CPU seconds per GB are those of client and target together. iscsi-perf only reads;",
        "qemu-img has no random order: it strides. ‘Processor to processor’ is how fast one",
        "overwrites what the other has just read.",
        machine.summary(summary.machine),
        "",
    ]
    for load, ours, other, least in REACH:
        ratio = summary.rate(load, *ours) / summary.rate(load, *other)
        verdict = "reached" if ratio >= least else "NOT reached"
        lines.append(
            f"{load.label}: {' with '.join(ours)} is × {ratio:.2f} of {' with '.join(other)} "
            f"(aim: ≥ {least:g}, {verdict})"
        )
    four, one = (summary.rate(None, "loopback", client) for client in ("iperf3 ×4", "iperf3"))
    lines.append(f"What plain TCP gains on this machine: four streams are × {four / one:.2f} of one")
    return "\n".join(lines)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="enkaku_lab bench", description=__doc__)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=2, help="length of each run")
    options = parser.parse_args(arguments)
    path = measure(options.repetitions, options.seconds)
    text = report(path)
    (FOLDER / "table.txt").write_text(text + "\n")
    print(text)
    print(f"\nRaw results: {path}")
