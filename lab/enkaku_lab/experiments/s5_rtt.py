"""Ours: the steady state against RTT, in both directions, beside stock iSCSI and plain TCP."""

from enkaku_lab.curves import Curves
from enkaku_lab.experiment import KIB, Axis, Experiment, Load, Series
from enkaku_lab.experiments.common import rate, share

READ, WRITE = "read", "write"
RTTS = [0, 2.8, 10, 20, 50, 100, 200]
# 32 commands of 1 MiB are 32 MiB under way, more than the line holds at 200 ms (25 MB).
AUTO = Series("enkaku-bench", "enkaku, auto")
ONE = Series("enkaku-bench", "enkaku, 1 connection", load={"connections": 1}, line=":", marker="o")
STOCK = Series("tgt-libiscsi", "tgt + libiscsi, depth 32")
TCP_ONE = Series("tcp", "plain TCP, 1 connection", load={"connections": 1})
TCP_EIGHT = Series("tcp", "plain TCP, 8 connections", load={"connections": 8}, line="--")


def sentence(curves: Curves) -> str:
    parts = []
    for panel in (READ, WRITE):
        auto = curves.get(AUTO.label, panel)
        limit = curves.limit_mbit
        worst = auto.worst
        if worst is None:
            parts.append(f"{panel}: nothing was measured")
            continue
        stock = curves.get(STOCK.label, panel).at(worst.x)
        parts.append(
            f"{panel}: at least {share(worst.mbit, limit)} of the line (at RTT {worst.x:g} ms, "
            f"where stock iSCSI has {share(stock, limit)}, {rate(stock)})"
        )
    return f"enkaku with connections chosen by itself has, {'; '.join(parts)}."


EXPERIMENT = Experiment(
    name="s5-rtt",
    title="Line rate over the long-fat path: sequential, 32 × 1 MiB, steady state",
    source="ours",
    paper="",
    x=Axis("RTT (ms)", "rtt_ms", RTTS, [50], "zero-log"),
    load=Load(block_bytes=1024 * KIB, depth=32),
    panels={READ: {"kind": "read"}, WRITE: {"kind": "write"}},
    series=[AUTO, ONE, STOCK, TCP_ONE, TCP_EIGHT],
    sentence=sentence,
    seconds_more=4.0,
    ramp_round_trips=60,
    note=(
        "Socket buffers are Linux's defaults (4 MiB to send, 6 MiB to receive), congestion control "
        "is cubic, the queue holds 2,000 packets. The first second and 60 round trips are not "
        "counted, except with qemu-img bench (stock), which cannot leave them out."
    ),
)
