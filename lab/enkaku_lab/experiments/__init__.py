"""Every experiment of the lab: one file each, named after the paper's figure.

A file declares `EXPERIMENT` and the sentence that compares the result with the paper.
"""

import importlib
import pkgutil
from collections.abc import Iterable

from enkaku_lab.experiment import Experiment
from enkaku_lab.process import LabError

LAST = "limits"


def load() -> dict[str, Experiment]:
    """By name: papers first, figures in their order."""
    found = []
    for module in pkgutil.iter_modules(__path__):
        loaded = importlib.import_module(f"{__name__}.{module.name}")
        # Others have runners of their own: STUDY in a simulator (enkaku_lab.ns2), TRACE of single
        # packets (enkaku_lab.packets).
        if hasattr(loaded, "EXPERIMENT"):
            found.append(loaded.EXPERIMENT)
    return {one.name: one for one in sorted(found, key=_order)}


def _order(experiment: Experiment) -> tuple:
    paper, _, figure = experiment.name.partition("-fig")
    return experiment.name == LAST, paper, int(figure or 0)


def choose(names: list[str]) -> list[Experiment]:
    """The named ones, in the lab's order; `all` is every one."""
    known = load()
    check(names, known)
    return [one for name, one in known.items() if name in names or "all" in names]


def check(names: Iterable[str], known: Iterable[str]) -> None:
    """LabError at the first name that is unknown."""
    if unknown := [name for name in names if name not in known and name != "all"]:
        raise LabError(
            f"no experiment is called {unknown[0]}; there are: {', '.join(known)} (or all)"
        )
