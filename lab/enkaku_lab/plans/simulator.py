"""A cell of the plan in ns-2: another implementation of TCP, and lines that are faster and longer than
what this machine can emulate. It needs no quiet machine, and has no bbr.

A result is a function of its cell: it is the same whatever else the machine does.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from enkaku_lab.experiment import RATES
from enkaku_lab.ns2.engine import failure, missing
from enkaku_lab.plans.grid import (
    LOSSES,
    SEGMENT_BITS,
    decided_by_losses,
    link_of,
    losses_per_s,
    predicted,
)
from enkaku_lab.process import LabError, die_with_parent
from enkaku_lab.progress import Progress

MODEL = Path(__file__).with_name("flows.tcl")
GRID = {
    "rate": ("100mbit", "1gbit", "10gbit"),
    "rtt_ms": (20.0, 100.0, 300.0),
    "loss": (0.0, 1e-5, 1e-4, 1e-3),
    "cc": ("reno", "cubic"),
    "streams": (1, 4, 16),
}
QUICK = {**GRID, "rate": ("100mbit",), "rtt_ms": (20.0,), "loss": (1e-3,), "streams": (1, 4)}
SEGMENTS_MAX = 8e6
"""What a simulation takes a minute for. A cell that needs more to be steady is left out."""
ROUNDS = 600
"""Round trips of a cell without losses: several sawteeth of the queue."""
OMIT_ROUNDS, OMIT_S_MIN = 200, 30.0
"""At least so long: without HyStart ns-2 overruns the queue in its slow start, and is slow to repair that."""
FORGETTING = 8.0
"""Times of memory that are left out: windows begin far above what losses leave of them."""
LINE_MARGIN, LATER, LATER_MAX = 1.01, 4.0, 3
"""More than the line is what a repaired hole delivers at once: looked at so many times later then."""
SEND_BUFFER_SHARE, RECEIVE_BUFFER_SHARE = 0.67, 0.5
"""What of a buffer Linux uses for payload; ns-2 is told a window, so this part of the plan is not
checked here."""


def window_segments(cell: dict) -> int:
    """What the buffers of the line's ends let one connection have under way."""
    link = link_of(cell)
    send, receive = (int(limits.split()[2].rstrip("M")) << 20 for limits in (link.wmem, link.rmem))
    bytes_max = min(SEND_BUFFER_SHARE * send, RECEIVE_BUFFER_SHARE * receive)
    return int(bytes_max * 8 / SEGMENT_BITS)


def timing(cell: dict, plan: dict, quick: bool) -> tuple[float, float] | None:
    """Seconds that are left out and measured; None where a simulation would take too long."""
    rtt_s = cell["rtt_ms"] / 1000
    if decided_by_losses(cell):
        rate = losses_per_s(cell, plan)
        omit_s = max(OMIT_S_MIN, FORGETTING / rate)
        # At least as long as what is left out: a few losses of many connections are one moment.
        seconds = max((LOSSES / 4 if quick else LOSSES) / (rate * cell["streams"]), omit_s)
    else:
        omit_s, seconds = max(OMIT_S_MIN, OMIT_ROUNDS * rtt_s), ROUNDS * rtt_s
    segments = (omit_s + seconds) * plan["session_bytes_per_s"] * 8 / SEGMENT_BITS
    return (omit_s, seconds) if segments <= SEGMENTS_MAX else None


def measure(todo: list[dict], folder: Path, quick: bool) -> Iterator[dict]:
    """Each cell with the Mbit/s of TCP payload in the steady state, and how it was found. Left out are
    those that would take too long, and bbr."""
    if reason := missing():
        raise LabError(reason)
    cells = [cell for cell in todo if cell["cc"] != "bbr"]
    planned = [(cell, timing(cell, predicted(cell), quick)) for cell in cells]
    progress = Progress(sum(how is not None for _, how in planned))

    def one(cell: dict, omit_s: float, seconds: float) -> dict:
        progress.step(" ".join(f"{name} {value}" for name, value in cell.items()))
        line_mbit = link_of(cell).payload_bits_per_s / 1e6
        for _ in range(LATER_MAX):
            how = {"seconds": round(seconds, 1), "omit_s": round(omit_s, 1)}
            mbit = _run(cell, **how)
            if mbit <= LINE_MARGIN * line_mbit:
                return {**cell, "measured_mbit": mbit, "how": how}
            omit_s *= LATER
        raise LabError(f"ns-2 delivers more than the line carries, still after {omit_s:g} s: {cell}")

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        waiting = [pool.submit(one, cell, *how) for cell, how in planned if how]
        try:
            yield from (finished.result() for finished in waiting)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _run(cell: dict, seconds: float, omit_s: float) -> float:
    link = link_of(cell)
    parameters = {
        "rate": RATES[cell["rate"]],
        "rtt": cell["rtt_ms"] / 1000,
        "loss": cell["loss"],
        "queue": link.queue_packets,
        "window": window_segments(cell),
        "flows": cell["streams"],
        "cc": cell["cc"],
        "omit": omit_s,
        "seconds": seconds,
    }
    argv = ["ns", str(MODEL), *(str(word) for pair in parameters.items() for word in pair)]
    done = subprocess.run(
        argv, capture_output=True, text=True, preexec_fn=die_with_parent, check=False
    )
    if done.returncode:
        raise failure(done.returncode, done.stderr.strip())
    # Agent/TCP/Linux says there, too, which congestion control it was given.
    report = next(line for line in done.stdout.splitlines() if line.startswith("{"))
    return json.loads(report)["bytes_per_s"] * 8 / 1e6
