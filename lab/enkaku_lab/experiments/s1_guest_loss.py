"""S1 with the kernel's NFS and iSCSI in the guest: reads against packet loss, figures 7 and 11."""

from enkaku_lab.claims import Claim, judged
from enkaku_lab.curves import Curves
from enkaku_lab.experiment import KIB, MIB, Axis, Experiment, Link, Load, PaperPoint
from enkaku_lab.experiments.common import (
    GUEST_ISCSI,
    GUEST_NFS,
    GUEST_NOTE,
    GUEST_TCP,
    GUEST_UDP,
    rate,
    times,
    why_not,
)

AT = 1e-3


def sentence(curves: Curves) -> str:
    iscsi, nfs = (curves.get(one.label).at(AT) for one in (GUEST_ISCSI, GUEST_NFS))
    return (
        f"At an error rate of 1e-3 the paper's NFS has a third of its iSCSI. Over TCP the kernel's NFS has {rate(nfs)}, open-iscsi "
        f"{rate(iscsi)} ({times(nfs, iscsi)})."
    )


def claims(curves: Curves) -> list[Claim]:
    iscsi, nfs, udp = (curves.get(one.label) for one in (GUEST_ISCSI, GUEST_NFS, GUEST_UDP))
    one, other = iscsi.at(AT), (udp if udp.measured else nfs).at(AT)
    what = "over UDP" if udp.measured else "over TCP"
    said = ""
    if one and other:
        said = f"at 1e-3 NFS {what} has {rate(other)}, open-iscsi {rate(one)}"
        said += "" if udp.measured else f". UDP, the paper's reason: {why_not(udp)}"
    flat = [point.mbit for point in iscsi.measured if point.x <= 1e-4]
    return [
        judged("lossy networks favour iSCSI over NFS", other < 0.8 * one if one and other else None, said),
        judged(
            "iSCSI is flat from 0 to 1e-4",
            max(flat) / min(flat) < 1.15 if len(flat) > 1 else None,
            f"open-iscsi: {max(flat) / min(flat):.2f} times between them" if len(flat) > 1 else "",
        ),
    ]


EXPERIMENT = Experiment(
    name="s1-guest-loss",
    title="Kernel NFS and open-iscsi: sequential read against packet loss",
    source="Teraoka et al. 2004, figures 7, 11",
    paper="without added delay; from 1e-4 on both fall: at 1e-3 iSCSI (TCP) has 240 to 260, NFS (UDP) 88 to 91 Mbit/s",
    x=Axis("packet loss probability", "loss", [0, 1e-4, 1e-3, 1e-2], [0, 1e-3], "zero-log"),
    link=Link(rtt_ms=0.2, cc="reno"),
    load=Load(block_bytes=64 * KIB, connections=1, bytes_max=32 * MIB),
    series=[GUEST_ISCSI, GUEST_NFS, GUEST_UDP, GUEST_TCP],
    points=[PaperPoint("paper", 1e-3, 240, 260), PaperPoint("paper", 1e-3, 88, 91)],
    sentence=sentence,
    claims=claims,
    shrunk="of the 512 MiB, 32 MiB or what is read in that time",
    seconds_more=-0.7,
    repeat_max=1,
    note=GUEST_NOTE + " RTT 0.2 ms. Packets are lost in both directions, and only after login or mount. Calls of 64 KiB through the page cache.",
)
