"""S0, figure 4: sequential writes against RTT; default and tuned iSCSI, plain TCP, local disk."""

from enkaku_lab.claims import Claim, judged, not_measured
from enkaku_lab.curves import Curve, Curves
from enkaku_lab.experiment import MIB, Axis, Experiment, Load, Series
from enkaku_lab.data import run_length
from enkaku_lab.experiments.common import falls, rate, share, times

STOCK = "tgt + libiscsi, defaults"
TUNED = "tgt, bursts of 4 MiB (our initiator)"
UNASKED = "tgt, 256 KiB unasked (our initiator)"
"""What was measured before commands could be kept whole: 4 MiB as 16 commands of 256 KiB."""
TCP = "plain TCP, 1 connection"
PAPER_RTT_MS = 32
ONE = "enkaku, one 4 MiB command at a time"
MANY = "enkaku, 8 × 4 MiB under way"


def sentence(curves: Curves) -> str:
    stock, many = (curves.get(name) for name in (STOCK, MANY))
    tuned = _tuned(curves)
    last = stock.measured[-1].x if stock.measured else 50
    at = _nearest_x(curves)
    return (
        f"With an earlier study's set of parameters the paper has about 4 times the default's throughput at RTT "
        f"{PAPER_RTT_MS} ms; here {tuned.series.label} has {times(tuned.at(at), stock.at(at))} that at {at:g} ms. "
        f"{falls(stock)}; at {last:g} ms it reaches {rate(stock.at(last))}, tuned {rate(tuned.at(last))}, and enkaku "
        f"with many commands under way {rate(many.at(last))}, "
        f"{share(many.at(last), curves.limit_mbit)} of the line."
    )


def _tuned(curves: Curves) -> Curve:
    """What stands for the paper's optimised iSCSI in these results."""
    labels = {curve.series.label for curve in curves.curves if curve.measured}
    return curves.get(UNASKED if TUNED not in labels and UNASKED in labels else TUNED)


def _nearest_x(curves: Curves) -> float:
    """The measured RTT next to the paper's."""
    there = [point.x for point in curves.get(STOCK).measured]
    return min(there, key=lambda x: abs(x - PAPER_RTT_MS), default=PAPER_RTT_MS)


def _started(curves: Curves) -> str:
    return "" if "ramp" in run_length(curves) else ", slow start counted"


def claims(curves: Curves) -> list[Claim]:
    stock, tcp, tuned = curves.get(STOCK), curves.get(TCP), _tuned(curves)
    last = stock.measured[-1].x if stock.measured else None
    factor = f"the tuned stack has about 4 times the default's throughput at RTT {PAPER_RTT_MS} ms"
    at = _nearest_x(curves)
    ratio = tuned.at(at) / stock.at(at) if tuned.at(at) and stock.at(at) else None
    if ratio is None:
        one = judged(factor, None, "")
    elif at != PAPER_RTT_MS:
        later = next((x for x in (50,) if tuned.at(x) and stock.at(x)), None)
        more = f", {tuned.at(later) / stock.at(later):.1f} at {later} ms" if later else ""
        one = not_measured(
            factor, f"no point at {PAPER_RTT_MS} ms: {ratio:.1f} times at {at:g} ms{more}"
        )
    else:
        one = judged(factor, 3 <= ratio <= 5, f"{ratio:.1f} times")
    left = [
        curve.at(last) / curve.at(0) if last and curve.at(0) and curve.at(last) else None
        for curve in (stock, tcp)
    ]
    return [
        judged(
            "default iSCSI collapses as the RTT grows",
            left[0] is not None and left[0] < 0.2 if left[0] is not None else None,
            f"{left[0]:.0%} of its throughput without delay are left at {last:g} ms"
            if left[0]
            else "",
        ),
        judged(
            "a plain socket keeps its speed",
            left[1] > 0.8 if left[1] is not None else None,
            f"{left[1]:.0%} are left at {last:g} ms in runs of {run_length(curves)}{_started(curves)}"
            if left[1]
            else "",
        ),
        one,
    ]


WRITE = {"kind": "write", "block_bytes": 4 * MIB}
EXPERIMENT = Experiment(
    name="s0-fig4",
    title="Sequential write against RTT",
    source="Higa et al. 2009, figure 4",
    paper="default iSCSI, optimised iSCSI, a plain socket, which keeps its speed, and the local disk against RTT; at "
    "32 ms optimised has about 4 times the default (an earlier study's parameter set, not the bursts alone)",
    x=Axis("RTT (ms)", "rtt_ms", [0, 2, 5, 10, 20, 32, 50], [0, 32, 50], "zero-log"),
    load=Load(**WRITE),
    series=[
        Series("tgt-libiscsi", STOCK),
        Series("tgt-tuned", TUNED, load={"connections": 1, "one_command": True}, line="--"),
        Series("enkaku-pipelined", ONE, load={"connections": 1}, line=":", marker="o"),
        Series("enkaku-pipelined", MANY, load={"depth": 8}, line="--"),
        Series("tcp", TCP, load={"connections": 1}),
        Series("local", "local file, with fsync", flat=True),
    ],
    sentence=sentence,
    claims=claims,
    shrunk="of the 512 MiB, what is written in that time, to the target's memory",
    seconds_more=4.0,
    ramp_round_trips=40,
    repeat_max=2,
    note=(
        "Writes of 4 MiB, to the target's page cache (volume of 512 MiB), ended early "
        "(below); libiscsi's own bursts are 256 KiB at most. libiscsi cannot offer larger "
        "bursts, so the tuned target is driven by enkaku's initiator: one connection, one command "
        "of 4 MiB at a time (--first-burst 4M --max-burst 4M --one-command). The first second and 40 round "
        "trips are not counted, except with qemu-img bench (stock). The local file's disk is this machine's."
    ),
)
