"""Figures 15 to 18 have one shape: read times with N fixed, or under a policy, at one PDU length.

What is compared with a policy has the N fixed at which that policy's search ended, with the same
seed.
"""

import statistics

from enkaku_lab.claims import Claim, judged, not_measured
from enkaku_lab.ns2 import charts, measure
from enkaku_lab.ns2.engine import Result, Run
from enkaku_lab.ns2.study import Fact, Facts, Pace, Results, Study

ENDED = {
    ("ns2", 1): {1: 53, 2: 60},
    ("ns2", 3): {1: 32, 2: 31, 3: 46},
    ("real", 1): {1: 32},
    ("real", 3): {1: 26},
}
"""Where golden ended, by engine, PDU length in MB and seed: a comparison says so where a run ends
elsewhere."""
PAPER_ENDED = {1: 47, 3: 53}
SAME_THROUGHPUT = 0.02
GROUPS_VALLEY = 0.7
"""Two groups of read times are seen where between two peaks of their histogram fewer than so many
are, as part of the lower peak."""
BINS = 40
SECONDS = {
    "full": {"fixed": 100.0, "golden": 100.0, "adaptive": 100.0},
    "quick": {"fixed": 12.0, "golden": 24.0, "adaptive": 12.0},
    # Golden needs 80 s with the paper's Tm of 5 s.
    "full real": {"fixed": 60.0, "golden": 100.0, "adaptive": 60.0},
    "quick real": {"fixed": 5.0, "golden": 12.0, "adaptive": 8.0},
}
MEASURING_TIMES_S = {"full": 5.0, "quick": 1.0, "full real": 5.0, "quick real": 0.5}
TRACED = (*range(4), *range(36, 44), *range(64, 72))
"""Among them the paper's No. 1 and No. 40, and those that are opened when the search returns to
more than it had closed down to, which No. 40 may not survive."""
NAMES = {"golden": "APT (golden)", "adaptive": "adaptive", "fixed": "N fixed"}


def run_of(policy: str, pdu_mib: int, pace: Pace, seed: int = 1, n: int | None = None) -> Run:
    """The same run for figures, comparisons and tests; a fixed number is where golden ended, unless
    said."""
    n = (n or ENDED[pace.engine, pdu_mib][seed]) if policy == "fixed" else 4
    which = f"{pace.name} real" if pace.real else pace.name
    seconds = SECONDS[which][policy]
    tm = MEASURING_TIMES_S[which] if policy == "golden" else None
    trace = TRACED if policy == "golden" else ()
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


def groups(times: list[float]) -> float | None:
    """Seconds that part the read times into two groups, fast and slow: the lowest bin between the
    two peaks of their histogram, if it is a valley. None where there is one group."""
    if len(times) < 10 * BINS:
        return None
    low, high = measure.percentile(times, 0.01), measure.percentile(times, 0.99)
    counts = [0] * BINS
    for one in times:
        if low <= one <= high:
            counts[min(BINS - 1, int((one - low) / (high - low) * BINS))] += 1
    padded = [counts[0], *counts, counts[-1]]
    smooth = [statistics.fmean(padded[i : i + 3]) for i in range(BINS)]
    best = None
    for valley in range(1, BINS - 1):
        lower = min(max(smooth[:valley]), max(smooth[valley + 1 :]))
        depth = smooth[valley] / lower if lower else 1.0
        if lower >= 0.1 * max(smooth) and (best is None or depth < best[0]):
            best = (depth, valley)
    if best is None or best[0] > GROUPS_VALLEY:
        return None
    return low + (best[1] + 0.5) * (high - low) / BINS


def paired(found: Results) -> dict[int, tuple[Result, Result]]:
    """Seed → under golden, and with that N fixed; of those seeds alone whose search ended there."""
    fixed = {run.seed: result for run, result in found.items() if run.policy == "fixed"}
    return {
        run.seed: (result, fixed[run.seed])
        for run, result in found.items()
        if run.policy == "golden"
        and run.seed in fixed
        and (end := measure.settled(result))
        and end[1] == fixed[run.seed].run.n
        and result.run.seconds - end[0] > 2 * AFTER_S
    }


def claims(found: Results, pdu_mib: int) -> list[Claim]:
    """Of a figure with N fixed: that number; of one under APT: the spread against that N fixed."""
    if all(run.policy == "fixed" for run in found):
        (run,) = found
        says = f"the search ends at {PAPER_ENDED[pdu_mib]} with PDUs of {pdu_mib} MB"
        near = abs(run.n / PAPER_ENDED[pdu_mib] - 1) <= 0.1
        return [
            judged(
                says,
                near,
                f"it ended at {run.n} here (seed {run.seed}), so that is the N of this figure",
            )
        ]
    pairs = paired(found)
    word = "more" if pdu_mib == 1 else "less"
    spread = f"under APT, which ended at {PAPER_ENDED[pdu_mib]}, the read times spread {word} than with that N fixed"
    same = "the throughput is the same"
    if not pairs:
        why = "no search of these runs ended where a run with N fixed is"
        return [not_measured(spread, why), not_measured(same, why)]
    ratios, rates, said = [], [], []
    for seed, (golden, fixed) in pairs.items():
        spreads = [measure.scatter(after_search(one)) for one in (golden, fixed)]
        begin = measure.settled(golden)[0] + AFTER_S
        rates.append(measure.throughput(golden, begin) / measure.throughput(fixed, AFTER_S))
        ratios.append(spreads[0] / spreads[1])
        said.append(f"{spreads[0]:.2f} against {spreads[1]:.2f} at N = {fixed.run.n} (seed {seed})")
    holds = all(one > 1.02 if pdu_mib == 1 else one < 0.98 for one in ratios)
    shares = ", ".join(f"{one:.1%}" for one in rates)
    found_claims = [
        judged(spread, holds, f"p99/p50 under APT and with N fixed: {', '.join(said)}"),
        judged(
            same,
            all(abs(one - 1) <= SAME_THROUGHPUT for one in rates),
            f"{shares} of that with N fixed",
        ),
    ]
    if pdu_mib == 3:
        found_claims.append(_groups_claim(pairs))
    return found_claims


def _groups_claim(pairs: dict[int, tuple[Result, Result]]) -> Claim:
    """Whether the reads are in two groups under APT, and whether that is APT's doing."""
    said, two = [], []
    for golden, fixed in pairs.values():
        each = []
        for result in (golden, fixed):
            times = after_search(result)
            at = groups(times)
            slow = sum(one > at for one in times) / len(times) if at else 0.0
            each.append(f"parted at {at * 1000:.0f} ms, {slow:.0%} above" if at else "one group")
            if result is golden:
                two.append(at is not None)
        said.append(f"N = {fixed.run.n}: {each[0]}; with that N fixed {each[1]}")
    return judged("the reads are in two groups, fast and slow", any(two), ". ".join(said))


def figures(name: str, policies: tuple[str, ...], pdu_mib: int, paper: str) -> Study:
    """The study of one of the four figures."""
    length = f"PDU of {pdu_mib} MB"

    def runs(pace: Pace) -> list[Run]:
        drawn_ = [run_of(policy, pdu_mib, pace) for policy in policies]
        if policies == ("fixed",):
            return drawn_
        seeds = (1,) if pace.quick else ENDED[pace.engine, pdu_mib]
        pairs = [run_of(one, pdu_mib, pace, seed) for seed in seeds for one in ("golden", "fixed")]
        return list(dict.fromkeys([*drawn_, *pairs]))

    def drawn(found: Results) -> Results:
        return {
            run: result for run, result in found.items() if run.policy in policies and run.seed == 1
        }

    def draw(all_axes: list, found: Results, pace: Pace) -> None:
        for axes, (run, result) in zip(all_axes, drawn(found).items(), strict=True):
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
            charts.from_zero(axes)
        all_axes[0].set_ylabel("time of a read (ms)")

    def facts(found: Results, pace: Pace) -> Facts:
        table = {}
        for run, result in drawn(found).items():
            times, who = after_search(result), NAMES[run.policy]
            p50, ratio = measure.percentile(times, 0.5) * 1000, measure.scatter(times)
            if run.policy != "fixed":
                table[f"N at the end, {who}"] = Fact(measure.last_n(result), "", 0.3)
            table[f"the median read time, {who}"] = Fact(p50, "ms", 0.15)
            table[f"the scatter p99/p50, {who}"] = Fact(ratio, "", 0.2)
        return table

    def sentence(found: Results, pace: Pace) -> str:
        said = []
        for run, result in drawn(found).items():
            (times, where), all_times = _judged(result), measure.read_times(result)
            p50, p99 = (measure.percentile(times, q) * 1000 for q in (0.5, 0.99))
            whole = measure.scatter(all_times)
            at = groups(times)
            two = (
                f"two groups of reads, parted at {at * 1000:.0f} ms" if at else "one group of reads"
            )
            said.append(
                f"{NAMES[run.policy]} (N = {measure.last_n(result)} at the end): p50 {p50:.0f} ms, "
                f"p99 {p99:.0f} ms, p99/p50 {p99 / p50:.2f} {where}, {two}, {whole:.2f} over all "
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
        claims=lambda found, pace: claims(found, pdu_mib),
        grid=(1, len(policies)),
    )
