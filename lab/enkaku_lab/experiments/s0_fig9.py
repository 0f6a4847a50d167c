"""S0, figure 9: packet number against time, with the PDUs marked above. RTT 20 ms, 4 MiB."""

from pathlib import Path

from enkaku_lab.claims import Claim, judged, not_measured
from enkaku_lab.packets import COLOURS, Trace, finish, panels, segments_of, within
from enkaku_lab.story import Numbers
from enkaku_lab.transfers import HELD, OURS, STOCK, Seen, Transfer

CYCLES = 3
BURSTS, PACKETS, DATA_OUTS = 4, 730, 15
"""The paper's."""
NEAR = 0.3
"""Relative to the paper's number."""


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
    finish(chart, seen, path)


def claims(numbers: Numbers) -> list[Claim]:
    leave = f"the data of a write leave in {BURSTS} bursts of about {PACKETS} packets"
    pdus = f"one WRITE(10) and its {DATA_OUTS} Data-Outs"
    apart = numbers.get(HELD, "burst_to_burst_rtt")
    bursts, packets = numbers.get(HELD, "bursts_per_write"), numbers.get(HELD, "packets_per_burst")
    commands, data_outs = (
        numbers.get(HELD, f"{name}_per_write") for name in ("scsi_command", "data_out")
    )
    near = None
    if bursts and packets:
        near = abs(bursts / BURSTS - 1) <= NEAR and abs(packets / PACKETS - 1) <= NEAR
    one = None if commands is None else commands < 1.2 and abs(data_outs / DATA_OUTS - 1) <= NEAR
    return [
        judged(leave, near, f"{bursts:.1f} of {packets:.0f}" if bursts and packets else ""),
        judged(
            "bursts are one RTT apart",
            abs(apart - 1) <= 0.15 if apart else None,
            f"{apart:.2f} RTT" if apart else "",
        ),
        judged(pdus, one, f"{commands:.1f} commands and {data_outs:.1f} Data-Outs a write")
        if commands is not None and data_outs is not None
        else not_measured(
            pdus, "what was drawn had 16 commands of 256 KiB in place of one of 4 MiB"
        ),
    ]


TRACE = Trace(
    name="s0-fig9",
    title="Packets and PDUs of writes of 4 MiB, RTT 20 ms",
    paper="one WRITE(10) and 15 Data-Outs; the data leave in 4 bursts of about 730 packets (1 MB), one round trip apart",
    transfers=[Transfer(stack, 20) for stack in (STOCK, HELD, OURS)],
    draw=draw,
    claims=claims,
)
