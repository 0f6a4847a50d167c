"""S0, figure 13: figure 12 enlarged, from the command to the first stop."""

from functools import partial

from enkaku_lab.experiments.s0_fig12 import enlarged, first_stop, trace

SAYS = (
    "from the WRITE(10) on the queue grows, stops growing, and sending goes on until it stops, too"
)
TRACE = trace(
    13,
    "The sender's queue and packets, from the command to the first stop",
    f"10 ms of figure 12: {SAYS}",
    partial(enlarged, SAYS),
    window=first_stop,
    packets=True,
)
