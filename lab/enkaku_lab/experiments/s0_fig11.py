"""S0, figure 11: the congestion window against the packets in flight."""

from pathlib import Path

from enkaku_lab.claims import Claim, judged
from enkaku_lab.packets import COLOURS, Trace, finish, panels, segments_of, within
from enkaku_lab.story import Numbers
from enkaku_lab.transfers import HELD, OURS, STOCK, Seen, Transfer


def draw(seen: list[Seen], path: Path) -> None:
    chart, axes = panels(seen, "packets")
    for ax, one in zip(axes, seen, strict=True):
        begin, end = one.starts()[0], one.starts()[-1]
        segments, samples = within(one, begin, end)
        sent = [segment for segment in segments if segment.to_target and segment.payload_bytes]
        flight = [segment.in_flight_bytes / segments_of(one) for segment in sent]
        times = [(segment.time_s - begin) * 1e3 for segment in sent]
        ax.plot(times, flight, ".", markersize=2, color=COLOURS[one.transfer.stack],
                label="in flight (capture)")
        ax.plot([(sample.time_s - begin) * 1e3 for sample in samples],
                [sample.cwnd_bytes / segments_of(one) for sample in samples],
                drawstyle="steps-post", color="#000000", label="congestion window (samples)")
        ax.legend(fontsize=8, loc="lower left", bbox_to_anchor=(0, -0.5), ncols=3)
    finish(chart, seen, path)


def claims(numbers: Numbers) -> list[Claim]:
    window, flight = numbers.get(HELD, "window_packets"), numbers.get(HELD, "in_flight_max_packets")
    full = numbers.get(HELD, "window_full_share")
    known = None not in (window, flight, full)
    return [
        judged(
            "the congestion window is never used up",
            flight < 0.9 * window and full < 0.05 if known else None,
            f"{window:.0f} packets, at most {flight:.0f} of them in flight; full in {full:.0%} of the samples" if known else "",
        )
    ]


TRACE = Trace(
    name="s0-fig11",
    title="Congestion window and packets in flight, RTT 20 ms, 4 MiB",
    paper="the congestion window is about 1200 packets and is never used up; about 3000 would be needed",
    transfers=[Transfer(stack, 20) for stack in (STOCK, HELD, OURS)],
    draw=draw,
    claims=claims,
)
