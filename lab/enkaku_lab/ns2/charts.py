"""The shapes of S2's figures: N or throughput over time, clouds of read times, curves with bands.

Colours are Okabe and Ito's; line styles and marks differ too, for readers without colour.
"""

from collections.abc import Sequence

from enkaku_lab import figure
from enkaku_lab.experiment import Link
from enkaku_lab.ns2.engine import Result
from enkaku_lab.ns2.measure import MEGA, moves

BLUE, ORANGE, GREEN, RED, PURPLE, SKY = (
    *("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9"),
)
CYCLE = (BLUE, ORANGE, GREEN, PURPLE, RED, SKY)
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)))
LINE_MBIT = 1000 * 1460 / 1500
"""What the model's 1 Gbit/s carries of payload: 1460 of 1500 bytes, and no Ethernet around them."""
REAL_LINE_MBIT = Link().payload_bits_per_s / 1e6
"""What the emulated line carries: 1448 of 1538 bytes, Ethernet's and TCP's time stamps counted."""
CONNECTIONS = "connections N"
THROUGHPUT = "throughput (Mbit/s)"
TIME = "time (s)"


WIDTH_IN, ALONE_IN = 4.2, 7.6
"""Of a panel among others, and of one that has a figure or a half of it for itself, with a legend.
"""


def grid(rows: int = 1, columns: int = 1, height_in: float = 4.2, width_in: float | None = None):
    """Axes as a flat list; room for the title is left."""
    width_in = width_in or (ALONE_IN if columns == 1 else WIDTH_IN)
    with figure.plt.rc_context(figure.STYLE):
        size = (width_in * columns, height_in * rows)
        more = {"layout": "constrained", "squeeze": False, "sharey": "row"}
        chart, found = figure.plt.subplots(rows, columns, figsize=size, **more)
    return chart, list(found.flat)


def from_zero(axes) -> None:
    """The scale, up to the highest of what is drawn here and in the axes that share it."""
    shared = axes.get_shared_y_axes().get_siblings(axes)
    axes.set_ylim(0, 1.05 * max(one.dataLim.y1 for one in shared))


def style(index: int) -> dict:
    return {"color": CYCLE[index % 6], "linestyle": LINES[index % 6], "linewidth": 1.6}


def legend(axes, below: bool = True, columns: int = 3) -> None:
    """Below the axes, so that it covers no data."""
    place = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.2)} if below else {"loc": "best"}
    axes.legend(fontsize=9, ncols=columns, frameon=False, **place)


SMALL_PRINT_IN = 0.22
"""Of the line at the bottom that says what was run."""


def small_print(chart, text: str) -> None:
    """At the bottom, below everything else."""
    height_in = chart.get_figheight()
    below = SMALL_PRINT_IN / height_in
    for legend in chart.legends:
        below += legend.get_window_extent().height / chart.dpi / height_in
    chart.get_layout_engine().set(rect=(0, below, 1, 1 - below))
    look = {"fontsize": 7, "color": "#444444", "ha": "center", "in_layout": False}
    chart.text(0.5, 0.07 / height_in, text, **look)


def one_legend(chart, all_axes: list) -> None:
    """One below the figure in place of those of the axes, what is the same in several once; above the
    small print."""
    entries: dict[str, object] = {}
    for axes in all_axes:
        if found := axes.get_legend():
            handles, labels = axes.get_legend_handles_labels()
            entries |= {name: one for one, name in zip(handles, labels, strict=True)}
            found.remove()
    if entries:
        place = (0.5, SMALL_PRINT_IN / chart.get_figheight())
        look = {"loc": "lower center", "bbox_to_anchor": place, "fontsize": 9, "frameon": False}
        columns = min(4, len(entries))
        legend = chart.legend(list(entries.values()), list(entries), ncols=columns, **look)
        legend.set_in_layout(False)


def n_over_time(axes, result: Result, end_s: float, **look) -> None:
    """Steps of the wanted number."""
    points = [*moves(result), (min(end_s, result.run.seconds), result.samples[-1]["n"])]
    inside = [(t, n) for t, n in points if t <= end_s]
    axes.step([t for t, _ in inside], [n for _, n in inside], where="post", **look)


def rate_over_time(axes, result: Result, span: int, unit: float = MEGA, **look) -> None:
    """Throughput, the mean over so many samples at a time, in Mbit/s or another unit of a byte."""
    samples = result.samples
    groups = [samples[i : i + span] for i in range(0, len(samples) - span + 1, span)]
    means = [sum(s["bytes_per_s"] for s in group) / span * unit for group in groups]
    axes.plot([group[-1]["t_s"] for group in groups], means, **look)


def line_mbit(real: bool) -> float:
    """TCP payload of the line, of one engine or the other."""
    return REAL_LINE_MBIT if real else LINE_MBIT


def line_limit(axes, real: bool) -> None:
    axes.axhline(line_mbit(real), label="the line (TCP payload)", **figure.LIMIT)


def cloud(axes, times: Sequence[tuple[float, float]], colour: str, label: str) -> None:
    """Read time against the time at which the read ended."""
    look = {"s": 4, "color": colour, "alpha": 0.45, "linewidths": 0, "rasterized": True}
    axes.scatter([t for t, _ in times], [s * 1000 for _, s in times], label=label, **look)


def band(axes, xs: Sequence[float], values: Sequence[Sequence[float]], label: str, index: int) -> None:
    """Median of each group, and lowest to highest around it."""
    middle = [sorted(group)[len(group) // 2] for group in values]
    look = style(index)
    (line,) = axes.plot(xs, middle, marker="osD^v*"[index % 6], markersize=5, label=label, **look)
    low, high = [min(group) for group in values], [max(group) for group in values]
    setattr(line, figure.LIMITS, (low, high))
    axes.fill_between(xs, low, high, color=look["color"], alpha=0.18, linewidth=0)
