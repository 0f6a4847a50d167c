"""`python -m enkaku_lab list | run NAME… | report`: the papers' experiments, of all five kinds: curves, S0's
packets (`packets`), the kernel's log of senders (`in_guest.senders`), S2's studies (`ns2`) and S3's on a cluster
(`s3_btio`, `s3_mixed`), which have runners of their own."""

import argparse
import hashlib
import os
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path

from enkaku_lab import docs as docs_report
from enkaku_lab import cluster, data, in_guest, machine, packets, report, runner, s3_btio, s3_figures, s3_mixed, wan
from enkaku_lab.curves import collect
from enkaku_lab.experiment import FILE_BYTES, FULL, GUEST, QUICK, Experiment, Link, Pace
from enkaku_lab.experiments import check, choose, load
from enkaku_lab.in_guest import laboratory as guest
from enkaku_lab.in_guest import senders
from enkaku_lab.laboratory import laboratory
from enkaku_lab.ns2 import commands as s2
from enkaku_lab.ns2 import study
from enkaku_lab.peers import enkaku
from enkaku_lab.process import LabError
from enkaku_lab.progress import say
from enkaku_lab.stacks import Place
from enkaku_lab.stacks.all import STACKS
from enkaku_lab.store import Store
from enkaku_lab.table import render


def main_list(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="enkaku_lab list")
    parser.add_argument("--quick", action="store_true", help="the numbers of --quick")
    pace = QUICK if parser.parse_args(arguments).quick else FULL
    experiments = list(load().values())
    rows = [_row(one.name, [one], pace, one.title, one.source) for one in experiments]
    # Less than the sum: cells that several experiments need are measured once.
    rows.append(_row("all", experiments, pace, "every one, shared measurements once", ""))
    rows += _others(pace)
    print(render(["name", "runs", "minutes", "what", "figure"], rows))
    print()
    lacks = {stack.label: why for stack in STACKS.values() if (why := stack.missing())}
    for label, why in lacks.items():
        print(f"{label} cannot run here: {why}")


S3 = {s3_figures.BTIO: s3_btio, s3_figures.MIXED: s3_mixed}
"""Studies on a cluster, which are commands of their own, too."""


def _others(pace: Pace) -> list[list[str]]:
    """What `run all` makes besides the curves."""
    quick = pace is QUICK
    traces, logs, studies = packets.load(), senders.load(), list(s2.load().values())
    wanted = packets.wanted(traces.values(), quick)
    seconds = sum(map(packets.seconds, wanted)) * (0.5 if quick else 1)
    rows = [[f"{len(traces)} of S0's packets", str(len(wanted)), f"{seconds / 60:.1f}", "see docs/packets", "Higa et al. 2009"]]
    runs, seconds = sum(len(one.senders) for one in logs.values()), sum(one.seconds for one in logs.values())
    rows.append([f"{len(logs)} of S0's kernel log", str(runs), f"{seconds / 60:.1f}", "see docs/guest", "Higa et al. 2009"])
    for engine in _engines(pace):
        its = study.Pace(pace.name, engine)
        runs = {run for one in studies if engine in one.engines for run in one.runs(its)}
        seconds = sum(run.seconds for run in runs) * (1 if its.real else NS2_SECONDS)
        name = f"{len(studies)} of S2, {study.SHORT[engine]}"
        rows.append([name, str(len(runs)), f"{seconds / 60:.1f}", "see docs/tuner", "iSCSI-APT 2009"])
    if not quick:
        rows += [[name, str(one.RUNS), f"{one.SECONDS / 60:.1f}", "see docs/btio.md", "PC cluster 2006"] for name, one in S3.items()]
    return rows


NS2_SECONDS = 0.3
"""That a simulated second takes, about, with two at a time."""


def _engines(pace: Pace) -> tuple[str, ...]:
    """A quick run has no time for real seconds."""
    return ("ns2",) if pace is QUICK else ("ns2", "real")


def _row(name: str, experiments: list[Experiment], pace: Pace, title: str, source: str):
    work = runner.jobs(experiments, pace)
    return [name, str(len(work)), f"{runner.seconds(work) / 60:.1f}", title, source]


def main_run(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="enkaku_lab run", description=runner.__doc__)
    parser.add_argument("names", nargs="+", metavar="NAME", help="experiments (see list), or all")
    parser.add_argument("--quick", action="store_true", help="few points, short, once: for CI")
    parser.add_argument("--repeat", type=_at_least_one, help="repetitions instead of the pace's")
    parser.add_argument("--fresh", action="store_true", help="measure again what is finished")
    _add_out(parser)
    options = parser.parse_args(arguments)
    pace = QUICK if options.quick else FULL
    traces, logs, studies = packets.load(), senders.load(), s2.load()
    check(options.names, [*load(), *traces, *logs, *studies, *S3])
    every = "all" in options.names
    kinds = (load(), traces, logs, studies)
    chosen = [[one for name, one in kind.items() if every or name in options.names] for kind in kinds]
    place = Place(options.out)
    with runner.alone(place):
        if chosen[0]:
            _run(chosen[0], pace, place, options.repeat, options.fresh)
        if chosen[1]:
            page = packets.perform(chosen[1], options.quick, place.folder / "packets", options.fresh)
            print(f"Report: {page}")
        if chosen[2]:
            page = senders.perform(chosen[2], options.quick, place.folder / "guest", options.fresh)
            print(f"Report: {page}" if page else "no report of the kernel's log")
        if chosen[3]:
            _run_s2(chosen[3], pace, place, options.fresh)
        # A quick run of everything has no time for them.
        for name in S3:
            if name in options.names or every and not options.quick:
                _run_s3(name, options.quick, place, options.fresh)


def _run_s3(name: str, quick: bool, place: Place, fresh: bool) -> None:
    """Finished as a whole, or not."""
    folder = place.folder / "s3" / ("quick" if quick else "full")
    page = folder / f"{name}.md"
    if reason := cluster.missing():
        say(f"{name}: skipped: {reason}")
        return
    if fresh or not page.exists():
        folder.mkdir(parents=True, exist_ok=True)
        S3[name].main(["--out", str(folder), "--docs", str(folder), *(["--quick"] if quick else [])])
    print(f"Report: {page}")


def _run_s2(studies: list[study.Study], pace: Pace, place: Place, fresh: bool) -> None:
    folder = place.folder / "s2"
    for engine in _engines(pace):
        mine = [one for one in studies if engine in one.engines]
        if mine:
            study.perform(mine, study.Pace(pace.name), folder, engine, fresh=fresh)
            print(f"Report: {folder}/report-{pace.name}-{engine}.md")


def _run(
    experiments: list[Experiment], pace: Pace, place: Place, repeat: int | None, fresh: bool
) -> None:
    work = runner.jobs(experiments, pace, repeat)
    if not all(job.cell.in_guest for job in work):
        long = any(job.cell.load.bytes_max > FILE_BYTES for job in work)
        runner.room(place, long)
        wan.need()
        say("preparing files of 512 MiB …")
        place.prepare(long=long)
    store = Store(place.folder / "results.jsonl")
    if fresh:
        store.forget({job.cell.key for job in work})
    begin = time.monotonic()
    known = facts()
    if any(job.cell.in_guest for job in work):
        known["versions"] |= in_guest.versions()
    session = store.begin(known)
    minutes = runner.seconds(work) / 60
    say(f"{len(work)} measurements, about {minutes:.0f} minutes when none is done yet")
    failed = runner.measure(work, store, session, STACKS, laboratories, place)
    found = _with_results(list(load().values()), pace, store)
    page = report.write(found, pace, store, place.folder / f"report-{pace.name}")
    say(f"{(time.monotonic() - begin) / 60:.1f} minutes; {failed} measurements failed")
    print(f"Report: {page}\nRaw results: {store.path}")


def laboratories(link: Link, place: Place, stacks: Iterable[str]) -> AbstractContextManager:
    """Where these stacks run: at the ends of an emulated line, or in the guest."""
    names = list(stacks)
    if names[0].startswith(GUEST):
        return guest.laboratory()
    return laboratory(link, place, names)


def main_report(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="enkaku_lab report", description=report.__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="experiments; all, unless said")
    parser.add_argument("--quick", action="store_true", help="of the quick run's results")
    parser.add_argument("--docs", type=Path, metavar="DIR", help="write what is to be committed")
    parser.add_argument("--into", type=Path, metavar="DIR", help="put the named ones among what is committed there")
    parser.add_argument(
        "--again", type=Path, metavar="DIR",
        help="write what is committed there again, from the CSVs beside its figures",
    )
    parser.add_argument("--note", default="", help="a sentence for the head of what is committed")
    _add_out(parser)
    options = parser.parse_args(arguments)
    if options.again:
        page = docs_report.again(choose(options.names or ["all"]), options.again, options.note)
        print(f"Report: {page}")
        return
    pace = QUICK if options.quick else FULL
    path = options.out / "results.jsonl"
    if not path.exists():
        raise LabError(f"{path} does not exist; `run` makes it")
    names = options.names
    if names and options.docs is None and options.into is None:
        raise LabError("some of the experiments alone are written with --docs DIR or --into DIR")
    found = _with_results(choose(names or ["all"]), pace, Store(path))
    if options.into:
        for one in found:
            data.write_curves(collect(one, pace, Store(path)), options.into / "figures" / f"{one.name}.csv")
        page = docs_report.again(choose(["all"]), options.into, options.note)
    elif options.docs is None:
        page = report.write(found, pace, Store(path), options.out / f"report-{pace.name}")
    else:
        made = docs_report.Made(names, options.docs)
        page = docs_report.write(found, pace, Store(path), made, options.note)
    print(f"Report: {page}")


def _with_results(experiments: list[Experiment], pace: Pace, store: Store) -> list[Experiment]:
    """Of all that have results at this pace, not only of what was just run."""
    found = [one for one in experiments if _has_results(one, pace, store)]
    if not found:
        raise LabError(f"nothing was measured at the pace “{pace.name}” yet; see `run`")
    return found


def _has_results(experiment: Experiment, pace: Pace, store: Store) -> bool:
    return any(curve.measured for curve in collect(experiment, pace, store).curves)


def facts() -> dict:
    """The machine's, and which binary it was that was measured."""
    binary = enkaku.binary()
    digest = hashlib.sha256(binary.read_bytes()).hexdigest()[:16]
    # Whoever reads the results must know whether something else was at work.
    return {
        **machine.facts(),
        "enkaku_binary_sha256": digest,
        "load_average": os.getloadavg(),
    }


def _add_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=Path, default=runner.FOLDER, help=f"default: {runner.FOLDER}"
    )


def _at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number
