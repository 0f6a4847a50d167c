"""S0, figures 12 to 14: the sender's queue over one write of 4 MiB, and two moments of it enlarged.

Figure 13 is the time from the command to the first stop, figure 14 that from the stop to what
follows the restart. Between two samples of the socket (some milliseconds) the packets tell how much
of the queue is not acknowledged.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from enkaku_lab import figure, story
from enkaku_lab.claims import Claim, judged, not_measured
from enkaku_lab.packets import COLOURS, Trace, finish, panels, segments_of, within
from enkaku_lab.story import Numbers
from enkaku_lab.transfers import HELD, OURS, STOCK, Seen, Transfer

BEFORE_MS = 1.0
FIRST_MS, RESTART_MS = 10.0, 20.0
"""What the paper's two enlargements show."""
FINE_SAMPLES_PER_S = 5000
"""Less often, a queue that grows with each acknowledgement is not seen to."""
Window = Callable[[Seen], tuple[float, float]]


def whole(seen: Seen) -> tuple[float, float]:
    """One cycle."""
    return seen.cycle()


def first_stop(seen: Seen) -> tuple[float, float]:
    """From the command on, until nothing is sent for a while."""
    begin, _ = seen.cycle()
    return begin - BEFORE_MS / 1e3, max(_stop(seen)[0] + BEFORE_MS / 1e3, begin + FIRST_MS / 1e3)


def restart(seen: Seen) -> tuple[float, float]:
    """From that stop on, over what restarts it."""
    stop, go = _stop(seen)
    return stop - BEFORE_MS / 1e3, max(go + RESTART_MS / 2e3, stop + RESTART_MS / 1e3)


def _stop(seen: Seen) -> tuple[float, float]:
    """When the first burst of a late write ends, and when the next data leave; the cycle's end
    where it is one burst."""
    begin, end = seen.cycle()
    segments, _ = within(seen, begin, end)
    times = [one.time_s for one in segments if one.to_target and one.payload_bytes]
    gap_s = story.GAP_RTT * seen.transfer.rtt_ms / 1e3
    for before, after in zip(times, times[1:], strict=False):
        if after - before > gap_s:
            return before, after
    return (times[-1] if times else begin), end


def draw(seen: list[Seen], path: Path, window: Window = whole, packets: bool = False, acks: bool = False) -> None:
    """`packets`: their sum on an axis of its own; `acks`: a mark for each that came."""
    chart, axes = panels(seen, "packets")
    for ax, one in zip(axes, seen, strict=True):
        begin, end = window(one)
        segments, samples = within(one, begin, end)
        mss = segments_of(one)
        times = [(sample.time_s - begin) * 1e3 for sample in samples]
        ax.plot(times, [sample.queue_bytes / mss for sample in samples], ".-", markersize=3,
                linewidth=1, color=COLOURS[one.transfer.stack],
                label="queue of the socket (memory, in packets)")
        limit = [story.WRITABLE * sample.buffer_bytes / mss for sample in samples]
        ax.plot(times, limit, **figure.LIMIT, label="no writer is woken above")
        sent = [segment for segment in segments if segment.to_target and segment.payload_bytes]
        ax.plot([(one_.time_s - begin) * 1e3 for one_ in sent],
                [one_.in_flight_bytes / mss for one_ in sent], ".", markersize=2,
                color="#000000", label="not acknowledged (each packet)")
        if window is whole:
            ax.plot(times, [sample.cwnd_bytes / mss for sample in samples], color="#777777",
                    linewidth=1, label="congestion window")
        if packets:
            _sum(ax, sent, begin, mss)
        if acks:
            came = [(one_.time_s - begin) * 1e3 for one_ in segments if not one_.to_target]
            ax.plot(came, [0.0] * len(came), "|", markersize=9, color="#0072B2", label="an acknowledgement")
        ax.set_xlim(0, (end - begin) * 1e3)
        ax.legend(fontsize=8, loc="lower left", bbox_to_anchor=(0, -0.52), ncols=3)
    finish(chart, seen, path)


def _sum(ax, sent: list, begin: float, mss: int) -> None:
    """Packets sent, on the right."""
    total, sums = 0.0, []
    for one in sent:
        total += one.payload_bytes / mss
        sums.append(total)
    right = ax.twinx()
    right.plot([(one.time_s - begin) * 1e3 for one in sent], sums, color="#0072B2", linewidth=1,
               label="packets sent, sum")
    right.set_ylabel("packets sent, sum", color="#0072B2", fontsize=9)
    right.grid(False)


def full(numbers: Numbers) -> list[Claim]:
    queue, held = numbers.get(HELD, "queue_full_share"), numbers.get(HELD, "held_share")
    known = queue is not None and held is not None
    return [
        judged(
            "the queue is full while data wait, and an acknowledgement one round trip later wakes the sender",
            queue >= story.MOST and held >= story.MOST if known else None,
            f"at its limit in {queue:.0%} of the samples while data left, all of it in flight in {held:.0%}" if known else "",
        )
    ]


def enlarged(says: str, numbers: Numbers) -> list[Claim]:
    often = numbers.get(HELD, "samples_per_s")
    if often is None or often < FINE_SAMPLES_PER_S:
        rate = "some hundred" if often is None else f"{often:.0f}"
        return [not_measured(says, f"the socket is seen {rate} times a second, not at each of its about 200 events in 10 ms")]
    return full(numbers)


def trace(number: int, what: str, paper: str, claims: Callable[[Numbers], list[Claim]], **how) -> Trace:
    return Trace(
        name=f"s0-fig{number}",
        title=f"{what}, RTT 20 ms",
        paper=paper,
        transfers=[Transfer(stack, 20) for stack in (STOCK, HELD, OURS)],
        draw=partial(draw, **how),
        claims=claims,
    )


TRACE = trace(
    12,
    "The sender's queue over one write of 4 MiB",
    "the queue is full, data wait for memory, and an acknowledgement one round trip later wakes the sender",
    full,
)
