"""What an experiment of S2 is: the runs that it needs, its figure, and a sentence from the numbers.

Unlike the curves of the other papers, these figures are time series and scatters of single runs
in a simulator; so they have a runner of their own, with the same rules: every result is kept,
what is finished is not run again, and a sentence is computed, never written.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from enkaku_lab import OUT, figure
from enkaku_lab.ns2 import engine
from enkaku_lab.ns2.engine import Result, Run
from enkaku_lab.process import LabError
from enkaku_lab.progress import say

FOLDER = OUT / "lab" / "s2"
ENGINES = {"ns2": engine.results}


@dataclass(frozen=True)
class Pace:
    """How much of a study is run: everything, or what shows that it works."""

    name: str

    @property
    def quick(self) -> bool:
        return self.name == "quick"


FULL, QUICK = Pace("full"), Pace("quick")
Results = Mapping[Run, Result]


@dataclass(frozen=True)
class Study:
    name: str
    title: str
    source: str
    paper: str
    """What the paper's figure shows, in one line."""
    runs: Callable[[Pace], list[Run]]
    draw: Callable[[Results, Pace], object]
    """Returns a matplotlib figure."""
    sentence: Callable[[Results, Pace], str]
    engines: tuple[str, ...] = ("ns2",)


def perform(
    studies: list[Study],
    pace: Pace,
    folder: Path = FOLDER,
    name: str = "ns2",
    jobs: int | None = None,
    fresh: bool = False,
) -> list[tuple[Study, Path, str]]:
    """Runs what is missing, draws every figure; returns each with its picture and its sentence."""
    chosen = [study for study in studies if name in study.engines]
    for study in studies:
        if study not in chosen:
            say(f"{study.name}: not on the engine {name} (it has {', '.join(study.engines)})")
    if not chosen:
        raise LabError(f"none of these experiments runs on the engine {name}")
    wanted = [run for study in chosen for run in study.runs(pace)]
    found = ENGINES[name](wanted, folder / name, jobs, fresh)
    performed = []
    for study in chosen:
        mine = {run: found[run] for run in study.runs(pace)}
        chart = study.draw(mine, pace)
        stem = study.name if name == "ns2" else f"{study.name}-{name}"
        _title(chart, study, pace, name)
        svg, _png = figure.save(chart, folder / f"figures-{pace.name}" / stem)
        performed.append((study, svg, study.sentence(mine, pace)))
    _write(performed, pace, folder / f"report-{pace.name}-{name}.md")
    return performed


def _title(chart, study: Study, pace: Pace, name: str) -> None:
    what = "ns-2, FullTcp/Tahoe" if name == "ns2" else "enkaku on the emulated line, Reno"
    quick = "\nQUICK RUN, not for conclusions" if pace.quick else ""
    chart.suptitle(f"{study.title}\n({study.name}; {what}; {study.source}){quick}", fontsize=11)


def _write(performed: list[tuple[Study, Path, str]], pace: Pace, path: Path) -> None:
    parts = ["# iSCSI-APT (S2) again"]
    for study, svg, sentence in performed:
        parts += [
            f"## {study.name}: {study.title}",
            f"The paper ({study.source}): {study.paper}.",
            f"![{study.title}](figures-{pace.name}/{svg.name})",
            sentence,
        ]
    path.write_text("\n\n".join(parts) + "\n")
