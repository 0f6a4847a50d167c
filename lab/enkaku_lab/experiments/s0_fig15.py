"""S0, figure 15: the sender's queue during writes over iSCSI."""

from pathlib import Path

from enkaku_lab import figure
from enkaku_lab.packets import COLOURS, Trace, panels, segments_of
from enkaku_lab.transfers import HELD, LABELS, OURS, STOCK, Seen, Transfer


def draw(seen: list[Seen], path: Path) -> str:
    chart, axes = panels(seen, "packets")
    parts = []
    for ax, one in zip(axes, seen, strict=True):
        mss = segments_of(one)
        queue = [sample.queue_bytes / mss for sample in one.samples]
        ax.plot([sample.time_s * 1e3 for sample in one.samples], queue, drawstyle="steps-post",
                color=COLOURS[one.transfer.stack], linewidth=1)
        parts.append(
            f"{LABELS[one.transfer.stack]}: the queue reaches {max(queue, default=0):.0f} packets, in the "
            f"mean {sum(queue) / max(1, len(queue)):.0f}"
        )
    figure.save(chart, path)
    return "; ".join(parts) + "."


TRACE = Trace(
    name="s0-fig15",
    title="The sender's queue, iSCSI, RTT 20 ms, 4 MiB",
    paper="at most about 300 packets",
    transfers=[Transfer(stack, 20) for stack in (STOCK, HELD, OURS)],
    draw=draw,
)
