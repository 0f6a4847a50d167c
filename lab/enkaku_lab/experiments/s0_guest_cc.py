"""S0: what congestion control changes, with the kernel's initiator in the guest: writes through a socket and through
open-iscsi with reno and with cubic, against packet loss."""

from enkaku_lab.claims import Claim, judged
from enkaku_lab.curves import Curves
from enkaku_lab.experiment import GUEST, MIB, STRETCH, Axis, Experiment, Link, Load, Series
from enkaku_lab.experiments.common import GUEST_NOTE, rate

RTT_MS = 20
ALGORITHMS = ("reno", "cubic")
SAME = 1.05
TCP_BYTES = 96 * MIB
"""Of the socket: iperf3 writes for as long as the line would need for them, 40 round trips."""
ISCSI = {cc: f"open-iscsi, {cc}" for cc in ALGORITHMS}
TCP = {cc: f"plain TCP, {cc}" for cc in ALGORITHMS}


def _ratio(curves: Curves, labels: dict[str, str], loss: float) -> float | None:
    """The faster to the slower."""
    rates = [curves.get(label).at(loss) for label in labels.values()]
    return max(rates) / min(rates) if all(rates) else None


def _told(curves: Curves, labels: dict[str, str], loss: float) -> str:
    return " and ".join(f"{rate(curves.get(label).at(loss))} with {cc}" for cc, label in labels.items())


def sentence(curves: Curves) -> str:
    parts = [
        f"At a loss of {loss:g} open-iscsi has {_told(curves, ISCSI, loss)}, a socket {_told(curves, TCP, loss)}"
        for loss in curves.experiment.values(curves.pace)
    ]
    return " ".join(f"{part}." for part in parts)


def claims(curves: Curves) -> list[Claim]:
    losses = list(curves.experiment.values(curves.pace))
    iscsi, tcp = ({loss: _ratio(curves, labels, loss) for loss in losses} for labels in (ISCSI, TCP))
    said = [
        f"at a loss of {loss:g} open-iscsi {_told(curves, ISCSI, loss)} ({iscsi[loss]:.2f} times), a socket {_told(curves, TCP, loss)} ({tcp[loss]:.2f} times)"
        for loss in losses
        if iscsi[loss] and tcp[loss]
    ]
    known = iscsi.get(0) is not None and any(tcp.values())
    return [
        judged(
            "congestion control changes the socket's throughput, not iSCSI's",
            max(filter(None, iscsi.values())) <= SAME < max(filter(None, tcp.values())) if known else None,
            "; ".join(said),
        )
    ]


EXPERIMENT = Experiment(
    name="s0-guest-cc",
    title="Writes with reno and cubic, RTT 20 ms, against packet loss",
    source="Higa et al. 2009, section on congestion control",
    paper="another congestion control changes the socket's throughput, not iSCSI's",
    x=Axis("packet loss probability", "loss", [0, 1e-4, 1e-3], [0], "zero-log"),
    link=Link(rtt_ms=RTT_MS),
    load=Load(kind="write", block_bytes=4 * MIB, connections=1, bytes_max=24 * MIB),
    series=[
        *(Series(f"{GUEST}iscsi-1m", ISCSI[cc], link={"cc": cc}, line=line) for cc, line in zip(ALGORITHMS, ("-", "--"), strict=True)),
        *(Series(f"{GUEST}tcp", TCP[cc], link={"cc": cc}, load={"bytes_max": TCP_BYTES}, line=line) for cc, line in zip(ALGORITHMS, ("-", "--"), strict=True)),
    ],
    sentence=sentence,
    claims=claims,
    shrunk="24 MiB or what is written in that time, to LIO's memory",
    seconds_more=3.0,
    ramp_round_trips=12,
    ramp_s=0.0,
    repeat_max=1,
    note=GUEST_NOTE + " open-iscsi with bursts of 4 MiB and the buffer of 1 MiB; calls of 4 MiB, one at a time, O_DIRECT. Packets are lost in both directions, and only after login. cubic grows by the clock, "
    f"which is {STRETCH} times as fast for it here.",
)
