"""S0, figure 14: figure 12 enlarged, from the first stop to the restart."""

from functools import partial

from enkaku_lab.experiments.s0_fig12 import enlarged, restart, trace

SAYS = "each acknowledgement makes the queue grow, then data leave"
TRACE = trace(
    14,
    "The sender's queue and acknowledgements, from the first stop to the restart",
    f"20 ms of figure 12: {SAYS}",
    partial(enlarged, SAYS),
    window=restart,
    packets=True,
    acks=True,
)
