"""`python -m enkaku_lab monitor-cost`: what watching costs a transfer.

Pairs of runs of the same load, one with `enkaku monitor` at its default interval beside it and one
without, in turns; the ratio of each pair, and the median of the pairs. Over 1 Gbit/s with RTT 10 ms
(needs root), and on loopback, which is the worst case: no line is slower than the processors, and the
monitor takes from them.
"""

import argparse
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from enkaku_lab import machine, policy_run, wan
from enkaku_lab.experiment import Link
from enkaku_lab.peers import Target, Workload, enkaku
from enkaku_lab.process import Peer, peer
from enkaku_lab.progress import say
from enkaku_lab.table import fenced, render

KIB = 1 << 10
LOADS = (
    Workload(write=False, random=True, block_bytes=4 * KIB, depth=32),
    Workload(write=True, random=False, block_bytes=256 * KIB, depth=16),
)
CONNECTIONS = 4
LINE = Link(10.0)
RAMP_S = 3.0
"""Over the line, before what counts: windows open meanwhile."""
END_S_MAX = 30.0
HEAD = ["load", "pairs", "with : without, median", "least", "most", "cores"]
PAGE = """# What `enkaku monitor` costs a transfer

Made by `python -m enkaku_lab monitor-cost --docs docs`; do not edit. Pairs of runs of {seconds:g} s, one with the
monitor beside it, in turns; the throughput of the one to that of the other. cores: processor time of the
monitor over the time of the run. {machine}

{body}
"""

Run = Callable[[bool], tuple[float, float]]
"""With or without the monitor: bytes per second, and the processor time of the monitor over the run's."""


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="enkaku_lab monitor-cost", description=__doc__)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--docs", type=Path, metavar="DIR", help="write DIR/monitor-cost.md, too")
    options = parser.parse_args(arguments)
    wan.need()
    rows = [
        _row(f"{rw} 1024k d32, 1 Gbit/s", options.pairs, _over_line(rw, options.seconds))
        for rw in ("write", "read")
    ]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with enkaku.serve(["mem:256M"], folder) as target:
            for load in LOADS:
                run = _on_loopback(load, target, options.seconds, folder)
                rows.append(_row(f"{load.label}, loopback", options.pairs, run))
    table = render(HEAD, rows)
    print(table)
    if options.docs:
        words = {"body": fenced(table), "machine": machine.summary(machine.facts())}
        page = options.docs / "monitor-cost.md"
        page.write_text(PAGE.format(**words, seconds=options.seconds))
        print(f"Page: {page}")


def _row(label: str, pairs: int, run: Run) -> list[str]:
    ratios, cores = [], []
    for number in range(pairs):
        rates = {}
        # Who comes first changes, so that a machine that slows down favours nobody.
        for watched in (number % 2 == 0, number % 2 == 1):
            rates[watched], used = run(watched)
            cores += [used] if watched else []
        ratios.append(rates[True] / rates[False])
        say(f"{label}: {ratios[-1]:.3f}")
    numbers = [statistics.median(ratios), min(ratios), max(ratios), statistics.median(cores)]
    return [label, str(pairs), *(f"{number:.3f}" for number in numbers)]


@contextmanager
def _monitor(port: int, log: Path, lab: wan.Lab | None = None) -> Iterator[Peer]:
    """Running, and it has seen the connections."""
    argv = [enkaku.binary(), "monitor", "--port", port, "--json"]
    with peer(lab.exec("near", argv) if lab else argv, log) as monitor:
        monitor.wait_for_output('"connections"')
        yield monitor


def _over_line(rw: str, seconds: float) -> Run:
    def run(watched: bool) -> tuple[float, float]:
        words = ["--ramp", f"{RAMP_S:g}s", "--time", f"{seconds:g}s"]
        wait_s, port = RAMP_S + seconds + END_S_MAX, policy_run.PORT
        with policy_run.transfer(LINE, rw, "adaptive", words) as transfer:
            if not watched:
                return transfer.report(wait_s)["bytes_per_s"], 0.0
            with _monitor(port, transfer.logs / "monitor.log", transfer.lab) as monitor:
                rate = transfer.report(wait_s)["bytes_per_s"]
                return rate, monitor.cpu_s() / (RAMP_S + seconds)

    return run


def _on_loopback(load: Workload, target: Target, seconds: float, folder: Path) -> Run:
    def bench() -> tuple[float, float]:
        done = enkaku.bench(target.url(), load, seconds, connections=CONNECTIONS)
        return done.bytes_per_s, done.seconds

    def run(watched: bool) -> tuple[float, float]:
        if not watched:
            return bench()[0], 0.0
        with _monitor(target.port, folder / "monitor.log") as monitor:
            before = monitor.cpu_s()
            rate, lasted_s = bench()
            return rate, (monitor.cpu_s() - before) / lasted_s

    return run
