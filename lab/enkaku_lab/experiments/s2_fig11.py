"""S2, figure 11: N over time under golden section search, for several measuring times."""

import statistics

from enkaku_lab.claims import Claim, judged
from enkaku_lab.ns2 import charts, measure
from enkaku_lab.ns2.engine import Run
from enkaku_lab.ns2.study import Fact, Facts, Pace, Results, Study

TIMES_S = (1.0, 2.0, 5.0, 10.0)
SEEDS = {1.0: 20, 2.0: 20, 5.0: 20, 10.0: 8}
"""Long runs are few: what the others show is enough to know the spread."""
REAL_SEEDS = {1.0: 4, 2.0: 2, 5.0: 1, 10.0: 1}
QUICK_REAL_TIME_S = 0.5
MOVES_MAX = 16
PAPER_TM_S, PAPER_N = 5.0, 47
"""Where the paper's run ended with this Tm and PDUs of 1 MB."""
PAPER_LABEL = "the paper, Tm 5 s"
A_FEW = 10


def runs(pace: Pace) -> list[Run]:
    if pace.real and pace.quick:
        return [_run(QUICK_REAL_TIME_S, 1)]
    if pace.real:
        return [_run(tm, seed) for tm in TIMES_S for seed in range(1, REAL_SEEDS[tm] + 1)]
    if pace.quick:
        return [_run(1.0, 1)]
    return [_run(tm, seed) for tm in TIMES_S for seed in range(1, SEEDS[tm] + 1)]


def _run(tm: float, seed: int) -> Run:
    return Run("golden", seconds=MOVES_MAX * tm, seed=seed, measuring_time_s=tm)


def ends(found: Results) -> dict[float, list[tuple[int, int, float]]]:
    """Tm → of each seed: N at the end, numbers that were measured, and when it was done."""
    table: dict[float, list[tuple[int, int, float]]] = {}
    for run, result in found.items():
        done = measure.settled(result)
        when = done[0] if done else float("nan")
        tried = len(measure.moves(result))
        table.setdefault(run.measuring_time_s, []).append((measure.last_n(result), tried, when))
    return table


def draw(all_axes: list, found: Results, pace: Pace) -> None:
    over_time, at_end = all_axes
    first = {}
    for run, result in found.items():
        first.setdefault(run.measuring_time_s, result)
    for index, (tm, result) in enumerate(first.items()):
        look = charts.style(index)
        charts.n_over_time(over_time, result, 90.0, label=f"Tm = {tm:g} s", **look)
    table = ends(found)
    for index, (tm, runs_) in enumerate(table.items()):
        middle = (len(runs_) - 1) / 2
        across = [index + 0.5 * (i - middle) / len(runs_) for i in range(len(runs_))]
        at_end.plot(across, [n for n, _, _ in runs_], "osD^"[index % 4], color=charts.CYCLE[index])
    mark = {"marker": "*", "markersize": 12, "color": "#333333", "linestyle": "none"}
    if PAPER_TM_S in table:
        at_end.plot([list(table).index(PAPER_TM_S)], [PAPER_N], label=PAPER_LABEL, **mark)
    over_time.set(xlabel=charts.TIME, ylabel=charts.CONNECTIONS)
    over_time.set_title("one seed", fontsize=10)
    at_end.set_title("N at the end, every seed", fontsize=10)
    at_end.set_xticks(range(len(table)), [f"{tm:g}" for tm in table])
    at_end.set_xlabel("Tm (s)")
    charts.legend(over_time, columns=3)
    if PAPER_TM_S in table:
        charts.legend(at_end)


def facts(found: Results, pace: Pace) -> Facts:
    table = {}
    for tm, runs_ in ends(found).items():
        numbers, tried = ([run[index] for run in runs_] for index in (0, 1))
        table[f"the median N at the end, Tm = {tm:g} s"] = Fact(
            statistics.median(numbers), "", 0.3
        )
        table[f"the numbers tried, Tm = {tm:g} s"] = Fact(statistics.median(tried), "", 0.2)
    return table


def claims(found: Results, pace: Pace) -> list[Claim]:
    return judge({tm: sorted(n for n, _, _ in runs_) for tm, runs_ in ends(found).items()})


def judge(table: dict[float, list[int]]) -> list[Claim]:
    """Tm → where each seed ended, the least first."""
    medians = {tm: statistics.median(numbers) for tm, numbers in table.items()}
    apart = max(medians.values()) - min(medians.values())
    of = ", ".join(
        f"{medians[tm]:g} ({numbers[0]} to {numbers[-1]}) at {tm:g} s" for tm, numbers in table.items()
    )
    mine = table.get(PAPER_TM_S)
    return [
        judged(
            "the N where the search ends differs by a few connections with the choice of Tm",
            apart <= A_FEW if len(table) > 1 else None,
            f"median and range over the seeds: {of}",
        ),
        judged(
            f"with Tm = {PAPER_TM_S:g} s it ends at {PAPER_N}",
            mine[0] <= PAPER_N <= mine[-1] if mine else None,
            f"one of the many ends from {mine[0]} to {mine[-1]}" if mine else "no run with that Tm",
        ),
    ]


def sentence(found: Results, pace: Pace) -> str:
    said = []
    for tm, runs_ in ends(found).items():
        numbers = sorted(n for n, _, _ in runs_)
        said.append(
            f"Tm = {tm:g} s: N {numbers[0]} to {numbers[-1]}, median {statistics.median(numbers):g}, "
            f"{len(numbers)} seeds, "
            f"{statistics.median([tried for _, tried, _ in runs_]):g} numbers tried, done after "
            f"{statistics.median([when for _, _, when in runs_]):.0f} s"
        )
    return (
        f"{'; '.join(said)}. All these N lie on the plateau of s2-fig7, where G differs only by the "
        "noise of losses; which of them wins is chance, and the more so the shorter Tm."
    )


STUDY = Study(
    name="s2-fig11",
    title="The number of connections under golden section search",
    source="iSCSI-APT 2009, figure 11",
    paper="N over time for several Tm; where it ends differs by a few connections with Tm. With Tm 5 s and PDUs of "
    "1 MB it ended at 47",
    runs=runs,
    draw=draw,
    sentence=sentence,
    facts=facts,
    claims=claims,
    grid=(1, 2),
)
