"""`make bench-wheel`, `python -m enkaku_lab wheel-bench`: volumes in Python beside `enkaku bench`, 256 KiB at a time on loopback.

The wheel is installed for an interpreter of its own, where threads have as many calls under way as `bench` has commands. Both
take turns at one target with a volume in memory, so that a change of the machine's mood meets both; what is told is the median
of the ratios of each round. The wheel has to be of the release profile, as the binary is: `make bench-wheel` sees to that.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from enkaku_lab import REPOSITORY, machine
from enkaku_lab.peers import Workload, enkaku
from enkaku_lab.process import LabError, run
from enkaku_lab.progress import say
from enkaku_lab.results import median, spread
from enkaku_lab.table import render

WANTED = 0.8
"""Of what `enkaku bench` carries."""
BLOCK_BYTES = 256 << 10
VOLUME_BYTES = 256 << 20
CALLS = ("pread", "preadinto", "pwrite")
SHAPES = [(depth, connections) for connections in (1, 4) for depth in (1, 16)]
LOAD = Path(__file__).with_name("wheel_load.py")
INSTALL_S_MAX = 300
HEAD = ["call", "threads", "connections", "enkaku bench (MB/s)", "Python (MB/s)", "ratio", "±"]


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="enkaku_lab wheel-bench", description=__doc__)
    parser.add_argument("--wheel", type=Path, metavar="FILE", help="else the one of target/wheels")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each run")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    if options.seconds <= 0 or options.rounds < 1:
        raise LabError("a round, of some seconds, is the least")
    with tempfile.TemporaryDirectory(prefix="enkaku-wheel-") as made:
        folder = Path(made)
        python = installed(options.wheel or newest(REPOSITORY / "target/wheels"), folder / "venv")
        rows, worst = measured(python, folder, options.seconds, options.rounds)
    print(render(HEAD, rows))
    print(f"{machine.summary(machine.facts())}; {options.rounds} rounds of {options.seconds:g} s")
    verdict = "reached" if worst >= WANTED else "missed"
    print(f"the least ratio is {worst:.2f}; {WANTED} is {verdict}")


def newest(folder: Path) -> Path:
    wheels = sorted(folder.glob("enkaku-*.whl"), key=lambda path: path.stat().st_mtime)
    if not wheels:
        raise LabError(f"{folder}: no wheel is there; `make wheel` makes one (or name one by --wheel)")
    return wheels[-1]


def installed(wheel: Path, place: Path) -> Path:
    """The Python of an environment that has the wheel and nothing else."""
    run([sys.executable, "-m", "venv", place], timeout_s=INSTALL_S_MAX)
    python = place / "bin/python"
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    run([*install, wheel], timeout_s=INSTALL_S_MAX)
    return python


def measured(
    python: Path, folder: Path, seconds: float, rounds: int, calls=CALLS, shapes=SHAPES
) -> tuple[list[list[str]], float]:
    """A row of the table for each call and shape, and the least ratio."""
    rows, worst = [], float("inf")
    with enkaku.serve([f"mem:{VOLUME_BYTES >> 20}M"], folder) as target:
        url = target.url()
        # All of it has storage then.
        enkaku.bench(url, Workload(True, False, BLOCK_BYTES, 16), seconds)
        for call in calls:
            for depth, connections in shapes:
                load = Workload(call == "pwrite", False, BLOCK_BYTES, depth)
                seen = []
                for number in range(rounds):
                    bench = enkaku.bench(url, load, seconds, connections).bytes_per_s
                    ours = in_python(python, url, call, depth, seconds, connections)
                    seen.append((bench, ours))
                    say(f"{call}, {depth} threads, round {number + 1}: {ours / seen[-1][0]:.2f}")
                ratios = [ours / bench for bench, ours in seen]
                worst = min(worst, median(ratios))
                rates = [f"{median([one[side] for one in seen]) / 1e6:.0f}" for side in (0, 1)]
                shape = [call, str(depth), str(connections)]
                rows.append([*shape, *rates, f"{median(ratios):.2f}", f"{spread(ratios):.0%}"])
    return rows, worst


def in_python(
    python: Path, url: str, call: str, threads: int, seconds: float, connections: int
) -> float:
    """Bytes a second. -I: it sees nothing of this folder."""
    words = [url, call, BLOCK_BYTES, threads, seconds, connections]
    done = run([python, "-I", LOAD, *words], timeout_s=seconds + 60)
    said = json.loads(done.stdout)
    return said["bytes"] / said["seconds"]
