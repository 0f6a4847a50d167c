"""S2, figure 15: times of single reads, PDU of 1 MB."""

from enkaku_lab.ns2 import scatter

STUDY = scatter.figures(
    "s2-fig15",
    ("fixed",),
    1,
    "N = 47 fixed, where APT had ended with PDUs of 1 MB",
)
