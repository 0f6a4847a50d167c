"""What an experiment of S2 is: the runs that it needs, its figure, and a sentence from the numbers.

Unlike the curves of the other papers, these figures are time series and scatters of single runs, so
they have a runner of their own, with the same rules: every result is kept, what is finished is not
run again, and a sentence is computed, never written.

There are two engines: the paper's simulator (`engine`) and real kernels' TCP (`real`). What both
have run is drawn side by side, and `Fact`s, the numbers that a figure is about, say where they
agree.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from enkaku_lab import OUT, data, figure, machine
from enkaku_lab.claims import Claim, as_head, markdown
from enkaku_lab.ns2 import charts, engine, real
from enkaku_lab.ns2.engine import Result, Run, title
from enkaku_lab.process import LabError
from enkaku_lab.progress import say
from enkaku_lab.results import utc

FOLDER = OUT / "lab" / "s2"
ENGINES = {"ns2": engine, "real": real}
BOTH = "both"
NAMES = {"ns2": "ns-2, FullTcp/Tahoe", "real": "enkaku on the emulated line, Linux's Reno"}
RUNS_TOLD = 12
SHORT = {"ns2": "ns-2", "real": "real TCP"}


@dataclass(frozen=True)
class Pace:
    """How much of a study is run, everything or what shows that it works, and by which engine."""

    name: str
    engine: str = "ns2"

    @property
    def quick(self) -> bool:
        return self.name == "quick"

    @property
    def real(self) -> bool:
        """A second takes a second, so that there are fewer of them."""
        return self.engine == "real"


FULL, QUICK = Pace("full"), Pace("quick")
Results = Mapping[Run, Result]


@dataclass(frozen=True)
class Fact:
    """A number that a figure is about."""

    value: float
    unit: str
    tolerance: float
    """How far two engines may differ, relative to the simulator's value, and still agree."""

    def __str__(self) -> str:
        digits = 0 if abs(self.value) >= 100 else 1 if abs(self.value) >= 10 else 2
        shown = f"{self.value:.{digits}f}"
        # A whole number is not more than that.
        shown = shown.rstrip("0").rstrip(".") if "." in shown else shown
        return f"{shown} {self.unit}".rstrip()


Facts = dict[str, Fact]


@dataclass(frozen=True)
class Study:
    name: str
    title: str
    source: str
    paper: str
    """What the paper's figure shows, in one line."""
    runs: Callable[[Pace], list[Run]]
    draw: Callable[[list, Results, Pace], None]
    """Draws into as many axes as `grid` has."""
    sentence: Callable[[Results, Pace], str]
    facts: Callable[[Results, Pace], Facts] = lambda _found, _pace: {}
    claims: Callable[[Results, Pace], list[Claim]] = lambda _found, _pace: []
    """What the paper says, judged."""
    grid: tuple[int, int] = (1, 1)
    """Rows and columns of axes."""
    height_in: float = 4.2
    engines: tuple[str, ...] = ("ns2", "real")


Performed = list[tuple[Study, Path, str]]


def perform(
    studies: list[Study],
    pace: Pace,
    folder: Path = FOLDER,
    name: str = "ns2",
    jobs: int | None = None,
    fresh: bool = False,
) -> Performed:
    """Runs what is missing, draws every figure; returns each with its picture and its sentence.

    What both engines have run is compared afterwards, and returned too.
    """
    performed = []
    for one in ENGINES if name == BOTH else (name,):
        performed += _perform(studies, replace(pace, engine=one), folder, jobs, fresh)
    return performed + compare(studies, pace, folder)


def _perform(
    studies: list[Study], pace: Pace, folder: Path, jobs: int | None, fresh: bool
) -> Performed:
    name = pace.engine
    chosen = [study for study in studies if name in study.engines]
    for study in studies:
        if study not in chosen:
            say(f"{study.name}: not on the engine {name} (it has {', '.join(study.engines)})")
    if not chosen:
        raise LabError(f"none of these experiments runs on the engine {name}")
    wanted = [run for study in chosen for run in study.runs(pace)]
    found = ENGINES[name].results(wanted, folder / name, jobs, fresh)
    performed = []
    for study in chosen:
        mine = {run: found[run] for run in study.runs(pace)}
        chart, axes = charts.grid(*study.grid, height_in=study.height_in)
        study.draw(axes, mine, pace)
        stem = study.name if name == "ns2" else f"{study.name}-{name}"
        _title(chart, study, pace, NAMES[name], list(mine.items()))
        svg, _png = figure.save(
            chart,
            _figures(folder, pace) / stem,
            numbers=_head(study, mine, pace, study.claims(mine, pace)),
        )
        performed.append((study, svg, told(study, mine, pace)))
    _write(performed, pace, folder / f"report-{pace.name}-{name}.md", NAMES[name])
    return performed


def told(study: Study, found: Results, pace: Pace) -> str:
    """The sentence, and what the paper says against the data."""
    parts = [study.sentence(found, pace), markdown(study.claims(found, pace))]
    return "\n\n".join(part for part in parts if part)


def compare(studies: list[Study], pace: Pace, folder: Path) -> Performed:
    """A figure with both engines, a table and a sentence, for each that both have run."""
    performed = []
    rows: list[tuple] = []
    heads: list[dict] = []
    for study in studies:
        paces = {name: replace(pace, engine=name) for name in study.engines}
        found = {
            name: ENGINES[name].stored(study.runs(mine), folder / name)
            for name, mine in paces.items()
        }
        if len(found) < len(ENGINES) or None in found.values():
            continue
        facts = {name: study.facts(results, paces[name]) for name, results in found.items()}
        rows += _fact_rows(study.name, facts)
        chart = _side_by_side(study, found, paces)
        every = {run: result for results in found.values() for run, result in results.items()}
        pairs = [pair for results in found.values() for pair in results.items()]
        _title(chart, study, pace, "both engines", pairs)
        head = _head(study, every, pace) | {"stacks": "ns2 enkaku"}
        heads.append(head)
        path = _figures(folder, pace) / f"{study.name}-{BOTH}"
        svg, _png = figure.save(chart, path, numbers=head)
        judged = [
            f"{SHORT[name]}:\n\n{markdown(claims)}"
            for name, results in found.items()
            if (claims := study.claims(results, paces[name]))
        ]
        said = "\n\n".join([*judged, agreement(facts), facts_table(facts)])
        performed.append((study, svg, said))
    if performed:
        what = "ns-2 and real TCP side by side"
        told = {name: heads[-1][name] for name in ("pace", "stacks", "machine", "commit", "taken")}
        path = folder / f"facts-{pace.name}.csv"
        data.write(path, {"figure": "s2-engines", "title": what, **told}, FACTS, rows)
        _write(performed, pace, folder / f"report-{pace.name}-{BOTH}.md", what)
    return performed


FACTS = ("figure", "fact", "ns2", "real", "unit", "tolerance")
"""Columns of the numbers that figures are about, of both engines."""


def _fact_rows(name: str, facts: dict[str, Facts]) -> list[tuple]:
    rows = []
    for fact in dict.fromkeys(fact for each in facts.values() for fact in each):
        theirs, ours = (facts[one].get(fact) for one in ENGINES)
        known = theirs or ours
        values = [
            None if one is None or math.isnan(one.value) else one.value for one in (theirs, ours)
        ]
        rows.append((name, fact, *values, known.unit, known.tolerance))
    return rows


def _side_by_side(study: Study, found: dict[str, Results], paces: dict[str, Pace]):
    """One panel: next to each other. Several: an engine in a row."""
    rows, columns = study.grid
    alone = (rows, columns) == (1, 1)
    shape = (1, len(found)) if alone else (rows * len(found), columns)
    width_in = 0.8 * charts.ALONE_IN if alone else None
    chart, axes = charts.grid(*shape, height_in=study.height_in, width_in=width_in)
    each = rows * columns
    for index, (name, results) in enumerate(found.items()):
        mine = axes[index * each : (index + 1) * each]
        study.draw(mine, results, paces[name])
        for one in mine:
            title = one.get_title()
            one.set_title(f"{SHORT[name]}: {title}" if title else NAMES[name], fontsize=10)
    charts.one_legend(chart, axes)
    return chart


def agreement(facts: dict[str, Facts]) -> str:
    """One sentence: where the engines agree, and where not."""
    agree, differ = [], []
    for name, theirs in facts["ns2"].items():
        ours = facts["real"].get(name)
        if ours is None or math.isnan(theirs.value) or math.isnan(ours.value):
            continue
        words = f"{name} ({theirs} against {ours})"
        (agree if _agree(theirs, ours) else differ).append(words)
    parts = []
    if agree:
        parts.append(f"agree on {', '.join(agree)}")
    if differ:
        parts.append(f"differ in {', '.join(differ)}")
    if not parts:
        return "ns-2 and real TCP have no number in common here."
    return f"ns-2 and real TCP {' and '.join(parts)}."


def _agree(theirs: Fact, ours: Fact) -> bool:
    return abs(ours.value - theirs.value) <= theirs.tolerance * abs(theirs.value)


def facts_table(facts: dict[str, Facts]) -> str:
    """Markdown: a row for each fact that either engine has."""
    names = dict.fromkeys(name for each in facts.values() for name in each)
    rows = []
    for name in names:
        theirs, ours = (facts[one].get(name) for one in ENGINES)
        shown = [str(one) if one and not math.isnan(one.value) else "–" for one in (theirs, ours)]
        if "–" in shown:
            verdict = ""
        else:
            verdict = "yes" if _agree(theirs, ours) else "no"
        tolerance = f"± {(theirs or ours).tolerance:.0%}"
        rows.append([name, *shown, tolerance, verdict])
    head = ["", *SHORT.values(), "counts as equal within", "equal"]
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _head(
    study: Study, found: Results, pace: Pace, claims: Sequence[Claim] = ()
) -> dict[str, object]:
    """What a reader must know of the numbers of a figure."""
    runs = sorted({f"{title(run)}" for run in found})
    head: dict[str, object] = {"title": study.title, "paper": study.source, "pace": pace.name}
    head["stacks"] = "enkaku" if pace.real else "ns2"
    head["runs"] = (
        "; ".join(runs)
        if len(runs) <= RUNS_TOLD
        else f"{len(found)} of up to {max(run.seconds for run in found):g} s"
    )
    machines = [result.head["machine"] for result in found.values() if "machine" in result.head]
    head["machine"] = (
        machine.summary(machines[-1])
        if machines
        else "any: a simulator's run is a function of its parameters"
    )
    head["commit"] = machine.commit()
    head["taken"] = utc()
    # What is drawn here is not enough to judge again by: read times and windows are thousands.
    return head | as_head(claims)


def _figures(folder: Path, pace: Pace) -> Path:
    return folder / f"figures-{pace.name}"


def _title(
    chart, study: Study, pace: Pace, what: str, found: Sequence[tuple[Run, Result]]
) -> None:
    """What it is, and in small print what was run, when it was real, and with which commit."""
    quick = "QUICK RUN, not for conclusions; " if pace.quick else ""
    longest = max(run.seconds for run, _ in found)
    ran = f"{len(found)} run{'s' if len(found) > 1 else ''} of up to {longest:g} s"
    machines = [result.head["machine"] for _, result in found if "machine" in result.head]
    where = f"; {machine.summary(machines[-1])}" if machines else ""
    commit = f"; commit {now}" if (now := machine.commit()) else ""
    chart.suptitle(f"{study.title}\n({study.name}; {what}; {study.source})", fontsize=11)
    charts.small_print(chart, f"{quick}{ran}{where}{commit}")


def _write(performed: Performed, pace: Pace, path: Path, what: str) -> None:
    parts = [f"# iSCSI-APT (S2) again: {what}"]
    for study, svg, sentence in performed:
        parts += [
            f"## {study.name}: {study.title}",
            f"The paper ({study.source}): {study.paper}.",
            f"![{study.title}](figures-{pace.name}/{svg.name})",
            sentence,
        ]
    path.write_text("\n\n".join(parts) + "\n")
