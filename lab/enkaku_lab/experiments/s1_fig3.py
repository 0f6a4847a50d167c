"""S1, figure 3: iSCSI at RTT 2.8 ms, read in blocks of 1 to 256 KiB."""

from enkaku_lab.claims import Claim, judged
from enkaku_lab.curves import Curves
from enkaku_lab.experiment import Experiment, Link, PaperPoint, Series
from enkaku_lab.experiments.common import (
    ATTACH,
    BLOCK_AXIS,
    PIPELINED,
    READ_NOTE,
    SHRUNK,
    STOCK,
    share,
    spread_over,
)

RTT_MS = 2.8


def sentence(curves: Curves) -> str:
    stock, ours = curves.get(STOCK.label), curves.get(ATTACH.label)
    rates = [point.mbit for point in stock.measured]
    if not rates:
        return "The stock stack was not measured."
    ratio = max(rates) / min(rates)
    verdict = "as little as" if ratio < 1.25 else "more than"
    best = max((point.mbit for point in ours.measured), default=None)
    return (
        f"The paper's iSCSI gave 101–104 Mbit/s whatever the block size (1.03 times between them); "
        f"tgt + libiscsi gives {spread_over(stock)} ({ratio:.2f} times), so the block size of the "
        f"calls matters {verdict} in the paper; enkaku attach gives {spread_over(ours)}, at best "
        f"{share(best, curves.limit_mbit)} of the line."
    )


def claims(curves: Curves) -> list[Claim]:
    rates = [point.mbit for point in curves.get(STOCK.label).measured]
    ratio = max(rates) / min(rates) if len(rates) > 1 else None
    found = (
        f"{spread_over(curves.get(STOCK.label))}, {ratio:.2f} times between them" if ratio else ""
    )
    return [
        judged(
            "the block size of the calls does not matter (1.03 times)",
            ratio and ratio < 1.25,
            found,
        )
    ]


EXPERIMENT = Experiment(
    name="s1-fig3",
    title="iSCSI at RTT 2.8 ms: sequential read against block size",
    source="Teraoka et al. 2004, figure 3",
    paper="101 to 104 Mbit/s for block sizes of 1 to 256 KB",
    x=BLOCK_AXIS,
    link=Link(rtt_ms=RTT_MS),
    series=[
        STOCK,
        ATTACH,
        Series(
            "enkaku-pipelined", "enkaku copy, 256 × 128 KiB", load=PIPELINED, line="--", flat=True
        ),
        Series("tcp", "plain TCP, 1 connection", load={"connections": 1}, flat=True),
    ],
    points=[PaperPoint("paper", None, 101, 104)],
    sentence=sentence,
    claims=claims,
    shrunk=SHRUNK,
    repeat_max=2,
    note=READ_NOTE + " enkaku copy and plain TCP have no block size of calls: lines without marks.",
)
