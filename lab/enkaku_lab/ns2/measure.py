"""Numbers from runs of the model: throughput, moves of the search, time to the plateau, scatter."""

import statistics
from collections.abc import Sequence

from enkaku_lab.ns2.engine import Result

MEGA = 8 / 1e6
"""Mbit per byte."""


def throughput(result: Result, from_s: float = 0.0, to_s: float = float("inf")) -> float:
    """Mean Mbit/s of payload over the samples in (from_s, to_s]."""
    inside = [s["bytes_per_s"] for s in result.samples if from_s < s["t_s"] <= to_s + 1e-9]
    return statistics.fmean(inside) * MEGA if inside else 0.0


def moves(result: Result) -> list[tuple[float, int]]:
    """Time and N of each change of the wanted number, beginning with the first number."""
    found = [(0.0, result.run.n)]
    for sample in result.samples:
        if sample["n"] != found[-1][1]:
            found.append((sample["t_s"], sample["n"]))
    return found


def settled(result: Result) -> tuple[float, int] | None:
    """When the search ended and with which N: golden's `done`, adaptive's first `hold`; None
    where it did not within the run."""
    for sample in result.samples:
        if sample["phase"] in ("done", "hold"):
            return sample["t_s"], sample["n"]
    return None


def last_n(result: Result) -> int:
    return result.samples[-1]["n"]


def reaches(result: Result, mbit: float, span_s: float = 1.0, from_s: float = 0.0) -> float | None:
    """The first time from which the throughput over `span_s` is `mbit` and the mean of what
    follows keeps it: a peak while searching is not the plateau."""
    rates = [(s["t_s"], s["bytes_per_s"] * MEGA) for s in result.samples if s["t_s"] > from_s]
    width = max(1, round(span_s / result.run.interval_s))
    for index in range(len(rates) - width):
        window = rates[index : index + width]
        rest = rates[index:]
        if min(_mean(window), _mean(rest)) >= mbit:
            return window[0][0] - from_s
    return None


def stays(result: Result, mbit: float, span_s: float = 1.0) -> float | None:
    """The time after which no window of `span_s` lies below `mbit` any more."""
    width = max(1, round(span_s / result.run.interval_s))
    rates = [s["bytes_per_s"] * MEGA for s in result.samples]
    for index in range(len(rates) - width, -1, -1):
        if _mean_of(rates[index : index + width]) < mbit:
            after = index + width
            return result.samples[after]["t_s"] if after < len(rates) - width else None
    return 0.0


def _mean(pairs: Sequence[tuple[float, float]]) -> float:
    return statistics.fmean(rate for _, rate in pairs)


def _mean_of(values: Sequence[float]) -> float:
    return statistics.fmean(values)


def windows(result: Result, seconds: float, from_s: float = 0.0) -> list[float]:
    """G in Mbit/s as measured over each whole Tm of `seconds`, one after the other."""
    size = max(1, round(seconds / result.run.interval_s))
    rates = [s["bytes_per_s"] * MEGA for s in result.samples if s["t_s"] > from_s]
    return [_mean_of(rates[i : i + size]) for i in range(0, len(rates) - size + 1, size)]


def read_times(result: Result, from_s: float = 0.0) -> list[float]:
    """Seconds of the reads that ended after `from_s`."""
    return [read["seconds"] for read in result.reads if read["t_s"] > from_s]


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank; of nothing, not a number."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def scatter(values: Sequence[float]) -> float:
    """p99 / p50."""
    return percentile(values, 0.99) / percentile(values, 0.5)
