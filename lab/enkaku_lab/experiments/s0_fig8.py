"""S0, figures 7 and 8: Ta, Tb and Tc of writes of 2 and 4 MiB, one at a time, against RTT."""

from pathlib import Path

from enkaku_lab import figure, story
from enkaku_lab.packets import Trace
from enkaku_lab.transfers import AUTO, HELD, LABELS, MIB, OURS, STOCK, WIDE, Seen, Transfer

STACKS = (STOCK, HELD, OURS, AUTO, WIDE)
RTTS_MS = [0, 2, 5, 10, 20, 50]
TIMES = {"ta_us": ("Ta", "#0072B2"), "tb_us": ("Tb", "#D55E00"), "tc_us": ("Tc", "#999999")}


def draw(seen: list[Seen], path: Path) -> None:
    import matplotlib.pyplot as plt

    with plt.rc_context(figure.STYLE):
        chart, axes = plt.subplots(
            2, 3, figsize=(14, 8), layout="constrained", sharex=True, sharey=True
        )
    axes = list(axes.flat)
    empty = axes.pop()
    empty.axis("off")
    for ax, stack in zip(axes, STACKS, strict=True):
        for size, line in ((2 * MIB, "--"), (4 * MIB, "-")):
            mine = [one for one in seen if one.transfer == Transfer(stack, one.transfer.rtt_ms, size)]
            for key, (label, colour) in TIMES.items():
                points = [(one.transfer.rtt_ms, story.median_ms(one, key)) for one in mine]
                points = [(x, y) for x, y in points if y is not None]
                name = f"{label}, {size // MIB} MiB"
                ax.plot(*zip(*points, strict=True), line, marker="o", color=colour, label=name)
        ax.set_title(LABELS[stack], fontsize=11)
        ax.set_xlabel("RTT (ms)")
        ax.xaxis.set_tick_params(labelbottom=True)
        ax.set_yscale("log")
    for ax in (axes[0], axes[3]):
        ax.set_ylabel("median time (ms)")
    handles, labels = axes[-1].get_legend_handles_labels()
    empty.legend(handles, labels, loc="center", fontsize=11, frameon=False)
    figure.save(chart, path)


TRACE = Trace(
    name="s0-fig8",
    title="Ta, Tb and Tc against RTT",
    paper="Tb and Tc are constant, Ta grows in proportion to RTT",
    transfers=[
        Transfer(stack, rtt_ms, size)
        for rtt_ms in RTTS_MS
        for size in (2 * MIB, 4 * MIB)
        for stack in STACKS
    ],
    draw=draw,
)
