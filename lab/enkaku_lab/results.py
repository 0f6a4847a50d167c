"""Raw results as JSON lines, written as they arise, and what is said about several of them."""

import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path


class Results:
    """A file of results: one JSON object a line, on the disk as soon as it is known."""

    def __init__(self, path: Path, head: dict):
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._file = path.open("w")
        self.add(head)

    def add(self, record: dict) -> None:
        print(json.dumps(record), file=self._file, flush=True)

    def close(self) -> None:
        self._file.close()


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def utc(seconds: float | None = None) -> str:
    """A moment, this one by default, as results have it (ISO 8601)."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def spread(values: Sequence[float]) -> float:
    """Half of the range, relative to the median: 0.05 reads as ± 5 %."""
    middle = median(values)
    return (max(values) - min(values)) / 2 / middle if middle else 0.0


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """Where the middle half of the values begins and ends; of one value, that value."""
    if len(values) == 1:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high
