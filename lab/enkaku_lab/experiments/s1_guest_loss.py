"""S1 with the kernel's NFS and iSCSI in the guest: reads against packet loss, figures 7 and 11."""

from enkaku_lab.claims import Claim, judged, not_measured
from enkaku_lab.curves import Curves
from enkaku_lab.experiment import KIB, MIB, Axis, Experiment, Link, Load, PaperPoint
from enkaku_lab.experiments.common import (
    GUEST_ISCSI,
    GUEST_NFS,
    GUEST_NOTE,
    GUEST_TCP,
    GUEST_UDP,
    GUEST_UDP_NOTE,
    rate,
    times,
    why_not,
)

AT = 1e-3
RPC_MIN_MS = 100
"""The kernel's RPC_RTO_MIN, which cannot be set."""


def sentence(curves: Curves) -> str:
    iscsi, nfs = (curves.get(one.label).at(AT) for one in (GUEST_ISCSI, GUEST_NFS))
    udp = curves.get(GUEST_UDP.label).at(AT)
    return (
        f"At an error rate of 1e-3 the paper's NFS has a third of its iSCSI. Over TCP the kernel's NFS has {rate(nfs)}, open-iscsi "
        f"{rate(iscsi)} ({times(nfs, iscsi)})" + (f", over UDP NFS has {rate(udp)} ({times(udp, iscsi)})." if udp else ".")
    )


def claims(curves: Curves) -> list[Claim]:
    iscsi, nfs, udp = (curves.get(one.label) for one in (GUEST_ISCSI, GUEST_NFS, GUEST_UDP))
    one, bare = iscsi.at(AT), nfs.at(AT)
    flat = [point.mbit for point in iscsi.measured if point.x <= 1e-4]
    return [
        _favoured(one, udp.at(AT), bare, why_not(udp)),
        judged(
            "iSCSI is flat from 0 to 1e-4",
            max(flat) / min(flat) < 1.15 if len(flat) > 1 else None,
            f"open-iscsi: {max(flat) / min(flat):.2f} times between them" if len(flat) > 1 else "",
        ),
    ]


def _favoured(iscsi: float | None, udp: float | None, tcp: float | None, why: str) -> Claim:
    says = "lossy networks favour iSCSI over NFS"
    if iscsi is None or (udp or tcp) is None:
        return judged(says, None, "")
    said = f"at 1e-3 open-iscsi has {rate(iscsi)}, NFS over TCP {rate(tcp)}"
    if udp is None:
        return not_measured(says, f"{said}. UDP, the paper's reason: {why}")
    said += f", over UDP {rate(udp)}, whose client asks again after {RPC_MIN_MS} ms at the least: in the guest's stretched time a 20th of that"
    # What helps NFS cannot be why it loses.
    return judged(says, True, said) if udp < 0.8 * iscsi else not_measured(says, said)


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
    repeat_max=1,
    note=GUEST_NOTE + " RTT 0.2 ms. Packets are lost in both directions, and only after login or mount. Calls of 64 KiB through the page cache." + GUEST_UDP_NOTE,
)
