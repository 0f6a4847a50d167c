"""The cells that a plan is checked at, and how long each has to be looked at.

The plan is of the steady state. Where losses keep the windows small, a window forgets how it began
after as many round trips as it holds between two losses, which is seconds and not round trips; so
much is left out, several times. And a mean is worth as much as the losses that it is over.
"""

import itertools

from enkaku_lab.experiment import RATES, TCP_PAYLOAD_BYTES, WIRE_BYTES, Link
from enkaku_lab.peers import enkaku

AXES = ("rate", "rtt_ms", "loss", "cc", "streams")
SEGMENT_BITS = TCP_PAYLOAD_BYTES * 8
QUEUE_DELAYS = 1.0
"""The queue in bandwidth × delay, as in many routers."""
FORGETTING = 3.0
"""Times of memory of a window that are left out; by e³ less is left of how it began."""
LOSSES = 40
"""A window deviates by about 0.4 of its mean, and two losses are about one independent look: so many
losses give the mean to a tenth."""


def cells(grid: dict) -> list[dict]:
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def link_of(cell: dict) -> Link:
    bits = RATES[cell["rate"]]
    queue = max(50, round(QUEUE_DELAYS * bits * cell["rtt_ms"] / 1000 / 8 / WIRE_BYTES))
    return Link(cell["rtt_ms"], cell["loss"], cell["rate"], queue)


def predicted(cell: dict) -> dict:
    """What the plan says one connection gets, and the whole session."""
    link = link_of(cell)
    words = ["plan", "--rate", cell["rate"], "--rtt", f"{cell['rtt_ms']:g}ms"]
    words += ["--loss", repr(cell["loss"]), "--streams", cell["streams"]]
    words += ["--wmem", link.wmem.split()[2], "--rmem", link.rmem.split()[2]]
    plan = enkaku.report(*words, "--queue", link.queue_packets)
    return next(one for one in plan["congestion_controls"] if one["name"] == cell["cc"])


def decided_by_losses(cell: dict) -> bool:
    return cell["loss"] > 0 and cell["cc"] != "bbr"


def losses_per_s(cell: dict, plan: dict) -> float:
    """Of one connection. The memory of its window is the time between two of them."""
    return plan["one_bytes_per_s"] * 8 / SEGMENT_BITS * cell["loss"]
