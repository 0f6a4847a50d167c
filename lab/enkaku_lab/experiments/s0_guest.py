"""S0 with the kernel's initiator (open-iscsi, as the paper's) in the guest: writes against RTT, by what limits the
send buffer."""

from enkaku_lab.claims import Claim, judged
from enkaku_lab.curves import Curve, Curves
from enkaku_lab.experiment import GUEST, KIB, MIB, Axis, Experiment, Load, Series
from enkaku_lab.experiments.common import GUEST_NOTE, rate, share, times

INSTALLED = "open-iscsi + LIO, as installed"
BURSTS = "bursts of 4 MiB, buffer as installed"
DOUBLED = "bursts of 4 MiB, buffer of 1 MiB"
WIDE = "bursts of 4 MiB, buffer of 8 MiB"
TCP = "plain TCP, 1 connection"
AT_MS = 20
BUFFERS = {BURSTS: 2 * 208 * KIB, DOUBLED: MIB}
"""What `sk_sndbuf` is: iscsid's `tcp.window_size`, at most `net.core.wmem_max`, counted twice by the kernel. Seen in
the kernel's log (s0-fig17)."""
CALL_BYTES = 4 * MIB
OF_BUFFER = (0.5, 1.1)
"""What leaves in a round trip, as part of the buffer: a writer is woken when a third of it is free, so less than all."""


def per_round_trip(curve: Curve) -> float | None:
    """Bytes that leave in a round trip, by how much longer a call takes at the longest RTT than at the shortest; the
    round trip of its answer is taken off. None where it does not rise."""
    took_ms = [(point.x, CALL_BYTES * 8e3 / (point.mbit * 1e6)) for point in curve.measured if point.x > 0]
    if len(took_ms) < 2:
        return None
    (first_x, first), (last_x, last) = took_ms[0], took_ms[-1]
    round_trips = (last - first) / (last_x - first_x) - 1
    return CALL_BYTES / round_trips if round_trips > 0 else None


def sentence(curves: Curves) -> str:
    installed, bursts, doubled, wide, tcp = (curves.get(name) for name in (INSTALLED, BURSTS, DOUBLED, WIDE, TCP))
    return (
        f"At RTT {AT_MS} ms open-iscsi as installed has {rate(installed.at(AT_MS))}, with bursts of 4 MiB "
        f"{rate(bursts.at(AT_MS))}, {rate(doubled.at(AT_MS))} where the kernel lets iscsid have the buffer that it asks for, and "
        f"{rate(wide.at(AT_MS))} ({times(wide.at(AT_MS), bursts.at(AT_MS))} that) with `node.conn[0].tcp.window_size` at 4 MiB; a plain "
        f"connection, whose buffer the kernel sizes, has {rate(tcp.at(AT_MS))} ({share(tcp.at(AT_MS), curves.limit_mbit)} of the line)."
    )


def claims(curves: Curves) -> list[Claim]:
    installed, doubled, wide, tcp = (curves.get(name) for name in (INSTALLED, DOUBLED, WIDE, TCP))
    last = max((point.x for point in installed.measured), default=None)
    first = min((point.x for point in installed.measured), default=None)
    left = [
        curve.at(last) / curve.at(first) if last != first and curve.at(first) and curve.at(last) else None
        for curve in (installed, tcp)
    ]
    buffers, holds = [], []
    for name, limit in BUFFERS.items():
        if found := per_round_trip(curves.get(name)):
            buffers.append(f"{found / KIB:.0f} KiB a round trip with a buffer of {limit / KIB:.0f} KiB")
            holds.append(OF_BUFFER[0] <= found / limit <= OF_BUFFER[1])
    more = doubled.at(AT_MS) and wide.at(AT_MS)
    if more:
        buffers.append(f"with one of 8 MiB {rate(wide.at(AT_MS))} in place of {rate(doubled.at(AT_MS))} at {AT_MS} ms")
    return [
        judged(
            "iSCSI collapses as the RTT grows",
            left[0] < 0.3 if left[0] is not None else None,
            f"open-iscsi as installed: {left[0]:.0%} of what it has at {first:g} ms are left at {last:g} ms" if left[0] else "",
        ),
        judged(
            "a plain socket keeps its speed",
            left[1] > 0.8 if left[1] is not None else None,
            f"{left[1]:.0%} are left at {last:g} ms" if left[1] else "",
        ),
        judged(
            "conjecture: neither window but the send socket buffer limits",
            all(holds) and wide.at(AT_MS) > 1.5 * doubled.at(AT_MS) if holds and more else None,
            "; ".join(buffers),
        ),
    ]


EXPERIMENT = Experiment(
    name="s0-guest",
    title="Writes through open-iscsi against RTT: the send buffer",
    source="Higa et al. 2009, figure 4 and conclusion",
    paper="default and optimised iSCSI collapse as the RTT grows, a plain socket keeps its speed; conjecture: the send "
    "socket buffer limits. Where it is limited is left open",
    x=Axis("RTT (ms)", "rtt_ms", [2, 5, 10, 20, 50], [20], "log"),
    load=Load(kind="write", block_bytes=CALL_BYTES, connections=1, bytes_max=24 * MIB),
    series=[
        Series(f"{GUEST}iscsi", INSTALLED),
        Series(f"{GUEST}iscsi-bursts", BURSTS, line="--"),
        Series(f"{GUEST}iscsi-1m", DOUBLED, line="--"),
        Series(f"{GUEST}iscsi-8m", WIDE, line="--"),
        Series(f"{GUEST}tcp", TCP),
    ],
    sentence=sentence,
    claims=claims,
    shrunk="24 MiB or what is written in that time, to LIO's memory",
    seconds_more=-0.9,
    ramp_round_trips=12,
    ramp_s=0.0,
    repeat_max=1,
    note=GUEST_NOTE + " Calls of 4 MiB, one at a time, O_DIRECT, which are two commands of the kernel's largest size, 2 MiB. As installed: "
    "open-iscsi's and LIO's defaults (FirstBurstLength 64 KiB, InitialR2T=Yes), tcp.window_size 512 KiB, of which net.core.wmem_max leaves 208.",
)
