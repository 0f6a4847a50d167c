"""S1, figure 5: iSCSI against RTT, 0 to 200 ms."""

from enkaku_lab.claims import Claim, judged
from enkaku_lab.curves import Curves
from enkaku_lab.experiment import Experiment, PaperPoint
from enkaku_lab.experiments.common import (
    ATTACH,
    COPY,
    READ_NOTE,
    RTT_AXIS,
    SHRUNK,
    STOCK,
    STOCK_2004,
    STOCK_BLOCKS,
    TCP_1,
    TCP_4,
    falls,
    falls_as_rtt,
    last_x,
    no_block_size,
    one_request_of,
    rate,
    share,
    signed,
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


def claims(curves: Curves) -> list[Claim]:
    """The paper's cause, too: by its own arithmetic in docs/findings.md, by ours here."""
    stock, tcp, old = (curves.get(one.label) for one in (STOCK, TCP_1, STOCK_2004))
    found, at = one_request_of(stock), 16
    cause = "it is slow because TCP's window, without scaling, is too small"
    said = "" if found is None else (
        f"one request of {found.request_kib:.0f} KiB per RTT + {signed(found.more_ms)} ms gives "
        f"{rate(found.mbit(at))} at {at} ms, where it has {rate(stock.at(at))} and plain TCP over the same "
        f"windows {rate(tcp.at(at))}"
    )
    if old.measured:
        said += f"; without window scaling it has {rate(old.at(at))}"
    holds = None if not stock.at(at) or not tcp.at(at) else tcp.at(at) < 2 * stock.at(at)
    return [
        falls_as_rtt(stock, "iSCSI's throughput falls as 1/RTT"),
        no_block_size(curves),
        judged(cause, holds, said),
    ]


EXPERIMENT = Experiment(
    name="s1-fig5",
    title="iSCSI: sequential read against RTT",
    source="Teraoka et al. 2004, figure 5",
    paper="falls as 1/RTT, 0 to 200 ms, the same for every block size; about 40 Mbit/s at 16 ms. The cause "
    "that it gives: a TCP without window scaling",
    x=RTT_AXIS,
    series=[STOCK, *STOCK_BLOCKS, STOCK_2004, ATTACH, COPY, TCP_1, TCP_4],
    points=[PaperPoint("paper", 16, 40, 40)],
    sentence=sentence,
    claims=claims,
    shrunk=SHRUNK,
    note=READ_NOTE + " Block size of the calls 64 KiB unless it says another; Linux's default socket buffers.",
)
