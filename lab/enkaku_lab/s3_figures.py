"""S3's figures of what `s3-btio` and `s3-mixed` measured: drawn, with their numbers as CSV beside them, and what
the paper says of them, judged. It measures nothing.

Figures 7 to 12 are one picture: run time and Mop/s of BT-IO by storage. Figures 13, 15 and 16 are one, too: blocks
alone and messages alone, both by turns, and that beside a copy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from enkaku_lab import claims, docs, figure
from enkaku_lab.claims import Claim
from enkaku_lab.cluster import LATE, LOCAL, MERGED, SEPARATE
from enkaku_lab.results import median

BTIO, MIXED = "s3-btio", "s3-mixed"
SOURCE = "PC cluster whose storage network is merged into its front-end network, 2006"
COLOURS = {LOCAL: "#7F7F7F", SEPARATE: "#0072B2", MERGED: "#E69F00"}
ALMOST, NEAR, CLEARLY = 1.05, 0.2, 1.2
"""“Almost nothing” is at most so many times, “about” within this share, “clearly slower” at least so many times."""
ROOM = 1.1
"""Of an axis, as a multiple of the highest point."""
Runs = Mapping[tuple[str, str], Sequence[float]]
"""Of a subtype and a storage, each run's value."""


@dataclass(frozen=True)
class Turns:
    """Runs with k messages behind each block, on one storage."""

    took_s: Mapping[int, Sequence[float]]
    """By k, of each run."""
    message_s: float
    """Of one message, where there are most."""
    blocks: int

    @property
    def alone_s(self) -> float:
        """The blocks alone."""
        return median(self.took_s[0])

    def expected_s(self, count: int) -> float:
        """The longer of both alone."""
        return max(self.alone_s, count * self.blocks * self.message_s)

    @property
    def off(self) -> float:
        """How far the medians are from that at most, as a share of it."""
        return max((median(runs) / self.expected_s(count) - 1 for count, runs in self.took_s.items()), key=abs)


def btio(path: Path, head: Mapping[str, object], took_s: Runs, mops: Runs, late: float) -> list[Claim]:
    """PATH.svg, .png and .csv; what is judged."""
    import matplotlib.pyplot as plt

    found = of_btio(took_s, late)
    subtypes = list(dict.fromkeys(subtype for subtype, _ in took_s))
    with plt.rc_context(figure.STYLE):
        chart, axes = plt.subplots(2, len(subtypes), figsize=(3.2 * len(subtypes) + 0.6, 6), layout="constrained", squeeze=False)
    for row, (runs, label) in enumerate(((took_s, "run time (s)"), (mops, "Mop/s"))):
        for ax, subtype in zip(axes[row], subtypes, strict=True):
            shapes = [shape for one, shape in runs if one == subtype]
            for place, shape in enumerate(shapes):
                values = runs[subtype, shape]
                ax.plot([place] * len(values), values, ".", color=COLOURS[shape], label=shape)
                ax.plot([place], [median(values)], "_", color=COLOURS[shape], markersize=28, label=f"{shape}, median")
            ax.set_xticks(range(len(shapes)), shapes)
            ax.set_xlim(-0.6, len(shapes) - 0.4)
            ax.set_ylim(0, ROOM * max(max(runs[subtype, shape]) for shape in shapes))
            ax.set_title(subtype, fontsize=11)
        axes[row][0].set_ylabel(label)
    _finish(chart, path, head, found)
    return found


def of_btio(took_s: Runs, late: float) -> list[Claim]:
    """What the paper says of figures 7 to 12. Where the emulator was late, the machine was measured."""
    by = {subtype: {shape: median(runs) for (one, shape), runs in took_s.items() if one == subtype} for subtype, _ in took_s}
    merging = {name: shapes[MERGED] / shapes[SEPARATE] for name, shapes in by.items() if {MERGED, SEPARATE} <= shapes.keys()}
    storage = {name: shapes[SEPARATE] / shapes[LOCAL] for name, shapes in by.items() if {LOCAL, SEPARATE} <= shapes.keys()}
    most, least = (pick(storage, key=storage.get) if storage else "" for pick in (max, min))
    return [
        _judged(
            "merging storage and messages into one network costs almost nothing",
            max(merging.values()) <= ALMOST if merging else None,
            f"run time merged, as a multiple of separate: {_each(merging)}",
            late,
        ),
        _judged(
            "storage is clearly slower than the local disk, most in simple, least in epio",
            storage[most] > CLEARLY and most == "simple" and least == "epio" if len(storage) > 1 else None,
            f"run time separate, as a multiple of local: {_each(storage)}",
            late,
        ),
    ]


def mixed(path: Path, head: Mapping[str, object], turns: Mapping[str, Turns], beside: Mapping[str, Turns], late: float) -> list[Claim]:
    """The same, by storage; `beside` a copy, where that was run."""
    import matplotlib.pyplot as plt

    found = of_mixed(turns, beside, late)
    with plt.rc_context(figure.STYLE):
        chart, (alone, both, copied) = plt.subplots(1, 3, figsize=(13, 4.2), layout="constrained", width_ratios=(1, 1.6, 1.6))
    for place, (shape, one) in enumerate(turns.items()):
        alone.plot([place], [one.alone_s], "s", color=COLOURS[shape], label=f"{shape}: blocks alone")
        alone.plot([place], [one.blocks * one.message_s], "x", color=COLOURS[shape], label=f"{shape}: as many messages")
        _by_k(both, shape, one)
        both.plot(list(one.took_s), [one.expected_s(count) for count in one.took_s], ":", color=COLOURS[shape], label=f"{shape}: the longer of both alone")
    for shape, one in beside.items():
        _by_k(copied, shape, one)
    alone.set_xticks(range(len(turns)), list(turns))
    alone.set_xlim(-0.6, len(turns) - 0.4)
    alone.set_ylabel("time (s)")
    titles = ("13: alone (■ blocks, × messages)", "15: by turns", "16: by turns, beside a copy" if beside else "16: not measured")
    for ax, title in zip((alone, both, copied), titles, strict=True):
        ax.set_title(title, fontsize=11)
        ax.set_ylim(bottom=0)
    for ax in (both, copied):
        ax.set_xlabel("k: messages of 1 MiB behind each block of 1 MiB")
    both.legend(fontsize=8)
    _finish(chart, path, head, found)
    return found


def _by_k(ax, shape: str, one: Turns) -> None:
    ax.plot(list(one.took_s), [median(runs) for runs in one.took_s.values()], ".-", color=COLOURS[shape], label=shape)


def of_mixed(turns: Mapping[str, Turns], beside: Mapping[str, Turns], late: float) -> list[Claim]:
    """What the paper says of figures 13, 15 and 16."""
    worst = max((one.off for one in turns.values()), key=abs, default=None)
    ratios, loaded = _merging(turns), _merging(beside)
    most = max(loaded, key=loaded.get) if loaded else 0
    return [
        _judged(
            "writing and sending overlap: T(k) ≈ max(T_write, k · T_sendrecv)",
            None if worst is None else abs(worst) <= NEAR,
            "; ".join(f"{shape}: off by {one.off:+.0%} at most" for shape, one in turns.items()),
            late,
        ),
        _judged(
            "merged is as fast as separate at every k",
            max(ratios.values()) <= ALMOST if ratios else None,
            f"merged, as a multiple of separate: {_each_k(ratios)}",
            late,
        ),
        _judged(
            "beside a copy merged is somewhat slower, most where sending dominates",
            loaded[most] > ALMOST and most >= median(list(loaded)) if loaded else None,
            f"merged, as a multiple of separate: {_each_k(loaded)}",
            late,
        ),
    ]


def _merging(turns: Mapping[str, Turns]) -> dict[int, float]:
    """By k, what one network takes as a multiple of two."""
    if not {SEPARATE, MERGED} <= turns.keys():
        return {}
    separate, merged = turns[SEPARATE].took_s, turns[MERGED].took_s
    return {count: median(merged[count]) / median(separate[count]) for count in separate if count in merged}


def _each_k(ratios: Mapping[int, float]) -> str:
    return _each({f"k = {count}": ratio for count, ratio in ratios.items()})


def _judged(says: str, holds: bool | None, found: str, late: float) -> Claim:
    if holds is not None and late > LATE:
        return claims.not_measured(says, f"the emulator was late in {late:.0%} of the time, so this machine was the limit; {found}")
    return claims.judged(says, holds, found)


def _each(ratios: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items())


def head_of(facts: Mapping[str, object], summary: str, run: str) -> dict[str, object]:
    """Of the CSV and the small print."""
    return {"paper": SOURCE, "stacks": "enkaku", "machine": summary, "commit": facts["commit"], "taken": facts["taken"], "run": run}


def _finish(chart, path: Path, head: Mapping[str, object], found: Sequence[Claim]) -> None:
    small = f"{head['machine']} · commit {head['commit']} · {str(head['taken'])[:10]}\n{head['run']}"
    chart.supxlabel(small, fontsize=7, color="#444444")
    figure.save(chart, path, numbers={**head, **claims.as_head(found)})


def keep(path: Path, folder: Path) -> str:
    """Commits the picture and its numbers to FOLDER/figures; a page's words for them."""
    name = docs.keep(path.with_suffix(".svg"), folder / "figures")
    (folder / "figures" / f"{path.name}.csv").write_bytes(path.with_suffix(".csv").read_bytes())
    return f"![{path.name}](figures/{name})\n\n[The numbers](figures/{path.name}.csv)."
