"""A figure's numbers as CSV beside it: written when it is drawn, and read to draw, judge or compare
it again.

A file begins with lines `# key: value` (what was measured, when, on which machine, with which
commit, how long); then come the names of the columns, and the rows. pandas reads it with
`comment="#"`.
"""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from enkaku_lab import machine
from enkaku_lab.curves import Curve, Curves, Point
from enkaku_lab.experiment import FULL, QUICK, Experiment, Series
from enkaku_lab.process import LabError

COLUMNS = (
    *("panel", "series", "stack", "x", "mbit", "low", "high", "runs", "connections"),
    *("congestion_control", "verified", "why"),
)
NOT_YET = "not measured yet"
DIGITS = 6
"""That matter of a measured number."""


@dataclass(frozen=True)
class Data:
    """What is in such a file."""

    head: dict[str, str]
    rows: list[dict[str, str]]


def write(
    path: Path, head: Mapping[str, object], columns: Sequence[str], rows: Sequence[Sequence]
) -> Path:
    """`None` becomes an empty field; floats are rounded to `DIGITS`."""
    out = io.StringIO()
    for key, value in head.items():
        # One line each, whatever is in a value.
        print(f"# {key}: {' '.join(str(value).split())}", file=out)
    table = csv.writer(out, lineterminator="\n")
    table.writerow(columns)
    table.writerows([[_text(value) for value in row] for row in rows])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(out.getvalue())
    return path


def _text(value: object) -> object:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.{DIGITS}g}" if isinstance(value, float) else "" if value is None else value


def read(path: Path) -> Data:
    """LabError where it is no such file."""
    head: dict[str, str] = {}
    lines = path.read_text().splitlines()
    for line in lines:
        if not (found := re.match(r"# ([^:]+): (.*)", line)):
            break
        head[found[1]] = found[2]
    rows = list(csv.DictReader(lines[len(head) :]))
    if not head or not rows:
        raise LabError(f"{path}: no head of lines “# key: value”, or no rows")
    return Data(head, rows)


def write_curves(curves: Curves, path: Path) -> Path:
    """Every point of a figure of curves, but for curves that nothing is known of yet."""
    rows = [
        (
            *(curve.panel, curve.series.label, curve.series.stack, point.x),
            point.mbit,
            *((point.low, point.high) if point.mbit is not None else (None, None)),
            *(point.runs, point.connections, " ".join(point.congestion_control), point.verified),
            " ".join(point.why.split())[-200:],
        )
        for curve in curves.curves
        if any(point.why != NOT_YET for point in curve.points)
        for point in curve.points
    ]
    return write(path, head_of(curves), COLUMNS, rows)


def head_of(curves: Curves) -> dict[str, object]:
    """What a reader must know of the numbers."""
    experiment, pace = curves.experiment, curves.pace
    head: dict[str, object] = {
        "figure": experiment.name,
        "title": experiment.title,
        "x": experiment.x.label,
    }
    if experiment.source != "ours":
        head["paper"] = experiment.source
    head["pace"] = pace.name
    if curves.sessions:
        last = curves.sessions[-1]
        head["machine"] = machine.summary(last)
        head["versions"] = ", ".join(f"{name} {text}" for name, text in last["versions"].items())
        head["commit"] = last.get("commit", "")
        head["outside"] = ", ".join(f"{name} {text}" for name, text in last["sysctl"].items())
        loads = [one["load_average"][0] for one in curves.sessions if "load_average" in one]
        head["load average"] = f"{max(loads):.1f}" if loads else "unknown"
    head["taken"] = " to ".join(curves.taken)
    head["limit_mbit"] = f"{curves.limit_mbit:.3f}"
    head["run"] = run_length(curves)
    if experiment.shrunk:
        head["shrunk"] = experiment.shrunk
    return head | curves.kept


def run_length(curves: Curves) -> str:
    """How long a run is at most, in words."""
    if told := curves.kept.get("run"):
        return told
    pace = curves.pace
    seconds = round(pace.seconds_of(curves.experiment.seconds_more), 3)
    ramp = (
        "" if curves.experiment.ramp_round_trips is None else ", after a ramp that does not count"
    )
    return f"at most {seconds:g} s and {pace.round_trips:g} round trips{ramp}"


def read_curves(path: Path, experiment: Experiment) -> Curves:
    """The curves of a file, with the experiment's looks. What the experiment has by now and the
    file has not is there without a point, so that sentences and figures say so."""
    data = read(path)
    if data.head.get("figure") != experiment.name:
        raise LabError(f"{path}: of {data.head.get('figure')}, not of {experiment.name}")
    found: dict[tuple[str, str], list[dict]] = {}
    for row in data.rows:
        found.setdefault((row["panel"], row["series"]), []).append(row)
    factor = experiment.x.factor
    xs = sorted({float(row["x"]) for row in data.rows})
    known = {one.label: one for one in experiment.series}
    curves, panels = [], {}
    for (panel, label), rows in found.items():
        series = known.get(label) or Series(rows[0]["stack"], label)
        series = replace(series, panels=None)
        panels[panel] = experiment.panels.get(panel, {})
        curves.append(Curve(series, panel, [_point(row) for row in rows]))
    for panel in panels:
        there = {curve.series.label for curve in curves if curve.panel == panel}
        for series in experiment.series:
            if series.label not in there and (series.panels is None or panel in series.panels):
                curves.append(Curve(series, panel, [Point(x, None, why=NOT_YET) for x in xs]))
    labels = dict.fromkeys(curve.series.label for curve in curves)
    every = {curve.series.label: curve.series for curve in curves}
    values = [x / factor for x in xs]
    shown = replace(
        experiment,
        x=replace(experiment.x, values=values, quick=values),
        panels=panels,
        series=[every[label] for label in labels],
        shrunk=data.head.get("shrunk", ""),
    )
    first, _, last = data.head.get("taken", "").partition(" to ")
    pace = QUICK if data.head.get("pace") == QUICK.name else FULL
    limit = float(data.head["limit_mbit"])
    return Curves(shown, pace, curves, limit, taken=(first, last or first), kept=data.head)


def _point(row: dict) -> Point:
    number = {key: float(row[key]) if row[key] else None for key in ("mbit", "low", "high")}
    mbit = number["mbit"]
    low, high = (mbit if number[key] is None else number[key] for key in ("low", "high"))
    return Point(
        float(row["x"]),
        mbit,
        low or 0.0,
        high or 0.0,
        int(row["runs"] or 0),
        row["why"],
        int(row["connections"]) if row["connections"] else None,
        tuple(row["congestion_control"].split()),
        row["verified"] == "yes",
        failed=int(mbit is None and row["why"] != NOT_YET),
    )
