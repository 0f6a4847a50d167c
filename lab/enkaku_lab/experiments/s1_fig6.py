"""S1, figure 6: iSCSI against RTT in detail, 0 to 40 ms."""

from enkaku_lab.claims import Claim, judged
from enkaku_lab.curves import Curves
from enkaku_lab.experiment import Experiment, PaperPoint
from enkaku_lab.experiments.common import (
    ATTACH,
    COPY,
    READ_NOTE,
    RTT_DETAIL_AXIS,
    SHRUNK,
    STOCK,
    STOCK_2004,
    STOCK_BLOCKS,
    TCP_1,
    nearest,
    no_block_size,
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


def claims(curves: Curves) -> list[Claim]:
    stock = curves.get(STOCK.label).at(16)
    return [
        judged(
            "iSCSI has about 40 Mbit/s at RTT 16 ms",
            stock and 30 <= stock <= 50,
            f"{rate(stock)}: {times(stock, 40)} that; its requests are longer (s1-fig5)"
            if stock
            else "",
        ),
        no_block_size(curves),
    ]


EXPERIMENT = Experiment(
    name="s1-fig6",
    title="iSCSI: sequential read against RTT, in detail",
    source="Teraoka et al. 2004, figure 6",
    paper="figure 5 from 0 to 20 ms; about 40 Mbit/s at 16 ms",
    x=RTT_DETAIL_AXIS,
    series=[STOCK, *STOCK_BLOCKS, STOCK_2004, ATTACH, COPY, TCP_1],
    points=[PaperPoint("paper", 16, 40, 40)],
    sentence=sentence,
    claims=claims,
    shrunk=SHRUNK,
    log_y=False,
    note=READ_NOTE
    + " Block size of the calls 64 KiB unless it says another; Linux's default socket buffers.",
)
