"""What several experiments of one paper share: stacks as series, axes, words of the sentences."""

from enkaku_lab.curves import Curve, Curves
from enkaku_lab.experiment import KIB, Axis, Series

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
RTTS_WIDE = [0, 2, 8, 16, 40, 100, 200]
RTT_AXIS = Axis("RTT (ms)", "rtt_ms", RTTS_WIDE, [0, 8, 100], "zero-log")
RTTS_DETAIL = [0, 2, 4, 8, 16, 40]
RTT_DETAIL_AXIS = Axis("RTT (ms)", "rtt_ms", RTTS_DETAIL, [0, 8, 16], "linear")
LOSSES = [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 5e-1]
LOSS_AXIS = Axis("packet loss probability", "loss", LOSSES, [1e-5, 1e-3, 1e-1])

READ_NOTE = (
    "A file of 512 MiB is read from its start, one call after the other, every byte compared with "
    "what was written; a run that would take longer is ended early (below), and slow start "
    "counts. iSCSI is read through the kernel's page cache and read-ahead (FUSE export "
    "of qemu-storage-daemon, enkaku attach: the raw volume, no file system)."
)
NFS_NOTE = "libnfs has no read-ahead for NFSv4: what kernel clients fetch in advance, it does not."


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
