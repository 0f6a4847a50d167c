"""S2, figure 10: the measured throughput G against the measuring time Tm."""

import statistics

from enkaku_lab.claims import Claim, judged
from enkaku_lab.experiments import s2_fig6
from enkaku_lab.ns2 import charts, measure
from enkaku_lab.ns2.engine import Run
from enkaku_lab.ns2.study import Fact, Facts, Pace, Results, Study

NUMBERS = (4, 16, 50)
TIMES_S = (0.1, 0.2, 0.5, 1, 2, 5, 10)


def runs(pace: Pace) -> list[Run]:
    if pace.real:
        return s2_fig6.fixed_real(pace)
    seconds = 12.0 if pace.quick else 60.0
    return [Run(n=n, seconds=seconds, reads=True, seed=2) for n in NUMBERS]


def measured(found: Results) -> dict[int, dict[float, list[float]]]:
    """N → Tm → G in Mbit/s as the paper counts it: whole reads that end within Tm."""
    table = {}
    for run, result in found.items():
        ends = [read["t_s"] for read in result.reads]
        counted = {tm: _counts(ends, tm, run.seconds) for tm in TIMES_S}
        table[run.n] = {tm: values for tm, values in counted.items() if values}
    return table


def _counts(ends: list[float], tm: float, seconds: float) -> list[float]:
    windows = int((seconds - 2.0) / tm)
    counts = [0] * windows
    for end in ends:
        index = int((end - 2.0) / tm)
        if end > 2.0 and index < windows:
            counts[index] += 1
    return [count * (1 << 20) * measure.MEGA / tm for count in counts]


def draw(all_axes: list, found: Results, pace: Pace) -> None:
    (axes,) = all_axes
    for index, (n, by_time) in enumerate(measured(found).items()):
        charts.band(axes, list(by_time), list(by_time.values()), f"N = {n}", index)
    charts.line_limit(axes, pace.real)
    axes.set(xscale="log", xlabel="measuring time Tm (s)", ylabel="measured G (Mbit/s)")
    axes.set_xticks(TIMES_S, [f"{tm:g}" for tm in TIMES_S])
    axes.set_xticks([], minor=True)
    charts.from_zero(axes)
    charts.legend(axes, columns=4)


def error(values: list[float]) -> float:
    """Half of the range, relative to the mean."""
    return (max(values) - min(values)) / 2 / statistics.fmean(values)


def spread(values: list[float]) -> float:
    """Standard deviation relative to the mean: it does not grow with the number of windows."""
    return statistics.pstdev(values) / statistics.fmean(values)


def facts(found: Results, pace: Pace) -> Facts:
    table = {}
    for n, by_time in measured(found).items():
        for tm in (0.1, 1, 5):
            if len(by_time.get(tm, [])) > 2:
                name = f"the deviation of G at N = {n}, Tm = {tm:g} s"
                table[name] = Fact(100 * spread(by_time[tm]), "%", 0.5)
    return table


def claims(found: Results, pace: Pace) -> list[Claim]:
    parts, holds = [], None
    for n, by_time in measured(found).items():
        some = {tm: spread(by_time[tm]) for tm in (0.1, 1, 5) if len(by_time.get(tm, [])) > 2}
        if 0.1 in some and 5 in some:
            holds = (holds is not False) and some[5] <= 0.05 and some[0.1] > 3 * some[5]
        parts.append(f"N = {n}: " + ", ".join(f"{one:.1%} at {tm:g} s" for tm, one in some.items()))
    return [judged("G needs some seconds of Tm to be steady", holds, f"deviation {'; '.join(parts)}")]


def sentence(found: Results, pace: Pace) -> str:
    said = [
        f"N = {n}: "
        + ", ".join(f"± {error(by_time[tm]):.1%} at {tm:g} s" for tm in (0.1, 1, 5) if tm in by_time)
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
    facts=facts,
    claims=claims,
)
