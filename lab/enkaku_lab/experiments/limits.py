"""Ours: throughput against RTT, loss and number of connections, and where the line is."""

import math

from enkaku_lab.curves import Curves
from enkaku_lab.experiment import Axis, Experiment, Load, Series
from enkaku_lab.experiments.common import PIPELINED, last_x, rate, share, times

CONNECTIONS = [1, 2, 4, 8, 16, "auto"]
LOSSES = [0.0, 1e-5, 1e-4, 1e-3]
# Blues from light to dark for the numbers; black for the choice that enkaku makes itself.
COLOURS = ["#9ecae1", "#6baed6", "#4292c6", "#2171b5", "#084594", "#000000"]
MARKERS = ["o", "s", "^", "D", "v", "*"]


def _label(connections: int | str) -> str:
    if connections == "auto":
        return "auto"
    return f"{connections} connection" + ("s" if connections > 1 else "")


def _panel(loss: float) -> str:
    return "no loss" if loss == 0 else f"loss 1e{round(math.log10(loss))}"


def sentence(curves: Curves) -> str:
    last = last_x(curves)
    parts = []
    for loss in (LOSSES[0], LOSSES[-1]):
        panel = _panel(loss)
        one = curves.get(_label(1), panel).at(last)
        fixed = {n: curves.get(_label(n), panel).at(last) for n in CONNECTIONS[:-1]}
        best = max((n for n in fixed if fixed[n]), key=lambda n: fixed[n], default=1)
        auto = curves.get("auto", panel).at(last)
        parts.append(
            f"{'without loss' if loss == 0 else f'at loss {loss:g}'} one connection has "
            f"{rate(one)}, the best fixed number ({best}) {rate(fixed[best])}, "
            f"{times(fixed[best], one)} that, and auto {rate(auto)}, "
            f"{share(auto, curves.limit_mbit)} of the line"
        )
    return f"At RTT {last:g} ms, {'; '.join(parts)}."


EXPERIMENT = Experiment(
    name="limits",
    title="enkaku: read throughput against RTT, loss and connections",
    source="ours",
    paper="",
    x=Axis("RTT (ms)", "rtt_ms", [0, 10, 50, 200], [20], "zero-log"),
    load=Load(**PIPELINED),
    panels={_panel(loss): {"loss": loss} for loss in LOSSES},
    series=[
        Series(
            "enkaku-pipelined",
            _label(number),
            load={"connections": number},
            colour=colour,
            marker=marker,
            line="--" if number == "auto" else "-",
        )
        for number, colour, marker in zip(CONNECTIONS, COLOURS, MARKERS, strict=True)
    ],
    sentence=sentence,
    repeat_max=1,
    note=(
        "256 reads of 128 KiB (32 MiB) are always under way, so commands never bind; congestion "
        "control is cubic, socket buffers are Linux's defaults (4 MiB to send, 6 MiB to receive). "
        "Slow start counts: at 200 ms a run of 4 s spends half of it there."
    ),
)
