"""`python -m enkaku_lab packets NAME…|all`: S0's figures of single packets, drawn anew.

Each figure is a file in `experiments/` that declares `TRACE`: the transfers it needs, and how they
are drawn. Transfers that several figures need run once.
"""

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from enkaku_lab import OUT, data, docs, experiments, figure, machine, story, table, wan
from enkaku_lab.claims import Claim, markdown
from enkaku_lab.progress import say
from enkaku_lab.results import utc
from enkaku_lab.story import Numbers
from enkaku_lab.transfers import (
    HELD,
    LABELS,
    MIB,
    OURS,
    ROUND_TRIPS,
    SECONDS,
    SETTLED_S,
    SOCKET,
    STOCK,
    Seen,
    Transfer,
    see,
)

FOLDER = OUT / "packets"
HEAD = """# S0's packets

Made by `python -m enkaku_lab packets all --docs docs/packets`; do not edit. Writes one at a time over 1 Gbit/s,
seen by the packets and by samples of the sender's socket. {machine}

![What Ta, Tb and Tc are, and what is in the sender's queue](../figures/s0-write.svg)
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
    """Draws into PATH.svg, PATH.png and PATH.csv; returns what is to be seen, with numbers, unless
    the story (`story.tell`) has them."""
    claims: Callable[[Numbers], list[Claim]]
    """What the paper says, judged."""


NUMBERS = "s0-numbers"
"""The CSV of what the judgements are made of."""
QUICK_RTTS_MS = (0, 5, 20)


def load() -> dict[str, Trace]:
    return experiments.declared("TRACE")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="enkaku_lab packets", description=__doc__)
    parser.add_argument("names", nargs="+", metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="transfers of a second")
    parser.add_argument("--out", type=Path, default=FOLDER)
    parser.add_argument("--docs", type=Path, metavar="DIR", help="write DIR/README.md, too")
    parser.add_argument("--fresh", action="store_true", help="run again what is finished")
    parser.add_argument(
        "--again", type=Path, metavar="DIR",
        help="write what is committed there again, from its CSV; pictures stay as they are",
    )
    options = parser.parse_args(arguments)
    chosen = experiments.choose(options.names, "TRACE")
    if options.again:
        print(f"Report: {again(chosen, options.again)}")
        return
    page = perform(chosen, options.quick, options.out, options.fresh)
    print(f"Report: {page}")
    if options.docs:
        print(f"To be committed: {_commit(page, [one.name for one in chosen], options.docs)}")


def wanted(traces: Iterable[Trace], quick: bool) -> list[Transfer]:
    """The transfers that these figures need, each once."""
    every = dict.fromkeys(one for trace in traces for one in trace.transfers)
    return [one for one in every if not quick or _in_quick(one)]


OVERHEAD_S = 3.0
"""A line, a target, a capture and what is read of it."""


def seconds(one: Transfer) -> float:
    """How long it takes, about."""
    return SECONDS + ROUND_TRIPS * one.rtt_ms / 1e3 + SETTLED_S.get(one.stack, 0.0) + OVERHEAD_S


def perform(chosen: Sequence[Trace], quick: bool = False, out: Path = FOLDER, fresh: bool = False) -> Path:
    """Runs what is missing, draws, writes the page; returns its path."""
    wan.need()
    pace = "quick" if quick else "full"
    seen: dict[Transfer, Seen] = {}
    figures = []
    for trace in chosen:
        mine = wanted([trace], quick)
        for one in mine:
            if one not in seen:
                size = one.block_bytes // 1024
                say(f"{LABELS[one.stack]}, RTT {one.rtt_ms:g} ms, {size} KiB")
                seen[one] = see(one, out / f"runs-{pace}", quick, fresh)
        sentence = trace.draw([seen[one] for one in mine], out / trace.name)
        figures.append((trace, f"{trace.name}.svg", sentence or ""))
        say(f"{trace.name}: {sentence or 'drawn'}")
    numbers = story.numbers(seen.values(), segments_of)
    said = {trace.name: sentence for trace, _, sentence in figures if sentence}
    head = {"figure": NUMBERS, **head_of(seen.values()), **said}
    data.write(out / f"{NUMBERS}.csv", head, story.COLUMNS, numbers.rows)
    lines = [HEAD.format(machine=machine.summary(machine.facts()))]
    lines += ["**A quick run:** draw no conclusions from it.\n"] if quick else []
    lines.append(f"{STORY}\n")
    for found in story.tell(seen.values(), segments_of):
        text = table.render(found.head, found.rows)
        lines.append(f"{found.title}:\n\n{table.fenced(text)}\n")
        print(f"{found.title}:\n{text}\n")
    page = out / "README.md"
    page.write_text("\n".join([*lines, *(_section(*one, numbers) for one in figures)]))
    return page


STORY = "## S0's story in these numbers"


def _in_quick(one: Transfer) -> bool:
    return one.rtt_ms in QUICK_RTTS_MS and one.block_bytes == 4 * MIB


def _section(trace: Trace, picture: str, sentence: str, numbers: Numbers) -> str:
    parts = [
        f"## {trace.name}: {trace.title}",
        f"The paper: {trace.paper}.",
        f"![{trace.title}]({picture})",
        sentence,
        markdown(trace.claims(numbers)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def again(chosen: Sequence[Trace], folder: Path) -> Path:
    """The page of what is committed, its judgements made of the CSV there; its head, tables and
    pictures stay."""
    found = data.read(folder / f"{NUMBERS}.csv")
    numbers = Numbers([tuple(row[name] for name in story.COLUMNS) for row in found.rows])
    page = folder / "README.md"
    before = page.read_text().partition("\n## s0-fig")[0]
    pictures = {path.stem: path.name for path in folder.iterdir() if path.suffix in (".svg", ".png")}
    sections = [
        _section(one, pictures[one.name], found.head.get(one.name, ""), numbers)
        for one in chosen
        if one.name in pictures
    ]
    page.write_text("\n".join([before, *sections]))
    return page


def head_of(seen: Iterable[Seen]) -> dict[str, object]:
    """What a reader must know of the numbers of a figure."""
    seen = list(seen)
    facts = machine.facts()
    return {
        "paper": "Higa et al. 2009",
        "stacks": "packets" if any(one.transfer.stack != SOCKET for one in seen) else "tcp",
        "machine": machine.summary(facts),
        "versions": ", ".join(f"{name} {text}" for name, text in facts["versions"].items()),
        "commit": facts["commit"],
        "taken": utc(),
        "run": f"writes of {SECONDS:g} s and {ROUND_TRIPS} round trips, one at a time",
    }


def _commit(page: Path, names: list[str], folder: Path) -> Path:
    """The page with the smaller one of each figure's two files."""
    text = page.read_text()
    for path in page.parent.glob("s0-*.csv"):
        (folder / path.name).write_bytes(path.read_bytes())
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


def finish(chart, seen: list[Seen], path: Path) -> None:
    """Small print (machine, day, commit, length of a run), and the files."""
    head = head_of(seen)
    commit = f" · commit {head['commit']}" if head["commit"] else ""
    chart.supxlabel(f"{head['machine']}{commit} · {head['run']}", fontsize=7, color="#444444")
    figure.save(chart, path, numbers=head)


def within(seen: Seen, begin: float, end: float):
    """Segments and samples of a time, in milliseconds after its begin."""
    segments = [one for one in seen.segments if begin <= one.time_s <= end]
    samples = [one for one in seen.samples if begin <= one.time_s <= end]
    return segments, samples


def segments_of(seen: Seen) -> int:
    """Payload of a full segment."""
    return seen.connection["to_target"]["mss_bytes"] if seen.connection else 1448
