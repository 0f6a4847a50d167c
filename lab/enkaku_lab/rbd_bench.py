"""`python -m enkaku_lab rbd-bench`: images of Ceph through enkaku, beside Ceph's own `rbd bench`.

A cluster of one machine that keeps everything in memory (peers/ceph.py), one image that is full. `rbd bench`, `enkaku bench`
on the image and `enkaku bench` through a target before it take turns, so that a change of the machine's mood meets all
three; what is told is the median of the ratios of each round. Nobody caches: `rbd bench` is told so, and enkaku never does.
"""

import argparse
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from enkaku_lab import machine
from enkaku_lab.peers import Workload, ceph, enkaku, need
from enkaku_lab.process import LabError
from enkaku_lab.progress import say
from enkaku_lab.results import median, spread
from enkaku_lab.table import fenced, render

IMAGE_BYTES = 1 << 30
KIB = 1 << 10
WORKLOADS = [
    Workload(write, random, block_bytes, depth)
    for random, block_bytes, depth in ((False, 256 * KIB, 16), (True, 4 * KIB, 32))
    for write in (True, False)
]
SEQUENTIAL = "full-seq"
"""Its `seq` is one run of offsets for each thread, far apart: many objects of the cluster at once, where ours, and a file
system's, are at one."""
PROBE_COMMANDS_MIN = 512
"""`rbd bench` counts commands, not seconds: a short probe tells how many fill the time."""
RATE = re.compile(r"ops/sec: +([\d.]+(?:e\+?\d+)?) +bytes/sec: \S+ \S+$", re.M)
HEAD = ["", "rbd bench (MB/s)", "enkaku: rbd bench", "±", "through a target: rbd bench", "±"]
PAGE = """# Images of Ceph, beside `rbd bench`

Made by `python -m enkaku_lab rbd-bench --docs docs`; do not edit. A monitor and one OSD in memory on the same machine as all
clients, one image without the exclusive lock, nobody caches; medians of {rounds} rounds of {seconds:g} s each. {machine}

{body}
"""


@dataclass(frozen=True)
class Round:
    """Bytes a second in one round."""

    rbd: float
    direct: float
    target: float


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="enkaku_lab rbd-bench", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each run")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--docs", type=Path, metavar="DIR", help="write DIR/ceph-bench.md, too")
    options = parser.parse_args(arguments)
    if options.seconds <= 0 or options.rounds < 1:
        raise LabError("a round, of some seconds, is the least")
    for program in ceph.PROGRAMS:
        need(program)
    with tempfile.TemporaryDirectory(prefix="enkaku-rbd-") as made:
        folder = Path(made)
        with ceph.cluster(folder / "ceph") as cluster:
            rows = measured(cluster, folder, options.seconds, options.rounds)
    table = render(HEAD, rows)
    print(table)
    if options.docs:
        page, where = options.docs / "ceph-bench.md", machine.summary(machine.facts())
        words = {"rounds": options.rounds, "seconds": options.seconds, "machine": where}
        page.write_text(PAGE.format(body=fenced(table), **words))
        print(f"Page: {page}")


def measured(
    cluster: ceph.Cluster, folder: Path, seconds: float, rounds: int
) -> list[list[str]]:
    """A row of the table for each workload."""
    # A lock that clients have to hand to each other would be measured as theirs.
    url = cluster.create("bench", IMAGE_BYTES, "--image-feature", "layering")
    enkaku.bench(url, WORKLOADS[0], 4 * seconds, None)  # full, as far as time goes
    with enkaku.serve([url], folder) as target:
        rows = []
        for load in WORKLOADS:
            commands = int(_rbd(cluster, load, PROBE_COMMANDS_MIN) / load.block_bytes * seconds)
            commands = max(commands, PROBE_COMMANDS_MIN)
            seen = []
            for number in range(rounds):
                seen.append(_round(cluster, url, target.url(), load, commands, seconds))
                say(f"{load.label}, round {number + 1}: {seen[-1].direct / seen[-1].rbd:.2f}")
            rows.append(_row(load, seen))
        return rows


def _round(
    cluster: ceph.Cluster, url: str, served: str, load: Workload, commands: int, seconds: float
) -> Round:
    def ours(where: str, connections: int | None) -> float:
        got = enkaku.bench(where, load, seconds, connections)
        return got.bytes / got.seconds

    return Round(_rbd(cluster, load, commands), ours(url, None), ours(served, 1))


def _rbd(cluster: ceph.Cluster, load: Workload, commands: int) -> float:
    """Bytes a second of `rbd bench`."""
    words = ["--rbd_cache=false", "bench", "--io-type", "write" if load.write else "read"]
    words += ["--io-pattern", "rand" if load.random else SEQUENTIAL, "--io-size", load.block_bytes]
    words += ["--io-threads", load.depth, "--io-total", commands * load.block_bytes]
    said = cluster.rbd(*words, f"{ceph.POOL}/bench", timeout_s=600).stdout
    return rate(said) * load.block_bytes


def rate(said: str) -> float:
    """Commands a second, from the last line of `rbd bench`."""
    found = RATE.findall(said)
    if not found:
        raise LabError(f"rbd bench says nothing of its rate:\n{said[-500:]}")
    return float(found[-1])


def _row(load: Workload, seen: list[Round]) -> list[str]:
    direct = [one.direct / one.rbd for one in seen]
    target = [one.target / one.rbd for one in seen]
    cells = [f"{median([one.rbd for one in seen]) / 1e6:.1f}"]
    for ratios in (direct, target):
        cells += [f"{median(ratios):.2f}", f"{spread(ratios):.0%}"]
    return [load.label, *cells]
