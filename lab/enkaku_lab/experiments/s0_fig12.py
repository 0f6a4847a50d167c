"""S0, figure 12: the sender's queue over one write of 4 MiB."""

from functools import partial
from pathlib import Path

from enkaku_lab import figure
from enkaku_lab.packets import COLOURS, Trace, panels, segments_of, within
from enkaku_lab.transfers import OURS, STOCK, Seen, Transfer


def draw(seen: list[Seen], path: Path, beside: str = "") -> str:
    """`beside`: also the packets sent (`packets`) or acknowledged (`acks`)."""
    chart, axes = panels(seen, "packets")
    parts = []
    for ax, one in zip(axes, seen, strict=True):
        begin, end = one.cycle()
        segments, samples = within(one, begin, end)
        mss = segments_of(one)
        ax.plot([(sample.time_s - begin) * 1e3 for sample in samples],
                [sample.queue_bytes / mss for sample in samples],
                drawstyle="steps-post", marker=".", color=COLOURS[one.transfer.stack],
                label="queue of the socket (memory, in packets)")
        if beside:
            ways = {"packets": True, "acks": False}
            mine = [segment for segment in segments if segment.to_target == ways[beside]]
            counted = [segment.payload_bytes / mss for segment in mine] if beside == "packets" else []
            heights = counted or [1.0] * len(mine)
            total, sums = 0.0, []
            for height in heights:
                total += height
                sums.append(total)
            label = "packets sent" if beside == "packets" else "acknowledgements received"
            ax.plot([(segment.time_s - begin) * 1e3 for segment in mine], sums,
                    ".", markersize=2.5, color="#0072B2", label=f"{label}, sum")
        ax.legend(fontsize=8, loc="upper left")
        queue = max((sample.queue_bytes for sample in samples), default=0)
        parts.append(
            f"{one.transfer.stack}: the queue reaches {queue / mss:.0f} packets in a cycle of "
            f"{(end - begin) * 1e3:.0f} ms"
        )
    figure.save(chart, path)
    return "; ".join(parts) + "."


def trace(number: int, what: str, beside: str = "") -> Trace:
    return Trace(
        name=f"s0-fig{number}",
        title=f"{what} over one write of 4 MiB, RTT 20 ms",
        paper="the queue is full, data wait for memory, and an acknowledgement one round trip "
        "later wakes the sender",
        transfers=[Transfer(STOCK, 20), Transfer(OURS, 20)],
        draw=partial(draw, beside=beside),
    )


TRACE = trace(12, "The sender's queue")
