"""S0, figure 15: the sender's queue during writes over iSCSI."""

from pathlib import Path

from enkaku_lab.claims import Claim, not_measured
from enkaku_lab.packets import COLOURS, Trace, finish, panels, segments_of
from enkaku_lab.story import Numbers
from enkaku_lab.transfers import HELD, LABELS, OURS, STOCK, Seen, Transfer


def draw(seen: list[Seen], path: Path) -> str:
    chart, axes = panels(seen, "packets")
    parts = []
    for ax, one in zip(axes, seen, strict=True):
        mss = segments_of(one)
        queue = [sample.queue_bytes / mss for sample in one.samples]
        ax.plot([sample.time_s * 1e3 for sample in one.samples], queue, drawstyle="steps-post",
                color=COLOURS[one.transfer.stack], linewidth=1, label="queue (memory, in full packets)")
        # What separates a socket that keeps its speed: data that wait for nothing but their turn.
        ax.plot([sample.time_s * 1e3 for sample in one.samples],
                [sample.not_sent_bytes / mss for sample in one.samples], drawstyle="steps-post",
                color="#000000", linewidth=0.8, label="of it not sent yet")
        ax.legend(fontsize=8, loc="lower left", bbox_to_anchor=(0, -0.5), ncols=2)
        parts.append(
            f"{LABELS[one.transfer.stack]}: the queue reaches {max(queue, default=0):.0f} packets, in the "
            f"mean {sum(queue) / max(1, len(queue)):.0f}"
        )
    finish(chart, seen, path)
    return "; ".join(parts) + "."


UNIT = "the paper counts queue entries at every event; here it is memory, in full packets, some hundred times a second"


def claims(numbers: Numbers) -> list[Claim]:
    most = numbers.get(HELD, "queue_max_packets")
    said = f"; it reaches {most:.0f}" if most is not None else ""
    return [not_measured("iSCSI's queue moves between 0 and 300 entries, in step with the bursts", UNIT + said)]


TRACE = Trace(
    name="s0-fig15",
    title="The sender's queue, iSCSI, RTT 20 ms, 4 MiB",
    paper="between 0 and about 300 entries, in step with the bursts",
    transfers=[Transfer(stack, 20) for stack in (STOCK, HELD, OURS)],
    draw=draw,
    claims=claims,
)
