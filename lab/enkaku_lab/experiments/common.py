"""What several experiments of one paper share: stacks as series, axes, words of the sentences."""

from dataclasses import dataclass

from enkaku_lab.claims import Claim, judged, not_measured
from enkaku_lab.curves import Curve, Curves
from enkaku_lab.experiment import GUEST, KIB, STRETCH, Axis, Series

PIPELINED = {"kind": "read", "block_bytes": 128 * KIB, "depth": 256}
"""32 MiB under way, more than the line holds at 200 ms (25 MB): commands never bind."""

STOCK = Series("tgt-libiscsi", "tgt + libiscsi")
ATTACH = Series("enkaku", "enkaku attach")
COPY = Series("enkaku-pipelined", "enkaku copy, 256 × 128 KiB", load=PIPELINED, line="--")
NFS = Series("nfs", "NFSv4, libnfs")
TCP_1 = Series("tcp", "plain TCP, 1 connection", load={"connections": 1})
TCP_4 = Series("tcp", "plain TCP, 4 connections", load={"connections": 4}, line="--")

BLOCKS = [KIB * 2**power for power in range(9)]
BLOCK_AXIS = Axis(
    "block size of a read call (KiB)",
    "block_bytes",
    BLOCKS,
    [KIB, 16 * KIB, 256 * KIB],
    factor=1 / KIB,
)
RTTS_WIDE = [0, 2, 8, 16, 20, 40, 100, 200]
RTT_AXIS = Axis("RTT (ms)", "rtt_ms", RTTS_WIDE, [0, 8, 100], "zero-log")
RTTS_DETAIL = [0, 2, 4, 8, 12, 16, 20]
RTT_DETAIL_AXIS = Axis("RTT (ms)", "rtt_ms", RTTS_DETAIL, [0, 8, 16], "linear")
"""What the paper shows in detail: 0 to 20 ms."""
LOSSES = [0, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 5e-1]
LOSS_AXIS = Axis("packet loss probability", "loss", LOSSES, [0, 1e-3, 1e-1], "zero-log")

READ_NOTE = (
    "A file of 512 MiB is read from its start, one call after the other, every byte compared with "
    "what was written; a run that would take longer is ended early (below), and slow start "
    "counts. iSCSI is read through the kernel's page cache and read-ahead (FUSE export "
    "of qemu-storage-daemon, enkaku attach: the raw volume, no file system)."
)
SHRUNK = "of the 512 MiB, what is read in that time"
# The paper has a curve for each block size, which lie on one another; the line of 64 KiB is STOCK.
STOCK_BLOCKS = [
    Series(
        "tgt-libiscsi",
        f"tgt + libiscsi, {kib} KiB a call",
        load={"block_bytes": kib * KIB},
        line=line,
        marker=marker,
    )
    for kib, line, marker in ((1, ":", "<"), (256, "--", ">"))
]
# The TCP of 2004: no window scaling, so at most 64 KB under way.
STOCK_2004 = Series(
    "tgt-libiscsi",
    "tgt + libiscsi, no window scaling",
    link={"window_scaling": False},
    line="-.",
    marker="d",
    colour="#8C510A",
)
NFS_NOTE = (
    "The paper's NFS is a kernel client with read-ahead over UDP. Here it is NFSv4 over TCP and "
    "libnfs, which reads nothing ahead for NFSv4: what kernel clients fetch in advance, it does not."
)

GUEST_ISCSI = Series(f"{GUEST}iscsi", "open-iscsi + LIO")
GUEST_ISCSI_AHEAD = Series(f"{GUEST}iscsi-ahead", "open-iscsi + LIO, read-ahead 4 MiB", line="--")
GUEST_NFS = Series(f"{GUEST}nfs", "kernel NFSv3, TCP")
GUEST_NFS_AHEAD = Series(f"{GUEST}nfs-ahead", "kernel NFSv3, TCP, read-ahead 4 MiB", line="--")
GUEST_UDP = Series(f"{GUEST}nfs-udp", "kernel NFSv3, UDP")
GUEST_UDP_AHEAD = Series(f"{GUEST}nfs-udp-ahead", "kernel NFSv3, UDP, read-ahead 4 MiB", line="--")
GUEST_TCP = Series(f"{GUEST}tcp", "plain TCP, 1 connection", load={"connections": 1})
GUEST_NOTE = (
    f"Both ends are in a guest with a stock Debian kernel whose clock counts instructions; the line and all times in it are {STRETCH} times "
    "longer and divided again (docs/lab.md). TCP's least timeout is stretched, too; what the kernel has in fixed time and cannot be set is "
    f"{STRETCH} times shorter than in the paper's network: delayed acknowledgements (2 ms) and timer ticks. Its line (netem) counts 1514 bytes of a "
    "full packet, not the 1538 that the limit is drawn for: up to 956 Mbit/s pass."
)

GUEST_UDP_NOTE = (
    " Debian's server takes NFS over UDP, its client refuses (“Unsupported transport protocol udp”, CONFIG_NFS_DISABLE_UDP_SUPPORT); where there is a "
    "curve for UDP, the client's module was built once more without that option (docs/lab.md). It asks again after some 100 ms, which cannot be stretched: from an "
    "RTT of 8 ms on that is before an answer can have come, so UDP is not judged there."
)


def why_not(curve: Curve) -> str:
    """In the words of what refused it."""
    told = next((point.why for point in curve.points if point.mbit is None and point.why), "")
    return f"the client refuses (“{told.partition(': ')[2] or told}”; Debian's kernels are built without)" if "Unsupported" in told else told or "it was not run"


def rate(mbit: float | None) -> str:
    if mbit is None:
        return "nothing"
    digits = 0 if mbit >= 10 else 1 if mbit >= 1 else 2
    return f"{mbit:.{digits}f} Mbit/s"


def times(one: float | None, other: float | None) -> str:
    if not one or not other:
        return "an unknown multiple"
    ratio = one / other
    return f"{ratio:.0f} times" if ratio >= 10 else f"{ratio:.2g} times"


def share(mbit: float | None, limit_mbit: float) -> str:
    return "nothing" if mbit is None else f"{mbit / limit_mbit:.0%}"


def signed(value: float) -> str:
    return f"{value:.2f}".replace("-", "−")


def falls(curve: Curve, from_x: float = 2) -> str:
    """How a curve falls with x, in words and as the exponent."""
    slope = curve.slope(from_x)
    if slope is None:
        return f"{curve.series.label} was not measured at enough points"
    if slope < -1.25:
        word = "falls faster than 1/RTT"
    elif slope < -0.85:
        word = "falls as 1/RTT"
    elif slope < -0.4:
        word = "falls, but slower than 1/RTT"
    else:
        word = "hardly falls"
    return f"{curve.series.label} {word} (exponent {signed(slope)} from {from_x:g} ms on)"


def spread_over(curve: Curve) -> str:
    """Lowest to highest median over all x."""
    rates = [point.mbit for point in curve.measured]
    if not rates:
        return "nothing"
    return f"{min(rates):.0f}–{max(rates):.0f} Mbit/s" if rates else "nothing"


NOT_THE_PAPERS_NFS = "NFSv4 over TCP through a client without read-ahead (libnfs) is not the paper's kernel NFS over UDP"


def of_nfs(says: str, found: str) -> Claim:
    """The paper's NFS is not here, so nothing that it did is confirmed or refuted."""
    return not_measured(says, f"{NOT_THE_PAPERS_NFS}; {found}")


@dataclass(frozen=True)
class OneRequest:
    """What a curve against RTT would be if one request of a size were under way at a time: a
    request takes the round trip and `more_ms`."""

    request_kib: float
    more_ms: float

    def mbit(self, rtt_ms: float) -> float:
        return self.request_kib * KIB * 8 / 1e3 / (rtt_ms + self.more_ms)


def one_request(points: list[tuple[float, float]]) -> OneRequest | None:
    """Least squares of 1/rate (ms per Mbit) against the RTT in ms; None below two points or without
    a rise."""
    points = [(x, 1e3 / mbit) for x, mbit in points if mbit]
    if len(points) < 2:
        return None
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    across = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / across if across else 0.0
    if slope <= 0:
        return None
    bits = 1e6 / slope
    return OneRequest(bits / 8 / KIB, (mean_y - slope * mean_x) / slope)


def one_request_of(curve: Curve) -> OneRequest | None:
    """Of the points of a curve against RTT up to 40 ms: beyond, slow start is a large part of a
    short run."""
    return one_request([(point.x, point.mbit) for point in curve.measured if 0 < point.x <= 40])


def falls_as_rtt(curve: Curve, says: str, from_x: float = 2) -> Claim:
    """“1/RTT”, by the exponent."""
    slope = curve.slope(from_x)
    if slope is None:
        return judged(says, None, f"{curve.series.label} was not measured at enough points")
    return judged(
        says,
        -1.15 <= slope <= -0.85,
        f"{curve.series.label}: exponent {signed(slope)} from {from_x:g} ms on",
    )


def no_block_size(curves: Curves, panel: str | None = None) -> Claim:
    """“The block size of the calls does not matter”: the curves of the sizes against one another.
    """
    says = "the curves of all block sizes lie on one another"
    mine = [curves.get(one.label, panel) for one in (STOCK, *STOCK_BLOCKS)]
    if not all(curve.measured for curve in mine):
        return not_measured(
            says, "one block size only, 64 KiB (s1-fig3 has them all at RTT 2.8 ms)"
        )
    worst = max(
        max(rates) / min(rates)
        for x in {point.x for point in mine[0].measured}
        if len(rates := [rate for curve in mine if (rate := curve.at(x))]) > 1
    )
    return judged(
        says, worst < 1.25, f"at most {worst:.2f} times between 1, 64 and 256 KiB at one x"
    )


def last_x(curves: Curves) -> float:
    return max(curves.experiment.values(curves.pace)) * curves.experiment.x.factor


def nearest(curve: Curve, x: float) -> tuple[float, float | None]:
    """The measured point next to x: where, and Mbit/s."""
    if not curve.measured:
        return x, None
    point = min(curve.measured, key=lambda one: abs(one.x - x))
    return point.x, point.mbit


def threshold(curve: Curve, share_of_first: float = 0.5) -> float | None:
    """The first x at which less than this share of the first point is left."""
    if not curve.measured:
        return None
    first = curve.measured[0].mbit
    return next((p.x for p in curve.points if (p.mbit or 0) < share_of_first * first), None)
