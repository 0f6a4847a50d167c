"""Ours: one call at a time for so long that slow start hardly counts."""

from enkaku_lab.curves import Curves
from enkaku_lab.experiment import FILE_BYTES, KIB, LONG, Axis, Experiment, Link, Load, Series
from enkaku_lab.experiments.common import share
from enkaku_lab.experiments.s5_one_at_a_time import BLOCKS, CACHED, READ, WRITE

RTT_MS = 50.0
BYTES = LONG * FILE_BYTES

SERIES = [
    Series("enkaku-cached", "cache, read", load=READ, marker="o", **CACHED),
    Series("enkaku-cached", "cache, write", load=WRITE, line="--", marker="s", **CACHED),
    Series("enkaku-gathered", "cache and the kernel's, write", load=WRITE, line=":", marker="D"),
]


def sentence(curves: Curves) -> str:
    parts = []
    for series in SERIES:
        worst = curves.get(series.label).worst
        parts.append(
            f"{series.label}: nothing was measured"
            if worst is None
            else f"{series.label}: at least {share(worst.mbit, curves.limit_mbit)} of the line "
            f"(at {worst.x:g} KiB a call)"
        )
    return f"One call at a time has, slow start included, {'; '.join(parts)}."


EXPERIMENT = Experiment(
    name="s5-long",
    title=f"One call at a time, {BYTES >> 30} GiB over RTT {RTT_MS:g} ms: against block size",
    source="ours",
    paper="",
    x=Axis("block size of a call (KiB)", "block_bytes", BLOCKS, [4 * KIB], factor=1 / KIB),
    link=Link(rtt_ms=RTT_MS),
    load=Load(bytes_max=BYTES),
    series=SERIES,
    sentence=sentence,
    repeat_max=2,
    seconds_more=60.0,
    log_y=False,
    note=(
        "A volume of 2 GiB is read (every byte compared), or one of 512 MiB is written from its "
        "start, four times, one call after the other through FUSE and the kernel's page cache; a "
        "write run ends with an fsync, which counts. With `--kernel-write-back` (docs/cache.md) the "
        "kernel gathers small writes. Congestion control is cubic, the queue holds 2,000 packets; "
        "slow start counts."
    ),
)
