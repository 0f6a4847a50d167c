"""`python -m enkaku_lab plan-check`: what `enkaku plan` predicts, against what is measured.

A grid of line rate, round trip, loss, congestion control and connections; plain TCP, because the plan
is about what TCP gives: iperf3 on the emulated line (`line`), or ns-2 (`simulator`). Each cell is asked
of `enkaku plan --json` with the buffers of the line's ends. Printed and kept: every cell, and the
median error.
"""

import argparse
import json
import statistics
from pathlib import Path

from enkaku_lab import OUT, machine
from enkaku_lab.plans import line, simulator
from enkaku_lab.plans.grid import AXES, cells, decided_by_losses, predicted
from enkaku_lab.process import LabError
from enkaku_lab.table import GAP, fenced, render

ENGINES = {"line": line, "ns2": simulator}
TITLES = {"line": "Linux's TCP on the emulated line", "ns2": "ns-2"}
MEDIAN_ERROR_MAX = 0.15
HEAD = [*AXES, "plan Mbit/s", "measured", "error", "RTT seen ms", "warned"]
WARNED = "*"
GROUPS = {
    "all that the plan stands for": lambda cell: True,
    "losses of reno and cubic": decided_by_losses,
    "bbr": lambda cell: cell["cc"] == "bbr",
}
PAGE = """# `enkaku plan` against measurement

Made by `python -m enkaku_lab plan-check --docs docs`, and with `--engine ns2`; do not edit. What the models are and
what was left out: [plan.md](plan.md). A cell marked {mark} is one where the plan itself warns that it does not hold; such cells
are in no median.
"""


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="enkaku_lab plan-check", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few cells, short")
    parser.add_argument("--engine", choices=list(ENGINES), default="line")
    parser.add_argument("--losses", action="store_true", help="only cells that losses decide")
    parser.add_argument("--judge", action="store_true", help="only compare what was measured")
    parser.add_argument("--out", type=Path, default=OUT / "lab" / "plan")
    parser.add_argument("--docs", type=Path, metavar="DIR", help="write DIR/plan-check.md, too")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    if not options.judge:
        engine = ENGINES[options.engine]
        todo = cells(engine.QUICK if options.quick else engine.GRID)
        todo = [cell for cell in todo if decided_by_losses(cell) or not options.losses]
        with _kept(options.out, options.engine).open("w") as kept:
            print(json.dumps({"machine": machine.summary(machine.facts())}), file=kept)
            for cell in engine.measure(todo, options.out, options.quick):
                print(json.dumps(cell), file=kept, flush=True)
    if not _kept(options.out, options.engine).exists():
        raise LabError(f"nothing was measured with --engine {options.engine} yet")
    measured = [name for name in ENGINES if _kept(options.out, name).exists()]
    asked = measured if options.docs else [options.engine]
    judged = {name: _judged(options.out, name) for name in asked}
    print(judged[options.engine])
    if options.docs:
        parts = [f"## {TITLES[name]}\n\n{text}" for name, text in judged.items()]
        page = options.docs / "plan-check.md"
        page.write_text("\n\n".join([PAGE.format(mark=WARNED).strip(), *parts]) + "\n")
        print(f"Page: {page}")


def _kept(folder: Path, engine: str) -> Path:
    return folder / f"plan-check-{engine}.jsonl"


def _judged(folder: Path, engine: str) -> str:
    """The table of one engine and what it says, with the plan as it is now."""
    head, *found = map(json.loads, _kept(folder, engine).read_text().splitlines())
    rows, errors = judge(found)
    said = []
    for group, some in errors.items():
        if some:
            median = statistics.median(some)
            verdict = "within" if median <= MEDIAN_ERROR_MAX else "NOT within"
            count = f"{len(some)} cells"
            said.append(f"* {group}: median error {median:.1%} over {count}, {verdict} the aim of 15 %.")
    words = "\n".join(said)
    # Columns without a value in any row are left out: ns-2 tells no round trip, few plans warn.
    used = [n for n in range(len(HEAD)) if any(row[n] not in (GAP, "") for row in rows)]
    table = render([HEAD[n] for n in used], [[row[n] for n in used] for row in rows])
    return f"{head['machine']}\n\n{words}\n\n{fenced(table)}"


def judge(found: list[dict]) -> tuple[list[list[str]], dict[str, list[float]]]:
    """Rows for the table, and the relative errors of each group where the plan does not warn."""
    rows, errors = [], {group: [] for group in GROUPS}
    for cell in found:
        plan = predicted(cell)
        mbit = plan["session_bytes_per_s"] * 8 / 1e6
        error = abs(mbit - cell["measured_mbit"]) / cell["measured_mbit"]
        for group, belongs in GROUPS.items():
            if belongs(cell) and not plan["warnings"]:
                errors[group].append(error)
        shown = [f"{cell[name]:g}" if name == "loss" else str(cell[name]) for name in AXES]
        rtt = f"{cell['measured_rtt_ms']:.1f}" if "measured_rtt_ms" in cell else GAP
        mark = WARNED if plan["warnings"] else ""
        rows.append([*shown, f"{mbit:.0f}", f"{cell['measured_mbit']:.0f}", f"{error:.0%}", rtt, mark])
    return rows, errors
