"""S1, figure 9: NFS against RTT, 0 to 200 ms."""

from enkaku_lab.claims import Claim
from enkaku_lab.curves import Curves
from enkaku_lab.experiment import Experiment, PaperPoint
from enkaku_lab.experiments.common import (
    ATTACH,
    NFS,
    NFS_NOTE,
    READ_NOTE,
    RTT_AXIS,
    SHRUNK,
    STOCK,
    TCP_1,
    falls,
    last_x,
    of_nfs,
    rate,
    share,
    times,
)


def sentence(curves: Curves) -> str:
    nfs, attach = curves.get(NFS.label), curves.get(ATTACH.label)
    last = last_x(curves)
    return (
        f"The paper's NFS holds about 500 Mbit/s at 16 ms, far above its iSCSI; here {falls(nfs)}, "
        f"because libnfs asks for one block at a time, and {falls(attach)}. At {last:g} ms NFS "
        f"reaches {rate(nfs.at(last))}, enkaku attach {rate(attach.at(last))} "
        f"({times(attach.at(last), nfs.at(last))} that, "
        f"{share(attach.at(last), curves.limit_mbit)} of the line)."
    )


def claims(curves: Curves) -> list[Claim]:
    return [
        of_nfs(
            "NFS shows no clear drop to RTT 20 ms and falls sharply beyond",
            falls(curves.get(NFS.label)),
        )
    ]


EXPERIMENT = Experiment(
    name="s1-fig9",
    title="NFS: sequential read against RTT",
    source="Teraoka et al. 2004, figure 9",
    paper="NFS over UDP, a kernel client with read-ahead, RTT 0 to 200 ms: no clear drop to 20 ms, then sharp; about "
    "500 Mbit/s at 16 ms",
    x=RTT_AXIS,
    series=[NFS, STOCK, ATTACH, TCP_1],
    points=[PaperPoint("paper", 16, 500, 500)],
    sentence=sentence,
    claims=claims,
    shrunk=SHRUNK,
    note=f"{READ_NOTE} {NFS_NOTE} Block size of the calls 64 KiB.",
)
