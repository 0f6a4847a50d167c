"""S2, figure 18: times of single reads, PDU of 3 MB."""

from enkaku_lab.ns2 import scatter

STUDY = scatter.figures(
    "s2-fig18",
    ("golden", "adaptive"),
    3,
    "APT, which ended at 53: the read times spread less than with N = 53 fixed, in two groups, fast and slow",
)
