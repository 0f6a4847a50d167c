"""S1, figure 7: iSCSI against packet errors."""

from enkaku_lab.curves import Curves
from enkaku_lab.experiment import Experiment, PaperPoint, Series
from enkaku_lab.experiments.common import (
    ATTACH,
    LOSS_AXIS,
    PIPELINED,
    READ_NOTE,
    STOCK,
    TCP_1,
    rate,
    share,
    times,
)

LAN, WAN = "RTT 0 ms (as in the paper)", "RTT 20 ms"
BBR = {"cc": "bbr"}
CUBIC_COPY, BBR_COPY = "enkaku copy, cubic", "enkaku copy, bbr"


def sentence(curves: Curves) -> str:
    at = 1e-3
    stock, attach = curves.get(STOCK.label, LAN), curves.get(ATTACH.label, LAN)
    cubic, bbr = curves.get(CUBIC_COPY, WAN), curves.get(BBR_COPY, WAN)
    least = min(point.x for point in cubic.points)
    left = (cubic.at(at) or 0) / (cubic.at(least) or 1)
    word = "falls" if left < 0.8 else "hardly falls"
    return (
        f"At an error rate of 1e-3 the paper's iSCSI has 240–260 Mbit/s; without added delay "
        f"tgt + libiscsi has {rate(stock.at(at))}, enkaku attach {rate(attach.at(at))}. At RTT "
        f"20 ms cubic {word} with loss: enkaku has {rate(cubic.at(least))} at {least:g} and "
        f"{rate(cubic.at(at))} at 1e-3 with cubic, {rate(bbr.at(at))} with bbr "
        f"({times(bbr.at(at), cubic.at(at))} that, {share(bbr.at(at), curves.limit_mbit)} of "
        "the line)."
    )


EXPERIMENT = Experiment(
    name="s1-fig7",
    title="iSCSI: sequential read against packet loss",
    source="Teraoka et al. 2004, figure 7",
    paper="iSCSI against packet error rates of 1e-6 to 5e-1; 240 to 260 Mbit/s at 1e-3",
    x=LOSS_AXIS,
    panels={LAN: {"rtt_ms": 0.0}, WAN: {"rtt_ms": 20.0}},
    series=[
        STOCK,
        ATTACH,
        Series(
            "enkaku-pipelined",
            CUBIC_COPY,
            load=PIPELINED,
            line="--",
            panels=[WAN],
        ),
        Series(
            "enkaku-pipelined",
            BBR_COPY,
            load=PIPELINED,
            link=BBR,
            line=":",
            marker="o",
            panels=[WAN],
        ),
        TCP_1,
        Series(
            "tcp",
            "plain TCP, 1 connection, bbr",
            link=BBR,
            load={"connections": 1},
            line=":",
            marker="o",
            panels=[WAN],
        ),
    ],
    points=[PaperPoint("paper", 1e-3, 240, 260)],
    sentence=sentence,
    repeat_max=2,
    note=READ_NOTE
    + " Packets are lost in both directions, and only after login; cubic unless it says bbr. A gap "
    "in a curve means that nothing arrived in the time (see the table).",
)
