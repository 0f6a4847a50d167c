"""S4, figure 3: iSCSI against SMB at 100 Mbit/s, 32 KiB per call, small receive windows."""

from enkaku_lab.claims import Claim, judged, not_measured
from enkaku_lab.curves import Curves
from enkaku_lab.experiment import KIB, Axis, Experiment, Link, Load, Series
from enkaku_lab.experiments.common import ATTACH, STOCK, falls, last_x, rate, share, times

SMALL, LARGE = "receive window 64 KB", "receive window 128 KB"
WIDER = "receive window 84 KB", "receive window 171 KB"
"""What tcp_rmem of 128k and 256k made of it, when windows were taken for half of the buffer."""
SMB, SMB_1 = "SMB, libsmbclient", "SMB 1, libsmbclient"
BY_64_KIB = Series(
    "tgt-libiscsi",
    "tgt + libiscsi, 64 KiB a command",
    load={"kind": "read", "block_bytes": 64 * KIB, "depth": 1},
    line="--",
)
"""MaxTransferLength 64 KB, and nothing asked for ahead."""
SMALL_ENOUGH_RTT_MS = 24
"""A delay of about 12 ms each way: up to there iSCSI is ahead in the paper, with 64 KB."""
ANOTHER_ROUND = 1.2
"""A command is two round trips instead of one, beside 6 ms on the line and the target's time."""


def sentence(curves: Curves) -> str:
    small, _ = _windows(curves)
    names = _smb(curves), _iscsi(curves), ATTACH.label
    smb, stock, attach = (curves.get(name, small) for name in names)
    last = last_x(curves)
    return (
        f"At RTT {last:g} ms and a {small} iSCSI ({stock.series.label}) has "
        f"{rate(stock.at(last))}, SMB {rate(smb.at(last))} "
        f"({times(stock.at(last), smb.at(last))}), enkaku attach {rate(attach.at(last))} "
        f"({share(attach.at(last), curves.limit_mbit)} of the line). {falls(smb, 8)}; "
        f"{falls(stock, 8)}."
    )


def _windows(curves: Curves) -> tuple[str, str]:
    """The names of the panels with the smaller and the larger window."""
    return WIDER if WIDER[0] in curves.experiment.panels else (SMALL, LARGE)


def _smb(curves: Curves) -> str:
    """The paper's, where it was measured."""
    return SMB_1 if _was_measured(curves, SMB_1) else SMB


def _iscsi(curves: Curves) -> str:
    """With requests as long as the paper's, where they were measured."""
    return (BY_64_KIB if _was_measured(curves, BY_64_KIB.label) else STOCK).label


def _was_measured(curves: Curves, label: str) -> bool:
    return any(curve.measured and curve.series.label == label for curve in curves.curves)


def _ahead(curves: Curves, panel: str) -> dict[float, float]:
    """RTT → what iSCSI has, as a multiple of SMB's."""
    stock, smb = curves.get(_iscsi(curves), panel), curves.get(_smb(curves), panel)
    rates = {point.x: (point.mbit, smb.at(point.x)) for point in stock.measured}
    return {x: ours / theirs for x, (ours, theirs) in rates.items() if theirs}


def claims(curves: Curves) -> list[Claim]:
    small, large = panels = _windows(curves)
    ahead = [_ahead(curves, panel) for panel in panels]
    large_says = "with a window of 128 KB iSCSI is ahead at every delay"
    small_says = "with one of 64 KB iSCSI is ahead only up to a delay of about 12 ms each way"
    said = [
        f"iSCSI has {min(some.values()):.1f} to {max(some.values()):.1f} times SMB's with a {panel}"
        if some
        else ""
        for panel, some in zip(panels, ahead, strict=True)
    ]
    if panels == WIDER:
        found = [
            not_measured(large_says, f"the window was wider; {said[1]}, at every delay"),
            not_measured(small_says, f"64 KB and a header fit into this window; {said[0]}"),
        ]
    else:
        every, few = ahead[1], ahead[0]
        near = {x for x in few if x <= SMALL_ENOUGH_RTT_MS}
        holds = all(few[x] > 1 for x in near) and all(few[x] < 1 for x in few.keys() - near)
        found = [
            judged(large_says, all(one > 1 for one in every.values()) if every else None, said[1]),
            judged(small_says, holds if few else None, said[0]),
        ]
    one, other = (curves.get(_smb(curves), panel) for panel in panels)
    pairs = [(a, b) for point in one.measured if (a := point.mbit) and (b := other.at(point.x))]
    apart = max((max(a, b) / min(a, b) for a, b in pairs), default=None)
    return [
        *found,
        *_another_round(curves, panels),
        judged(
            "SMB does not care about the window",
            apart < 1.1 if apart else None,
            f"at most {apart:.2f} times between a {small} and a {large}" if apart else "",
        ),
    ]


def _another_round(curves: Curves, panels: tuple[str, str]) -> list[Claim]:
    """Only of requests as long as the paper's: what is read ahead does not wait for each answer."""
    if panels == WIDER or not _was_measured(curves, BY_64_KIB.label):
        return []
    small, large = (curves.get(BY_64_KIB.label, panel) for panel in panels)
    pairs = {point.x: (point.mbit, large.at(point.x)) for point in small.measured if point.x}
    gains = [wide / narrow for narrow, wide in pairs.values() if narrow and wide]
    return [
        judged(
            "64 KB of data and the header of their answer do not fit into 64 KB and take another round",
            min(gains) > ANOTHER_ROUND if gains else None,
            f"commands of 64 KiB, one at a time, have {min(gains):.1f} to {max(gains):.1f} times as much with a "
            f"{panels[1]}, by RTT" if gains else "",
        )
    ]


EXPERIMENT = Experiment(
    name="s4-fig3",
    title="iSCSI and SMB at 100 Mbit/s: sequential read against RTT",
    source="Isamu et al. 2008, figure 3",
    paper="512 MB in calls of 32 KB, delay 0, 4 … 24 ms each way. With a receive window of 128 KB iSCSI is ahead at "
    "every delay; with 64 KB only up to about 12 ms, because 64 KB of data and the response's header do not fit into "
    "it; SMB does not care about the window",
    x=Axis("RTT (ms)", "rtt_ms", [0, 8, 16, 24, 32, 40, 48], [48], "linear"),
    link=Link(rate="100mbit"),
    load=Load(block_bytes=32 * KIB),
    panels={
        # Without scaling a window has 65,535 bytes, whatever the buffer; else Linux 6.18 makes
        # about two thirds
        # of it: 84 KB of 128 KiB, 130,432 bytes of 196 KiB, 171 KB of 256 KiB (snd_wnd of ss at the
        # sender).
        SMALL: {"rmem": "4k 256k 256k", "window_scaling": False},
        LARGE: {"rmem": "4k 197k 197k"},
    },
    series=[
        Series("smb", SMB),
        Series("smb1", SMB_1, line="--"),
        STOCK,
        BY_64_KIB,
        ATTACH,
        Series("tcp", "plain TCP, 1 connection", load={"connections": 1}),
    ],
    sentence=sentence,
    claims=claims,
    shrunk="of the 512 MB, what is read in that time",
    log_y=False,
    repeat_max=2,
    seconds_more=1,
    note=(
        "A file of 512 MiB is read in calls of 32 KiB, each byte compared with what was written, "
        "and the run ended early (below). The receive windows are those of both ends: without window scaling, "
        "and by tcp_rmem. SMB is version 3, and 1 as in the paper, where it says so. libsmbclient sends a "
        "request per call. iSCSI is read in two ways: through the kernel's read-ahead, which asks for more than "
        "64 KB, and as the paper has it, by commands of 64 KiB, one at a time (qemu-img bench, which compares nothing). "
        "enkaku attach has several connections, each with a receive window of its own; all others "
        "have one."
    ),
)
