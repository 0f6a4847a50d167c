"""S2, figure 10: the measured throughput G against the measuring time Tm."""

import statistics

from enkaku_lab.ns2 import charts, measure
from enkaku_lab.ns2.engine import Run
from enkaku_lab.ns2.study import Pace, Results, Study

NUMBERS = (4, 16, 50)
TIMES_S = (0.1, 0.2, 0.5, 1, 2, 5, 10)


def runs(pace: Pace) -> list[Run]:
    seconds = 12.0 if pace.quick else 60.0
    return [Run(n=n, seconds=seconds, reads=True, seed=2) for n in NUMBERS]


def measured(found: Results) -> dict[int, dict[float, list[float]]]:
    """N → Tm → G in Mbit/s as the paper counts it: whole reads that end within Tm."""
    table = {}
    for run, result in found.items():
        ends = [read["t_s"] for read in result.reads]
        table[run.n] = {tm: _counts(ends, tm, run.seconds) for tm in TIMES_S}
    return table


def _counts(ends: list[float], tm: float, seconds: float) -> list[float]:
    windows = int((seconds - 2.0) / tm)
    counts = [0] * windows
    for end in ends:
        index = int((end - 2.0) / tm)
        if end > 2.0 and index < windows:
            counts[index] += 1
    return [count * (1 << 20) * measure.MEGA / tm for count in counts]


def draw(found: Results, pace: Pace):
    chart, (axes,) = charts.grid()
    for index, (n, by_time) in enumerate(measured(found).items()):
        charts.band(axes, list(by_time), list(by_time.values()), f"N = {n}", index)
    charts.line_limit(axes)
    axes.set(xscale="log", xlabel="measuring time Tm (s)", ylabel="measured G (Mbit/s)")
    axes.set_xticks(TIMES_S, [f"{tm:g}" for tm in TIMES_S])
    axes.set_xticks([], minor=True)
    axes.set_ylim(bottom=0)
    charts.legend(axes, columns=4)
    return chart


def sentence(found: Results, pace: Pace) -> str:
    def error(values: list[float]) -> float:
        return (max(values) - min(values)) / 2 / statistics.fmean(values)

    said = [
        f"N = {n}: ± {error(by_time[0.1]):.0%} at 0.1 s, ± {error(by_time[1]):.1%} at 1 s, "
        f"± {error(by_time[5]):.1%} at 5 s"
        for n, by_time in measured(found).items()
    ]
    return (
        "Counted in whole reads, as the paper does, G needs seconds to settle (half of the range "
        f"of all windows): {'; '.join(said)}."
    )


STUDY = Study(
    name="s2-fig10",
    title="Measured throughput G against Tm (median; band: all windows)",
    source="iSCSI-APT 2009, figure 10",
    paper="G scatters when Tm is short; seconds are needed",
    runs=runs,
    draw=draw,
    sentence=sentence,
)
