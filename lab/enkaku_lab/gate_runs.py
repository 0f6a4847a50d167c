"""The runs of `path-gate`, kept one by one as numbers, and the page that is made of them.

A round of all lines takes most of an hour. So rounds may be made at different times: `path-gate.csv` has every
run with the commit that was measured, more are added to them, and the page is always that of all.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from enkaku_lab import data
from enkaku_lab.process import LabError
from enkaku_lab.results import median
from enkaku_lab.table import fenced, render, spread

TCP = "TCP"
TOLERANCE = 0.02
LEGEND = """Shares of what the line carries, or its policer lets pass, of TCP payload, as the line counts it; medians, with the
least and the most where there are several runs. first 20 s: of ours from the start of the process on, its logins among
them; of TCP (iperf3 -P 16) from its first data on, since it connects its streams one after the other. from 10 s: their second half.
N: connections wanted at the end. held: the last one is within 2 % of the best of the others, or above, in both.
warm: ours is the second transfer, and remembers what the first has found of the path. busy: two busy loops run beside
both ends. up: from the initiator to the target the line carries that."""
PAGE = """# The path's policy beside TCP

Made by `python -m enkaku_lab path-gate --docs docs`; do not edit. `enkaku bench`, 32 × 1 MiB, a disk in memory,
Linux's default buffers. {machine}; {runs} [Every run](path-gate.csv).

{body}
"""


@dataclass(frozen=True)
class Run:
    """One transfer: shares of the line, the connections that were wanted at the end, the load average
    then, where it is known, and the machine."""

    commit: str
    taken: str
    line: str
    dir: str
    way: str
    first: float
    steady: float
    connections: int
    load: float | None
    machine: str


def read(path: Path) -> list[Run]:
    """The runs of a file; none where it is not there. LabError where it is another kind of file."""
    if not path.exists():
        return []
    columns = [field.name for field in fields(Run)]
    rows = data.read(path).rows
    if list(rows[0]) != columns:
        raise LabError(f"{path}: has the columns {', '.join(rows[0])}; wanted are {', '.join(columns)}")
    return [_run(path, row) for row in rows]


def _run(path: Path, row: dict[str, str]) -> Run:
    try:
        shares = {name: float(row[name]) for name in ("first", "steady")}
        more = {"connections": int(row["connections"]), "load": float(row["load"]) if row["load"] else None}
    except ValueError as error:
        raise LabError(f"{path}: {row['line']}, {row['dir']}: {error}") from None
    if not all(0 <= share < 10 for share in shares.values()):
        raise LabError(f"{path}: {row['line']}, {row['dir']}: a share of the line is 0 to 1, not {shares}")
    return Run(**{**row, **shares, **more})


def put(folder: Path, runs: Sequence[Run]) -> None:
    """Writes path-gate.csv and path-gate.md: what there is so far."""
    where = "; ".join(dict.fromkeys(run.machine for run in runs))
    columns = [field.name for field in fields(Run)]
    head = {"figure": "path-gate", "machine": where, "legend": LEGEND}
    data.write(folder / "path-gate.csv", head, columns, [astuple(run) for run in runs])
    page = PAGE.format(body=fenced(table(runs), LEGEND), machine=where, runs=_told(runs))
    (folder / "path-gate.md").write_text(page)


def _told(runs: Sequence[Run]) -> str:
    """Which commits, when, and how busy the machine was."""
    commits = Counter(run.commit for run in runs)
    of = ", ".join(f"{count} runs of commit {commit}" for commit, count in commits.items())
    dates = sorted({run.taken[:10] for run in runs})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    loads = [run.load for run in runs if run.load is not None]
    load = f"; load average {min(loads):.1f} to {max(loads):.1f}, {median(loads):.1f} in the median" if loads else ""
    return f"{of}, {when}{load}."


def table(runs: Sequence[Run]) -> str:
    """A row for each line and direction, in the order in which they were first measured."""
    policies = list(dict.fromkeys(run.way for run in runs if run.way != TCP))
    cells = list(dict.fromkeys((run.line, run.dir) for run in runs))
    rows = [row for cell in cells if (row := _row(cell, policies, runs))]
    held = sum(row[-1] == "yes" for row in rows)
    return f"{render(_head(policies), rows)}\n\nheld in {held} of {len(rows)}"


def _head(policies: list[str]) -> list[str]:
    shares = [f"{when}: TCP" if way == TCP else f": {way}" for when in ("first 20 s", "from 10 s") for way in (TCP, *policies)]
    return ["line", "dir", *shares, *(f"N {name}" for name in policies), "runs", "held"]


def _row(cell: tuple[str, str], policies: list[str], runs: Sequence[Run]) -> list[str] | None:
    """None before each way had its turn."""
    seen = [[run for run in runs if (run.line, run.dir, run.way) == (*cell, way)] for way in (TCP, *policies)]
    if not all(seen):
        return None
    firsts = [[run.first for run in many] for many in seen]
    steadies = [[run.steady for run in many] for many in seen]
    held = all(median(shares[-1]) >= max(map(median, shares[:-1])) - TOLERANCE for shares in (firsts, steadies))
    return [
        *cell,
        *(spread(shares) for shares in (*firsts, *steadies)),
        *(_numbers([run.connections for run in many]) for many in seen[1:]),
        str(min(map(len, seen))),
        "yes" if held else "NO",
    ]


def _numbers(numbers: list[int]) -> str:
    return str(numbers[0]) if len(set(numbers)) == 1 else f"{min(numbers)}–{max(numbers)}"
