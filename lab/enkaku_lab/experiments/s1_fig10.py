"""S1, figure 10: NFS against RTT in detail, 0 to 20 ms."""

from enkaku_lab.claims import Claim
from enkaku_lab.curves import Curves
from enkaku_lab.experiment import Experiment, PaperPoint
from enkaku_lab.experiments.common import (
    ATTACH,
    NFS,
    NFS_NOTE,
    READ_NOTE,
    RTT_DETAIL_AXIS,
    SHRUNK,
    STOCK,
    TCP_1,
    nearest,
    of_nfs,
    rate,
    share,
    times,
)


def sentence(curves: Curves) -> str:
    (at, nfs), (_, stock), (_, attach) = (
        nearest(curves.get(one.label), 16) for one in (NFS, STOCK, ATTACH)
    )
    return (
        f"At 16 ms the paper's NFS has 12.5 times its iSCSI (about 500 to 40 Mbit/s); at {at:g} ms "
        f"libnfs has {times(nfs, stock)} tgt + libiscsi ({rate(nfs)} to {rate(stock)}), and "
        f"enkaku attach {rate(attach)}, {share(attach, curves.limit_mbit)} of the line."
    )


def claims(curves: Curves) -> list[Claim]:
    return [
        of_nfs(
            "at RTT 16 ms NFS has about 500 Mbit/s, iSCSI about 40",
            f"it has {rate(curves.get(NFS.label).at(16))}, tgt + libiscsi {rate(curves.get(STOCK.label).at(16))}",
        )
    ]


EXPERIMENT = Experiment(
    name="s1-fig10",
    title="NFS: sequential read against RTT, in detail",
    source="Teraoka et al. 2004, figure 10",
    paper="figure 9 from 0 to 20 ms (NFS over UDP, a kernel client): no clear drop; about 500 Mbit/s at 16 ms",
    x=RTT_DETAIL_AXIS,
    series=[NFS, STOCK, ATTACH, TCP_1],
    points=[PaperPoint("paper", 16, 500, 500)],
    sentence=sentence,
    claims=claims,
    shrunk=SHRUNK,
    log_y=False,
    note=f"{READ_NOTE} {NFS_NOTE} Block size of the calls 64 KiB.",
)
