"""S2, figure 17: times of single reads, PDU of 3 MB."""

from enkaku_lab.ns2 import scatter

STUDY = scatter.figures(
    "s2-fig17",
    ("fixed",),
    3,
    "with N fixed and a PDU three times as long",
)
