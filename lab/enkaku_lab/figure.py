"""How every figure of the lab looks: colours that colour-blind readers can tell apart, units on
the axes, the physical limit drawn; saved as SVG and PNG."""

from pathlib import Path

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt  # noqa: E402  (the backend is chosen first)

# Okabe and Ito's palette, one colour per stack in every figure.
COLOURS = {"tcp": "#56B4E9", "tcp_n": "#0072B2", "stock": "#E69F00", "enkaku": "#009E73"}
LIMIT = {"color": "#D55E00", "linestyle": "--", "linewidth": 1.5}
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


def panels(rows: int, columns: int, width_in: float, height_in: float):
    """A figure with axes in rows and columns that share their scales; the axes as a flat list."""
    with plt.rc_context(STYLE):
        chart, grid = plt.subplots(
            rows,
            columns,
            figsize=(width_in, height_in),
            layout="constrained",
            sharex=True,
            sharey=True,
            squeeze=False,
        )
    return chart, list(grid.flat)


def save(figure, path: Path) -> tuple[Path, Path]:
    """Writes PATH.svg and PATH.png and returns their paths."""
    path.parent.mkdir(parents=True, exist_ok=True)
    saved = path.with_suffix(".svg"), path.with_suffix(".png")
    for file in saved:
        # No date inside, so that the same numbers give the same file.
        metadata = {"Date": None} if file.suffix == ".svg" else {}
        figure.savefig(file, dpi=150, metadata=metadata)
    plt.close(figure)
    return saved
