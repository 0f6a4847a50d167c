"""`python -m enkaku_lab s2 NAME…`: the experiments of S2 (iSCSI-APT), in ns-2 and on real TCP."""

import argparse
from pathlib import Path

from enkaku_lab import experiments
from enkaku_lab.ns2 import pages, study
from enkaku_lab.ns2.study import Study


def load() -> dict[str, Study]:
    """Every study by name, figures in their order."""
    return experiments.declared("STUDY")


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
    chosen = experiments.choose(options.names, "STUDY")
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
