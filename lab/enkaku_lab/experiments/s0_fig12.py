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
        segments, _ = within(one, begin, end)
        mss = segments_of(one)
        # ss takes longer than much of a cycle, so the samples of all late cycles are laid over
        # one another.
        folded = sorted(_folded(one))
        samples = [queue for _, queue in folded]
        ax.plot([at * 1e3 for at, _ in folded], [queue / mss for queue in samples],
                ".", color=COLOURS[one.transfer.stack],
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
        ax.legend(fontsize=8, loc="lower left", bbox_to_anchor=(0, -0.4), ncols=3)
        queue = max(samples, default=0)
        parts.append(
            f"{one.transfer.stack}: the queue reaches {queue / mss:.0f} packets in a cycle of "
            f"{(end - begin) * 1e3:.0f} ms"
        )
    figure.save(chart, path)
    return "; ".join(parts) + "."


def _folded(one: Seen) -> list[tuple[float, int]]:
    """Samples of the later half of the cycles: seconds after the write's begin, bytes."""
    starts = one.starts()
    late = starts[len(starts) // 2 :]
    return [
        (sample.time_s - begin, sample.queue_bytes)
        for begin, end in zip(late, late[1:], strict=False)
        for sample in one.samples
        if begin <= sample.time_s < end
    ]


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
