"""`python -m enkaku_lab s3-btio`: BT-IO on nodes that share one network for messages and storage.

Each compute node has a volume of its own: a local file, a disk by iSCSI over a second network, or
one over the network of the messages. Every subtype writes there, is flushed and verified, and
verified again by other nodes: the disks are detached, and attached where their neighbours were.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from enkaku_lab import cluster, machine, s3_figures
from enkaku_lab.claims import markdown
from enkaku_lab.cluster import LATE, MERGED, SEPARATE, Cluster, Line, Seen
from enkaku_lab.peers import btio
from enkaku_lab.peers.btio import Done, Work
from enkaku_lab.process import LabError
from enkaku_lab.progress import Progress
from enkaku_lab.results import Results, median
from enkaku_lab.table import GAP, fenced, render

MIB = 1 << 20
RUN_S_MAX = 1800.0
HEAD = "subtype|storage|run (s)|Mop/s|I/O (s)|MB/s|flush (s)|dropped|late|right|elsewhere"
LEGEND = f"""run, Mop/s, I/O, MB/s: by the rules of NPB 3.3.1 (all steps, writes and the close; nothing is
flushed), medians. flush: fsync behind that, the slowest rank's. dropped: packets that found a full
queue. late: the part of the time in which the emulator was to run and had no processor, the worst
run's; * above {LATE:.0%}: there the machine was the limit. (Ranks poll while they wait, so no processor
is ever idle.) right: runs whose norms agree with NPB's, in memory and read back. elsewhere: of the
last run of each, the file read by other nodes than wrote it, every bit compared."""
PAGE = """# BT-IO on one network for messages and storage

Made by `python -m enkaku_lab s3-btio --docs docs`; do not edit. Class {size}, {nodes} compute nodes
with {ranks} each, {mpi}, MPI-IO by {mpi_io}; each line {rate}, RTT to the switch {rtt}.
Volumes are ext4 on a loop device: on a local file, on `enkaku attach {options}` over a
second network, or over that of the messages; each node writes a file of its own there, with what
its ranks have. {machine}

{body}
"""


@dataclass(frozen=True)
class Pace:
    size: str
    nodes: int
    ranks: int
    """At each node."""
    repeat: int


FULL = Pace("A", 4, 1, 5)
QUICK = Pace("W", 2, 2, 1)
RUNS = FULL.repeat * len(cluster.SHAPES) * len(btio.SUBTYPES)
SECONDS = 120.0 * RUNS
"""About: class A is 168 Gop, and what two processors do of it in a second is 1 to 2 Gop."""
VOLUME_BYTES = {"S": 64 * MIB, "W": 192 * MIB, "A": 2048 * MIB, "B": 8192 * MIB}
"""Room for a file of each subtype at every node, whoever's numbers it gets; disks are sparse."""


@dataclass(frozen=True)
class Ran:
    """One run, as it goes to the file of results."""

    shape: str
    subtype: str
    number: int
    verified: bool
    seen: Seen
    report: dict
    elsewhere: bool | None = None


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="enkaku_lab s3-btio", description=__doc__)
    cluster.add_options(parser, page="s3-btio.md")
    parser.add_argument("--subtype", action="append", choices=btio.SUBTYPES, help="repeatable")
    parser.add_argument("--quick", action="store_true", help="class W, two nodes, once")
    parser.add_argument("--class", dest="size", choices=list(VOLUME_BYTES))
    parser.add_argument("--mpi-io", choices=["OMPIO", "ROMIO"], default="OMPIO")
    options = parser.parse_args(arguments)
    shapes = cluster.chosen(options.names)
    cluster.need_one()
    pace = QUICK if options.quick else FULL
    pace = Pace(options.size or pace.size, pace.nodes, pace.ranks, options.repeat or pace.repeat)
    study = Study(
        pace,
        Line(options.rate, options.rtt),
        options.mpi_io,
        shapes,
        options.subtype or list(btio.SUBTYPES),
        options.attach,
    )
    facts = machine.facts()
    results = Results(options.out / "s3-btio.jsonl", {**facts, **asdict(study)})
    try:
        ran = list(measure(study, btio.build(options.out / "program"), results))
    finally:
        results.close()
    judged = _draw(study, ran, options.out / s3_figures.BTIO, facts)
    body = [render(HEAD.split("|"), rows(study, ran)), LEGEND, sentence(study, ran), judged]
    print("\n".join(body))
    if options.docs:
        body.append(s3_figures.keep(options.out / s3_figures.BTIO, options.docs))
        page = options.docs / "s3-btio.md"
        page.write_text(_page(study, ran[0].report["mpi"], machine.summary(facts), body))
        print(f"Page: {page}")
    if wrong := [f"{one.shape} {one.subtype}" for one in ran if not _is_right(one)]:
        raise LabError(f"not verified: {', '.join(sorted(set(wrong)))}")


@dataclass(frozen=True)
class Study:
    """What is measured."""

    pace: Pace
    line: Line
    mpi_io: str
    shapes: list[str]
    subtypes: list[str]
    options: list[str]
    """Of `enkaku attach`."""


def measure(study: Study, program: Path, results: Results) -> Iterator[Ran]:
    """Repetitions are outermost, so that whatever changes with time does so for all storages."""
    with cluster.folder() as parent:
        progress = Progress(study.pace.repeat * len(study.shapes) * len(study.subtypes))
        for number in range(study.pace.repeat):
            is_last = number == study.pace.repeat - 1
            for shape in study.shapes:
                with _cluster(study, shape, parent) as place:
                    for one in _measure(study, place, program, number, is_last, progress):
                        results.add({"kind": "run", **asdict(one)})
                        yield one
        progress.end()


@contextmanager
def _cluster(study: Study, shape: str, parent: Path) -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(dir=parent) as name:
        size = VOLUME_BYTES[study.pace.size]
        more = {"options": study.options}
        nodes, line = study.pace.nodes, study.line
        with cluster.cluster(shape, nodes, line, size, Path(name), **more) as place:
            yield place


def _measure(
    study: Study, place: Cluster, program: Path, number: int, is_last: bool, progress: Progress
) -> list[Ran]:
    nodes = list(range(study.pace.nodes))
    place.attach(nodes, fresh=True)
    ran = []
    for subtype in study.subtypes:
        progress.step(f"{place.shape}, {subtype}")
        work = Work(study.pace.size, subtype, place.mount / subtype, sync=True)
        before = place.seen()
        done = _run(study, place, program, nodes, work)
        seen = place.seen().since(before)
        ran.append(Ran(place.shape, subtype, number, done.verified, seen, done.report))
    place.detach()
    if not is_last:
        return ran
    # Node n's disk goes to node n+1, and its ranks too, because a disk has what they have written.
    place.attach(nodes[-1:] + nodes[:-1])
    elsewhere = [_elsewhere(study, place, program, nodes[1:] + nodes[:1], one) for one in ran]
    place.detach()
    return [replace(one, elsewhere=right) for one, right in zip(ran, elsewhere, strict=True)]


def _elsewhere(study: Study, place: Cluster, program: Path, order: list[int], one: Ran) -> bool:
    checksum = one.report.get("checksum")
    if checksum is None:
        return False
    work = Work(study.pace.size, one.subtype, place.mount / one.subtype, True, checksum)
    return _run(study, place, program, order, work).verified


def _run(study: Study, place: Cluster, program: Path, order: list[int], work: Work) -> Done:
    report = place.folder / "report.json"
    report.unlink(missing_ok=True)
    words = [program, *work.words(report)]
    ran = place.mpirun(order, study.pace.ranks, words, RUN_S_MAX, study.mpi_io)
    if ran.code not in (btio.VERIFIED, btio.NOT_VERIFIED):
        what = f"{place.shape}, {work.subtype}: btio ended with {ran.code}"
        raise LabError(f"{what}: {ran.stderr[-1500:]}")
    return Done(ran.code, json.loads(report.read_text()), ran.stderr)


def _draw(study: Study, ran: list[Ran], path: Path, facts: dict) -> str:
    """Figures 7 to 12; what is judged."""
    took_s: dict[tuple[str, str], list[float]] = {}
    mops: dict[tuple[str, str], list[float]] = {}
    for one in ran:
        took_s.setdefault((one.subtype, one.shape), []).append(one.report["seconds"]["max"])
        mops.setdefault((one.subtype, one.shape), []).append(one.report["mop_per_s"])
    pace = study.pace
    each, runs = _counted(pace.ranks, "rank"), _counted(pace.repeat, "run")
    run = f"class {pace.size}, {pace.nodes} nodes with {each}, {study.line.rate}, RTT {study.line.rtt}, {runs} each"
    head = s3_figures.head_of(facts, machine.summary(facts), run)
    late = max(one.seen.late for one in ran)
    return markdown(s3_figures.btio(path, head, took_s, mops, late))


def _is_right(one: Ran) -> bool:
    return one.verified and one.elsewhere is not False


def rows(study: Study, ran: list[Ran]) -> list[list[str]]:
    return [
        _row(subtype, shape, [one for one in ran if (one.subtype, one.shape) == (subtype, shape)])
        for subtype in study.subtypes
        for shape in study.shapes
    ]


def _row(subtype: str, shape: str, ran: list[Ran]) -> list[str]:
    late = max(one.seen.late for one in ran)
    elsewhere = [one.elsewhere for one in ran if one.elsewhere is not None]
    return [
        *(subtype, shape),
        f"{_seconds(ran):.2f}",
        f"{median([one.report['mop_per_s'] for one in ran]):.0f}",
        f"{median([one.report['io']['seconds'] for one in ran]):.2f}",
        f"{median([one.report['io']['mb_per_s'] for one in ran]):.1f}",
        f"{median([one.report['io']['sync_s']['max'] for one in ran]):.2f}",
        f"{median([one.seen.dropped for one in ran]):.0f}",
        cluster.shown_late(late),
        f"{sum(one.verified for one in ran)} of {len(ran)}",
        f"{sum(elsewhere)} of {len(elsewhere)}" if elsewhere else GAP,
    ]


def _seconds(ran: list[Ran]) -> float:
    return median([one.report["seconds"]["max"] for one in ran])


def sentence(study: Study, ran: list[Ran]) -> str:
    """What merging the networks costs; the paper (4 nodes, 100 Mbit/s) saw almost no difference."""
    if not {SEPARATE, MERGED} <= set(study.shapes):
        return ""
    parts = []
    for subtype in study.subtypes:
        separate, merged = (
            _seconds([one for one in ran if (one.subtype, one.shape) == (subtype, shape)])
            for shape in (SEPARATE, MERGED)
        )
        parts.append(f"{subtype} {merged / separate:.3f}")
    return f"Run time on one network, as a multiple of that on two: {', '.join(parts)}."


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _page(study: Study, mpi: str, where: str, body: list[str]) -> str:
    words = {"size": study.pace.size, "nodes": study.pace.nodes, "ranks": _counted(study.pace.ranks, "rank")}
    words |= {"mpi": mpi, "mpi_io": study.mpi_io, "options": " ".join(["--fuse", *study.options])}
    words |= {"rate": study.line.rate, "rtt": study.line.rtt}
    text = "\n\n".join([fenced(body[0], body[1]), *filter(None, body[2:])])
    return PAGE.format(**words, machine=where, body=text)
