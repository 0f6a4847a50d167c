"""The table of `make bench`, and whether what is promised was reached, from the file of raw results."""

from pathlib import Path

from enkaku_lab import machine, table
from enkaku_lab.bench_rows import AIMS, BOUNDS, LARGE, SLEEPING, Cell
from enkaku_lab.peers import Workload
from enkaku_lab.results import median, read, spread

FOREIGN_TOLD = 0.02
"""Of the machine's processors: what others used beside a row, in the median, is told above this."""
HEAD = [
    *("workload", "target", "client", "IOPS", "MB/s", "±", "to tgt", "to limit"),
    *("mean µs", "p50 µs", "p99 µs", "client s/GB", "target s/GB", "slowest", "others"),
]
LEGEND = """Medians; ± is half the range. ‘To tgt’ is the ratio with the same client; ‘to limit’ that to two
processes that only move the bytes of such I/O and sleep when there are none (the limit's own row), or to
one stream of iperf3. Mean latency is depth / IOPS; percentiles are the client's own (iscsi-perf and
qemu-img have none). Processor seconds per GB are each end's own. ‘Slowest’ is the slowest session over
the mean. ‘Others’ is what programs that are not of this run, and the host, used of the processors, where
that was more than 2 %. iscsi-perf only reads; qemu-img has no random order: it strides. ‘enkaku mem’ has
its disk in its own memory, as spdk has, and ‘enkaku poll’ polls as well, at both ends; the others have
equal files in the page cache. ‘Processor to processor’ is how fast one overwrites what the other has
just read."""


class Summary:
    """Raw results, grouped by what was measured."""

    def __init__(self, records: list[dict]):
        self.machine = records[0]
        self.groups: dict[Cell, list[dict]] = {}
        for record in records[1:]:
            load = Workload(**record["workload"]) if "workload" in record else None
            cell = Cell(load, record["target"], record["client"])
            self.groups.setdefault(cell, []).append(record)

    def rows(self) -> list[list[str]]:
        """In the order of the workloads; the limit last."""
        cells = sorted(self.groups, key=lambda cell: cell.workload is None)
        return [self._row(cell, self.groups[cell]) for cell in cells]

    def rate(self, cell: Cell) -> float:
        """Bytes per second, the median."""
        return median([run["bytes"] / run["seconds"] for run in self.groups[cell]])

    def over(self, cell: Cell, other: Cell) -> str:
        if cell == other or other not in self.groups:
            return table.GAP
        return f"×{self.rate(cell) / self.rate(other):.2f}"

    def _row(self, cell: Cell, runs: list[dict]) -> list[str]:
        load, rate = cell.workload, self.rate(cell)
        operations = rate / load.block_bytes if load else 0.0
        sessions = runs[0].get("connections", 1) if "slowest_to_mean" in runs[0] else 1
        stream = Cell(None, "loopback", "iperf3")
        limit = stream if load is None or load in LARGE else Cell(load, "limit", SLEEPING)
        return [
            load.label if load else "limit",
            cell.target,
            cell.client,
            f"{operations:,.0f}" if load else table.GAP,
            f"{rate / 1e6:,.1f}",
            f"{spread([run['bytes'] / run['seconds'] for run in runs]):.0%}",
            self.over(cell, Cell(load, "tgt", cell.client)),
            self.over(cell, limit) if cell.target != "memory" else table.GAP,
            f"{load.depth * sessions / operations * 1e6:,.0f}" if load else table.GAP,
            _median(runs, lambda run: run.get("lat_us", {}).get("p50"), ",.0f"),
            _median(runs, lambda run: run.get("lat_us", {}).get("p99"), ",.0f"),
            _median(runs, lambda run: _per_gb(run, "client_cpu_s"), ",.2f"),
            _median(runs, lambda run: _per_gb(run, "server_cpu_s"), ",.2f"),
            _median(runs, lambda run: run.get("slowest_to_mean") if sessions > 1 else None, ".2f"),
            _others(runs),
        ]


def _per_gb(run: dict, which: str) -> float | None:
    used = run.get(which)
    return None if used is None else used / run["bytes"] * 1e9


def _median(runs: list[dict], figure, form: str) -> str:
    values = [value for run in runs if (value := figure(run)) is not None]
    return format(median(values), form) if values else table.GAP


def _others(runs: list[dict]) -> str:
    share = median([run.get("foreign", 0.0) for run in runs])
    return f"{share:.0%}" if share > FOREIGN_TOLD else table.GAP


def report(path: Path) -> str:
    """The table and the ratios, as text."""
    summary = Summary(read(path))
    rows = summary.rows()
    lines = [table.render(HEAD, rows), "", LEGEND, machine.summary(summary.machine), ""]
    for aim in AIMS:
        if {aim.row, aim.over} <= summary.groups.keys():
            ratio = summary.rate(aim.row) / summary.rate(aim.over)
            other = f"{aim.over.target} with {aim.over.client}"
            lines.append(
                f"{aim.row.name} is × {ratio:.2f} of {other} "
                f"(aim: ≥ {aim.least:g}, {_verdict(ratio >= aim.least)})"
            )
    for bound in BOUNDS:
        if bound.row in summary.groups:
            value = median([bound.figure(run) for run in summary.groups[bound.row]])
            sign = "≤" if bound.at_most else "≥"
            reached = value <= bound.limit if bound.at_most else value >= bound.limit
            lines.append(
                f"{bound.row.name}: {bound.what} {value:.2f} "
                f"(aim: {sign} {bound.limit:g}, {_verdict(reached)})"
            )
    one, four = (Cell(None, "loopback", client) for client in ("iperf3", "iperf3 ×4"))
    if {one, four} <= summary.groups.keys():
        gain = summary.rate(four) / summary.rate(one)
        lines.append(f"What plain TCP gains on this machine: four streams are × {gain:.2f} of one")
    return "\n".join(lines)


def _verdict(reached: bool) -> str:
    return "reached" if reached else "NOT reached"
