"""S1, figure 7: iSCSI against packet errors."""

from dataclasses import replace

from enkaku_lab.claims import Claim, judged
from enkaku_lab.curves import Curves
from enkaku_lab.experiment import Experiment, PaperPoint, Series
from enkaku_lab.experiments.common import (
    ATTACH,
    LOSS_AXIS,
    PIPELINED,
    READ_NOTE,
    SHRUNK,
    STOCK,
    STOCK_BLOCKS,
    TCP_1,
    no_block_size,
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
    least = min((point.x for point in cubic.points if point.x), default=0)
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


def claims(curves: Curves) -> list[Claim]:
    """The paper's LAN; what RTT 20 ms changes is in the words."""
    lan, wan = curves.get(STOCK.label, LAN), curves.get(TCP_1.label, WAN)
    flat = [rate_ for point in lan.measured if point.x <= 1e-4 and (rate_ := point.mbit)]
    after, steady = lan.at(1e-3), lan.at(1e-4)
    least = min((point.x for point in lan.measured), default=0)
    without = "" if least == 0 else f" (from {least:g} on: no point without loss)"
    far = [f"{rate(wan.at(x))} at {x:g}" for x in (1e-6, 1e-5, 1e-4, 1e-3) if wan.at(x)]
    falls_at = next(
        (point.x for point in lan.measured if flat and point.mbit < 0.8 * flat[-1]), None
    )
    return [
        judged(
            "flat from 0 to 1e-4",
            max(flat) / min(flat) < 1.15 if len(flat) > 2 else None,
            f"{max(flat) / min(flat):.2f} times between them without added delay{without}; but at RTT 20 ms plain TCP (cubic) has "
            f"{', '.join(far)}"
            if len(flat) > 2
            else "",
        ),
        judged(
            "beyond 1e-4 it falls, to 240 to 260 Mbit/s at 1e-3",
            after < 0.8 * steady if after and steady else None,
            f"{rate(after)} at 1e-3 of {rate(steady)} at 1e-4; it falls from "
            f"{'none of these' if falls_at is None else format(falls_at, 'g')} on",
        ),
        no_block_size(curves, LAN),
    ]


EXPERIMENT = Experiment(
    name="s1-fig7",
    title="iSCSI: sequential read against packet loss",
    source="Teraoka et al. 2004, figure 7",
    paper="iSCSI against packet error rates from 0 on, the same for every block size: flat to 1e-4, then it "
    "falls; 240 to 260 Mbit/s at 1e-3",
    x=LOSS_AXIS,
    panels={LAN: {"rtt_ms": 0.0}, WAN: {"rtt_ms": 20.0}},
    series=[
        STOCK,
        *(replace(one, panels=[LAN]) for one in STOCK_BLOCKS),
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
    claims=claims,
    shrunk=SHRUNK,
    repeat_max=2,
    note=READ_NOTE
    + " Packets are lost in both directions, and only after login; cubic unless it says bbr. A gap "
    "in a curve means that nothing arrived in the time (see the table).",
)
