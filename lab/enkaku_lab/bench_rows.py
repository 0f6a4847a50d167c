"""What `make bench` measures: the rows of its table, and what is promised of them."""

from collections.abc import Callable
from dataclasses import dataclass

from enkaku_lab.peers import Workload

KIB = 1024
SMALL = [
    Workload(write, True, 4 * KIB, depth) for write in (False, True) for depth in (1, 32, 128)
]
LARGE = [Workload(write, False, 256 * KIB, 8) for write in (False, True)]
MANY = Workload(False, True, 4 * KIB, 4)
"""Of each of many sessions."""
SESSIONS = 64
WORKLOADS = [*SMALL, MANY, *LARGE]
OURS, FOUR, ALL = "enkaku bench", "enkaku bench ×4", f"{SESSIONS} × enkaku bench"
STOCK = ("iscsi-perf", "qemu-img bench")
STOCK_DEPTHS = (1, 32, LARGE[0].depth)
"""Where the clients that are not ours are measured."""
SLEEPING, SPINNING = "sleeping", "spinning"
MEMORY, POLLING, SPDK = "enkaku mem", "enkaku poll", "spdk"
STREAMS = {"iperf3": 1, "iperf3 ×4": 4}


@dataclass(frozen=True)
class Cell:
    """What one row of the table is made of. Without a workload it is a limit of all of them."""

    workload: Workload | None
    target: str
    client: str

    @property
    def name(self) -> str:
        load = self.workload.label if self.workload else "limit"
        return f"{load} {self.target} {self.client}"


def cells(wanted: list[str], with_spdk: bool) -> list[Cell]:
    """Rows in the order of measuring: those that have all words of one of the wanted texts."""
    targets = ("tgt", "enkaku", MEMORY, POLLING, *([SPDK] if with_spdk else []))
    every = [Cell(None, "loopback", client) for client in STREAMS]
    for workload in WORKLOADS:
        if workload not in LARGE:
            every += [Cell(workload, "limit", how) for how in (SLEEPING, SPINNING)]
        every += [
            Cell(workload, target, client)
            for client in (*STOCK, OURS, FOUR, ALL)
            for target in targets
            if _is_asked(workload, target, client)
        ]
    sets = [set(text.split()) for text in wanted]
    return [cell for cell in every if any(words <= set(cell.name.split()) for words in sets)]


def _is_asked(workload: Workload, target: str, client: str) -> bool:
    """iscsi-perf only reads; connections are compared where data is much, and targets by one client."""
    if (workload is MANY) != (client == ALL):
        return False
    if client == FOUR:
        return target == "enkaku" and workload in LARGE
    if client in STOCK:
        readable = not (workload.write and client == "iscsi-perf")
        return readable and target in ("tgt", "enkaku") and workload.depth in STOCK_DEPTHS
    if target == POLLING and client != OURS:
        return False
    return target not in (MEMORY, POLLING) or workload not in LARGE


@dataclass(frozen=True)
class Aim:
    """The rate of one row over that of another is at least this."""

    row: Cell
    over: Cell
    least: float


def _over_sleeping(load: Workload, least: float) -> Aim:
    return Aim(Cell(load, MEMORY, OURS), Cell(load, "limit", SLEEPING), least)


AIMS = [
    Aim(Cell(SMALL[1], "enkaku", "iscsi-perf"), Cell(SMALL[1], "tgt", "iscsi-perf"), 3.0),
    Aim(Cell(SMALL[1], "enkaku", OURS), Cell(SMALL[1], "tgt", "iscsi-perf"), 8.0),
    _over_sleeping(SMALL[0], 1.2),
    _over_sleeping(SMALL[1], 0.85),
    _over_sleeping(SMALL[2], 0.70),
    _over_sleeping(SMALL[4], 0.60),
    Aim(Cell(SMALL[0], POLLING, OURS), Cell(SMALL[0], "limit", SPINNING), 0.75),
    Aim(Cell(SMALL[1], POLLING, OURS), Cell(SMALL[1], "limit", SPINNING), 0.70),
    Aim(Cell(LARGE[0], "enkaku", OURS), Cell(None, "loopback", "iperf3"), 1.1),
    Aim(Cell(LARGE[1], "enkaku", OURS), Cell(None, "loopback", "iperf3"), 1.1),
    Aim(Cell(LARGE[0], "enkaku", FOUR), Cell(LARGE[0], "enkaku", OURS), 1.3),
    Aim(Cell(LARGE[1], "enkaku", FOUR), Cell(LARGE[1], "enkaku", OURS), 1.3),
]


@dataclass(frozen=True)
class Bound:
    """A figure of one row: at least, or at most, this."""

    row: Cell
    what: str
    figure: Callable[[dict], float]
    limit: float
    at_most: bool = True


BOUNDS = [
    Bound(
        Cell(SMALL[1], MEMORY, OURS),
        "processor seconds of the target a GB",
        lambda run: run["server_cpu_s"] / run["bytes"] * 1e9,
        0.85,
    ),
    Bound(
        Cell(SMALL[1], MEMORY, OURS),
        "p99 over p50",
        lambda run: run["lat_us"]["p99"] / run["lat_us"]["p50"],
        2.0,
    ),
    Bound(
        Cell(MANY, MEMORY, ALL),
        "slowest session over the mean",
        lambda run: run["slowest_to_mean"],
        0.7,
        at_most=False,
    ),
]
