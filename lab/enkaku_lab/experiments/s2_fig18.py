"""S2, figure 18: times of single reads, PDU of 3 MB."""

from enkaku_lab.ns2 import scatter

STUDY = scatter.figures(
    "s2-fig18",
    ("golden", "adaptive"),
    3,
    "under APT with a PDU three times as long the times scatter more",
)
