"""S2, figure 17: times of single reads, PDU of 3 MB."""

from enkaku_lab.ns2 import scatter

STUDY = scatter.figures(
    "s2-fig17",
    ("fixed",),
    3,
    "N = 53 fixed, where APT had ended with PDUs of 3 MB",
)
