"""S0, figure 14: the sender's queue and the acknowledgements over one write of 4 MiB."""

from enkaku_lab.experiments.s0_fig12 import trace

TRACE = trace(14, "The sender's queue and acknowledgements", "acks")
