"""A cell of the plan on the emulated line: plain TCP by iperf3, Linux's own congestion controls."""

import json
import statistics
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from enkaku_lab import wan
from enkaku_lab.experiment import RATES, Link
from enkaku_lab.peers import need
from enkaku_lab.plans.grid import (
    FORGETTING,
    LOSSES,
    decided_by_losses,
    link_of,
    losses_per_s,
    predicted,
)
from enkaku_lab.process import LabError, peer, run
from enkaku_lab.progress import Progress

GRID = {
    "rate": ("100mbit", "1gbit"),
    "rtt_ms": (20.0, 100.0),
    "loss": (0.0, 1e-4, 1e-3),
    "cc": ("reno", "cubic", "bbr"),
    "streams": (1, 4),
}
QUICK = {**GRID, "rate": ("100mbit",), "rtt_ms": (20.0,), "loss": (1e-3,), "streams": (1,)}
SECONDS, OMIT_S = 10, 4
"""Without losses: slow start is left out, and the queue's sawtooth is short."""
SECONDS_MAX, OMIT_S_MAX = 60, 30
SIDE_BY_SIDE_MAX = 8
LINE_SHARE_MAX = 0.4
"""What runs side by side may take of the line by the plan, so that none feels the others."""
PORT = 5201


@dataclass(frozen=True)
class Timing:
    """How long a cell is measured, from when on, and how often at the same time."""

    seconds: float
    omit_s: float
    runs: int


def timing(cell: dict, plan: dict, quick: bool) -> Timing:
    """What a cell needs, by what the plan says of it. It sees as many as `LOSSES` by its length and by
    several runs of it side by side, as long as they together leave most of the line to none of them."""
    if quick or not decided_by_losses(cell):
        return Timing(4 if quick else SECONDS, OMIT_S, 1)
    runs = int(LINE_SHARE_MAX * RATES[cell["rate"]] / (plan["session_bytes_per_s"] * 8))
    runs = max(1, min(SIDE_BY_SIDE_MAX, runs))
    rate = losses_per_s(cell, plan)
    omit_s = min(OMIT_S_MAX, max(OMIT_S, FORGETTING / rate))
    seconds = LOSSES / (rate * cell["streams"] * runs)
    return Timing(round(min(SECONDS_MAX, max(SECONDS, seconds))), round(omit_s), runs)


def measure(todo: list[dict], folder: Path, quick: bool) -> Iterator[dict]:
    """Each cell with what was measured: Mbit/s of TCP payload in the steady state, as the receiver
    counted, and the round trip in milliseconds, as the sender did; means of the runs."""
    wan.need()
    progress = Progress(len(todo))
    with ExitStack() as stack:
        lab = stack.enter_context(wan.up(Link(), folder))
        # A server of iperf3 takes one client at a time.
        for port in range(PORT, PORT + (1 if quick else SIDE_BY_SIDE_MAX)):
            words = [need("iperf3"), "-s", "-p", port, "--forceflush"]
            server = stack.enter_context(peer(lab.exec("far", words), folder / f"iperf3-{port}.log"))
            server.wait_for_output("Server listening")
        for cell in todo:
            progress.step(" ".join(f"{name} {value}" for name, value in cell.items()))
            how = timing(cell, predicted(cell), quick)
            link = link_of(cell)
            lab.set(link)
            try:
                yield {**cell, **_measured(lab, cell, how), "how": asdict(how)}
            finally:
                lab.set(link, loss=0.0)


def _measured(lab: wan.Lab, cell: dict, how: Timing) -> dict:
    """On a busy machine the emulator is late, and the round trip is longer than the line's."""

    def one(port: int) -> tuple[float, float]:
        words = [need("iperf3"), "-c", wan.FAR, "-p", port, "-C", cell["cc"], "-J"]
        words += ["-P", cell["streams"], "-t", how.seconds, "-O", how.omit_s]
        done = run(lab.exec("near", words), timeout_s=how.seconds + how.omit_s + 30)
        report = json.loads(done.stdout)
        if "error" in report:
            raise LabError(f"iperf3: {report['error']}")
        rtts = [stream["sender"]["mean_rtt"] / 1000 for stream in report["end"]["streams"]]
        return report["end"]["sum_received"]["bits_per_second"] / 1e6, statistics.fmean(rtts)

    with ThreadPoolExecutor(how.runs) as pool:
        found = list(pool.map(one, range(PORT, PORT + how.runs)))
    rates, rtts = zip(*found, strict=True)
    return {"measured_mbit": statistics.fmean(rates), "measured_rtt_ms": statistics.fmean(rtts)}
