"""Ours, beyond S2: golden and adaptive in the paper's simulator, the path at rest and changing."""

import statistics

from enkaku_lab.ns2 import charts, measure, scatter
from enkaku_lab.ns2.engine import Run
from enkaku_lab.ns2.study import Pace, Results, Study

POLICIES = ("golden", "adaptive")
SEEDS = 3
PATH_STEPS = "30 rate 3e8 60 rate 1e9"
STEPS_SECONDS = 100.0
FIXED_ON_PLATEAU = 36


def runs(pace: Pace) -> list[Run]:
    seeds = (1,) if pace.quick else range(1, SEEDS + 1)
    found = [_rest(policy, pace, seed) for seed in seeds for policy in POLICIES]
    found += [scatter.run_of("fixed", 1, pace, seed, FIXED_ON_PLATEAU) for seed in seeds]
    return found + [_steps(policy, pace) for policy in POLICIES]


def _rest(policy: str, pace: Pace, seed: int) -> Run:
    if pace.quick and policy == "golden":
        # Its time to the plateau is Tm times the numbers before it: so the paper's Tm.
        return Run(policy, seconds=26.0, seed=seed, measuring_time_s=5.0, reads=True)
    return scatter.run_of(policy, 1, pace, seed)


def _steps(policy: str, pace: Pace) -> Run:
    tm = (1.0 if pace.quick else 5.0) if policy == "golden" else None
    if pace.quick:
        return Run(policy, seconds=16.0, measuring_time_s=tm, steps="6 rate 3e8 10 rate 1e9")
    return Run(policy, seconds=STEPS_SECONDS, measuring_time_s=tm, steps=PATH_STEPS)


def of(found: Results, policy: str, steps: bool = False) -> list:
    return [r for run, r in found.items() if run.policy == policy and bool(run.steps) == steps]


def plateau(found: Results) -> float:
    """Mbit/s of the fixed number on the plateau."""
    return statistics.median(measure.throughput(r, 2.0) for r in of(found, "fixed"))


def facts(found: Results, policy: str) -> dict[str, float]:
    """Medians over the seeds."""
    level = plateau(found)
    results = of(found, policy)
    late = [2 / 3 * r.run.seconds for r in results]
    times = [measure.reaches(r, 0.95 * level) for r in results]
    fixed = statistics.median(measure.scatter(scatter.after_search(r)) for r in of(found, "fixed"))
    scatters = [measure.scatter(scatter.after_search(r)) for r in results]
    return {
        "seconds_to_95": statistics.median(t if t is not None else float("inf") for t in times),
        "connections": statistics.median(measure.last_n(r) for r in results),
        "share": statistics.median(
            measure.throughput(r, t) / level for r, t in zip(results, late, strict=True)
        ),
        "whole_share": statistics.median(measure.throughput(r) / level for r in results),
        "scatter": statistics.median(scatters) / fixed,
    }


def draw(all_axes: list, found: Results, pace: Pace) -> None:
    rest_rate, step_rate, rest_n, step_n = all_axes
    for index, policy in enumerate(POLICIES):
        look = {**charts.style(index + 1), "label": scatter.NAMES[policy]}
        rest, steps = of(found, policy)[0], of(found, policy, True)[0]
        for rate, number, result in ((rest_rate, rest_n, rest), (step_rate, step_n, steps)):
            charts.rate_over_time(rate, result, 10, **look)
            charts.n_over_time(number, result, result.run.seconds, **look)
    rest_rate.set_title("the path at rest", fontsize=10)
    step_rate.set_title("1 Gbit/s, 300 Mbit/s, 1 Gbit/s", fontsize=10)
    rest_rate.set_ylabel(charts.THROUGHPUT)
    rest_n.set_ylabel(charts.CONNECTIONS)
    for axes in (rest_n, step_n):
        axes.set_xlabel(charts.TIME)
    charts.legend(rest_n, columns=2)


def sentence(found: Results, pace: Pace) -> str:
    golden, ours = (facts(found, policy) for policy in POLICIES)
    faster = golden["seconds_to_95"] / ours["seconds_to_95"]
    return (
        f"Plateau: {plateau(found):.0f} Mbit/s (N = {FIXED_ON_PLATEAU} fixed). Adaptive has 95 % of it "
        f"after {ours['seconds_to_95']:.1f} s, golden after {golden['seconds_to_95']:.1f} s "
        f"({faster:.1f} times as long); at the end adaptive holds {ours['connections']:g} connections "
        f"and {ours['share']:.1%} of the plateau, golden {golden['connections']:g} and "
        f"{golden['share']:.1%}; over the whole run {ours['whole_share']:.1%} against "
        f"{golden['whole_share']:.1%}. The scatter of the read times (p99/p50) after the search is "
        f"{ours['scatter']:.2f} times that of the fixed number under adaptive, "
        f"{golden['scatter']:.2f} times under golden (medians of {len(of(found, 'golden'))} seeds)."
    )


STUDY = Study(
    name="s2-beyond",
    title="Golden section search and adaptive in the same simulator",
    source="ours",
    paper="less scatter, following a changed path and the choice of what to close were future work",
    runs=runs,
    draw=draw,
    sentence=sentence,
    grid=(2, 2),
    height_in=3.2,
    engines=("ns2",),
)
