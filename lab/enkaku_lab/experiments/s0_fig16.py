"""S0, figure 16: the sender's queue of a plain socket."""

from enkaku_lab.claims import Claim, judged
from enkaku_lab.experiments.s0_fig15 import draw
from enkaku_lab.packets import Trace
from enkaku_lab.story import Numbers
from enkaku_lab.transfers import SOCKET, Transfer

SETTLED = 0.35
"""Part of the peak that is left when it has settled: 200 to 300 of 1300 in the paper, with room."""


def claims(numbers: Numbers) -> list[Claim]:
    says = "the socket's queue peaks at about 1300 entries only while it starts, then stays within 200 to 300"
    most, mean = (
        numbers.get(SOCKET, "queue_max_packets"),
        numbers.get(SOCKET, "queue_late_mean_packets"),
    )
    if mean is None:
        mean = numbers.get(SOCKET, "queue_mean_packets")
    if most is None or mean is None:
        return [judged(says, None, "")]
    return [
        judged(
            says,
            mean <= SETTLED * most,
            f"in full packets of memory it reaches {most:.0f} and has {mean:.0f} in the mean: Linux lets a send buffer grow and keeps it",
        )
    ]


TRACE = Trace(
    name="s0-fig16",
    title="The sender's queue, plain socket, RTT 20 ms",
    paper="about 1300 entries while it starts, then 200 to 300",
    transfers=[Transfer(SOCKET, 20)],
    draw=draw,
    claims=claims,
)
