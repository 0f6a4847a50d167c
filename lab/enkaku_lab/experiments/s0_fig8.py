"""S0, figures 7 and 8: Ta, Tb and Tc of writes of 2 and 4 MiB, one at a time, against RTT.

The paper has the RTT apart: Tb is the target finishing the write. What is seen at the initiator,
from the last data to the answer, has a round trip in it, so that is taken off here.
"""

from pathlib import Path

from enkaku_lab import figure, story
from enkaku_lab.claims import Claim, judged
from enkaku_lab.packets import Trace, finish
from enkaku_lab.transfers import AUTO, HELD, LABELS, MIB, OURS, STOCK, WIDE, Seen, Transfer

STACKS = (STOCK, HELD, OURS, AUTO, WIDE)
RTTS_MS = [0, 2, 5, 10, 20, 50]
TIMES = {"ta_us": ("Ta", "#0072B2"), "tb_us": ("Tb − RTT", "#D55E00"), "tc_us": ("Tc", "#999999")}
PROPORTIONAL_R2 = 0.98
CONSTANT_MS = 10.0
"""So much Tb and Tc may differ between round trips of 0 and 50 ms and still be constant."""


def draw(seen: list[Seen], path: Path) -> None:
    import matplotlib.pyplot as plt

    with plt.rc_context(figure.STYLE):
        chart, axes = plt.subplots(
            2, 3, figsize=(14, 8), layout="constrained", sharex=True
        )
    axes = list(axes.flat)
    empty = axes.pop()
    empty.axis("off")
    for ax, stack in zip(axes, STACKS, strict=True):
        for size, line in ((2 * MIB, "--"), (4 * MIB, "-")):
            mine = [one for one in seen if one.transfer == Transfer(stack, one.transfer.rtt_ms, size)]
            for key, (label, colour) in TIMES.items():
                points = [(one.transfer.rtt_ms, story.median_ms(one, key)) for one in mine]
                points = [(x, y - (x if key == "tb_us" else 0)) for x, y in points if y is not None]
                name = f"{label}, {size // MIB} MiB"
                if not points:
                    continue
                ax.plot(*zip(*points, strict=True), line, marker="o", color=colour, label=name)
        ax.set_title(LABELS[stack], fontsize=11)
        ax.set_xlabel("RTT (ms)")
        ax.xaxis.set_tick_params(labelbottom=True)
        # Each stack has its own scale: a straight line is to be seen as one.
        ax.set_ylim(bottom=0)
    for ax in (axes[0], axes[3]):
        ax.set_ylabel("median time (ms)")
    handles, labels = axes[-1].get_legend_handles_labels()
    empty.legend(handles, labels, loc="center", fontsize=11, frameon=False)
    finish(chart, seen, path)


def claims(numbers: story.Numbers) -> list[Claim]:
    parts, holds = [], None
    for stack, what in ((STOCK, "stock"), (HELD, "without R2Ts and with 1 MiB of send buffer"), (WIDE, "with 4 MiB of send buffer")):
        slope, r2 = (numbers.get(stack, name, None) for name in ("ta_per_rtt", "ta_r2"))
        if slope is not None and r2 is not None:
            parts.append(f"{what} {slope:.2f} ms per ms of RTT (R² {r2:.2f})")
            if stack == HELD:
                holds = r2 >= PROPORTIONAL_R2 and slope >= story.ROUND_TRIP
    tb = {rtt: tb - rtt for rtt, tb in numbers.over_rtt(HELD, "tb_ms").items()}
    tc = numbers.over_rtt(HELD, "tc_ms")
    return [
        judged("Ta grows in proportion to the RTT", holds, "; ".join(parts)),
        _constant("Tb, the RTT not counted, is constant", tb),
        _constant("Tc is constant", tc),
    ]


def _constant(says: str, times: dict[float, float]) -> Claim:
    if len(times) < 2:
        return judged(says, None, "")
    low, high = min(times.values()), max(times.values())
    said = f"{low:.1f} to {high:.1f} ms over RTT {min(times):g} to {max(times):g} ms"
    return judged(says, high - low <= CONSTANT_MS, said)


TRACE = Trace(
    name="s0-fig8",
    title="Ta, Tb and Tc against RTT",
    paper="Tb (without the RTT) and Tc are constant, Ta grows in proportion to RTT",
    transfers=[
        Transfer(stack, rtt_ms, size)
        for rtt_ms in RTTS_MS
        for size in (2 * MIB, 4 * MIB)
        for stack in STACKS
    ],
    draw=draw,
    claims=claims,
)
