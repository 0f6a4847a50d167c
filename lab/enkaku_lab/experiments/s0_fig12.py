"""S0, figure 12: the sender's queue over one write of 4 MiB."""

from functools import partial
from pathlib import Path

from enkaku_lab import figure, story
from enkaku_lab.packets import COLOURS, Trace, panels, segments_of, within
from enkaku_lab.transfers import HELD, OURS, STOCK, Seen, Transfer


def draw(seen: list[Seen], path: Path, beside: str = "") -> None:
    """`beside`: also the packets sent (`packets`) or acknowledged (`acks`)."""
    chart, axes = panels(seen, "packets")
    for ax, one in zip(axes, seen, strict=True):
        begin, end = one.cycle()
        segments, samples = within(one, begin, end)
        mss = segments_of(one)
        times = [(sample.time_s - begin) * 1e3 for sample in samples]
        ax.plot(times, [sample.queue_bytes / mss for sample in samples], ".-", markersize=3,
                linewidth=1, color=COLOURS[one.transfer.stack],
                label="queue of the socket (memory, in packets)")
        limit = [story.WRITABLE * sample.buffer_bytes / mss for sample in samples]
        ax.plot(times, limit, **figure.LIMIT, label="no writer is woken above")
        ax.plot(times, [sample.cwnd_bytes / mss for sample in samples], color="#000000",
                linewidth=1, label="congestion window")
        ax.plot(times, [sample.in_flight_bytes / mss for sample in samples], ":",
                color="#000000", linewidth=1, label="in flight")
        if beside:
            _beside(ax, segments, begin, mss, beside)
        ax.legend(fontsize=8, loc="lower left", bbox_to_anchor=(0, -0.52), ncols=3)
    figure.save(chart, path)


def _beside(ax, segments: list, begin: float, mss: int, beside: str) -> None:
    """Sums of what passed, over the queue."""
    mine = [one for one in segments if one.to_target == (beside == "packets")]
    total, sums = 0.0, []
    for one in mine:
        total += one.payload_bytes / mss if beside == "packets" else 1.0
        sums.append(total)
    label = "packets sent" if beside == "packets" else "acknowledgements received"
    ax.plot([(one.time_s - begin) * 1e3 for one in mine], sums, ".", markersize=2.5,
            color="#0072B2", label=f"{label}, sum")


def trace(number: int, what: str, beside: str = "") -> Trace:
    return Trace(
        name=f"s0-fig{number}",
        title=f"{what} over one write of 4 MiB, RTT 20 ms",
        paper="the queue is full, data wait for memory, and an acknowledgement one round trip "
        "later wakes the sender",
        transfers=[Transfer(stack, 20) for stack in (STOCK, HELD, OURS)],
        draw=partial(draw, beside=beside),
    )


TRACE = trace(12, "The sender's queue")
