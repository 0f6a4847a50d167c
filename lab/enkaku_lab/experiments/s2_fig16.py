"""S2, figure 16: times of single reads, PDU of 1 MB."""

from enkaku_lab.ns2 import scatter

STUDY = scatter.figures(
    "s2-fig16",
    ("golden", "adaptive"),
    1,
    "APT, which ended at 47: the read times spread more than with N = 47 fixed, the throughput is the same",
)
