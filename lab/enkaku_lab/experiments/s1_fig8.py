"""S1, figure 8: NFS at RTT 2.8 ms, read in blocks of 1 to 256 KiB."""

from enkaku_lab.claims import Claim
from enkaku_lab.curves import Curves
from enkaku_lab.experiment import Experiment, Link, PaperPoint, Series
from enkaku_lab.experiments.common import (
    ATTACH,
    BLOCK_AXIS,
    NFS,
    NFS_NOTE,
    READ_NOTE,
    SHRUNK,
    of_nfs,
    rate,
    share,
    signed,
    spread_over,
)

RTT_MS = 2.8


def sentence(curves: Curves) -> str:
    nfs, ours = curves.get(NFS.label), curves.get(ATTACH.label)
    if not nfs.measured:
        return "NFS was not measured here."
    first, last = nfs.measured[0], nfs.measured[-1]
    slope = nfs.slope(from_x=1)
    exponent = f" (exponent {signed(slope)})" if slope is not None else ""
    best = max((point.mbit for point in ours.measured), default=None)
    return (
        f"The paper's kernel client gives 298–305 Mbit/s whatever the block size; libnfs, which "
        f"reads nothing ahead, goes from {rate(first.mbit)} at {first.x:g} KiB to "
        f"{rate(last.mbit)} at {last.x:g} KiB{exponent}; enkaku attach, behind the kernel's "
        f"read-ahead, reaches {rate(best)} at best, {share(best, curves.limit_mbit)} of the line."
    )


def claims(curves: Curves) -> list[Claim]:
    return [
        of_nfs(
            "NFS gives 298 to 305 Mbit/s whatever the block size",
            spread_over(curves.get(NFS.label)),
        )
    ]


EXPERIMENT = Experiment(
    name="s1-fig8",
    title="NFS at RTT 2.8 ms: sequential read against block size",
    source="Teraoka et al. 2004, figure 8",
    paper="NFS over UDP, a kernel client with read-ahead: 298 to 305 Mbit/s for block sizes of 1 to 256 KB",
    x=BLOCK_AXIS,
    link=Link(rtt_ms=RTT_MS),
    series=[
        NFS,
        ATTACH,
        Series("tcp", "plain TCP, 1 connection", load={"connections": 1}, flat=True),
    ],
    points=[PaperPoint("paper", None, 298, 305)],
    sentence=sentence,
    claims=claims,
    shrunk=SHRUNK,
    repeat_max=2,
    note=f"{READ_NOTE} {NFS_NOTE}",
)
