"""S1's future work: a local disk and a remote one as a mirror, against the round-trip time and
against packet loss."""

from enkaku_lab.curves import Curves
from enkaku_lab.experiment import KIB, Axis, Experiment, Load
from enkaku_lab.experiments.common import rate, times
from enkaku_lab.experiments.s1_mirror import NOTE, SERIES

LOSSES = [0.0, 1e-4, 1e-3, 1e-2]


def panel(loss: float) -> str:
    return f"loss {loss:g}"


def sentence(curves: Curves) -> str:
    parts = []
    for loss in LOSSES:
        at = curves.get("mirror, sync", panel(loss)).worst
        if at is None:
            parts.append(f"{panel(loss)}: nothing was measured")
            continue
        local = curves.get("local only", panel(loss)).at(at.x)
        parts.append(
            f"{panel(loss)}: at least {rate(at.mbit)} (at {at.x:g} ms), "
            f"{times(at.mbit, local)} the local disk alone"
        )
    return f"With writes of 64 KiB the synchronous mirror has, {'; '.join(parts)}."


EXPERIMENT = Experiment(
    name="s1-mirror-rtt",
    title="A local disk mirrored to a remote one: sequential writes of 64 KiB, against RTT",
    source="Teraoka et al. 2004, section 6 (future work)",
    paper="“RAID of local disk and remote disk”; no figure",
    x=Axis("RTT (ms)", "rtt_ms", [0, 2.8, 20, 50, 200], [20], "zero-log"),
    load=Load(block_bytes=64 * KIB),
    panels={panel(loss): {"loss": loss} for loss in LOSSES},
    series=SERIES,
    sentence=sentence,
    repeat_max=3,
    seconds_more=2.0,
    note=NOTE,
)
