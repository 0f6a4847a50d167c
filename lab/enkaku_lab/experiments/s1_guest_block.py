"""S1 with the kernel's NFS and iSCSI in the guest: reads against the block size of the calls, figures 3 and 8."""

from enkaku_lab.claims import Claim, judged
from enkaku_lab.curves import Curve, Curves
from enkaku_lab.experiment import KIB, MIB, Axis, Experiment, Link, Load, PaperPoint
from enkaku_lab.experiments.common import GUEST_ISCSI, GUEST_NFS, GUEST_NFS_AHEAD, GUEST_NOTE, GUEST_UDP, GUEST_UDP_NOTE, spread_over

RTT_MS = 2.8


def _spread(curve: Curve) -> float | None:
    rates = [point.mbit for point in curve.measured]
    return max(rates) / min(rates) if len(rates) > 1 else None


def sentence(curves: Curves) -> str:
    iscsi, nfs = (curves.get(one.label) for one in (GUEST_ISCSI, GUEST_NFS))
    return f"Kernel NFS over TCP has {spread_over(nfs)} whatever the block size, open-iscsi {spread_over(iscsi)}."


def claims(curves: Curves) -> list[Claim]:
    papers = GUEST_UDP if curves.get(GUEST_UDP.label).measured else GUEST_NFS
    found = []
    for says, series in (
        ("NFS gives 298 to 305 Mbit/s whatever the block size", papers),
        ("iSCSI gives 101 to 104 Mbit/s whatever the block size", GUEST_ISCSI),
    ):
        curve = curves.get(series.label)
        times = _spread(curve)
        transport = {GUEST_NFS.label: "over TCP: ", GUEST_UDP.label: "over UDP: "}.get(series.label, "")
        said = f"{transport}{spread_over(curve)}, {times:.2f} times between block sizes" if times else ""
        found.append(judged(says, times < 1.15 if times else None, said))
    return found


EXPERIMENT = Experiment(
    name="s1-guest-block",
    title="Kernel NFS and open-iscsi at RTT 2.8 ms: sequential read against block size",
    source="Teraoka et al. 2004, figures 3, 8",
    paper="NFS (over UDP, kernel client with read-ahead) 298 to 305 Mbit/s, iSCSI 101 to 104 Mbit/s, for block sizes of 1 to 256 KB",
    x=Axis("block size of a read call (KiB)", "block_bytes", [KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB], [64 * KIB], factor=1 / KIB),
    link=Link(rtt_ms=RTT_MS, cc="reno"),
    load=Load(connections=1, bytes_max=8 * MIB),
    series=[GUEST_ISCSI, GUEST_NFS, GUEST_NFS_AHEAD, GUEST_UDP],
    points=[PaperPoint("paper", None, 298, 305), PaperPoint("paper", None, 101, 104)],
    sentence=sentence,
    claims=claims,
    shrunk="of the 512 MiB, 8 MiB or what is read in that time",
    repeat_max=1,
    note=GUEST_NOTE + " Through the page cache." + GUEST_UDP_NOTE,
)
