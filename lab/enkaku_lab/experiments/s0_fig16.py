"""S0, figure 16: the sender's queue of a plain socket."""

from enkaku_lab.experiments.s0_fig15 import draw
from enkaku_lab.packets import Trace
from enkaku_lab.transfers import SOCKET, Transfer

TRACE = Trace(
    name="s0-fig16",
    title="The sender's queue, plain socket, RTT 20 ms",
    paper="about 1300 packets, four times what iSCSI has",
    transfers=[Transfer(SOCKET, 20)],
    draw=draw,
)
