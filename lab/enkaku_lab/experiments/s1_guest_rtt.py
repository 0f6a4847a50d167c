"""S1 with the kernel's NFS and iSCSI in the guest: reads against RTT, figures 5, 9 and 10."""

from enkaku_lab.claims import Claim, judged
from enkaku_lab.curves import Curve, Curves
from enkaku_lab.experiment import KIB, MIB, Axis, Experiment, Link, Load, PaperPoint
from enkaku_lab.experiments.common import (
    GUEST_ISCSI,
    GUEST_ISCSI_AHEAD,
    GUEST_NFS,
    GUEST_NFS_AHEAD,
    GUEST_NOTE,
    GUEST_TCP,
    GUEST_UDP,
    GUEST_UDP_AHEAD,
    GUEST_UDP_NOTE,
    nearest,
    one_request_of,
    rate,
    times,
    why_not,
)

AT_MS = 16
TOO_SOON = ", whose client asks again after some 100 ms, which cannot be stretched: here before an answer can have come"
KNEE_MS = (2, 16, 100)
"""Before what the paper shows, at its end, and far behind it."""


def sentence(curves: Curves) -> str:
    iscsi, nfs, ahead = (nearest(curves.get(one.label), AT_MS) for one in (GUEST_ISCSI, GUEST_NFS, GUEST_NFS_AHEAD))
    return (
        f"At {iscsi[0]:g} ms the paper's NFS has 12.5 times its iSCSI. The kernel's NFS over TCP has {rate(nfs[1])}, open-iscsi "
        f"{rate(iscsi[1])} ({times(nfs[1], iscsi[1])}), both with Linux's read-ahead of 128 KiB; with 4 MiB of it NFS has {rate(ahead[1])}."
    )


def claims(curves: Curves) -> list[Claim]:
    iscsi, nfs, udp = (curves.get(one.label) for one in (GUEST_ISCSI, GUEST_NFS, GUEST_UDP))
    far, near, udp_near = (curves.get(one.label) for one in (GUEST_ISCSI_AHEAD, GUEST_NFS_AHEAD, GUEST_UDP_AHEAD))
    at, one = nearest(iscsi, AT_MS)
    ahead = near.at(at)
    faster = "below RTT 20 ms NFS is faster (16 ms: NFS about 500 Mbit/s, iSCSI about 40)"
    said = ""
    if one and ahead:
        said = f"500 Mbit/s at 16 ms are 1 MB read ahead. With 4 MiB of it NFS over TCP has {rate(ahead)} at {at:g} ms, open-iscsi as installed (128 KiB) "
        said += f"{rate(one)}. It is the read-ahead and not NFS: with 128 KiB, too, NFS has {rate(nfs.at(at))}; open-iscsi with 4 MiB {rate(far.at(at))}. "
        said += f"Over UDP NFS has {rate(udp.at(at))} and {rate(udp_near.at(at))}{TOO_SOON}" if udp.measured else f"UDP: {why_not(udp)}"
    fit = one_request_of(iscsi)
    return [
        judged(faster, ahead > 2 * one if one and ahead else None, said),
        _knee(near),
        judged(
            "iSCSI's cause: one request for each round trip",
            None if fit is None else fit.request_kib < 300,
            f"one request of {fit.request_kib:.0f} KiB per RTT {'+' if fit.more_ms >= 0 else '−'} {abs(fit.more_ms):.2f} ms fits open-iscsi, whose read-ahead is 128 KiB, up to 40 ms"
            if fit
            else "",
        ),
    ]


def _knee(curve: Curve) -> Claim:
    """With much read ahead: the paper's client had 1 MB under way at 16 ms."""
    near, knee, far = (curve.at(x) for x in KNEE_MS)
    return judged(
        "NFS shows no clear drop to RTT 20 ms and falls sharply beyond",
        knee > 0.8 * near and far < 0.5 * knee if near and knee and far else None,
        f"over TCP with a read-ahead of 4 MiB: {rate(near)} at {KNEE_MS[0]} ms, {rate(knee)} at {KNEE_MS[1]}, {rate(far)} at {KNEE_MS[2]}",
    )


EXPERIMENT = Experiment(
    name="s1-guest-rtt",
    title="Kernel NFS and open-iscsi: sequential read against RTT",
    source="Teraoka et al. 2004, figures 5, 9, 10",
    paper="NFS (over UDP, kernel client) does not drop clearly up to 20 ms, then sharply; iSCSI falls as 1/RTT: 16 ms: about 500 and 40 Mbit/s",
    x=Axis("RTT (ms)", "rtt_ms", [2, 8, 16, 40, 100], [16], "log"),
    link=Link(cc="reno"),
    load=Load(block_bytes=64 * KIB, connections=1, bytes_max=24 * MIB),
    series=[GUEST_ISCSI, GUEST_ISCSI_AHEAD, GUEST_NFS, GUEST_NFS_AHEAD, GUEST_UDP, GUEST_UDP_AHEAD, GUEST_TCP],
    points=[PaperPoint("paper", 16, 500, 500), PaperPoint("paper", 16, 40, 40)],
    sentence=sentence,
    claims=claims,
    shrunk="of the 512 MiB, 24 MiB or what is read in that time",
    seconds_more=-0.9,
    repeat_max=1,
    note=GUEST_NOTE + " A file (NFS) or the raw disk (iSCSI) is read in calls of 64 KiB through the page cache, every word compared. Slow start counts." + GUEST_UDP_NOTE,
)
