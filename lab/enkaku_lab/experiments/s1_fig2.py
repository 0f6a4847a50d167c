"""S1, figure 2: the local disk, read in blocks of 1 to 256 KiB."""

from enkaku_lab.curves import Curves
from enkaku_lab.experiment import Experiment, PaperPoint, Series
from enkaku_lab.experiments.common import BLOCK_AXIS, spread_over


def sentence(curves: Curves) -> str:
    local = curves.get("local file, cold")
    rates = [point.mbit for point in local.measured]
    ratio = f"{max(rates) / min(rates):.1f}" if rates else "an unknown number of"
    return (
        f"The paper's disk gave 750–960 Mbit/s; this machine's gives {spread_over(local)}, "
        f"{ratio} times as much with the best block size as with the worst, so the block size of "
        "the calls matters little where read-ahead works, as in the paper."
        if rates and max(rates) / min(rates) < 2
        else f"The paper's disk gave 750–960 Mbit/s whatever the block size; this machine's gives "
        f"{spread_over(local)}, {ratio} times as much with the best block size as with the worst."
    )


EXPERIMENT = Experiment(
    name="s1-fig2",
    title="Local disk: sequential read against block size",
    source="Teraoka et al. 2004, figure 2",
    paper="750 to 960 Mbit/s for block sizes of 1 to 256 KB",
    x=BLOCK_AXIS,
    series=[Series("local", "local file, cold")],
    points=[PaperPoint("paper", None, 750, 960)],
    sentence=sentence,
    note=(
        "The file's pages are dropped from this machine's cache before each run; below a virtual "
        "machine's disk there may be another cache. The line is drawn for comparison: it takes no "
        "part here."
    ),
)
