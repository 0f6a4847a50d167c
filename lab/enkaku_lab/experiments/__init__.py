"""Every experiment of the lab: one file each, named after the paper's figure.

A file declares `EXPERIMENT` and the sentence that compares the result with the paper; those with a
runner of their own declare `TRACE` of single packets (enkaku_lab.packets), `LOG` of the kernel
(enkaku_lab.in_guest.senders) or `STUDY` in a simulator (enkaku_lab.ns2) instead.
"""

import importlib
import pkgutil
from collections.abc import Iterable

from enkaku_lab.experiment import Experiment
from enkaku_lab.process import LabError

LAST = "limits"


def load() -> dict[str, Experiment]:
    """By name: papers first, figures in their order."""
    return declared("EXPERIMENT")


def declared(word: str) -> dict:
    """What the files declare under this word, by its name, in the same order."""
    modules = [importlib.import_module(f"{__name__}.{one.name}") for one in pkgutil.iter_modules(__path__)]
    found = [getattr(module, word) for module in modules if hasattr(module, word)]
    return {one.name: one for one in sorted(found, key=lambda one: _order(one.name))}


def _order(name: str) -> tuple:
    paper, _, figure = name.partition("-fig")
    return name == LAST, paper, int(figure or 0)


def choose(names: Iterable[str], word: str = "EXPERIMENT") -> list:
    """Those that were named of what is declared under the word, in the lab's order; `all` is every one."""
    known = declared(word)
    check(names, known)
    return [one for name, one in known.items() if name in names or "all" in names]


def check(names: Iterable[str], known: Iterable[str]) -> None:
    """LabError at the first name that is unknown."""
    if unknown := [name for name in names if name not in known and name != "all"]:
        raise LabError(
            f"no experiment is called {unknown[0]}; there are: {', '.join(known)} (or all)"
        )
