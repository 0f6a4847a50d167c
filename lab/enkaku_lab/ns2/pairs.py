"""Figures 12 to 14: two connections of one session, the first one and one that was added later."""

from enkaku_lab.ns2 import charts, scatter
from enkaku_lab.ns2.engine import Result, Run
from enkaku_lab.ns2.study import Pace, Results

FIRST, LATER = 0, 66
"""The second is opened when the search returns to more than it had closed down to."""


def runs(pace: Pace) -> list[Run]:
    """The run of figure 16 once more."""
    return [scatter.run_of("golden", 1, pace)]


def only(found: Results) -> Result:
    return next(iter(found.values()))


def series(result: Result, connection: int, field: str) -> list[tuple[float, float]]:
    """Time and value of a field of a traced connection, while it is open."""
    return [
        (sample["t_s"], one[field])
        for sample in result.samples
        for one in sample["traced"]
        if one["id"] == connection
    ]


def present(result: Result) -> list[int]:
    """Which of the two there are: a short search may never have opened the second."""
    return [one for one in (FIRST, LATER) if series(result, one, "cwnd")]


def name(connection: int) -> str:
    return "the first connection" if connection == FIRST else f"connection {connection}, added later"


def mean(points: list[tuple[float, float]], from_s: float) -> float:
    values = [value for t, value in points if t >= from_s]
    return sum(values) / len(values) if values else float("nan")


def steady_from(result: Result) -> float:
    """The last third of the run: the search is over."""
    return result.run.seconds * 2 / 3


def draw_window(found: Results, connection: int):
    """Congestion window over time; what the socket buffer allows as a limit."""
    result = only(found)
    chart, (axes,) = charts.grid()
    points = series(result, connection, "cwnd")
    axes.plot([t for t, _ in points], [w for _, w in points], color=charts.BLUE, linewidth=0.9)
    axes.axhline(65536 // 1460, color=charts.RED, linestyle="--", label="socket buffer of 64 KB")
    axes.set(xlabel=charts.TIME, ylabel="congestion window (segments)", xlim=(0, result.run.seconds))
    axes.set_ylim(bottom=0)
    charts.legend(axes)
    return chart


def window_sentence(found: Results, connection: int) -> str:
    result = only(found)
    points = series(result, connection, "cwnd")
    if not points:
        return f"This run never opened {name(connection)}."
    late = [w for t, w in points if t >= steady_from(result)]
    if not late:
        return f"{name(connection).capitalize()} was closed before the search ended."
    collapses = sum(1 for a, b in zip(points, points[1:], strict=False) if b[1] < a[1] / 2)
    return (
        f"{name(connection).capitalize()}: mean window {sum(late) / len(late):.0f} segments in the last "
        f"third of the run (the buffer allows 44), {collapses} collapses to less than half in the run: "
        "Tahoe begins again at one segment after every loss."
    )
