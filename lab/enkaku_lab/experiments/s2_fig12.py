"""S2, figure 12: throughput of two connections of a session under golden."""

import math

from enkaku_lab.ns2 import charts, pairs
from enkaku_lab.ns2.measure import MEGA
from enkaku_lab.ns2.study import Fact, Facts, Pace, Results, Study

SPAN = 10
"""Samples in a point: one second."""


def draw(all_axes: list, found: Results, pace: Pace) -> None:
    result = pairs.only(found)
    (axes,) = all_axes
    for index, which in enumerate(pairs.present(result)):
        points = pairs.series(result, which, "bytes_per_s")
        groups = [points[i : i + SPAN] for i in range(0, len(points), SPAN)]
        means = [(group[-1][0], sum(rate for _, rate in group) / len(group)) for group in groups]
        look = charts.style(index)
        rates = [rate * MEGA for _, rate in means]
        axes.plot([t for t, _ in means], rates, label=pairs.name(result, which), **look)
    axes.set(xlabel=charts.TIME, ylabel="throughput of one (Mbit/s)", xlim=(0, result.run.seconds))
    charts.from_zero(axes)
    charts.legend(axes)


def late(result, which: str) -> float:
    """Mbit/s in the last third; not a number where it was closed before."""
    points = pairs.series(result, which, "bytes_per_s")
    return pairs.mean(points, pairs.steady_from(result)) * MEGA


def facts(found: Results, pace: Pace) -> Facts:
    result = pairs.only(found)
    return {
        f"the rate of the {which} connection": Fact(late(result, which), "Mbit/s", 0.25)
        for which in pairs.CANDIDATES
    }


def sentence(found: Results, pace: Pace) -> str:
    result = pairs.only(found)
    said = []
    for which in pairs.present(result):
        rate = late(result, which)
        has = "was closed before" if math.isnan(rate) else f"has {rate:.1f} Mbit/s"
        said.append(f"{pairs.name(result, which)} {has}")
    return f"In the last third of the run {' and '.join(said)}; the share of one falls as N grows."


STUDY = Study(
    name="s2-fig12",
    title="Throughput of two connections of the session under golden",
    source="iSCSI-APT 2009, figure 12",
    paper="throughput of connections No. 1 and No. 40; No. 40 is slightly ahead",
    runs=pairs.runs,
    draw=draw,
    sentence=sentence,
    facts=facts,
    claims=lambda found, pace: pairs.claims(found, pace, "bytes_per_s", "Mbit/s", MEGA),
)
