"""S0, figure 9: packet number against time, with the PDUs marked above. RTT 20 ms, 4 MiB."""

from pathlib import Path

from enkaku_lab import figure
from enkaku_lab.packets import COLOURS, Trace, panels, segments_of, within
from enkaku_lab.transfers import HELD, OURS, STOCK, Seen, Transfer

CYCLES = 3


def draw(seen: list[Seen], path: Path, cycles: int = CYCLES) -> None:
    chart, axes = panels(seen, "packets sent")
    for ax, one in zip(axes, seen, strict=True):
        starts = one.starts()
        begin, end = starts[max(0, len(starts) - 1 - cycles)], starts[-1]
        found, _ = within(one, begin, end)
        sent = [segment for segment in found if segment.to_target and segment.payload_bytes]
        numbers, total = [], 0.0
        for segment in sent:
            total += segment.payload_bytes / segments_of(one)
            numbers.append(total)
        times = [(segment.time_s - begin) * 1e3 for segment in sent]
        ax.plot(times, numbers, ".", markersize=2.5, color=COLOURS[one.transfer.stack])
        top = max(numbers, default=1.0)
        for name, height, colour in (
            ("SCSI_COMMAND", 1.12, "#D55E00"),
            ("DATA_OUT", 1.06, "#0072B2"),
            ("R2T", 1.18, "#999999"),
        ):
            marks = [
                (segment.time_s - begin) * 1e3
                for segment in found
                if name in " ".join(segment.pdus)
            ]
            ax.plot(marks, [top * height] * len(marks), "|", color=colour, label=name)
        ax.legend(fontsize=8, loc="lower left", bbox_to_anchor=(0, -0.5), ncols=3)
    figure.save(chart, path)


TRACE = Trace(
    name="s0-fig9",
    title="Packets and PDUs of writes of 4 MiB, RTT 20 ms",
    paper="data leave in bursts of about 730 packets (1 MB), one round trip apart",
    transfers=[Transfer(stack, 20) for stack in (STOCK, HELD, OURS)],
    draw=draw,
)
