"""S0, figure 10: figure 9 for one write."""

from functools import partial

from enkaku_lab.experiments import s0_fig9
from enkaku_lab.claims import Claim, judged, not_measured
from enkaku_lab.packets import Trace
from enkaku_lab.story import Numbers
from enkaku_lab.transfers import HELD


def claims(numbers: Numbers) -> list[Claim]:
    says = "within a write each burst is restarted by acknowledgements alone, about an RTT later"
    apart, r2ts = numbers.get(HELD, "burst_to_burst_rtt"), numbers.get(HELD, "r2t_per_write")
    if apart is None:
        return [judged(says, None, "")]
    if r2ts is None:
        return [
            not_measured(says, f"{apart:.2f} RTT; R2Ts were not counted (the picture has none)")
        ]
    return [
        judged(
            says, r2ts < 1 and abs(apart - 1) <= 0.15, f"{apart:.2f} RTT, {r2ts:.1f} R2Ts a write"
        )
    ]


TRACE = Trace(
    name="s0-fig10",
    title="Packets and PDUs of one write of 4 MiB, RTT 20 ms",
    paper="within a write each burst is restarted by TCP's acknowledgements alone",
    transfers=s0_fig9.TRACE.transfers,
    draw=partial(s0_fig9.draw, cycles=1),
    claims=claims,
)
