"""Draws a figure of the lab from the CSV beside it, with matplotlib and nothing of the lab:

    python lab/draw_csv.py docs/lab/figures/s1-fig5.csv -o s1-fig5.png

Both kinds of files are taken: curves (panel, series, x, mbit, low, high) and what was drawn (axes,
series, x, y). A start for figures of your own: `read` gives the head and the rows as dictionaries.
"""

import argparse
import csv
import sys
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt

MANY = 400
"""Points from which on a series is a cloud."""


def read(path: Path) -> tuple[dict[str, str], list[dict[str, str]]]:
    """The head (`# key: value`) and the rows."""
    lines = path.read_text().splitlines()
    comments = [line for line in lines if line.startswith("# ")]
    head = dict(line[2:].split(": ", 1) for line in comments if ": " in line)
    return head, list(csv.DictReader(lines[len(comments) :]))


def series(
    head: dict[str, str], rows: list[dict[str, str]]
) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Panel → series → points, under their names."""
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    if not rows or not ({"panel", "mbit"} <= rows[0].keys() or {"axes", "y"} <= rows[0].keys()):
        raise SystemExit(
            "neither curves (panel, series, x, mbit) nor what was drawn (axes, series, x, y)"
        )
    for row in rows:
        if "panel" in row:
            panel, name, y = row["panel"], row["series"], row["mbit"]
        else:
            number = f"{row['axes']}.{row['series']}"
            panel, name, y = (
                head.get(f"axes {row['axes']}", ""),
                head.get(f"series {number}", number),
                row["y"],
            )
        if y:
            found.setdefault(panel, {}).setdefault(name, []).append((float(row["x"]), float(y)))
    return found


def draw(path: Path, out: Path) -> None:
    """One panel beside the other."""
    head, rows = read(path)
    panels = series(head, rows)
    if not panels:
        raise SystemExit(f"{path}: no row of it has a value")
    chart, grid = plt.subplots(
        1, len(panels), figsize=(6 * len(panels), 4.5), squeeze=False, layout="constrained"
    )
    for axes, (title, mine) in zip(grid.flat, panels.items(), strict=True):
        for name, points in mine.items():
            look = {
                "marker": ".",
                "linestyle": "none" if len(points) > MANY else "-",
                "markersize": 3,
            }
            axes.plot(*zip(*points, strict=True), label=name, **look)
        axes.set_title(title, fontsize=9)
        axes.set_xlabel(head.get("x", "x"))
        axes.set_ylabel("Mbit/s" if "limit_mbit" in head else "y")
        axes.legend(fontsize=7)
    chart.suptitle(
        f"{head.get('title', path.stem)}\n{head.get('taken', '')}, commit {head.get('commit', 'unknown')}",
        fontsize=10,
    )
    chart.savefig(out, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("csv", type=Path)
    parser.add_argument(
        "-o", "--output", type=Path, help="default: NAME.png in the working directory"
    )
    options = parser.parse_args()
    if not options.csv.is_file():
        sys.exit(f"{options.csv}: no such file")
    out = options.output or Path(f"{options.csv.stem}.png")
    # Only here: in a notebook (figure.ipynb) figures are shown.
    matplotlib.use("agg")
    draw(options.csv, out)
    print(out)


if __name__ == "__main__":
    main()
