"""S1's future work with the kernel's stacks in the guest: what window scaling brings. The TCP of 2004 beside today's."""

from dataclasses import replace

from enkaku_lab.claims import Claim, judged
from enkaku_lab.curves import Curves
from enkaku_lab.experiment import Experiment
from enkaku_lab.experiments import s1_guest_rtt
from enkaku_lab.experiments.common import GUEST_ISCSI, GUEST_NFS_AHEAD, GUEST_NOTE, GUEST_TCP, nearest, rate, times

NAMES = {"open-iscsi": GUEST_ISCSI, "NFS, read-ahead 4 MiB": GUEST_NFS_AHEAD, "plain TCP": GUEST_TCP}
SCALED = tuple(replace(one, label=name) for name, one in NAMES.items())
UNSCALED = tuple(replace(one, label=f"{one.label}, no scaling", link={"window_scaling": False}, line=":", marker="+") for one in SCALED)
AT_MS = s1_guest_rtt.AT_MS


def _told(curves: Curves) -> list[tuple[str, float | None, float | None]]:
    """Of each stack at that RTT: without, and with it."""
    return [
        (scaled.label, nearest(curves.get(unscaled.label), AT_MS)[1], nearest(curves.get(scaled.label), AT_MS)[1])
        for scaled, unscaled in zip(SCALED, UNSCALED, strict=True)
    ]


def sentence(curves: Curves) -> str:
    parts = [f"{name} has {rate(before)} without window scaling and {rate(after)} with it ({times(after, before)})" for name, before, after in _told(curves)]
    return f"At {AT_MS} ms {'; '.join(parts)}."


def claims(curves: Curves) -> list[Claim]:
    """The paper expects that a larger window is enough."""
    told = _told(curves)
    _, before, after = told[0]
    return [
        judged(
            "window scaling and tuning should help",
            after > 1.5 * before if before and after else None,
            f"at {AT_MS} ms, without and with window scaling: " + "; ".join(f"{name} {rate(one)} and {rate(other)}" for name, one, other in told),
        )
    ]


EXPERIMENT = Experiment(
    name="s1-guest-window",
    title="Window scaling: kernel NFS and open-iscsi, sequential read against RTT",
    source="Teraoka et al. 2004, section 6 (future work)",
    paper="window scaling and tuning are expected to help; the paper's TCP has no window scaling, so at most 64 KB under way",
    x=s1_guest_rtt.EXPERIMENT.x,
    link=s1_guest_rtt.EXPERIMENT.link,
    load=s1_guest_rtt.EXPERIMENT.load,
    series=[*SCALED, *UNSCALED],
    sentence=sentence,
    claims=claims,
    shrunk=s1_guest_rtt.EXPERIMENT.shrunk,
    seconds_more=s1_guest_rtt.EXPERIMENT.seconds_more,
    repeat_max=1,
    note=GUEST_NOTE + " As s1-guest-rtt; `tcp_window_scaling=0` at both ends, where it says so.",
)
