"""Draws the curves of an experiment: the same colour and mark for a stack in every figure, the
line's payload rate, the paper's values, quartiles as bars; what could not run is written in it."""

import textwrap
from dataclasses import replace
from pathlib import Path

from matplotlib.container import ErrorbarContainer
from matplotlib.ticker import FixedFormatter, FixedLocator, FuncFormatter, LogLocator, NullFormatter

from enkaku_lab import data, figure, machine
from enkaku_lab.curves import Curve, Curves

# Okabe and Ito's palette: a colour per stack. The mark differs too, for readers without colour.
STYLES = {
    "tgt-libiscsi": ("#E69F00", "s"),
    "tgt-tuned": ("#8C510A", "P"),
    "enkaku": ("#009E73", "o"),
    "enkaku-pipelined": ("#009E73", "D"),
    "enkaku-bench": ("#009E73", "D"),
    "nfs": ("#CC79A7", "^"),
    "smb": ("#000000", "v"),
    "smb1": ("#7F7F7F", "<"),
    "tcp": ("#0072B2", "x"),
    "local": ("#7F7F7F", "*"),
    "enkaku-cached": ("#0072B2", "o"),
    "enkaku-uncached": ("#009E73", "o"),
    "enkaku-gathered": ("#CC79A7", "o"),
    "mirror-sync": ("#009E73", "s"),
    "mirror-async": ("#0072B2", "^"),
    "mirror-paused": ("#555555", "o"),
    "qemu-mirror": ("#CC79A7", "x"),
    "qemu-mirror-behind": ("#E69F00", "+"),
    "guest-iscsi": ("#E69F00", "s"),
    "guest-iscsi-bursts": ("#8C510A", "P"),
    "guest-iscsi-1m": ("#D55E00", "o"),
    "guest-iscsi-8m": ("#009E73", "D"),
    "guest-iscsi-ahead": ("#8C510A", "P"),
    "guest-nfs": ("#CC79A7", "^"),
    "guest-nfs-ahead": ("#882255", "v"),
    "guest-nfs-udp": ("#000000", "<"),
    "guest-nfs-udp-ahead": ("#555555", ">"),
    "guest-tcp": ("#0072B2", "x"),
}
PAPER = {"color": "#555555", "alpha": 0.35}
PAPER_LABEL = "the paper's value"
GAP_LABEL = "no result (see the table)"
LIMIT_LABEL = "the line (TCP payload)"
ZERO_LOG_STEP = 0.4
"""Where 0 is drawn on a logarithmic axis: this share of the smallest value above it."""
PANELS_IN = {1: (7.0, 3.5), 2: (4.7, 3.5), 4: (4.7, 2.7)}
"""Size of the axes by the number of panels."""
LEGEND_COLUMNS = 3
SMALL_PRINT_LINE_IN, SMALL_PRINT_PER_IN = 0.14, 20
"""Height of a line of it, and how many characters fit into an inch."""


def draw(curves: Curves, path: Path) -> tuple[Path, Path]:
    """The figure as PATH.svg and PATH.png, and its numbers as PATH.csv."""
    panels = list(curves.experiment.panels)
    rows, columns = (2, 2) if len(panels) == 4 else (1, len(panels))
    shown = len({curve.series.label for curve in curves.curves if curve.measured})
    gaps = any(point.failed for curve in curves.curves for point in curve.points if not point.mbit)
    entries = 1 + shown + bool(curves.experiment.points) + gaps
    margins = figure.Margins() if panels != [""] else figure.Margins(top=0.55)
    panel_in = PANELS_IN[len(panels)]
    small_print = _wrapped(_small_print(curves), int(columns * panel_in[0] * SMALL_PRINT_PER_IN))
    margins = replace(margins, small_print=(len(small_print) + 1) * SMALL_PRINT_LINE_IN)
    chart, grid, legend_at = figure.panels(
        rows, columns, panel_in, -(-entries // LEGEND_COLUMNS), margins
    )
    for axes, panel in zip(grid, panels, strict=True):
        _panel(axes, curves, panel)
    for axes in grid[-columns:]:
        axes.set_xlabel(curves.experiment.x.label)
    for axes in grid[::columns]:
        axes.set_ylabel("throughput (Mbit/s)")
    _legend(chart, grid, legend_at, curves)
    height = chart.get_size_inches()[1]
    chart.suptitle(_title(curves), fontsize=11.5, y=1 - 0.1 / height)
    small = {"fontsize": 7, "color": "#444444", "ha": "center", "va": "bottom"}
    chart.text(0.5, 0.07 / height, "\n".join(small_print), **small)
    data.write_curves(curves, path.with_suffix(".csv"))
    return figure.save(chart, path)


def _wrapped(text: str, characters: int) -> list[str]:
    return [part for line in text.splitlines() for part in textwrap.wrap(line, characters)]


def _title(curves: Curves) -> str:
    experiment = curves.experiment
    source = f"; {experiment.source}" if experiment.paper else ""
    return f"{experiment.title}\n({experiment.name}{source})"


def _panel(axes, curves: Curves, panel: str) -> None:
    experiment = curves.experiment
    if panel:
        axes.set_title(panel, fontsize=10)
    xs = [x * experiment.x.factor for x in experiment.values(curves.pace)]
    shown = _Places(experiment.x.scale, xs)
    axes.axhline(curves.limit_mbit, label=LIMIT_LABEL, zorder=1, **figure.LIMIT)
    _paper(axes, curves, panel, shown)
    lacking: dict[str, list[str]] = {}
    for curve in curves.curves:
        if curve.panel != panel:
            continue
        if curve.measured:
            _curve(axes, curve, shown)
        elif curve.points[0].why != data.NOT_YET:
            lacking.setdefault(_short_reason(curves, curve), []).append(curve.series.label)
    _axes(axes, curves, shown)
    if lacking:
        axes.text(
            0.02,
            0.02,
            "\n".join(f"no {', '.join(labels)}:\n{why}" for why, labels in lacking.items()),
            transform=axes.transAxes,
            fontsize=7.5,
            color="#a00000",
            va="bottom",
            zorder=5,
        )


def _short_reason(curves: Curves, curve: Curve) -> str:
    reason = curves.unavailable.get(curve.series.stack) or curve.points[0].why
    line = reason.strip().splitlines()[-1] if reason.strip() else "no reason known"
    return line if len(line) <= 70 else f"{line[:67]}…"


def _curve(axes, curve: Curve, shown: "_Places") -> None:
    series = curve.series
    colour, marker = STYLES[series.stack]
    look = {
        "color": series.colour or colour,
        "linestyle": series.line,
        "linewidth": 1.6,
        "label": series.label,
    }
    if series.flat:
        axes.axhline(curve.measured[0].mbit, zorder=2, **look)
        return
    # A point that could not be measured is a gap, not a bridge, with a mark on the axis.
    gaps = [shown.place(point.x) for point in curve.points if point.mbit is None and point.failed]
    if gaps:
        on_axis = {"transform": axes.get_xaxis_transform(), "clip_on": False, "zorder": 4}
        cross = {"marker": "x", "color": "#a00000", "markersize": 7, "linestyle": "none"}
        axes.plot(gaps, [0.0] * len(gaps), label=GAP_LABEL, **cross, **on_axis)
    heights = [point.mbit if point.mbit is not None else float("nan") for point in curve.points]
    bars = None
    if any(point.runs > 1 for point in curve.points):
        middle = [point.mbit or 0 for point in curve.points]
        below = [m - (p.low if p.mbit else 0) for m, p in zip(middle, curve.points, strict=True)]
        above = [(p.high if p.mbit else 0) - m for m, p in zip(middle, curve.points, strict=True)]
        bars = [below, above]
    axes.errorbar(
        [shown.place(point.x) for point in curve.points],
        heights,
        yerr=bars,
        marker=series.marker or marker,
        markersize=5,
        markerfacecolor="white" if series.line != "-" else None,
        capsize=2.5,
        elinewidth=1,
        zorder=3,
        **look,
    )


def _paper(axes, curves: Curves, panel: str, shown: "_Places") -> None:
    """The paper's own values; in the first panel, which has the paper's setting."""
    if panel != next(iter(curves.experiment.panels)):
        return
    for index, point in enumerate(curves.experiment.points):
        label = PAPER_LABEL if index == 0 else None
        if point.x is None:
            axes.axhspan(point.low, point.high, label=label, zorder=0, linewidth=0, **PAPER)
            continue
        middle = (point.low + point.high) / 2
        reach = [[middle - point.low], [point.high - middle]]
        axes.errorbar(
            [shown.place(point.x)],
            [middle],
            yerr=reach,
            linestyle="none",
            marker="*",
            markersize=11,
            markeredgecolor="white",
            color="#333333",
            capsize=3,
            label=label,
            zorder=4,
        )


class _Places:
    """Where values of the x axis are drawn, and how they are written."""

    def __init__(self, scale: str, values: list[float]):
        self.scale = scale
        self.values = values
        above = [value for value in values if value > 0]
        self.zero = min(above) * ZERO_LOG_STEP if above else 1.0

    @property
    def logarithmic(self) -> bool:
        return self.scale != "linear"

    def place(self, x: float) -> float:
        return self.zero if self.logarithmic and x <= 0 else x


def _axes(axes, curves: Curves, shown: _Places) -> None:
    lowest = [p.low for c in curves.curves for p in c.measured if p.low > 0]
    lowest += [point.low for point in curves.experiment.points]
    highest = [p.high for c in curves.curves for p in c.measured] + [curves.limit_mbit]
    if curves.experiment.log_y:
        axes.set_yscale("log")
        low, high = min(lowest, default=1) / 1.6, max(highest) * 1.6
        axes.set_ylim(low, high)
        # Few decades need more than one number each.
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 300 else (1,)))
        axes.yaxis.set_major_formatter(FuncFormatter(_plain))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(0, max(highest) * 1.08)
    axes.grid(True, axis="both", which="major", color="#dddddd", linewidth=0.7)
    if shown.logarithmic:
        axes.set_xscale("log")
        axes.set_xlim(shown.place(min(shown.values)) / 1.3, max(shown.values) * 1.3)
        axes.xaxis.set_minor_locator(FixedLocator([]))
        axes.xaxis.set_major_locator(FixedLocator([shown.place(x) for x in shown.values]))
        axes.xaxis.set_major_formatter(FixedFormatter([_x_label(x) for x in shown.values]))
    else:
        axes.set_xticks(shown.values)
    axes.tick_params(labelsize=9)


def _x_label(x: float) -> str:
    return f"{x:.0e}".replace("e-0", "e-") if 0 < x < 0.1 else f"{x:g}"


def _plain(value: float, _position: int) -> str:
    return f"{value:g}"


def _legend(chart, grid, place: tuple[float, float], curves: Curves) -> None:
    """One legend below all panels; what is the same in several panels, once."""
    entries: dict[str, object] = {}
    for axes in grid:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            # Of a curve with bars, the line and the mark are enough.
            line = handle[0] if isinstance(handle, ErrorbarContainer) else handle
            entries.setdefault(label, line)
    order = [LIMIT_LABEL, PAPER_LABEL, *(series.label for series in curves.experiment.series)]
    order.append(GAP_LABEL)
    shown = [label for label in order if label in entries]
    chart.legend(
        [entries[label] for label in shown],
        shown,
        loc="lower center",
        bbox_to_anchor=place,
        ncols=LEGEND_COLUMNS,
        fontsize=8.5,
        frameon=False,
        borderaxespad=0,
        handlelength=2.6,
    )


def _small_print(curves: Curves) -> str:
    """Machine, time, commit and the length of a run, in every figure."""
    if not curves.sessions and not curves.kept:
        return "nothing was measured"
    first, last = (time[:16].replace("T", " ") for time in curves.taken)
    when = f"{first} to {last[11:] if first[:10] == last[:10] else last} UTC"
    if curves.sessions:
        where, commit = machine.summary(curves.sessions[-1]), curves.sessions[-1].get("commit", "")
    else:
        where, commit = curves.kept.get("machine", "unknown"), curves.kept.get("commit", "")
    # The summary ends with a date, and the time is told more exactly.
    where = where.rpartition(", ")[0] or where
    with_ = f" · commit {commit.split()[0]}" if commit else ""
    runs = sorted({point.runs for curve in curves.curves for point in curve.measured})
    quick = "QUICK RUN, not for conclusions · " if curves.pace.name == "quick" else ""
    many = f"{runs[0]}–{runs[-1]}" if runs[0] != runs[-1] else f"{runs[0]}"
    middle = f"medians of {many} runs, bars: middle half" if runs[-1] > 1 else "one run each"
    shrunk = f" · {curves.experiment.shrunk}" if curves.experiment.shrunk else ""
    return f"{quick}{where} · {when}{with_}\n{middle} · a run: {data.run_length(curves)}{shrunk}"
