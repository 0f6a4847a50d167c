"""Ours: the steady state against loss, the number of connections chosen by hand and by itself."""

from enkaku_lab.curves import Curves
from enkaku_lab.experiment import KIB, Axis, Experiment, Link, Load, Series
from enkaku_lab.experiments.common import rate, share, times

CUBIC, FREE = "cubic, forced", "cubic by default, bbr exists"
NUMBERS = [1, 2, 4, 8, 16, 32, 64]
COLOURS = ["#c6dbef", "#9ecae1", "#6baed6", "#4292c6", "#2171b5", "#08519c", "#08306b"]
AUTO = Series("enkaku-bench", "auto", colour="#000000", marker="*", line="--")
TCP_ONE = Series("tcp", "plain TCP, 1 connection", load={"connections": 1})


def _label(number: int) -> str:
    return f"{number} connection" + ("s" if number > 1 else "")


def sentence(curves: Curves) -> str:
    parts = []
    lossy = [loss for loss in curves.experiment.values(curves.pace) if loss]
    for loss in (lossy[0], lossy[-1])[-len(lossy) :]:
        fixed = {n: curves.get(_label(n), CUBIC).at(loss) for n in NUMBERS}
        best = max((n for n in NUMBERS if fixed[n]), key=lambda n: fixed[n], default=1)
        auto = curves.get(AUTO.label, CUBIC).at(loss)
        bbr = curves.get(AUTO.label, FREE).at(loss)
        of_one = f"{times(auto, fixed[1])} one connection and " if fixed[1] else ""
        parts.append(
            f"at loss {loss:g} with cubic, auto has {rate(auto)}: {of_one}"
            f"{times(auto, fixed[best])} the best fixed number ({best}); where it "
            f"may choose bbr {share(bbr, curves.limit_mbit)} of the line"
        )
    return f"At RTT 50 ms, {'; '.join(parts)}."


EXPERIMENT = Experiment(
    name="s5-loss",
    title="Line rate in spite of loss: sequential write, 32 × 1 MiB, RTT 50 ms",
    source="ours",
    paper="",
    x=Axis("packet loss probability", "loss", [0, 1e-4, 5e-4, 1e-3], [1e-3], "zero-log"),
    link=Link(rtt_ms=50.0),
    load=Load(kind="write", block_bytes=1024 * KIB, depth=32),
    panels={CUBIC: {}, FREE: {"cc_free": True}},
    series=[
        *(
            Series("enkaku-bench", _label(number), load={"connections": number}, colour=colour)
            for number, colour in zip(NUMBERS, COLOURS, strict=True)
        ),
        AUTO,
        TCP_ONE,
    ],
    sentence=sentence,
    repeat_max=2,
    seconds_more=4.0,
    ramp_round_trips=80,
    note=(
        "Congestion control is set by route at both ends; where it is forced, no socket can choose "
        "another. "
        "Packets are lost in both directions, after login. Buffers are Linux's defaults. The first "
        "five seconds are not counted."
    ),
)
