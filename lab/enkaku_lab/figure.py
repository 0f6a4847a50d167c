"""How every figure of the lab looks: colours that colour-blind readers can tell apart, units on
the axes, the physical limit drawn; saved as SVG and PNG."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from matplotlib.collections import PathCollection

matplotlib.use("agg")

import matplotlib.pyplot as plt  # noqa: E402  (the backend is chosen first)

from enkaku_lab import data  # noqa: E402

# Okabe and Ito's palette, one colour per stack in every figure.
COLOURS = {"tcp": "#56B4E9", "tcp_n": "#0072B2", "stock": "#E69F00", "enkaku": "#009E73"}
LIMIT = {"color": "#D55E00", "linestyle": "--", "linewidth": 1.5}
FONTS = ["DejaVu Sans", "sans-serif"]
STYLE = {
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "legend.frameon": False,
    "svg.hashsalt": "enkaku",
}


def new(width_in: float = 8.0, height_in: float = 4.5):
    """A figure with one set of axes."""
    with plt.rc_context(STYLE):
        return plt.subplots(figsize=(width_in, height_in), layout="constrained")


@dataclass(frozen=True)
class Margins:
    """Inches around the axes. Below them: tick and axis labels, a legend, a line of small print."""

    left: float = 0.85
    right: float = 0.2
    top: float = 0.75
    bottom: float = 0.6
    legend_row: float = 0.2
    small_print: float = 0.3
    between: float = 0.3
    panel_title: float = 0.3


def panels(
    rows: int, columns: int, panel_in: tuple[float, float], legend_rows: int, m: Margins
):
    """Axes in rows and columns that share their scales, as a flat list, and where the legend goes.

    The layout is fixed, so that neither legend nor small print ever covers data.
    """
    below = m.bottom + legend_rows * m.legend_row + m.small_print
    width = m.left + columns * panel_in[0] + (columns - 1) * m.between + m.right
    height = below + rows * panel_in[1] + (rows - 1) * m.panel_title + m.top
    room = {
        "left": m.left / width,
        "right": 1 - m.right / width,
        "bottom": below / height,
        "top": 1 - m.top / height,
        "wspace": m.between / panel_in[0],
        "hspace": m.panel_title / panel_in[1],
    }
    with plt.rc_context(STYLE):
        size = (width, height)
        shared = {"sharex": True, "sharey": True, "squeeze": False}
        chart, grid = plt.subplots(rows, columns, figsize=size, gridspec_kw=room, **shared)
    legend_at = (0.5, m.small_print / height)
    return chart, list(grid.flat), legend_at


DRAWN = ("axes", "series", "x", "y", "low", "high")
"""Columns of a CSV of what was drawn: number of the axes, number of the series in them, its points.
The head has what they are called: clouds of thousands of points would repeat it."""
DRAWN_DIGITS = 5
LIMITS = "band_limits"
"""Name under which a line keeps the lowest and highest values of the band around it."""


def drawn(figure) -> tuple[dict[str, str], list[tuple]]:
    """What axes and series are called, and the points of every line and every cloud, as `DRAWN`.
    Lines across the whole width or height (limits) are not data."""
    names, rows = {}, []
    for number, axes in enumerate(figure.axes, 1):
        x, y = axes.get_xlabel(), axes.get_ylabel()
        names[f"axes {number}"] = f"{axes.get_title()} (x: {x or 'as below'}, y: {y or 'as at the left'})".strip()
        lines = [line for line in axes.get_lines() if line.get_transform() == axes.transData]
        clouds = [one for one in axes.collections if isinstance(one, PathCollection)]
        for index, one in enumerate([*lines, *clouds], 1):
            if not str(one.get_label()).startswith("_"):
                names[f"series {number}.{index}"] = one.get_label()
            points = zip(*one.get_data(), strict=True) if one in lines else one.get_offsets()
            lows, highs = getattr(one, LIMITS, ([], []))
            for place, (across, up) in enumerate(points):
                band = (_short(lows[place]), _short(highs[place])) if lows else (None, None)
                rows.append((number, index, _short(across), _short(up), *band))
    return names, rows


def _short(value: float) -> str:
    return f"{value:.{DRAWN_DIGITS}g}"


def save(
    figure, path: Path, dpi: int = 150, numbers: Mapping[str, object] | None = None
) -> tuple[Path, Path]:
    """Writes PATH.svg and PATH.png and returns their paths; with `numbers`, the head of such a
    file, also PATH.csv with what was drawn."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if numbers is not None:
        names, rows = drawn(figure)
        data.write(path.with_suffix(".csv"), {"figure": path.stem, **numbers, **names}, DRAWN, rows)
    saved = path.with_suffix(".svg"), path.with_suffix(".png")
    for file in saved:
        # No date inside, so that the same numbers give the same file.
        metadata = {"Date": None} if file.suffix == ".svg" else {}
        # Text stays text: it can be searched, and the file is a third as large.
        with plt.rc_context({**STYLE, "svg.fonttype": "none", "font.family": FONTS}):
            figure.savefig(file, dpi=dpi, metadata=metadata)
    plt.close(figure)
    return saved
