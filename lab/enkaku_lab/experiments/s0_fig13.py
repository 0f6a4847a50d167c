"""S0, figure 13: the sender's queue and the packets sent over one write of 4 MiB."""

from enkaku_lab.experiments.s0_fig12 import trace

TRACE = trace(13, "The sender's queue and packets", "packets")
