"""`python -m enkaku_lab plan-check`: what `enkaku plan` predicts, against what is measured.

A grid of line rate, round trip, loss, congestion control and connections; plain TCP (iperf3) on the
emulated line, because the plan is about what TCP gives. Each cell is asked of `enkaku plan --json`
with the buffers of the line's ends. Printed and kept: every cell, and the median error.

The plan is of the steady state. Where losses keep the windows small, a window forgets how it began
after as many round trips as it holds between two losses, which is seconds and not round trips; so
much is left out, several times. And a mean is worth as much as the losses that it is over: there
are as many as `LOSSES` in a cell, by its length and by several runs of it side by side, as long as
they together leave most of the line to none of them.
"""

import argparse
import itertools
import json
import statistics
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from enkaku_lab import OUT, wan
from enkaku_lab.experiment import RATES, Link
from enkaku_lab.peers import enkaku, need
from enkaku_lab.process import LabError, peer, run
from enkaku_lab.progress import Progress
from enkaku_lab.table import GAP, render

GRID = {
    "rate": ("100mbit", "1gbit"),
    "rtt_ms": (20.0, 100.0),
    "loss": (0.0, 1e-4, 1e-3),
    "cc": ("reno", "cubic", "bbr"),
    "streams": (1, 4),
}
QUICK = {**GRID, "rate": ("100mbit",), "rtt_ms": (20.0,), "loss": (1e-3,), "streams": (1,)}
SECONDS, OMIT_S = 10, 4
"""Without losses: slow start is left out, and the queue's sawtooth is short."""
FORGETTING = 3.0
"""Times of memory of a window that are left out; by e³ less is left of how it began."""
LOSSES = 40
"""A window deviates by about 0.4 of its mean, and two losses are about one independent look: so many
losses give the mean to a tenth."""
SECONDS_MAX, OMIT_S_MAX = 60, 30
SIDE_BY_SIDE_MAX = 8
LINE_SHARE_MAX = 0.4
"""What runs side by side may take of the line by the plan, so that none feels the others."""
SEGMENT_BITS = 1448 * 8
QUEUE_DELAYS = 1.0
"""The queue in bandwidth × delay, as in many routers."""
WIRE_BYTES = 1538
PORT = 5201
MEDIAN_ERROR_MAX = 0.15


def cells(grid: dict) -> list[dict]:
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def link_of(cell: dict) -> Link:
    bits = RATES[cell["rate"]]
    queue = max(50, round(QUEUE_DELAYS * bits * cell["rtt_ms"] / 1000 / 8 / WIRE_BYTES))
    return Link(cell["rtt_ms"], cell["loss"], cell["rate"], queue)


def predicted(cell: dict, link: Link) -> dict:
    """What the plan says one connection gets, and the whole session."""
    words = ["plan", "--rate", cell["rate"], "--rtt", f"{cell['rtt_ms']:g}ms"]
    words += ["--loss", repr(cell["loss"]), "--streams", cell["streams"]]
    words += ["--wmem", link.wmem.split()[2], "--rmem", link.rmem.split()[2]]
    plan = enkaku.report(*words, "--queue", link.queue_packets)
    return next(one for one in plan["congestion_controls"] if one["name"] == cell["cc"])


@dataclass(frozen=True)
class Timing:
    """How long a cell is measured, from when on, and how often at the same time."""

    seconds: float
    omit_s: float
    runs: int


def decided_by_losses(cell: dict) -> bool:
    return cell["loss"] > 0 and cell["cc"] != "bbr"


def timing(cell: dict, plan: dict, quick: bool) -> Timing:
    """What a cell needs, by what the plan says of it."""
    if quick or not decided_by_losses(cell):
        return Timing(4 if quick else SECONDS, OMIT_S, 1)
    one, session = (plan[f"{what}_bytes_per_s"] * 8 for what in ("one", "session"))
    runs = int(LINE_SHARE_MAX * RATES[cell["rate"]] / session)
    runs = max(1, min(SIDE_BY_SIDE_MAX, runs))
    losses_per_s = one / SEGMENT_BITS * cell["loss"]
    # The memory of a window is the time between two losses.
    omit_s = min(OMIT_S_MAX, max(OMIT_S, FORGETTING / losses_per_s))
    seconds = LOSSES / (losses_per_s * cell["streams"] * runs)
    return Timing(round(min(SECONDS_MAX, max(SECONDS, seconds))), round(omit_s), runs)


def measured(lab: wan.Lab, cell: dict, how: Timing) -> dict:
    """Mbit/s of TCP payload in the steady state, as the receiver counted, and the round trip in
    milliseconds, as the sender did; means of the runs. On a busy machine the emulator is late, and
    the round trip is longer than the line's."""

    def one(port: int) -> tuple[float, float]:
        words = [need("iperf3"), "-c", wan.FAR, "-p", port, "-C", cell["cc"], "-J"]
        words += ["-P", cell["streams"], "-t", how.seconds, "-O", how.omit_s]
        done = run(lab.exec("near", words), timeout_s=how.seconds + how.omit_s + 30)
        report = json.loads(done.stdout)
        if "error" in report:
            raise LabError(f"iperf3: {report['error']}")
        rtts = [stream["sender"]["mean_rtt"] / 1000 for stream in report["end"]["streams"]]
        return report["end"]["sum_received"]["bits_per_second"] / 1e6, statistics.fmean(rtts)

    with ThreadPoolExecutor(how.runs) as pool:
        found = list(pool.map(one, range(PORT, PORT + how.runs)))
    rates, rtts = zip(*found, strict=True)
    return {"measured_mbit": statistics.fmean(rates), "measured_rtt_ms": statistics.fmean(rtts)}


def check(todo: list[dict], folder: Path, quick: bool) -> list[dict]:
    folder.mkdir(parents=True, exist_ok=True)
    progress = Progress(len(todo))
    found = []
    with ExitStack() as stack, (folder / "plan-check.jsonl").open("w") as kept:
        lab = stack.enter_context(wan.up(Link(), folder))
        # A server of iperf3 takes one client at a time.
        for port in range(PORT, PORT + (1 if quick else SIDE_BY_SIDE_MAX)):
            words = [need("iperf3"), "-s", "-p", port, "--forceflush"]
            server = stack.enter_context(peer(lab.exec("far", words), folder / f"iperf3-{port}.log"))
            server.wait_for_output("Server listening")
        for cell in todo:
            progress.step(" ".join(f"{name} {value}" for name, value in cell.items()))
            link = link_of(cell)
            how = timing(cell, predicted(cell, link), quick)
            lab.set(link)
            try:
                cell |= measured(lab, cell, how)
            finally:
                lab.set(link, loss=0.0)
            cell["how"] = asdict(how)
            print(json.dumps(cell), file=kept, flush=True)
            found.append(cell)
    return found


def judge(found: list[dict]) -> tuple[list[list[str]], dict[str, list[float]]]:
    """Rows for the table, and the relative errors by what decides."""
    rows, errors = [], {"losses of reno and cubic": [], "bbr": [], "all": []}
    for cell in found:
        plan = predicted(cell, link_of(cell))["session_bytes_per_s"] * 8 / 1e6
        error = abs(plan - cell["measured_mbit"]) / cell["measured_mbit"]
        groups = ["all"]
        groups += ["losses of reno and cubic"] if decided_by_losses(cell) else []
        groups += ["bbr"] if cell["cc"] == "bbr" else []
        for group in groups:
            errors[group].append(error)
        shown = [str(cell[name]) for name in GRID]
        rtt = f"{cell['measured_rtt_ms']:.1f}" if "measured_rtt_ms" in cell else GAP
        reached = f"{cell['measured_mbit']:.0f}"
        rows.append([*shown, f"{plan:.0f}", reached, f"{error:.0%}", rtt])
    return rows, errors


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="enkaku_lab plan-check", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="three cells, short")
    parser.add_argument("--losses", action="store_true", help="only cells that losses decide")
    parser.add_argument("--judge", action="store_true", help="only compare what was measured")
    parser.add_argument("--out", type=Path, default=OUT / "lab" / "plan")
    options = parser.parse_args(arguments)
    kept = options.out / "plan-check.jsonl"
    if options.judge:
        found = [json.loads(line) for line in kept.read_text().splitlines()]
    else:
        todo = cells(QUICK if options.quick else GRID)
        todo = [cell for cell in todo if decided_by_losses(cell) or not options.losses]
        found = check(todo, options.out, options.quick)
    rows, errors = judge(found)
    print(render([*GRID, "plan Mbit/s", "measured", "error", "RTT seen ms"], rows))
    for group, some in errors.items():
        if some:
            median = statistics.median(some)
            verdict = "within" if median <= MEDIAN_ERROR_MAX else "NOT within"
            print(
                f"{group}: median error {median:.1%} over {len(some)} cells, "
                f"{verdict} {MEDIAN_ERROR_MAX:.0%}."
            )
