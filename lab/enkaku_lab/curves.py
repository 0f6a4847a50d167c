"""Raw results of one experiment as curves: medians and quartiles in Mbit/s, and what is missing."""

import math
from dataclasses import dataclass, field

from enkaku_lab.experiment import Experiment, Pace, Series
from enkaku_lab.results import median, quartiles
from enkaku_lab.store import Store


@dataclass(frozen=True)
class Point:
    """One place of a curve. `mbit` is None where nothing was measured; `why` says why."""

    x: float
    mbit: float | None
    low: float = 0.0
    high: float = 0.0
    runs: int = 0
    why: str = ""
    connections: int | None = None
    """As ss counted them; None where it was not asked."""
    congestion_control: tuple[str, ...] = ()
    verified: bool = False
    failed: int = 0


@dataclass
class Curve:
    series: Series
    panel: str
    points: list[Point]

    @property
    def measured(self) -> list[Point]:
        return [point for point in self.points if point.mbit is not None]

    @property
    def worst(self) -> Point | None:
        """The slowest of them; None where nothing was measured."""
        return min(self.measured, key=lambda point: point.mbit, default=None)

    def at(self, x: float) -> float | None:
        """Mbit/s there; None where nothing was measured."""
        return next((p.mbit for p in self.measured if self.series.flat or p.x == x), None)

    def slope(self, from_x: float = 0.0) -> float | None:
        """d log(throughput) / d log(x) by least squares: −1 is “falls as 1/x”."""
        found = [(math.log(p.x), math.log(p.mbit)) for p in self.measured if p.x >= from_x > 0]
        if len(found) < 2:
            return None
        mean_x = sum(x for x, _ in found) / len(found)
        mean_y = sum(y for _, y in found) / len(found)
        across = sum((x - mean_x) ** 2 for x, _ in found)
        return sum((x - mean_x) * (y - mean_y) for x, y in found) / across if across else None


@dataclass
class Curves:
    """All curves of an experiment, and what stands in the way of believing them."""

    experiment: Experiment
    pace: Pace
    curves: list[Curve]
    limit_mbit: float
    unavailable: dict[str, str] = field(default_factory=dict)
    """Stack → why it could not run."""
    sessions: list[dict] = field(default_factory=list)
    taken: tuple[str, str] = ("", "")
    kept: dict[str, str] = field(default_factory=dict)
    """The head of the CSV that they were read from, where there are no raw results (`data`)."""

    def get(self, label: str, panel: str | None = None) -> Curve:
        """The curve of the series with this label (in the first panel that has it)."""
        for curve in self.curves:
            if curve.series.label == label and panel in (None, curve.panel):
                return curve
        raise KeyError(f"{self.experiment.name} has no series {label!r} in panel {panel!r}")

    @property
    def complete(self) -> bool:
        return all(point.mbit is not None for curve in self.curves for point in curve.points)


def collect(experiment: Experiment, pace: Pace, store: Store) -> Curves:
    curves = []
    used: list[dict] = []
    unavailable: dict[str, str] = {}
    for panel in experiment.panels:
        for series in experiment.series:
            if series.panels is not None and panel not in series.panels:
                continue
            points, first = [], len(used)
            for x in experiment.values(pace):
                records = store.of(experiment.cell(pace, panel, series, x))
                used += records
                points.append(_point(x, records, experiment.x.factor))
            curves.append(Curve(series, panel, points))
            reasons = [one["unavailable"] for one in used[first:] if "unavailable" in one]
            if reasons and not curves[-1].measured:
                unavailable[series.stack] = reasons[-1]
    times = sorted(one["taken"] for one in used if "reached" in one)
    names = list(dict.fromkeys(one["session"] for one in used if "reached" in one))
    return Curves(
        experiment,
        pace,
        curves,
        experiment.link.payload_bits_per_s / 1e6,
        unavailable,
        [store.sessions[name] for name in names if name in store.sessions],
        (times[0], times[-1]) if times else ("", ""),
    )


def _point(x: float, records: list[dict], factor: float) -> Point:
    x *= factor
    good = _last_of_each_repetition([one for one in records if "reached" in one])
    failed = [one for one in records if "failed" in one or "unavailable" in one]
    if not good:
        last = failed[-1] if failed else {}
        why = last.get("failed") or last.get("unavailable") or "not measured yet"
        return Point(x, None, why=why, failed=len(failed))
    rates = [one["reached"]["bytes"] * 8 / one["reached"]["seconds"] / 1e6 for one in good]
    low, high = quartiles(rates)
    seen = sorted({name for one in good for name in one["congestion_control"]})
    return Point(
        x,
        median(rates),
        low,
        high,
        len(good),
        connections=good[-1].get("connections_seen") or None,
        congestion_control=tuple(seen),
        verified=all(one["reached"]["verified"] for one in good),
        failed=len(failed),
    )


def _last_of_each_repetition(records: list[dict]) -> list[dict]:
    return list({one["repetition"]: one for one in records}.values())
