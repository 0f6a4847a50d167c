"""Figures 15 to 18 have one shape: read times with N fixed, or under a policy, at one PDU length."""

from enkaku_lab.ns2 import charts, measure
from enkaku_lab.ns2.engine import Result, Run
from enkaku_lab.ns2.study import Fact, Facts, Pace, Results, Study

N_FIXED = 50
"""The number that the paper's search found, 47 to 53."""
SECONDS = {
    "full": {"fixed": 100.0, "golden": 100.0, "adaptive": 100.0},
    "quick": {"fixed": 12.0, "golden": 24.0, "adaptive": 12.0},
    # Golden needs 80 s with the paper's Tm of 5 s.
    "full real": {"fixed": 60.0, "golden": 100.0, "adaptive": 60.0},
    "quick real": {"fixed": 5.0, "golden": 12.0, "adaptive": 8.0},
}
MEASURING_TIMES_S = {"full": 5.0, "quick": 1.0, "full real": 5.0, "quick real": 0.5}
NAMES = {"golden": "APT (golden)", "adaptive": "adaptive", "fixed": "N fixed"}


def run_of(policy: str, pdu_mib: int, pace: Pace, seed: int = 1, n: int = N_FIXED) -> Run:
    """The same run for figures, comparisons and tests."""
    n = n if policy == "fixed" else 4
    which = f"{pace.name} real" if pace.real else pace.name
    seconds = SECONDS[which][policy]
    tm = MEASURING_TIMES_S[which] if policy == "golden" else None
    trace = (*range(4), *range(64, 72)) if policy == "golden" else ()
    return Run(
        policy, n, seconds, seed, measuring_time_s=tm, pdu_mib=pdu_mib, reads=True, trace=trace
    )


AFTER_S = 2.0
"""What follows a search, or a slow start, is left out for so long."""
READS_MIN = 20
"""Fewer of them have no p99 worth a word."""


def after_search(result: Result) -> list[float]:
    """Read times from `AFTER_S` after the search ended (a fixed N: after the slow start); those of
    the run's second half if it ended too late or never."""
    return _judged(result)[0]


def _judged(result: Result) -> tuple[list[float], str]:
    """The read times that count, and where they are from."""
    end = measure.settled(result) if result.run.policy != "fixed" else (0.0, result.run.n)
    if end:
        times = measure.read_times(result, end[0] + AFTER_S)
        if len(times) >= READS_MIN:
            return times, "after the search" if result.run.policy != "fixed" else "once started"
    half = measure.read_times(result, result.run.seconds / 2)
    return half, "in the second half, the search going on"


def figures(name: str, policies: tuple[str, ...], pdu_mib: int, paper: str) -> Study:
    """The study of one of the four figures."""
    length = f"PDU of {pdu_mib} MB"

    def runs(pace: Pace) -> list[Run]:
        return [run_of(policy, pdu_mib, pace) for policy in policies]

    def draw(all_axes: list, found: Results, pace: Pace) -> None:
        for axes, (run, result) in zip(all_axes, found.items(), strict=True):
            colour = {"fixed": charts.BLUE, "golden": charts.ORANGE, "adaptive": charts.GREEN}
            points = [(read["t_s"], read["seconds"]) for read in result.reads]
            charts.cloud(axes, points, colour[run.policy], NAMES[run.policy])
            end = measure.settled(result) if run.policy != "fixed" else None
            if end:
                axes.axvline(end[0], color="#444444", linewidth=1, linestyle=":")
                axes.annotate(
                    f" search ends, N = {end[1]}",
                    (end[0], 0.97),
                    xycoords=("data", "axes fraction"),
                    fontsize=8.5,
                    va="top",
                )
            number = f" at {run.n}" if run.policy == "fixed" else ""
            axes.set_title(f"{NAMES[run.policy]}{number}, {length}", fontsize=10)
            axes.set_xlabel(charts.TIME)
            axes.set_ylim(bottom=0)
        all_axes[0].set_ylabel("time of a read (ms)")

    def facts(found: Results, pace: Pace) -> Facts:
        table = {}
        for run, result in found.items():
            times, who = after_search(result), NAMES[run.policy]
            p50, ratio = measure.percentile(times, 0.5) * 1000, measure.scatter(times)
            if run.policy != "fixed":
                table[f"N at the end, {who}"] = Fact(measure.last_n(result), "", 0.3)
            table[f"the median read time, {who}"] = Fact(p50, "ms", 0.15)
            table[f"the scatter p99/p50, {who}"] = Fact(ratio, "", 0.2)
        return table

    def sentence(found: Results, pace: Pace) -> str:
        said = []
        for run, result in found.items():
            (times, where), all_times = _judged(result), measure.read_times(result)
            p50, p99 = (measure.percentile(times, q) * 1000 for q in (0.5, 0.99))
            whole = measure.scatter(all_times)
            said.append(
                f"{NAMES[run.policy]} (N = {measure.last_n(result)} at the end): p50 {p50:.0f} ms, "
                f"p99 {p99:.0f} ms, p99/p50 {p99 / p50:.2f} {where}, {whole:.2f} over all "
                f"{len(all_times)} reads"
            )
        return f"{length}. {'; '.join(said)}."

    return Study(
        name=name,
        title=f"Read times, {' and '.join(NAMES[policy] for policy in policies)}, {length}",
        source=f"iSCSI-APT 2009, figure {name.removeprefix('s2-fig')}",
        paper=paper,
        runs=runs,
        draw=draw,
        sentence=sentence,
        facts=facts,
        grid=(1, len(policies)),
    )
