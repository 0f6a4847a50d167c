"""S0, figure 10: figure 9 for one write."""

from functools import partial

from enkaku_lab.experiments import s0_fig9
from enkaku_lab.packets import Trace

TRACE = Trace(
    name="s0-fig10",
    title="Packets and PDUs of one write of 4 MiB, RTT 20 ms",
    paper="within a write each burst is restarted by TCP's acknowledgements alone",
    transfers=s0_fig9.TRACE.transfers,
    draw=partial(s0_fig9.draw, cycles=1),
)
