"""`python -m enkaku_lab monitor-cost`: what watching costs a transfer.

Pairs of runs of the same load on loopback, one with `enkaku monitor` at its default interval beside it
and one without, in turns; the ratio of each pair, and the median of the pairs. Loopback is the worst
case: no line is slower than the processors, and the monitor takes from them.
"""

import argparse
import statistics
import tempfile
from contextlib import nullcontext
from pathlib import Path

from enkaku_lab.peers import Target, Workload, enkaku
from enkaku_lab.process import peer
from enkaku_lab.progress import say
from enkaku_lab.table import render

KIB = 1 << 10
LOADS = (
    Workload(write=False, random=True, block_bytes=4 * KIB, depth=32),
    Workload(write=True, random=False, block_bytes=256 * KIB, depth=16),
)
CONNECTIONS = 4


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="enkaku_lab monitor-cost", description=__doc__)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with enkaku.serve(["mem:256M"], folder) as target:
            rows = [_row(load, target, options.pairs, options.seconds, folder) for load in LOADS]
    print(render(["load", "pairs", "with : without, median", "least", "most", "cores"], rows))


def _row(load: Workload, target: Target, pairs: int, seconds: float, folder: Path) -> list[str]:
    ratios, cores = [], []
    for number in range(pairs):
        rates = {}
        # Who comes first changes, so that a machine that slows down favours nobody.
        for watched in (number % 2 == 0, number % 2 == 1):
            rates[watched], used = _run(load, target, seconds, folder, watched)
            cores += [used] if watched else []
        ratios.append(rates[True] / rates[False])
        say(f"{load.label}: {ratios[-1]:.3f}")
    numbers = [statistics.median(ratios), min(ratios), max(ratios), statistics.median(cores)]
    return [load.label, str(pairs), *(f"{number:.3f}" for number in numbers)]


def _run(
    load: Workload, target: Target, seconds: float, folder: Path, watched: bool
) -> tuple[float, float]:
    """Bytes per second, and the processor time of the monitor over the run's."""
    argv = [enkaku.binary(), "monitor", "--port", target.port, "--json"]
    with peer(argv, folder / "monitor.log") if watched else nullcontext() as monitor:
        if monitor:
            monitor.wait_for_output('"connections"')
        before = monitor.cpu_s() if monitor else 0.0
        done = enkaku.bench(target.url(), load, seconds, connections=CONNECTIONS)
        used = monitor.cpu_s() - before if monitor else 0.0
    return done.bytes_per_s, used / done.seconds
