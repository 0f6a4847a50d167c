"""The report: one HTML page that needs nothing besides itself, with every figure and its numbers.

It is made from the file of raw results alone, so it can be written again at any time.
"""

import html
import json
from collections.abc import Sequence
from pathlib import Path

from enkaku_lab import data, machine, plot, stale
from enkaku_lab.claims import Claim
from enkaku_lab.curves import Curve, Curves, Point, collect
from enkaku_lab.experiment import Experiment, Pace
from enkaku_lab.stacks.all import STACKS
from enkaku_lab.store import Store

STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
       color: #1b1b1b; background: #fff; }
h1 { font-size: 1.8rem; } h2 { font-size: 1.3rem; margin-top: 3rem; }
nav { columns: 2; } nav a { display: block; }
figure { margin: 1rem 0; } figure svg, figure img { width: 100%; height: auto; }
.found { background: #f0f6f3; border-left: 4px solid #009e73; padding: .6rem 1rem; }
.lack { background: #fdf1e3; border-left: 4px solid #d55e00; padding: .6rem 1rem; }
.note { color: #444; font-size: .9rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .82rem; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .6rem; border-bottom: 1px solid #ddd; text-align: right;
         white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
td.text { text-align: left; white-space: normal; max-width: 24rem; }
thead th { border-bottom: 2px solid #888; white-space: normal; min-width: 5rem;
           vertical-align: bottom; }
details summary { cursor: pointer; margin: .5rem 0; }
"""


def write(
    experiments: Sequence[Experiment], pace: Pace, store: Store, folder: Path
) -> Path:
    """Draws the figures into FOLDER/figures and writes FOLDER/index.html; returns its path."""
    figures = folder / "figures"
    figures.mkdir(parents=True, exist_ok=True)
    sections, index = [], []
    every = [collect(experiment, pace, store) for experiment in experiments]
    for curves in every:
        svg, _png = plot.draw(curves, figures / curves.experiment.name)
        sections.append(_section(curves, svg))
        name, title = curves.experiment.name, curves.experiment.title
        index.append(f'<a href="#{name}">{name}: {html.escape(title)}</a>')
    page = folder / "index.html"
    page.write_text(_page(pace, every, index, sections))
    return page


def sentence(curves: Curves) -> str:
    """The experiment's own comparison; what is missing for it is said instead."""
    if not any(curve.measured for curve in curves.curves):
        return "Nothing was measured yet."
    return curves.experiment.sentence(curves)


def _page(pace: Pace, every: list[Curves], index: list[str], sections: list[str]) -> str:
    sessions = {one["session"]: one for curves in every for one in curves.sessions}
    quick = (
        '<p class="lack">A quick run: short measurements, few points, one repetition. It shows '
        "that everything works; draw no conclusions from it.</p>"
        if pace.name == "quick"
        else ""
    )
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Enkaku: the papers' figures</title><style>{STYLE}</style></head><body>
<h1>Enkaku: the papers' figures, measured here</h1>
<p>Each figure was measured on one machine across an emulated line between two network namespaces.
Stacks are the real programs, run in turn (A B C A B C …); points are medians, bars the middle half.
The dashed red line is what the line carries of TCP payload.</p>
{quick}<nav>{"".join(index)}</nav>
{"".join(sections)}
<h2 id="machine">Machine</h2>{"".join(_session(one) for one in sessions.values())}
</body></html>
"""


def _section(curves: Curves, svg: Path) -> str:
    experiment = curves.experiment
    paper = (
        f"<p><b>The paper</b> ({html.escape(experiment.source)}): {html.escape(experiment.paper)}."
        "</p>"
        if experiment.paper
        else ""
    )
    lacks = "".join(
        f'<p class="lack">{html.escape(STACKS[name].label)} could not run: {html.escape(why)}</p>'
        for name, why in curves.unavailable.items()
    )
    return f"""
<section id="{experiment.name}"><h2>{experiment.name}: {html.escape(experiment.title)}</h2>
{paper}<figure>{_inline(svg)}</figure>
<p class="found">{html.escape(sentence(curves))}</p>{_claims(curves)}{lacks}{_old(curves)}
<p class="note">{html.escape(experiment.note)} {conditions(curves)}</p>
{"".join(_table(curves, panel) for panel in experiment.panels)}</section>"""


def claims(curves: Curves) -> list[Claim]:
    """What the paper says, judged; nothing before something was measured."""
    if not any(curve.measured for curve in curves.curves):
        return []
    return curves.experiment.claims(curves)


def _claims(curves: Curves) -> str:
    items = "".join(
        f"<li>“{html.escape(one.says)}”: <b>{one.verdict}</b>: {html.escape(one.found)}.</li>"
        for one in claims(curves)
    )
    return f"<ul>{items}</ul>" if items else ""


def _old(curves: Curves) -> str:
    said = stale.of_curves(curves)
    return f'<p class="lack">{html.escape(said)}</p>' if said else ""


def _inline(svg: Path) -> str:
    """Without the XML head, and with ids of its own: several figures share one page."""
    text = svg.read_text()
    text = text[text.index("<svg") :]
    for mark in ('id="', 'href="#', "url(#"):
        text = text.replace(mark, f"{mark}{svg.stem}-")
    return text


def conditions(curves: Curves) -> str:
    """The line and how long was measured."""
    link = curves.experiment.link
    shrunk = f" Shrunk: {curves.experiment.shrunk}." if curves.experiment.shrunk else ""
    return (
        f"Line: {link.rate}, DropTail queue of {link.queue_packets} packets, MTU 1500; it carries "
        f"{curves.limit_mbit:.0f} Mbit/s of TCP payload. A run takes {data.run_length(curves)}.{shrunk} "
        f"{congestion_control(curves)}"
    ).strip()


def congestion_control(curves: Curves) -> str:
    """What ss saw at the sending sockets, against what was asked for."""
    if told := curves.kept.get("congestion control"):
        return told
    right, wrong, unseen, names = 0, [], 0, set()
    for curve in curves.curves:
        if not STACKS[curve.series.stack].port:
            continue
        link = curves.experiment.link_of(curve.panel, curve.series)
        wanted = link.cc
        for point in curve.measured:
            names.update(point.congestion_control)
            if not point.congestion_control:
                unseen += 1
            elif link.cc_free or point.congestion_control == (wanted,):
                right += 1
            else:
                seen = ", ".join(point.congestion_control)
                wrong.append(f"{curve.series.label} at {point.x:g}: {seen} instead of {wanted}")
    if not right + unseen + len(wrong):
        return ""
    seen = ", ".join(sorted(names))
    text = f"The sending sockets used what was asked for ({seen}; ss) at {right} "
    text += f"of {right + unseen + len(wrong)} points"
    text += f", at {unseen} nothing was seen" if unseen else ""
    return f"{text}; NOT at: {'; '.join(wrong)}." if wrong else f"{text}."


def _table(curves: Curves, panel: str) -> str:
    """A row per x; per series the median, its middle half, its share of the line."""
    mine = [curve for curve in curves.curves if curve.panel == panel]
    head = "".join(f"<th>{html.escape(curve.series.label)}</th>" for curve in mine)
    rows = []
    for index, x in enumerate(curves.experiment.values(curves.pace)):
        cells = "".join(
            f"<td>{_cell(curve.points[index], curves.limit_mbit)}</td>" for curve in mine
        )
        shown = x * curves.experiment.x.factor
        rows.append(f"<tr><td>{shown:g}</td>{cells}</tr>")
    facts = "".join(f"<td>{_facts(curve)}</td>" for curve in mine)
    title = f"<h3>{html.escape(panel)}</h3>" if panel else ""
    return f"""{title}<div class="wide"><table><thead>
<tr><th>{html.escape(curves.experiment.x.label)}</th>{head}</tr></thead>
<tbody>{"".join(rows)}<tr><td>seen</td>{facts}</tr></tbody></table></div>
<p class="note">Mbit/s: median [middle half], share of the line. {_reasons(mine)}</p>"""


def _cell(point: Point, limit_mbit: float) -> str:
    if point.mbit is None:
        return "–"
    between = f" [{number(point.low)}–{number(point.high)}]" if point.runs > 1 else ""
    return f"{number(point.mbit)}{between}, {point.mbit / limit_mbit:.0%}"


def number(mbit: float) -> str:
    """Mbit/s with three digits that matter."""
    return f"{mbit:.0f}" if mbit >= 100 else f"{mbit:.1f}" if mbit >= 1 else f"{mbit:.3f}"


def _facts(curve: Curve) -> str:
    """What was seen of a series: connections, congestion control, were contents compared."""
    points = curve.measured
    if not points:
        return "–"
    connections = sorted({point.connections for point in points if point.connections})
    algorithms = sorted({name for point in points for name in point.congestion_control})
    parts = []
    if connections:
        # iperf3 has one more, for control.
        control = "+1 control" if curve.series.stack == "tcp" else ""
        numbers = (str(number - bool(control)) for number in connections)
        parts.append(f"connections: {', '.join(numbers)} {control}".strip())
    if STACKS[curve.series.stack].port:
        parts.append(", ".join(algorithms) or "congestion control not seen")
    if all(point.verified for point in points):
        parts.append("contents compared")
    return "<br>".join(parts)


def _reasons(curves: list[Curve]) -> str:
    """Why points are missing, each reason once."""
    found: dict[str, list[str]] = {}
    for curve in curves:
        for point in curve.points:
            if point.mbit is None:
                why = (point.why.strip().splitlines() or ["no reason known"])[-1][-200:]
                found.setdefault(why, []).append(f"{curve.series.label} at {point.x:g}")
    return html.escape(
        " ".join(f"– {why}: {', '.join(places)}." for why, places in found.items())
    )


def _session(head: dict) -> str:
    facts = {key: value for key, value in head.items() if key != "kind"}
    listed = html.escape(json.dumps(facts, indent=1))
    return (
        f"<details><summary>{html.escape(machine.summary(head))}</summary>"
        f"<pre>{listed}</pre></details>"
    )
