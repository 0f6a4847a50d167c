"""`python -m enkaku_lab plan-check`: what `enkaku plan` predicts, against what is measured.

A grid of line rate, round trip, loss, congestion control and connections; plain TCP (iperf3) on the
emulated line, because the plan is about what TCP gives. Each cell is asked of `enkaku plan --json`
with the buffers of the line's ends. Printed and kept: every cell, and the median error.
"""

import argparse
import itertools
import json
import statistics
from pathlib import Path

from enkaku_lab import OUT, wan
from enkaku_lab.experiment import Link
from enkaku_lab.peers import enkaku, need
from enkaku_lab.process import LabError, Peer, run
from enkaku_lab.progress import Progress
from enkaku_lab.table import render

GRID = {
    "rate": ("100mbit", "1gbit"),
    "rtt_ms": (20.0, 100.0),
    "loss": (0.0, 1e-4, 1e-3),
    "cc": ("reno", "cubic", "bbr"),
    "streams": (1, 4),
}
QUICK = {**GRID, "rate": ("100mbit",), "rtt_ms": (20.0,), "loss": (1e-3,), "streams": (1,)}
SECONDS, OMIT_S = 10, 4
"""Slow start is left out: the plan is of the steady state."""
QUEUE_DELAYS = 1.0
"""The queue in bandwidth × delay, as in many routers."""
WIRE_BYTES = 1538
PORT = 5201
MEDIAN_ERROR_MAX = 0.15


def cells(grid: dict) -> list[dict]:
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def link_of(cell: dict) -> Link:
    bits = {"100mbit": 1e8, "1gbit": 1e9}[cell["rate"]]
    queue = max(50, round(QUEUE_DELAYS * bits * cell["rtt_ms"] / 1000 / 8 / WIRE_BYTES))
    return Link(cell["rtt_ms"], cell["loss"], cell["rate"], queue)


def predicted(cell: dict, link: Link) -> dict:
    """What the plan says one connection gets, and the whole session."""
    words = ["plan", "--rate", cell["rate"], "--rtt", f"{cell['rtt_ms']:g}ms"]
    words += ["--loss", repr(cell["loss"]), "--streams", cell["streams"]]
    words += ["--wmem", link.wmem.split()[2], "--rmem", link.rmem.split()[2]]
    plan = enkaku.report(*words, "--queue", link.queue_packets)
    return next(one for one in plan["congestion_controls"] if one["name"] == cell["cc"])


def measured(lab: wan.Lab, cell: dict, seconds: int) -> float:
    """Mbit/s of TCP payload after the slow start, as the receiver counted."""
    words = [need("iperf3"), "-c", lab.address, "-p", PORT, "-C", cell["cc"], "-J"]
    words += ["-P", cell["streams"], "-t", seconds, "-O", OMIT_S]
    done = run(lab.exec("near", words), timeout_s=seconds + OMIT_S + 30)
    report = json.loads(done.stdout)
    if "error" in report:
        raise LabError(f"iperf3: {report['error']}")
    return report["end"]["sum_received"]["bits_per_second"] / 1e6


def check(grid: dict, folder: Path, seconds: int) -> list[dict]:
    folder.mkdir(parents=True, exist_ok=True)
    todo = cells(grid)
    progress = Progress(len(todo))
    found = []
    with wan.up(Link(), folder) as lab, (folder / "plan-check.jsonl").open("w") as kept:
        lab.address = _far_address(lab)
        server = Peer(lab.exec("far", [need("iperf3"), "-s", "-p", PORT, "--forceflush"]), folder / "iperf3.log")
        try:
            server.wait_for_output("Server listening")
            for cell in todo:
                progress.step(" ".join(f"{name} {value}" for name, value in cell.items()))
                link = link_of(cell)
                lab.set(link)
                try:
                    cell["measured_mbit"] = measured(lab, cell, seconds)
                finally:
                    lab.set(link, loss=0.0)
                print(json.dumps(cell), file=kept, flush=True)
                found.append(cell)
        finally:
            server.stop()
    return found


def _far_address(lab: wan.Lab) -> str:
    return run(lab.exec("near", ["printenv", "ENKAKU_FAR"])).stdout.strip()


def judge(found: list[dict]) -> tuple[list[list[str]], float]:
    """Rows for the table, and the median of the relative errors."""
    rows, errors = [], []
    for cell in found:
        plan = predicted(cell, link_of(cell))["session_bytes_per_s"] * 8 / 1e6
        error = abs(plan - cell["measured_mbit"]) / cell["measured_mbit"]
        errors.append(error)
        shown = [str(cell[name]) for name in GRID]
        rows.append([*shown, f"{plan:.0f}", f"{cell['measured_mbit']:.0f}", f"{error:.0%}"])
    return rows, statistics.median(errors)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="enkaku_lab plan-check", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="three cells, short")
    parser.add_argument("--judge", action="store_true", help="only compare what was measured")
    parser.add_argument("--out", type=Path, default=OUT / "lab" / "plan")
    options = parser.parse_args(arguments)
    kept = options.out / "plan-check.jsonl"
    if options.judge:
        found = [json.loads(line) for line in kept.read_text().splitlines()]
    else:
        seconds = 4 if options.quick else SECONDS
        found = check(QUICK if options.quick else GRID, options.out, seconds)
    rows, median = judge(found)
    print(render([*GRID, "plan Mbit/s", "measured", "error"], rows))
    verdict = "within" if median <= MEDIAN_ERROR_MAX else "NOT within"
    print(f"Median error {median:.1%} over {len(rows)} cells, {verdict} {MEDIAN_ERROR_MAX:.0%}.")
