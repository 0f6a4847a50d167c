"""S1, figure 6: iSCSI against RTT in detail, 0 to 40 ms."""

from enkaku_lab.curves import Curves
from enkaku_lab.experiment import Experiment, PaperPoint
from enkaku_lab.experiments.common import (
    ATTACH,
    COPY,
    READ_NOTE,
    RTT_DETAIL_AXIS,
    STOCK,
    TCP_1,
    nearest,
    rate,
    share,
    times,
)


def sentence(curves: Curves) -> str:
    (at, stock), (_, attach), (_, copy), (_, tcp) = (
        nearest(curves.get(one.label), 16) for one in (STOCK, ATTACH, COPY, TCP_1)
    )
    return (
        f"The paper's iSCSI has about 40 Mbit/s left at RTT 16 ms; at {at:g} ms tgt + libiscsi has "
        f"{rate(stock)} ({times(stock, 40)} the paper's), enkaku attach {rate(attach)} "
        f"({share(attach, curves.limit_mbit)} of the line), enkaku copy {rate(copy)} "
        f"({share(copy, curves.limit_mbit)}), plain TCP {rate(tcp)}."
    )


EXPERIMENT = Experiment(
    name="s1-fig6",
    title="iSCSI: sequential read against RTT, in detail",
    source="Teraoka et al. 2004, figure 6",
    paper="the first 40 ms of figure 5; about 40 Mbit/s at 16 ms",
    x=RTT_DETAIL_AXIS,
    series=[STOCK, ATTACH, COPY, TCP_1],
    points=[PaperPoint("paper", 16, 40, 40)],
    sentence=sentence,
    log_y=False,
    note=READ_NOTE + " Block size of the calls 64 KiB; Linux's default socket buffers.",
)
