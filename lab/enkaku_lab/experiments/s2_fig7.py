"""S2, figure 7: throughput against the number of connections: a rise, then a plateau."""

import statistics

from enkaku_lab.ns2 import charts, measure
from enkaku_lab.ns2.engine import Run
from enkaku_lab.ns2.study import Pace, Results, Study

NUMBERS = (1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 48, 56, 64, 80, 96, 128)
QUICK_NUMBERS = (4, 16, 32, 48, 96)
SLOW_START_S = 2.0


def runs(pace: Pace) -> list[Run]:
    if pace.quick:
        return [Run(n=n, seconds=5.0) for n in QUICK_NUMBERS]
    return [Run(n=n, seconds=22.0, seed=seed) for seed in (1, 2, 3) for n in NUMBERS]


def by_number(found: Results) -> dict[int, list[float]]:
    """N → Mbit/s of each seed."""
    table: dict[int, list[float]] = {}
    for run, result in found.items():
        table.setdefault(run.n, []).append(measure.throughput(result, SLOW_START_S))
    return dict(sorted(table.items()))


def plateau(found: Results) -> tuple[float, list[int]]:
    """The best mean over the seeds, and the numbers within 2 % of it."""
    means = {n: statistics.fmean(rates) for n, rates in by_number(found).items()}
    best = max(means.values())
    return best, [n for n, mbit in means.items() if mbit >= 0.98 * best]


def draw(found: Results, pace: Pace):
    chart, (axes,) = charts.grid()
    table = by_number(found)
    charts.band(axes, list(table), list(table.values()), "ns-2 (median, all seeds)", 0)
    charts.line_limit(axes)
    low, high = 47, 53
    axes.axvspan(low, high, color="#999999", alpha=0.35, linewidth=0, label="where the paper's search ends")
    axes.set(xlabel=charts.CONNECTIONS, ylabel=charts.THROUGHPUT, ylim=(0, 1050))
    charts.legend(axes)
    return chart


def sentence(found: Results, pace: Pace) -> str:
    best, numbers = plateau(found)
    table = by_number(found)
    least, most = min(table), max(table)
    per_one = statistics.fmean(table[least]) / least
    return (
        f"As in the paper, the throughput rises in proportion ({per_one:.0f} Mbit/s per connection) "
        f"and then lies on a plateau: {best:.0f} Mbit/s, within 2 % of it from N = {numbers[0]} to "
        f"{numbers[-1]}; at N = {most} it is {statistics.fmean(table[most]) / best:.0%}, because "
        "windows that together exceed line and queue lose packets."
    )


STUDY = Study(
    name="s2-fig7",
    title="Throughput against the number of connections",
    source="iSCSI-APT 2009, figure 7",
    paper="throughput rises with N and then stays on a plateau (a trapezoid)",
    runs=runs,
    draw=draw,
    sentence=sentence,
)
