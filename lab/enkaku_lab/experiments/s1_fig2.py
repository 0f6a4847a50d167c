"""S1, figure 2: the local disk, read in blocks of 1 to 256 KiB."""

from enkaku_lab.claims import Claim, judged, not_measured
from enkaku_lab.curves import Curves
from enkaku_lab.experiment import Experiment, PaperPoint, Series
from enkaku_lab.experiments.common import BLOCK_AXIS, SHRUNK, spread_over


FAST, SLOW = (2, 8, 32, 128), (1, 4, 16, 64, 256)
"""Block sizes (KiB) of the paper's saw-tooth: 910 to 960 and about 750 Mbit/s."""
A_DISK_MBIT = 4000
"""More than any one disk gives; what gives more is a cache."""


def sentence(curves: Curves) -> str:
    local = curves.get("local file, cold")
    rates = [point.mbit for point in local.measured]
    ratio = f"{max(rates) / min(rates):.1f}" if rates else "an unknown number of"
    return (
        f"The paper's disk gave a saw-tooth between 750 and 960 Mbit/s; this machine's gives "
        f"{spread_over(local)}, {ratio} times as much with the best block size as with the worst."
    )


def claims(curves: Curves) -> list[Claim]:
    says = "a saw-tooth: 910 to 960 Mbit/s at 2, 8, 32 and 128 KB, about 750 at 1, 4, 16, 64 and 256 KB"
    local = curves.get("local file, cold")
    if max((point.mbit for point in local.measured), default=0) > A_DISK_MBIT:
        return [
            not_measured(
                says,
                f"{spread_over(local)} come of a cache below this machine's disk, not of a disk",
            )
        ]
    fast, slow = ([rate for x in some if (rate := local.at(x))] for some in (FAST, SLOW))
    if len(fast) < len(FAST) or len(slow) < len(SLOW):
        return [judged(says, None, "")]
    apart = min(fast) / max(slow)
    return [
        judged(
            says,
            apart > 1.1,
            f"the slowest of the one has {apart:.2f} times the fastest of the other",
        )
    ]


EXPERIMENT = Experiment(
    name="s1-fig2",
    title="Local disk: sequential read against block size",
    source="Teraoka et al. 2004, figure 2",
    paper="a saw-tooth: 910 to 960 Mbit/s for block sizes of 2, 8, 32 and 128 KB, about 750 for 1, 4, "
    "16, 64 and 256 KB",
    x=BLOCK_AXIS,
    series=[Series("local", "local file, cold")],
    points=[PaperPoint("paper", None, 750, 960)],
    sentence=sentence,
    claims=claims,
    shrunk=SHRUNK,
    note=(
        "The file's pages are dropped from this machine's cache before each run; below a virtual "
        "machine's disk there may be another cache. The line is drawn for comparison: it takes no "
        "part here."
    ),
)
