"""S1, figure 5: iSCSI against RTT, 0 to 200 ms."""

from enkaku_lab.curves import Curves
from enkaku_lab.experiment import Experiment, PaperPoint
from enkaku_lab.experiments.common import (
    ATTACH,
    COPY,
    READ_NOTE,
    RTT_AXIS,
    STOCK,
    TCP_1,
    TCP_4,
    falls,
    last_x,
    rate,
    share,
    times,
)


def sentence(curves: Curves) -> str:
    stock, attach, copy, tcp = (
        curves.get(one.label) for one in (STOCK, ATTACH, COPY, TCP_1)
    )
    last = last_x(curves)
    return (
        f"The paper's iSCSI falls as 1/RTT; here {falls(stock)} and {falls(attach)}. At "
        f"{last:g} ms tgt + libiscsi reaches {rate(stock.at(last))}, enkaku attach "
        f"{rate(attach.at(last))} ({times(attach.at(last), stock.at(last))} that, "
        f"{share(attach.at(last), curves.limit_mbit)} of the line), enkaku copy "
        f"{rate(copy.at(last))} ({share(copy.at(last), curves.limit_mbit)}) and one plain TCP "
        f"connection {rate(tcp.at(last))} ({share(tcp.at(last), curves.limit_mbit)})."
    )


EXPERIMENT = Experiment(
    name="s1-fig5",
    title="iSCSI: sequential read against RTT",
    source="Teraoka et al. 2004, figure 5",
    paper="falls as 1/RTT, 0 to 200 ms; about 40 Mbit/s at 16 ms",
    x=RTT_AXIS,
    series=[STOCK, ATTACH, COPY, TCP_1, TCP_4],
    points=[PaperPoint("paper", 16, 40, 40)],
    sentence=sentence,
    note=READ_NOTE + " Block size of the calls 64 KiB; Linux's default socket buffers.",
)
