"""`python -m enkaku_lab board DASHBOARD PICTURE`: a dashboard of contrib/grafana as a picture, with what a Prometheus has.

Grafana is in no Debian. This asks Prometheus what each panel asks, as Grafana does, and lays the answers out as the dashboard
says: places, titles, units, legends. Colours and fonts are our own. A panel whose question has no answer says so.
"""

import argparse
import json
import re
import time
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from matplotlib.ticker import FuncFormatter, MaxNLocator

from enkaku_lab.figure import FONTS, plt
from enkaku_lab.process import LabError

COLUMNS = 24
"""Of Grafana's grid."""
CELL_IN = (0.62, 0.26)
DPI = 80
POINTS = 240
LEGEND_MAX = 5
BACK, PANEL, FRONT, DIM = "#111217", "#181b1f", "#d8d9da", "#7b7f87"
COLOURS = ["#73BF69", "#5794F2", "#FF9830", "#F2495C", "#B877D9", "#FADE2A", "#8AB8FF", "#FFA6B0"]
SCALES = {
    "Bps": (1000, ["B/s", "kB/s", "MB/s", "GB/s"]),
    "bytes": (1024, ["B", "KiB", "MiB", "GiB"]),
    "decbytes": (1000, ["B", "kB", "MB", "GB"]),
    "ops": (1000, ["ops/s", "K ops/s", "M ops/s"]),
    "pps": (1000, ["p/s", "K p/s"]),
    "short": (1000, ["", "K", "M"]),
}
"""Grafana's names of units, as far as the dashboards have them: a step, and the words for it."""
TIMES = [(1, "s", 1), (1e-3, "ms", 1e3), (0, "µs", 1e6)]


def value(number: float, unit: str) -> str:
    """A number with its unit, as Grafana shows it."""
    if unit == "percentunit":
        return f"{number * 100:.3g}%"
    if unit == "s":
        word, factor = next((word, factor) for least, word, factor in TIMES if abs(number) >= least)
        return "0 s" if number == 0 else f"{number * factor:.3g} {word}"
    step, words = SCALES.get(unit, SCALES["short"])
    at = 0
    while abs(number) >= step and at < len(words) - 1:
        number, at = number / step, at + 1
    return f"{number:.3g} {words[at]}".strip()


@dataclass(frozen=True)
class Prometheus:
    """Where it is asked, and about which span of time."""

    url: str
    begin: float
    end: float

    def ask(self, question: str) -> list[dict]:
        """The series of a range, each with its labels and its points."""
        step = max((self.end - self.begin) / POINTS, 1.0)
        words = {"query": question, "start": self.begin, "end": self.end, "step": f"{step:.3f}"}
        address = f"{self.url}/api/v1/query_range?{urllib.parse.urlencode(words)}"
        with urllib.request.urlopen(address, timeout=30) as answer:
            return json.load(answer)["data"]["result"]


def question(expression: str) -> str:
    """Variables stand for everything there is."""
    expression = expression.replace("$__rate_interval", "10s")
    return re.sub(r"\$\w+|\$\{\w+\}", ".*", expression)


def legend(form: str, labels: dict[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), form).strip()


def series(panel: dict, prometheus: Prometheus) -> list[tuple[str, list[float], list[float]]]:
    """Name, seconds since the beginning and values of all that a panel shows."""
    found = []
    for target in panel["targets"]:
        for one in prometheus.ask(question(target["expr"])):
            points = [(float(at) - prometheus.begin, float(number)) for at, number in one["values"]]
            times, numbers = zip(*points)
            found.append((legend(target.get("legendFormat", ""), one["metric"]), times, numbers))
    return found


def draw(dashboard: dict, prometheus: Prometheus, picture: Path) -> None:
    panels = dashboard["panels"]
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels) + 2
    size = (COLUMNS * CELL_IN[0], rows * CELL_IN[1])
    style = {"font.family": FONTS, "font.size": 7.5, "text.color": FRONT, "axes.edgecolor": DIM}
    style |= {"xtick.color": DIM, "ytick.color": FRONT, "grid.color": "#2c3235"}
    with plt.rc_context(style):
        figure = plt.figure(figsize=size, facecolor=BACK)
        figure.text(0.01, 1 - 0.9 / rows, dashboard["title"], fontsize=13, weight="bold")
        for panel in panels:
            place = panel["gridPos"]
            left, right = place["x"] / COLUMNS, (place["x"] + place["w"]) / COLUMNS
            top = 1 - (place["y"] + 2) / rows
            bottom = top - place["h"] / rows
            if panel["type"] == "row":
                figure.text(0.01, bottom + 0.2 / rows, panel["title"], fontsize=10, weight="bold")
                continue
            gap_x, gap_y = 0.1 / COLUMNS, 0.12 / rows
            box = (left + gap_x, bottom + gap_y, right - left - 2 * gap_x, top - bottom - 2 * gap_y)
            # Below the curves, which a figure draws first otherwise.
            how = {"transform": figure.transFigure, "zorder": -1}
            back = plt.Rectangle(box[:2], *box[2:], color=PANEL, **how)
            figure.add_artist(back)
            figure.text(box[0] + 0.15 / COLUMNS, top - 0.85 / rows, panel["title"], fontsize=8.5)
            show = number if panel["type"] == "stat" else curves
            show(figure, box, rows, panel, series(panel, prometheus))
        figure.savefig(picture, dpi=DPI, facecolor=BACK)
        plt.close(figure)


def number(figure, box: tuple, rows: int, panel: dict, found: list) -> None:
    """The latest value, large; or the names of what there is."""
    unit = panel["fieldConfig"]["defaults"].get("unit", "short")
    # What was told earlier and is no more does not count.
    latest = max((times[-1] for _, times, _ in found), default=0.0)
    now = [(name, numbers[-1]) for name, times, numbers in found if times[-1] == latest]
    if panel.get("options", {}).get("textMode") == "name":
        text = "   ".join(name for name, last in now if last) or "no data"
    else:
        text = ", ".join(value(last, unit) for _, last in now) or "no data"
    x, y = box[0] + box[2] / 2, box[1] + box[3] * 0.4
    colour = COLOURS[0] if now else DIM
    figure.text(x, y, text, fontsize=15, color=colour, ha="center", va="center", weight="bold")


def curves(figure, box: tuple, rows: int, panel: dict, found: list) -> None:
    unit = panel["fieldConfig"]["defaults"].get("unit", "short")
    shown = min(len(found), LEGEND_MAX)
    low, high = (1.0 + 0.65 * max(shown, 1)) / rows, 1.25 / rows
    side = 1.1 / COLUMNS
    area = (box[0] + side, box[1] + low, box[2] - side - 0.2 / COLUMNS, box[3] - low - high)
    axes = figure.add_axes(area, facecolor=PANEL)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.grid(True, linewidth=0.5)
    axes.tick_params(length=0, labelsize=6.5)
    for at, (name, times, numbers) in enumerate(found):
        axes.plot(times, numbers, color=COLOURS[at % len(COLOURS)], linewidth=1.0)
        axes.fill_between(times, numbers, color=COLOURS[at % len(COLOURS)], alpha=0.1, linewidth=0)
        if at < shown:
            text = name if at < LEGEND_MAX - 1 or len(found) == LEGEND_MAX else f"{name} and more"
            y = box[1] + (0.3 + 0.65 * (shown - 1 - at)) / rows
            figure.text(box[0] + 0.2 / COLUMNS, y, f"— {text}", fontsize=6.5, color=COLOURS[at % len(COLOURS)])
    axes.set_ylim(bottom=0)
    if not found:
        axes.set_ylim(0, 1)
        axes.text(0.5, 0.5, "no data", transform=axes.transAxes, color=DIM, ha="center", va="center")
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda number, _: value(number, unit)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:.0f} s"))


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="enkaku_lab board", description=__doc__)
    parser.add_argument("dashboard", type=Path)
    parser.add_argument("picture", type=Path, help="PNG or SVG")
    parser.add_argument("--prometheus", default="http://127.0.0.1:9090", metavar="URL")
    parser.add_argument("--seconds", type=float, default=90.0, help="of the past")
    options = parser.parse_args(arguments)
    end = time.time()
    prometheus = Prometheus(options.prometheus, end - options.seconds, end)
    try:
        draw(json.loads(options.dashboard.read_text()), prometheus, options.picture)
    except OSError as error:
        raise LabError(f"{options.prometheus} or {options.dashboard}: {error}") from error
    print(options.picture)
