"""The report as it is committed: Markdown with figures and their numbers (CSV) beside it, small and
readable on a forge. Written from raw results, or again from the CSVs alone: labels and judgements
change, numbers do not."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from enkaku_lab import data, machine, plot, stale
from enkaku_lab.claims import markdown
from enkaku_lab.curves import Curve, Curves, collect
from enkaku_lab.experiment import Experiment, Pace
from enkaku_lab.process import LabError
from enkaku_lab.report import claims, conditions, number, sentence
from enkaku_lab.store import Store

SVG_BYTES_MAX = 100 << 10
"""Above this the PNG is the smaller one."""
GAP = "–"


@dataclass(frozen=True)
class Made:
    """What is committed and where."""

    names: Sequence[str]
    """The experiments that were named; none means all."""
    folder: Path

    def command(self, word: str, *options: str) -> str:
        """How to make it again."""
        names = self.names or (["all"] if word == "run" else [])
        return f"`python -m enkaku_lab {' '.join([word, *options, *names])}`"


def keep(svg: Path, folder: Path) -> str:
    """Copies a figure into a folder of what is committed, as SVG or as the PNG beside it; its name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    kept = svg if svg.stat().st_size <= SVG_BYTES_MAX else svg.with_suffix(".png")
    (folder / kept.name).write_bytes(kept.read_bytes())
    return kept.name


def write(
    experiments: Sequence[Experiment], pace: Pace, store: Store, made: Made, note: str = ""
) -> Path:
    """README.md and figures in the folder; returns the former."""
    return page_of([collect(experiment, pace, store) for experiment in experiments], made, note)


def again(experiments: Sequence[Experiment], folder: Path, note: str = "") -> Path:
    """The same from the CSVs in the folder."""
    there = {path.stem: path for path in (folder / "figures").glob("*.csv")}
    found = [one for one in experiments if one.name in there]
    if not found:
        raise LabError(f"{folder}/figures has no CSV of an experiment")
    every = [data.read_curves(there[one.name], one) for one in found]
    return page_of(every, Made([one.name for one in found], folder), note)


def page_of(every: Sequence[Curves], made: Made, note: str = "") -> Path:
    """README.md and figures of these curves."""
    folder = made.folder
    parts = [_head(every, made), *([note] if note else [])]
    for curves in every:
        name = curves.experiment.name
        svg, png = plot.draw(curves, folder / "figures" / name)
        kept, other = (svg, png) if svg.stat().st_size <= SVG_BYTES_MAX else (png, svg)
        other.unlink()
        parts.append(_section(curves, kept.name))
    page = folder / "README.md"
    page.write_text("\n\n".join(parts) + "\n")
    return page


def _head(every: list[Curves], made: Made) -> str:
    sessions = {one["session"]: one for curves in every for one in curves.sessions}
    kept = dict.fromkeys(_kept(curves) for curves in every if "versions" in curves.kept)
    taken = sorted(time for curves in every for time in curves.taken if time)
    head = next(iter(sessions.values()), None)
    quick = every[0].pace.name == "quick"
    ours = all(curves.experiment.source == "ours" for curves in every)
    lines = [
        "# Line rate over the long-fat path" if ours else "# The papers' figures, measured here",
        f"Made by {made.command('report', '--docs', f'docs/{made.folder.name}')} from the results of "
        f"{made.command('run', *(['--quick'] if quick else []))}; do not edit. How "
        "it is measured: [../lab.md](../lab.md).",
    ]
    if quick:
        lines.append(
            "**A quick run:** short measurements, few points, one repetition. It shows that "
            "everything works; draw no conclusions from it."
        )
    lines += kept
    if head:
        enkaku = f"enkaku {head['versions'].get('enkaku', '')}".strip()
        buffers = (
            f"tcp_wmem {head['sysctl'].get('net.ipv4.tcp_wmem')}"
            if head["sysctl"]
            else "sysctls unknown"
        )
        versions = ", ".join(
            f"{name} {version}"
            for name, version in sorted(head["versions"].items())
            if name != "enkaku"
        )
        when = f"{taken[0][:16].replace('T', ' ')} to {taken[-1][:16].replace('T', ' ')} UTC"
        lines.append(
            f"{machine.summary(head)}; taken {when}. {enkaku}; {versions}. Congestion control and "
            "buffers are those of each experiment (outside the namespaces: "
            f"{head['sysctl'].get('net.ipv4.tcp_congestion_control')}, {buffers})."
            + _load(sessions)
        )
    return "\n\n".join(lines)


def _kept(curves: Curves) -> str:
    """What a page begins with that is written again from CSVs."""
    head = curves.kept
    load = (
        f" Load average when the runs began: {head['load average']}."
        if "load average" in head
        else ""
    )
    return (
        f"Versions: {head['versions']}. Congestion control and buffers are those of each experiment (outside the "
        f"namespaces: {head.get('outside', 'unknown')}).{load}"
    )


def _load(sessions: dict[str, dict]) -> str:
    """What else kept the machine busy when the runs began."""
    found = [one["load_average"][0] for one in sessions.values() if "load_average" in one]
    return f" Load average when the runs began: {max(found):.1f}." if found else ""


def _section(curves: Curves, figure: str) -> str:
    experiment = curves.experiment
    paper = f"The paper ({experiment.source}): {experiment.paper}." if experiment.paper else ""
    parts = [
        f"## {experiment.name}: {experiment.title}",
        paper,
        f"![{experiment.title}](figures/{figure})",
        f"[The numbers](figures/{experiment.name}.csv). {_taken(curves)}".strip(),
        stale.of_curves(curves),
        sentence(curves),
        markdown(claims(curves)),
        *(_table(curves, panel) for panel in experiment.panels),
        f"<sub>{curves.kept.get('note', experiment.note)} {conditions(curves)}</sub>",
    ]
    return "\n\n".join(part for part in parts if part)


def _taken(curves: Curves) -> str:
    """Where and when, of a figure that was drawn from its CSV."""
    kept = curves.kept
    if not kept:
        return ""
    said = f"Measured {kept.get('taken', '')} UTC on {kept.get('machine', 'a machine unknown')}, commit {kept.get('commit') or 'unknown'}."
    return f"{said} {kept['origin']}." if "origin" in kept else said


def _table(curves: Curves, panel: str) -> str:
    """Mbit/s and the share of the line; the middle half is in the figure."""
    mine = [curve for curve in curves.curves if curve.panel == panel and _shown(curve)]
    title = f"{panel}; " if panel else ""
    head = [f"{title}{curves.experiment.x.label}", *(curve.series.label for curve in mine)]
    rows = []
    for index, x in enumerate(curves.experiment.values(curves.pace)):
        points = [curve.points[0] if curve.series.flat else curve.points[index] for curve in mine]
        cells = [
            GAP if p.mbit is None else f"{number(p.mbit)} ({p.mbit / curves.limit_mbit:.0%})"
            for p in points
        ]
        rows.append([f"{x * curves.experiment.x.factor:g}", *cells])
    lines = [head, ["---:"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _shown(curve: Curve) -> bool:
    """Not what a figure drawn from its CSV has not yet."""
    return any(point.why != data.NOT_YET for point in curve.points)
