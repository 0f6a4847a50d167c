"""S1's future work: a local disk and a remote one as a mirror, against the block size of a call."""

from enkaku_lab.curves import Curves
from enkaku_lab.experiment import KIB, Axis, Experiment, Load, Series
from enkaku_lab.experiments.common import BLOCKS, rate, times

RTTS_MS = [2.8, 50]
READ, WRITE = {"kind": "read-file"}, {"kind": "write-file"}
SERIES = [
    Series("mirror-paused", "local only", load=WRITE, colour="#555555", marker="o"),
    Series("enkaku-uncached", "remote only", load=WRITE, colour="#D55E00", marker="v"),
    Series("mirror-sync", "mirror, sync", load=WRITE, colour="#009E73", marker="s"),
    Series("mirror-async", "mirror, async", load=WRITE, colour="#0072B2", marker="^"),
    Series("qemu-mirror", "QEMU mirror, write-blocking", load=WRITE, colour="#CC79A7", marker="x"),
    Series("qemu-mirror-behind", "QEMU mirror, background", load=WRITE, colour="#E69F00", marker="+"),
]
READS = [
    Series("mirror-paused", "local only, read", load=READ, colour="#555555", line="--"),
    Series("enkaku", "remote only, read", load=READ, colour="#D55E00", line="--"),
    Series("mirror-sync", "mirror, read", load=READ, colour="#009E73", line="--"),
]


def panel(rtt_ms: float) -> str:
    return f"RTT {rtt_ms:g} ms"


def sentence(curves: Curves) -> str:
    parts = []
    for rtt_ms in RTTS_MS:
        at = curves.get("mirror, sync", panel(rtt_ms)).worst
        if at is None:
            parts.append(f"{panel(rtt_ms)}: nothing was measured")
            continue
        local, remote = (
            curves.get(label, panel(rtt_ms)).at(at.x)
            for label in ("local only", "remote only")
        )
        parts.append(
            f"at {panel(rtt_ms)} and {at.x:g} KiB a write, where it is slowest, the synchronous "
            f"mirror writes {rate(at.mbit)}, {times(at.mbit, local)} the local disk alone and "
            f"{times(at.mbit, remote)} the remote disk alone, the asynchronous one "
            f"has {rate(curves.get('mirror, async', panel(rtt_ms)).at(at.x))} there"
        )
    return f"The paper asks with what performance it can be done: {'; '.join(parts)}."


NOTE = (
    "512 MiB at most are written, one call after the other through FUSE, and an fsync that counts, "
    "or read in sequence. Local only is the mirror with its leg paused, so the same front end and "
    "bookkeeping; remote only is `attach --fuse --cache none` for writes; QEMU's mirror is the "
    "`blockdev-mirror` job of qemu-storage-daemon to the same target, written to through nbdfuse "
    "and without the local page cache. The local fsync counts, the arrival of what is "
    "asynchronous does not (mirror-lag has that). Congestion control is "
    "cubic, the queue holds 2,000 packets."
)

EXPERIMENT = Experiment(
    name="s1-mirror",
    title="A local disk mirrored to a remote one: sequential, against block size",
    source="Teraoka et al. 2004, section 6 (future work)",
    paper="“RAID of local disk and remote disk”; no figure",
    x=Axis(
        "block size of a call (KiB)", "block_bytes", BLOCKS[::2], [64 * KIB], factor=1 / KIB
    ),
    load=Load(),
    panels={panel(rtt): {"rtt_ms": rtt} for rtt in RTTS_MS},
    series=[*SERIES, *READS],
    sentence=sentence,
    repeat_max=3,
    seconds_more=2.0,
    note=NOTE,
)
