"""`python -m enkaku_lab packets NAME…|all`: S0's figures of single packets, drawn anew.

Each figure is a file in `experiments/` that declares `TRACE`: the transfers it needs, and how they
are drawn. Transfers that several figures need run once.
"""

import argparse
import importlib
import pkgutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from enkaku_lab import OUT, docs, experiments, figure, machine, story, table, wan
from enkaku_lab.process import LabError
from enkaku_lab.progress import say
from enkaku_lab.transfers import HELD, LABELS, OURS, SOCKET, STOCK, Seen, Transfer, see

FOLDER = OUT / "packets"
HEAD = """# S0's packets

Made by `python -m enkaku_lab packets all --docs docs/packets`; do not edit. Writes one at a time over 1 Gbit/s,
seen by the packets and by samples of the sender's socket. {machine}
"""
COLOURS = {
    STOCK: figure.COLOURS["stock"], HELD: "#CC79A7", OURS: figure.COLOURS["enkaku"],
    SOCKET: figure.COLOURS["tcp"],
}


@dataclass(frozen=True)
class Trace:
    name: str
    title: str
    paper: str
    """What the paper's figure shows."""
    transfers: Sequence[Transfer]
    draw: Callable[[list[Seen], Path], str | None]
    """Draws into PATH.svg and PATH.png; returns what is to be seen, with numbers, unless the story
    (`story.tell`) has them."""


def load() -> dict[str, Trace]:
    found = []
    for module in pkgutil.iter_modules(experiments.__path__):
        loaded = importlib.import_module(f"{experiments.__name__}.{module.name}")
        if hasattr(loaded, "TRACE"):
            found.append(loaded.TRACE)
    return {one.name: one for one in sorted(found, key=lambda one: int(one.name[6:]))}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="enkaku_lab packets", description=__doc__)
    parser.add_argument("names", nargs="+", metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="transfers of a second")
    parser.add_argument("--out", type=Path, default=FOLDER)
    parser.add_argument("--docs", type=Path, metavar="DIR", help="write DIR/README.md, too")
    options = parser.parse_args(arguments)
    known = load()
    if unknown := [name for name in options.names if name not in known and name != "all"]:
        raise LabError(f"no figure is called {unknown[0]}; there are: {', '.join(known)} (or all)")
    wan.need()
    chosen = [one for one in known.values() if one.name in options.names or "all" in options.names]
    seen: dict[Transfer, Seen] = {}
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        for trace in chosen:
            for one in trace.transfers:
                if one not in seen:
                    size = one.block_bytes // 1024
                    say(f"{LABELS[one.stack]}, RTT {one.rtt_ms:g} ms, {size} KiB")
                    seen[one] = see(one, Path(folder), 0.5 if options.quick else 2.0)
            sentence = trace.draw([seen[one] for one in trace.transfers], options.out / trace.name)
            figures.append(f"## {trace.name}: {trace.title}\n\nThe paper: {trace.paper}.\n")
            figures.append(f"![{trace.title}]({trace.name}.svg)\n")
            if sentence:
                figures.append(f"{sentence}\n")
            say(f"{trace.name}: {sentence or 'drawn'}")
    lines = [HEAD.format(machine=machine.summary(machine.facts()))]
    lines.append("## S0's story in these numbers\n")
    for found in story.tell(seen.values(), segments_of):
        text = table.render(found.head, found.rows)
        lines.append(f"{found.title}:\n\n{table.fenced(text)}\n")
        print(f"{found.title}:\n{text}\n")
    page = options.out / "README.md"
    page.write_text("\n".join(lines + figures))
    print(f"Report: {page}")
    if options.docs:
        print(f"To be committed: {_commit(page, [one.name for one in chosen], options.docs)}")


def _commit(page: Path, names: list[str], folder: Path) -> Path:
    """The page with the smaller one of each figure's two files."""
    text = page.read_text()
    for name in names:
        text = text.replace(f"({name}.svg)", f"({docs.keep(page.with_name(f'{name}.svg'), folder)})")
    committed = folder / page.name
    committed.write_text(text)
    return committed


def panels(seen: list[Seen], y_label: str, height_in: float = 3.0):
    """A row of axes for each transfer."""
    import matplotlib.pyplot as plt

    with plt.rc_context(figure.STYLE):
        chart, axes = plt.subplots(
            len(seen), 1, figsize=(8, height_in * len(seen)), layout="constrained", squeeze=False
        )
    for ax, one in zip(axes.flat, seen, strict=True):
        ax.set_ylabel(y_label)
        ax.set_title(f"{LABELS[one.transfer.stack]}, RTT {one.transfer.rtt_ms:g} ms", fontsize=11)
        ax.set_axisbelow(True)
    axes.flat[-1].set_xlabel("time (ms)")
    return chart, list(axes.flat)


def within(seen: Seen, begin: float, end: float):
    """Segments and samples of a time, in milliseconds after its begin."""
    segments = [one for one in seen.segments if begin <= one.time_s <= end]
    samples = [one for one in seen.samples if begin <= one.time_s <= end]
    return segments, samples


def segments_of(seen: Seen) -> int:
    """Payload of a full segment."""
    return seen.connection["to_target"]["mss_bytes"] if seen.connection else 1448
