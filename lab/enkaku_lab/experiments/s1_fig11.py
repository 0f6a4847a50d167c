"""S1, figure 11: NFS against packet errors."""

from enkaku_lab.claims import Claim
from enkaku_lab.curves import Curves
from enkaku_lab.experiment import Experiment, PaperPoint
from enkaku_lab.experiments.common import (
    ATTACH,
    LOSS_AXIS,
    NFS,
    NFS_NOTE,
    READ_NOTE,
    SHRUNK,
    STOCK,
    TCP_1,
    of_nfs,
    rate,
    times,
)
from enkaku_lab.experiments.s1_fig7 import LAN, WAN


def sentence(curves: Curves) -> str:
    at = 1e-3
    nfs, stock, attach = (curves.get(one.label, LAN) for one in (NFS, STOCK, ATTACH))
    return (
        f"At an error rate of 1e-3 the paper's NFS has 88–91 Mbit/s, a third of its iSCSI "
        f"(240–260); here NFS has {rate(nfs.at(at))} and tgt + libiscsi {rate(stock.at(at))} "
        f"without added delay, so NFS has {times(nfs.at(at), stock.at(at))} what iSCSI has; enkaku "
        f"attach has {rate(attach.at(at))}."
    )


def claims(curves: Curves) -> list[Claim]:
    return [
        of_nfs(
            "at an error rate of 1e-3 NFS has 88 to 91 Mbit/s, a third of iSCSI",
            f"it has {rate(curves.get(NFS.label, LAN).at(1e-3))}, tgt + libiscsi {rate(curves.get(STOCK.label, LAN).at(1e-3))}",
        )
    ]


EXPERIMENT = Experiment(
    name="s1-fig11",
    title="NFS: sequential read against packet loss",
    source="Teraoka et al. 2004, figure 11",
    paper="NFS over UDP against packet error rates; 88 to 91 Mbit/s at 1e-3",
    x=LOSS_AXIS,
    panels={LAN: {"rtt_ms": 0.0}, WAN: {"rtt_ms": 20.0}},
    series=[NFS, STOCK, ATTACH, TCP_1],
    points=[PaperPoint("paper", 1e-3, 88, 91)],
    sentence=sentence,
    claims=claims,
    shrunk=SHRUNK,
    repeat_max=2,
    note=f"{READ_NOTE} {NFS_NOTE} Packets are lost in both directions, and only after login; "
    "congestion control is cubic. A gap in a curve means that nothing arrived in the time.",
)
