"""S2, figure 16: times of single reads, PDU of 1 MB."""

from enkaku_lab.ns2 import scatter

STUDY = scatter.figures(
    "s2-fig16",
    ("golden", "adaptive"),
    1,
    "under APT the reads' times scatter more than with the same N fixed",
)
