"""`python -m enkaku_lab s2 NAME…`: the experiments of S2 (iSCSI-APT), in ns-2 and on real TCP."""

import argparse
import importlib
import pkgutil
from pathlib import Path

from enkaku_lab import experiments
from enkaku_lab.ns2 import pages, study
from enkaku_lab.ns2.study import Study
from enkaku_lab.process import LabError

PREFIX = "s2_"


def load() -> dict[str, Study]:
    """Every study by name, figures in their order."""
    names = [one.name for one in pkgutil.iter_modules(experiments.__path__)]
    modules = [
        importlib.import_module(f"{experiments.__name__}.{name}")
        for name in names
        if name.startswith(PREFIX)
    ]
    return {one.name: one for one in sorted((module.STUDY for module in modules), key=_order)}


def _order(one: Study) -> tuple[int, str]:
    figure = one.name.partition("-fig")[2]
    return (int(figure) if figure else 99, one.name)


def choose(names: list[str]) -> list[Study]:
    known = load()
    if unknown := [name for name in names if name not in known and name != "all"]:
        raise LabError(
            f"no experiment of S2 is called {unknown[0]}; there are: {', '.join(known)} (or all)"
        )
    return [one for name, one in known.items() if name in names or "all" in names]


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="enkaku_lab s2", description=study.__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", default=["all"], help="default: all")
    parser.add_argument("--quick", action="store_true", help="one seed, short: for CI")
    parser.add_argument(
        "--engine",
        choices=[*study.ENGINES, study.BOTH],
        default="ns2",
        help="the simulator, or enkaku on real TCP across the emulated line (needs root and a "
        "machine that does nothing else); what both have run is compared",
    )
    parser.add_argument("--docs", type=Path, metavar="DIR", help="write what is to be committed")
    parser.add_argument("--note", default="", help="a sentence for the head of what is committed")
    parser.add_argument("--fresh", action="store_true", help="run again what is finished")
    parser.add_argument("--jobs", type=int, help="simulations at a time; default: one per core")
    parser.add_argument("--out", type=Path, default=study.FOLDER, help="default: %(default)s")
    options = parser.parse_args(arguments)
    pace = study.QUICK if options.quick else study.FULL
    chosen = choose(options.names)
    how = (options.out, options.engine, options.jobs, options.fresh)
    performed = study.perform(chosen, pace, *how)
    for one, svg, sentence in performed:
        print(f"{one.name}: {sentence}\n  {svg}")
    if not options.docs:
        return
    simulated = [(one, svg, said) for one, svg, said in performed if svg.stem == one.name]
    written = []
    if simulated:
        written.append(pages.write_simulated(simulated, pace, options.docs, options.note))
    # Both engines are told side by side wherever both have run; to ask for that alone may fail.
    if len(performed) > len(simulated) or options.engine != "ns2":
        written.append(pages.write(chosen, pace, options.out, options.docs, options.note))
    print(f"To be committed: {', '.join(map(str, written))}")
