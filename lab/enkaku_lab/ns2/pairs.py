"""Figures 12 to 14: two connections of one session, the first one and one that was added later."""

from collections import Counter

from enkaku_lab.claims import Claim, judged, not_measured
from enkaku_lab.ns2 import charts, scatter
from enkaku_lab.ns2.engine import Result, Run
from enkaku_lab.ns2.study import Fact, Facts, Pace, Results

FIRST, LATER = "first", "later"
CANDIDATES = {FIRST: range(4), LATER: (39, *range(36, 39), *range(40, 44), *range(64, 72))}
"""The paper's No. 1 and No. 40, counted from 0; where one was closed (a laggard may be, and the
youngest are when the search goes down), the one of those traced that stayed the longest."""
SLIGHTLY = 0.25


def runs(pace: Pace) -> list[Run]:
    """The run of figure 16 once more."""
    return [scatter.run_of("golden", 1, pace)]


def only(found: Results) -> Result:
    return next(iter(found.values()))


def series(result: Result, which: str, field: str) -> list[tuple[float, float]]:
    """Time and value of a field of the chosen connection, while it is open."""
    chosen = connection(result, which)
    return [
        (sample["t_s"], one[field])
        for sample in result.samples
        for one in sample["traced"]
        if one["id"] == chosen
    ]


def connection(result: Result, which: str) -> int | None:
    """Its number; None where there was none: a short search may never open so many."""
    seen = Counter(one["id"] for sample in result.samples for one in sample["traced"])
    mine = [one for one in CANDIDATES[which] if one in seen]
    return max(mine, key=lambda one: (seen[one], -mine.index(one)), default=None)


def present(result: Result) -> list[str]:
    return [which for which in CANDIDATES if connection(result, which) is not None]


def name(result: Result, which: str) -> str:
    when = "there from the start" if which == FIRST else "added later"
    return f"connection No. {connection(result, which) + 1}, {when}"


def claims(found: Results, pace: Pace, field: str, unit: str, factor: float = 1.0) -> list[Claim]:
    """The paper's sentence about both connections, by what both have after the search."""
    says = "No. 40 is slightly ahead of No. 1"
    result = only(found)
    if len(present(result)) < 2:
        return [not_measured(says, "this run never opened so many connections")]
    means = [
        mean(series(result, which, field), steady_from(result)) * factor for which in CANDIDATES
    ]
    if any(one != one for one in means):
        return [not_measured(says, "one of them was closed before the last third of the run")]
    ahead = means[1] / means[0] - 1
    said = f"{name(result, LATER)}, has {means[1]:.1f} {unit}, {name(result, FIRST)}, has {means[0]:.1f} ({ahead:+.0%})"
    if any(connection(result, which) != CANDIDATES[which][0] for which in CANDIDATES):
        return [not_measured(says, f"this search closes one of them; of those that stand for them {said}")]
    return [judged(says, 0 < ahead <= SLIGHTLY, said)]


def mean(points: list[tuple[float, float]], from_s: float) -> float:
    values = [value for t, value in points if t >= from_s]
    return sum(values) / len(values) if values else float("nan")


def steady_from(result: Result) -> float:
    """The last third of the run: the search is over."""
    return result.run.seconds * 2 / 3


def draw_window(axes, found: Results, pace: Pace, which: str) -> None:
    """Congestion window over time; what the socket buffer allows as a limit."""
    result = only(found)
    points = series(result, which, "cwnd")
    axes.plot([t for t, _ in points], [w for _, w in points], color=charts.BLUE, linewidth=0.9)
    look = {"color": charts.RED, "linestyle": "--", "label": "socket buffer of 64 KB"}
    axes.axhline(65536 // 1460, **look)
    axes.set(xlabel=charts.TIME, ylabel="congestion window (segments)", xlim=(0, result.run.seconds))
    charts.from_zero(axes)
    axes.set_title(name(result, which), fontsize=10)
    charts.legend(axes)


def falls(result: Result, which: str, pace: Pace) -> int:
    """How often a loss made the window smaller: to one segment in Tahoe, to half in Reno."""
    points = series(result, which, "cwnd")
    least = 0.7 if pace.real else 0.5
    return sum(1 for a, b in zip(points, points[1:], strict=False) if b[1] < a[1] * least)


def window_facts(found: Results, pace: Pace, which: str) -> Facts:
    result = only(found)
    points = series(result, which, "cwnd")
    minutes = (points[-1][0] - points[0][0]) / 60 if len(points) > 1 else 0.0
    per_minute = falls(result, which, pace) / minutes if minutes else float("nan")
    return {
        f"the mean window of the {which} connection": Fact(
            mean(points, steady_from(result)), "segments", 0.25
        ),
        "the losses that its window shows": Fact(per_minute, "a minute", 0.5),
    }


def window_sentence(found: Results, pace: Pace, which: str) -> str:
    result = only(found)
    points = series(result, which, "cwnd")
    if not points:
        return "This run never opened a connection later than the first four."
    late = [w for t, w in points if t >= steady_from(result)]
    if not late:
        return f"{name(result, which)}, was closed before the search ended."
    after = "Reno goes on with half of it" if pace.real else "Tahoe begins again at one segment"
    return (
        f"{name(result, which)}: mean window {sum(late) / len(late):.0f} segments in the last "
        f"third of the run (the buffer allows 44), {falls(result, which, pace)} falls in the run: "
        f"{after} after every loss."
    )
