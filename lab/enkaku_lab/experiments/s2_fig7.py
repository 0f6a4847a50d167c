"""S2, figure 7: throughput against the number of connections, with the amount of data as parameter.
"""

import statistics

from enkaku_lab.claims import Claim, judged, not_measured
from enkaku_lab.ns2 import charts, measure
from enkaku_lab.ns2.engine import Run
from enkaku_lab.ns2.study import Fact, Facts, Pace, Results, Study

NUMBERS = (1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 48, 56, 64, 80, 96, 128)
QUICK_NUMBERS = (4, 16, 32, 48, 96)
REAL_NUMBERS = (1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 48, 56, 64)
QUICK_REAL_NUMBERS = (4, 16, 32, 48)
SLOW_START_S = 2.0
QUICK_SLOW_START_S = 1.0
AMOUNTS = (50, 100, 200, 500, 1000, 2000)
"""PDUs of 1 MB, from a transfer's beginning on."""
SMALL = 200
PEAK = 0.05
"""What counts as a fall and a rise."""
"""Up to so many the paper sees a false peak."""
SLOWER_DISKS = "storage_min 0.040 storage_max 0.050"
SLOWER_NUMBERS = (16, 32, 48)


def runs(pace: Pace) -> list[Run]:
    if pace.real and pace.quick:
        return [Run(n=n, seconds=3.0, reads=True) for n in QUICK_REAL_NUMBERS]
    if pace.real:
        return _runs(REAL_NUMBERS, 10.0, 2)
    if pace.quick:
        return [Run(n=n, seconds=5.0, reads=True) for n in QUICK_NUMBERS]
    slower = [Run(n=n, seconds=22.0, path=SLOWER_DISKS) for n in SLOWER_NUMBERS]
    return _runs(NUMBERS, 22.0, 3) + slower


def _runs(numbers: tuple[int, ...], seconds: float, seeds: int) -> list[Run]:
    return [
        Run(n=n, seconds=seconds, seed=seed, reads=seed == 1)
        for seed in range(1, seeds + 1)
        for n in numbers
    ]


def by_number(found: Results) -> dict[int, list[float]]:
    """N → Mbit/s of each seed."""
    table: dict[int, list[float]] = {}
    for run, result in found.items():
        if run.path:
            continue
        begin = SLOW_START_S if run.seconds > 2 * SLOW_START_S else QUICK_SLOW_START_S
        table.setdefault(run.n, []).append(measure.throughput(result, begin))
    return dict(sorted(table.items()))


def plateau(found: Results) -> tuple[float, list[int]]:
    """The best mean over the seeds, and the numbers within 2 % of it."""
    means = {n: statistics.fmean(rates) for n, rates in by_number(found).items()}
    best = max(means.values())
    return best, [n for n, mbit in means.items() if mbit >= 0.98 * best]


def by_amount(found: Results) -> dict[int, dict[int, float]]:
    """Amount → N → Mbit/s over the first so many reads; without those that a run did not get to."""
    table: dict[int, dict[int, float]] = {amount: {} for amount in AMOUNTS}
    for run, result in found.items():
        ends = sorted(read["t_s"] for read in result.reads)
        for amount, mine in table.items():
            if len(ends) >= amount and not run.path:
                mine[run.n] = amount * (1 << 20) * measure.MEGA / ends[amount - 1]
    return {amount: dict(sorted(mine.items())) for amount, mine in table.items() if mine}


def false_peaks(rates: dict[int, float]) -> list[int]:
    """The N, besides the best, where the throughput has fallen by `PEAK` from a peak before and
    risen by `PEAK` again: where a search that takes the curve for one hill may end."""
    found, peak, valley = [], 0.0, 0.0
    for n, rate in rates.items():
        if valley and rate >= (1 + PEAK) * valley:
            found.append(n)
            peak, valley = rate, 0.0
        elif rate > peak:
            peak = rate
            if found:
                found[-1] = n
        elif rate <= (1 - PEAK) * peak:
            valley = min(valley or rate, rate)
    best = max(rates, key=rates.__getitem__)
    return [n for n in found if n != best]


def slower_disks(found: Results) -> dict[int, float]:
    """N → throughput with a storage that takes 10 ms more, as part of that without (the same seed).
    """
    rates = {
        (run.n, bool(run.path)): measure.throughput(result, SLOW_START_S)
        for run, result in found.items()
        if run.seed == 1
    }
    return {n: rates[n, True] / rates[n, False] for n, slower in rates if slower}


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
    axes, amounts = all_axes
    table = by_number(found)
    charts.band(axes, list(table), list(table.values()), "median, all seeds", 0)
    charts.line_limit(axes, pace.real)
    # With Tm = 5 s and PDUs of 1 MB, as here; the 53 of the text is of PDUs of 3 MB.
    axes.axvline(47, color="#666666", linestyle=":", label="the paper's search ends at 47")
    axes.set(xlabel=charts.CONNECTIONS, ylabel=charts.THROUGHPUT, ylim=(0, 1050))
    axes.set_title("steady state", fontsize=10)
    charts.legend(axes, columns=2)
    for index, (amount, mine) in enumerate(by_amount(found).items()):
        look = {**charts.style(index), "marker": "osD^v*"[index % 6], "markersize": 3.5}
        amounts.plot(list(mine), list(mine.values()), label=f"{amount} PDUs", **look)
    amounts.set_title("over the first PDUs of a transfer", fontsize=10)
    amounts.set_xlabel(charts.CONNECTIONS)
    charts.legend(amounts)


def claims(found: Results, pace: Pace) -> list[Claim]:
    best, numbers = plateau(found)
    mine = {amount: false_peaks(rates) for amount, rates in by_amount(found).items()}
    few, many = ([amount for amount in mine if (amount <= SMALL) == small and mine[amount]] for small in (True, False))
    said = ", ".join(f"N = {' and '.join(map(str, mine[amount]))} over {amount} PDUs" for amount in (*few, *many))
    slower = slower_disks(found)
    robust = "a storage that takes 10 ms more changes nothing"
    return [
        judged(
            "throughput rises with N and then stays on a plateau",
            numbers[-1] >= 1.5 * numbers[0],
            f"within 2 % of {best:.0f} Mbit/s from N = {numbers[0]} to {numbers[-1]}",
        ),
        judged(
            f"with {SMALL} PDUs or fewer a peak shows where there is none",
            bool(few) and not many if any(amount <= SMALL for amount in mine) else None,
            f"after a fall of {PEAK:.0%} it rises again, at {said or 'none'}; not over {', '.join(str(a) for a in mine if not mine[a])}",
        ),
        judged(
            robust,
            all(share >= 0.98 for n, share in slower.items() if n in numbers),
            ", ".join(f"{share:.1%} is left at N = {n}" for n, share in slower.items()),
        )
        if slower
        else not_measured(robust, "these runs have the paper's 30 to 40 ms only"),
    ]


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
    title="Throughput against the number of connections, by the amount of data",
    source="iSCSI-APT 2009, figure 7",
    paper="throughput rises with N and then stays on a plateau (a trapezoid); measured over 200 PDUs or fewer, a "
    "false peak shows",
    runs=runs,
    draw=draw,
    sentence=sentence,
    facts=facts,
    claims=claims,
    grid=(1, 2),
)
