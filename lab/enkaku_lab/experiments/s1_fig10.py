"""S1, figure 10: NFS against RTT in detail, 0 to 40 ms."""

from enkaku_lab.curves import Curves
from enkaku_lab.experiment import Experiment, PaperPoint
from enkaku_lab.experiments.common import (
    ATTACH,
    NFS,
    NFS_NOTE,
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
    (at, nfs), (_, stock), (_, attach) = (
        nearest(curves.get(one.label), 16) for one in (NFS, STOCK, ATTACH)
    )
    return (
        f"At 16 ms the paper's NFS has 12.5 times its iSCSI (about 500 to 40 Mbit/s); at {at:g} ms "
        f"libnfs has {times(nfs, stock)} tgt + libiscsi ({rate(nfs)} to {rate(stock)}), and "
        f"enkaku attach {rate(attach)}, {share(attach, curves.limit_mbit)} of the line."
    )


EXPERIMENT = Experiment(
    name="s1-fig10",
    title="NFS: sequential read against RTT, in detail",
    source="Teraoka et al. 2004, figure 10",
    paper="the first 40 ms of figure 9; about 500 Mbit/s at 16 ms",
    x=RTT_DETAIL_AXIS,
    series=[NFS, STOCK, ATTACH, TCP_1],
    points=[PaperPoint("paper", 16, 500, 500)],
    sentence=sentence,
    log_y=False,
    note=f"{READ_NOTE} {NFS_NOTE} Block size of the calls 64 KiB.",
)
