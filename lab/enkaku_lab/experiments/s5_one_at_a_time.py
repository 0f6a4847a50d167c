"""Ours: one call at a time, as dd and file systems do it, with and without the cache of attach."""

from enkaku_lab.curves import Curves
from enkaku_lab.experiment import KIB, Axis, Experiment, Load, Series
from enkaku_lab.experiments.common import share, times

RTTS_MS = [20, 50, 100, 200]
BLOCKS = [4 * KIB, 32 * KIB, 128 * KIB, 1024 * KIB, 4096 * KIB]
READ, WRITE, RAW_WRITE = {"kind": "read-file"}, {"kind": "write-file"}, {"kind": "write"}
CACHED = {"colour": "#0072B2"}
UNCACHED = {"colour": "#009E73"}
STOCK = {"colour": "#555555"}

SERIES = [
    Series("enkaku-cached", "cache, read", load=READ, marker="o", **CACHED),
    Series("enkaku-cached", "cache, write", load=WRITE, line="--", marker="s", **CACHED),
    Series("enkaku-uncached", "no cache, read", load=READ, marker="o", **UNCACHED),
    Series("enkaku-uncached", "no cache, write", load=WRITE, line="--", marker="s", **UNCACHED),
    Series("tgt-libiscsi", "tgt + libiscsi, read", load=READ, marker="o", **STOCK),
    Series("tgt-libiscsi", "tgt + libiscsi, write", load=RAW_WRITE, line="--", marker="s", **STOCK),
]


def _panel(rtt_ms: int) -> str:
    return f"RTT {rtt_ms} ms"


def sentence(curves: Curves) -> str:
    panel, parts = _panel(50), []
    for what in ("read", "write"):
        worst = curves.get(f"cache, {what}", panel).worst
        if worst is None:
            parts.append(f"{what}: nothing was measured")
            continue
        bare = curves.get(f"no cache, {what}", panel).at(worst.x)
        stock = curves.get(f"tgt + libiscsi, {what}", panel).at(worst.x)
        parts.append(
            f"{what}: at least {share(worst.mbit, curves.limit_mbit)} of the line (at "
            f"{worst.x:g} KiB a call, where it is {times(worst.mbit, bare)} as fast as without "
            f"the cache and {times(worst.mbit, stock)} as stock iSCSI)"
        )
    return f"At {panel} one call at a time has, slow start included, {'; '.join(parts)}."


EXPERIMENT = Experiment(
    name="s5-one",
    title="One call at a time over the long-fat path: sequential, against block size",
    source="ours",
    paper="",
    x=Axis(
        "block size of a call (KiB)",
        "block_bytes",
        BLOCKS,
        [1024 * KIB],
        factor=1 / KIB,
    ),
    load=Load(),
    panels={_panel(rtt): {"rtt_ms": rtt} for rtt in RTTS_MS},
    series=SERIES,
    sentence=sentence,
    repeat_max=2,
    seconds_more=5.0,
    note=(
        "A volume of 512 MiB is read (every byte compared) or written from its start, one call "
        "after the other through FUSE and the kernel's page cache; a write run ends with an fsync, "
        "which counts. Stock reads go through the kernel's read-ahead, stock writes are "
        "qemu-img bench's, one at a time. Congestion control is cubic, the queue holds 2,000 "
        "packets; slow start counts."
    ),
)
