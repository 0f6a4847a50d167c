"""Confusion matrices of `python -m enkaku_lab bottlenecks`: which cause was built, which was named.

A cell is one transfer and three verdicts. A verdict is right, wrong, or says of itself that the
cause that was built cannot be told from this source (`cannot_tell` in its JSON, with the command
that can): that is neither right nor wrong, and it is counted by itself.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from enkaku_lab import machine
from enkaku_lab.table import render

if TYPE_CHECKING:
    from enkaku_lab.bottlenecks import Run

SOURCES = {
    "samples": "the kernel's counters alone, at the end that the data leave",
    "diagnose": "`enkaku diagnose --port` there: the counters, and packets where those cannot tell",
    "capture": "packets captured at either end or on the line, `enkaku diagnose --pcap`",
}
RIGHT, WRONG, UNTOLD = "right", "wrong", "cannot tell"
NONE = "none"
"""Named where a source saw nothing to judge."""
ABSENT = "·"


class Store:
    """A line of JSON for each cell; it only grows. Cells of another binary do not count, because
    they are the verdicts of another program."""

    def __init__(self, path: Path, binary: Path):
        self.path = path
        self.binary = hashlib.sha256(binary.read_bytes()).hexdigest()[:16]
        self._cells: dict[tuple, dict] = {}
        self._torn = False
        if path.exists():
            self._load()

    def _load(self) -> None:
        text = self.path.read_text()
        # What a killed run left half must not swallow the next line.
        self._torn = bool(text) and not text.endswith("\n")
        for line in text.splitlines():
            try:
                cell = json.loads(line)
            except json.JSONDecodeError:
                continue
            if cell["binary"] == self.binary:
                if cell.get("forget"):
                    self._cells.clear()
                else:
                    self._cells[_key(cell)] = cell

    def has(self, one: "Run") -> bool:
        return _key_of(one) in self._cells

    def of(self, work: Iterable["Run"]) -> list[dict]:
        """The cells of these runs, as far as they were measured."""
        found = (self._cells.get(_key_of(one)) for one in work)
        return [cell for cell in found if cell]

    def forget(self) -> None:
        """All cells of this binary count as not measured."""
        self._append({"binary": self.binary, "forget": True})
        self._cells.clear()

    def add(
        self, one: "Run", samples: dict | None, live: dict | None, capture: dict, seconds: float
    ) -> dict:
        """A cell that was measured; returns its line."""
        cell = {
            "binary": self.binary,
            "built": one.case.cause, "stack": one.stack, "seed": one.seed,
            "rtt_ms": one.rtt_ms, "rate": one.rate, "captured_at": one.where,
            "seconds": round(seconds, 2),
            "samples": _verdict(one.case.cause, samples),
            "diagnose": _verdict(one.case.cause, live),
            "capture": _verdict(one.case.cause, capture),
        }
        self._append(cell)
        self._cells[_key(cell)] = cell
        return cell

    def _append(self, record: dict) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        prefix, self._torn = "\n" if self._torn else "", False
        with self.path.open("a") as file:
            file.write(prefix + json.dumps(record) + "\n")


def _key(cell: dict) -> tuple:
    return cell["stack"], cell["built"], cell["seed"]


def _key_of(one: "Run") -> tuple:
    return one.stack, one.case.cause, one.seed


def _verdict(built: str, verdict: dict | None) -> dict:
    """What of a verdict is kept, and what it is worth."""
    if verdict is None:
        return {"named": NONE, "outcome": WRONG, "not_excluded": [], "cannot_tell": []}
    untold = [one["cause"] for one in verdict["cannot_tell"]]
    named = verdict["cause"]
    outcome = RIGHT if named == built else UNTOLD if built in untold else WRONG
    return {
        "named": named,
        "outcome": outcome,
        "not_excluded": verdict["not_excluded"],
        "cannot_tell": untold,
    }


def sentence(cell: dict) -> str:
    """One cell in a line."""
    found = []
    for source in SOURCES:
        verdict = cell[source]
        mark = {RIGHT: "", WRONG: " <-- WRONG", UNTOLD: " (says that it cannot tell)"}
        found.append(f"{source}: {verdict['named']}{mark[verdict['outcome']]}")
    return (
        f"{cell['stack']} seed {cell['seed']} RTT {cell['rtt_ms']:g} ms {cell['rate']} captured at "
        f"{cell['captured_at']}: {cell['built']} -> {', '.join(found)} ({cell['seconds']:.1f} s)"
    )


class Tables:
    """Counts of cells."""

    def __init__(self, cells: list[dict], causes: list[str], tuned: range):
        self.cells = cells
        self.causes = [one for one in causes if any(cell["built"] == one for cell in cells)]
        self.stacks = list(dict.fromkeys(cell["stack"] for cell in cells))
        self.seeds = sorted({cell["seed"] for cell in cells})
        self.tuned = [seed for seed in self.seeds if seed in tuned]

    def matrix(self, source: str, stack: str) -> tuple[list[str], list[list[str]]]:
        """Head and rows: what was built, how often each cause was named, what it was worth."""
        mine = [cell for cell in self.cells if cell["stack"] == stack]
        named = {cell[source]["named"] for cell in mine if cell[source]["outcome"] != UNTOLD}
        columns = self.causes + sorted(named - set(self.causes))
        rows = []
        for built in self.causes:
            verdicts = [cell[source] for cell in mine if cell["built"] == built]
            if not verdicts:
                continue
            count = Counter(one["named"] for one in verdicts if one["outcome"] != UNTOLD)
            worth = Counter(one["outcome"] for one in verdicts)
            cells = [str(count[one] or ABSENT) for one in columns]
            rows.append([built, *cells, str(worth[UNTOLD] or ABSENT), _share(worth[RIGHT], worth)])
        return ["built", *columns, UNTOLD, RIGHT], rows

    def totals(self) -> list[dict]:
        """By source and stack, and of all stacks."""
        found = []
        for source in SOURCES:
            for stack in [*self.stacks, "all"]:
                worth = Counter(
                    cell[source]["outcome"] for cell in self.cells if stack in (cell["stack"], "all")
                )
                found.append(
                    {
                        "source": source, "stack": stack, "cells": sum(worth.values()),
                        "right": worth[RIGHT], "wrong": worth[WRONG], "cannot_tell": worth[UNTOLD],
                    }
                )
        return found

    def total_rows(self) -> tuple[list[str], list[list[str]]]:
        rows = []
        for one in self.totals():
            whole = Counter({"cells": one["cells"]})
            parts = [_share(one[key], whole) for key in ("right", "wrong", "cannot_tell")]
            rows.append([one["source"], one["stack"], str(one["cells"]), *parts])
        return ["source", "stack", "cells", RIGHT, WRONG, UNTOLD], rows

    def text(self) -> str:
        """For a terminal."""
        if not self.cells:
            return "no cell was measured"
        parts = []
        for source in SOURCES:
            for stack in self.stacks:
                parts.append(f"{source}, {stack}\n{render(*self.matrix(source, stack))}")
        return "\n\n".join([*parts, render(*self.total_rows()), *self.mistakes()])

    def mistakes(self) -> list[str]:
        """Every wrong cell, so that it can be run again by itself."""
        return [
            sentence(cell)
            for cell in self.cells
            if any(cell[source]["outcome"] == WRONG for source in SOURCES)
        ]

    def cell_seconds(self) -> float:
        """The median time that a cell took."""
        seconds = sorted(cell["seconds"] for cell in self.cells)
        return seconds[len(seconds) // 2] if seconds else 0.0


def _share(count: int, whole: Counter) -> str:
    total = sum(whole.values())
    return f"{count} ({count / total:.0%})" if total else ABSENT


def write(tables: Tables, folder: Path, facts: dict, words: str, note: str = "") -> Path:
    """FOLDER/bottlenecks.md and FOLDER/bottlenecks.json; returns the former. `note` is for the head
    of the page."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = {
        "machine": facts, "command": f"bottlenecks {words}".strip(), "seeds": tables.seeds,
        "tuned_seeds": tables.tuned, "cell_seconds_median": tables.cell_seconds(),
        "totals": tables.totals(),
        "cells": [{k: v for k, v in cell.items() if k != "binary"} for cell in tables.cells],
    }
    lines = [json.dumps(cell) for cell in whole.pop("cells")]
    # A line for each cell, so that a change of one shows as one.
    text = json.dumps(whole, indent=1)[:-2] + ',\n "cells": [\n  ' + ",\n  ".join(lines) + "\n ]\n}\n"
    (folder / "bottlenecks.json").write_text(text)
    page = folder / "bottlenecks.md"
    page.write_text(_page(tables, facts, words, note))
    return page


def _page(tables: Tables, facts: dict, words: str, note: str) -> str:
    seeds = f"{tables.seeds[0]} to {tables.seeds[-1]}" if tables.seeds else "none"
    tuned = (
        f"**Seeds {tables.tuned[0]} to {tables.tuned[-1]} are those that the thresholds were tuned "
        "on**: these say nothing about unseen ones."
        if tables.tuned
        else "The thresholds were tuned on other seeds (0 to 9)."
    )
    parts = [
        "# How well `enkaku diagnose` names causes",
        f"Made by `python -m enkaku_lab bottlenecks {words}`; do not edit. Cells are in "
        "[bottlenecks.json](bottlenecks.json).",
        *([note] if note else []),
        "A cell is one transfer on an emulated line with one cause built in, and three verdicts on it: "
        + "; ".join(f"**{name}**, {what}" for name, what in SOURCES.items())
        + f". A seed draws round trip, rate and the place of the capture. Seeds {seeds}. {tuned} "
        f"A cell takes {tables.cell_seconds():.1f} s in the median.",
        "Rows are what was built, columns what was named. *Cannot tell* counts verdicts that name "
        "something else and say, with the command that helps, that the cause that was built cannot "
        "be told from this source: neither right nor wrong. Shares are of all cells of the row.",
    ]
    for source in SOURCES:
        for stack in tables.stacks:
            parts += [f"## From {source}: {stack}", _markdown(*tables.matrix(source, stack))]
    parts += ["## In sum", _markdown(*tables.total_rows())]
    mistakes = tables.mistakes()
    if mistakes:
        parts += ["Wrong cells:", "\n".join(f"* {line}" for line in mistakes)]
    parts.append(f"<sub>{machine.summary(facts)}; {facts['versions'].get('enkaku', 'enkaku')}.</sub>")
    return "\n\n".join(parts) + "\n"


def _markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
