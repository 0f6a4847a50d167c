"""S2, figure 7: throughput against the number of connections: a rise, then a plateau."""

import statistics

from enkaku_lab.ns2 import charts, measure
from enkaku_lab.ns2.engine import Run
from enkaku_lab.ns2.study import Fact, Facts, Pace, Results, Study

NUMBERS = (1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 48, 56, 64, 80, 96, 128)
QUICK_NUMBERS = (4, 16, 32, 48, 96)
REAL_NUMBERS = (1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 48, 56, 64)
QUICK_REAL_NUMBERS = (4, 16, 32, 48)
SLOW_START_S = 2.0
QUICK_SLOW_START_S = 1.0


def runs(pace: Pace) -> list[Run]:
    if pace.real and pace.quick:
        return [Run(n=n, seconds=3.0) for n in QUICK_REAL_NUMBERS]
    if pace.real:
        return [Run(n=n, seconds=10.0, seed=seed) for seed in (1, 2) for n in REAL_NUMBERS]
    if pace.quick:
        return [Run(n=n, seconds=5.0) for n in QUICK_NUMBERS]
    return [Run(n=n, seconds=22.0, seed=seed) for seed in (1, 2, 3) for n in NUMBERS]


def by_number(found: Results) -> dict[int, list[float]]:
    """N → Mbit/s of each seed."""
    table: dict[int, list[float]] = {}
    for run, result in found.items():
        begin = SLOW_START_S if run.seconds > 2 * SLOW_START_S else QUICK_SLOW_START_S
        table.setdefault(run.n, []).append(measure.throughput(result, begin))
    return dict(sorted(table.items()))


def plateau(found: Results) -> tuple[float, list[int]]:
    """The best mean over the seeds, and the numbers within 2 % of it."""
    means = {n: statistics.fmean(rates) for n, rates in by_number(found).items()}
    best = max(means.values())
    return best, [n for n, mbit in means.items() if mbit >= 0.98 * best]


def edge(found: Results) -> int:
    """The fewest connections with 95 % of the plateau."""
    best, _ = plateau(found)
    return min(n for n, rates in by_number(found).items() if statistics.fmean(rates) >= 0.95 * best)


def facts(found: Results, pace: Pace) -> Facts:
    table = by_number(found)
    best, _ = plateau(found)
    rising = [n for n in table if 4 <= n <= 16]
    per_one = statistics.fmean(statistics.fmean(table[n]) / n for n in rising)
    # Beyond it, windows exceed line and queue.
    many = next((n for n in (64, 48) if n in table), None)
    found_facts = {
        "throughput of one connection below the plateau": Fact(per_one, "Mbit/s", 0.1),
        "the plateau as part of the line": Fact(
            100 * best / charts.line_mbit(pace.real), "%", 0.05
        ),
        "the fewest N with 95 % of the plateau": Fact(edge(found), "", 0.15),
    }
    if many:
        kept = 100 * statistics.fmean(table[many]) / best
        found_facts[f"what is left of the plateau at N = {many}"] = Fact(kept, "%", 0.05)
    return found_facts


def draw(all_axes: list, found: Results, pace: Pace) -> None:
    (axes,) = all_axes
    table = by_number(found)
    charts.band(axes, list(table), list(table.values()), "median, all seeds", 0)
    charts.line_limit(axes, pace.real)
    low, high = 47, 53
    axes.axvspan(low, high, color="#999999", alpha=0.35, linewidth=0, label="where the paper's search ends")
    axes.set(xlabel=charts.CONNECTIONS, ylabel=charts.THROUGHPUT, ylim=(0, 1050))
    charts.legend(axes)


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
    facts=facts,
)
