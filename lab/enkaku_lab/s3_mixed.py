"""`python -m enkaku_lab s3-mixed`: blocks and messages by turns, round trips under storage load.

A rank at node 1 writes block after block to its volume and sends k blocking messages to a rank at
node 2 behind each, with the volume on a local file, over a second network, or over that of the
messages; and all of it once more while node 1 sends to node 2 without pause beside, as a file that is
copied again and again. Then 8 bytes go to and fro between the two, while nothing else happens, and
while node 1 writes to its volume or reads from it as fast as it can.
"""

import argparse
import json
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

from enkaku_lab import cluster, machine, s3_figures
from enkaku_lab.claims import markdown
from enkaku_lab.cluster import LATE, MERGED, MESSAGES, SEPARATE, SHAPES, Cluster, Line, Seen
from enkaku_lab.peers import btio, iperf3, need
from enkaku_lab.process import LabError, peer
from enkaku_lab.progress import say
from enkaku_lab.results import Results, median
from enkaku_lab.table import GAP, fenced, render

MIB = 1 << 20
NODES = 2
BLOCK_BYTES = MIB
COUNTS, QUICK_COUNTS = (0, 1, 2, 5, 10, 20, 30), (0, 2, 6)
BLOCKS, REPEAT, LATENCY_S = 200, 5, 10
RUNS = REPEAT * len(SHAPES) * (2 * len(COUNTS) + 3)
SECONDS = REPEAT * len(SHAPES) * ((1 + 2) * sum(COUNTS) * BLOCKS * 9e-3 + 3 * LATENCY_S + 30)
"""About: a message of 1 MiB takes 9 ms at 1 Gbit/s, twice as long beside a copy."""
COPY_PORT = 5201
MARK, CLASSES = "cs1", "weighted,rest=9,cs1=1"
"""Of a copy that is marked, and of the lines then."""
MPI_IO = "OMPIO"
"""Not used; the words of Open MPI name one."""
UNCACHED = ["--cache=none"]
"""What is read again would not come over the network otherwise."""
HOW = {
    "buffered": ["--fsync", "never"],
    "flushed": ["--fsync", "end"],
    "direct": ["--direct", "--fsync", "end"],
}
LOADS = {"idle": None, "write": "write", "read": "read"}
LOAD_DEPTH = 4
LOAD_END_S_MAX = 60.0
RUN_S_MAX = 3600.0
TURNS_HEAD = "how|k|local (s)|separate (s)|merged (s)|merged / separate|dropped|late"
TRIPS_HEAD = "storage|load|load (MB/s)|trips|p50 (µs)|p99 (µs)|p99.9 (µs)|p99 − idle (µs)|late"
LEGEND = f"""k messages of 1 MiB behind each block of 1 MiB; medians of whole runs. dropped, late: of the merged
network, packets that found a full queue, and the part of the time in which the emulator was to run
and had no processor; * above {LATE:.0%}: there the machine was the limit. T(0), t: of each storage, the
time without messages, and a message's in the run with most of them. A run is expected to take the
longer of T(0) and the time of its messages; off by: how far the medians are from that at most."""
MARKED = f"""
The copy beside them is marked {MARK}, and each line has `--classes {CLASSES}`: the copy gets
a tenth where others want all, and nobody waits in its queue. Without: [s3-mixed.md](s3-mixed.md)."""
PAGE = """# Storage and messages by turns

Made by `python -m enkaku_lab {made} --docs docs`; do not edit. {blocks} blocks a run,
{repeat} of each; each line {rate}, RTT to the switch {rtt}; `enkaku attach {options}`.{copy} {machine}

{body}
"""


@dataclass(frozen=True)
class Study:
    line: Line
    shapes: list[str]
    how: list[str]
    counts: list[int]
    """Of messages behind a block."""
    blocks: int
    repeat: int
    latency_s: int
    options: list[str]
    beside: Sequence[bool] = (False,)
    """Without a copy, with one."""

    @property
    def marked(self) -> bool:
        """Lines have a class for the copy's mark."""
        return bool(self.line.classes)

    def way(self, how: str, beside: bool) -> str:
        """A run's in words."""
        return f"{how}, beside a {'marked ' if self.marked else ''}copy" if beside else how


@dataclass(frozen=True)
class Turns:
    """One run of blocks and messages."""

    shape: str
    how: str
    count: int
    seen: Seen
    report: dict
    beside: bool = False
    """A copy."""


@dataclass(frozen=True)
class Trips:
    """Round trips beside a load."""

    shape: str
    load: str
    load_mb_per_s: float | None
    seen: Seen
    report: dict


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="enkaku_lab s3-mixed", description=__doc__)
    cluster.add_options(parser, page="s3-mixed.md")
    parser.add_argument("--how", action="append", choices=list(HOW), help="repeatable")
    parser.add_argument("--count", action="append", type=int, metavar="K", help="repeatable")
    parser.add_argument("--blocks", type=int, help="of 1 MiB [default: 200; 1000 in the paper]")
    parser.add_argument("--latency", type=int, metavar="SECONDS", help="0: no round trips")
    parser.add_argument("--beside", action=argparse.BooleanOptionalAction, help="again, beside a copy [default: not with --quick]")
    parser.add_argument("--marked", action="store_true", help=f"the copy is marked {MARK}, lines have --classes {CLASSES}; no figures: S3 has none of it")
    parser.add_argument("--quick", action="store_true", help="few blocks, once")
    options = parser.parse_args(arguments)
    shapes = cluster.chosen(options.names)
    few = options.quick
    study = Study(
        Line(options.rate, options.rtt, classes=CLASSES if options.marked else ""),
        shapes,
        options.how or ["flushed"],
        sorted(set(options.count or (QUICK_COUNTS if few else COUNTS))),
        options.blocks or (24 if few else BLOCKS),
        options.repeat or (1 if few else REPEAT),
        (1 if few else LATENCY_S) if options.latency is None else options.latency,
        [*UNCACHED, *options.attach],
        (False, True) if (not few if options.beside is None else options.beside) else (False,),
    )
    cluster.need_one()
    if True in study.beside:
        need("iperf3")
    facts = machine.facts()
    results = Results(options.out / "s3-mixed.jsonl", {**facts, **asdict(study)})
    try:
        program = btio.build(options.out / "program").with_name("mixed")
        ran = list(measure(study, program, results))
    finally:
        results.close()
    body = tell(study, ran)
    judged = _draw(study, ran, options.out / s3_figures.MIXED, facts)
    print("\n".join([*body, judged]))
    if options.docs:
        page = options.docs / f"s3-mixed{'-marked' if study.marked else ''}.md"
        words = {"blocks": study.blocks, "repeat": study.repeat, "options": " ".join(study.options)}
        words |= {"rate": study.line.rate, "rtt": study.line.rtt, "machine": machine.summary(facts)}
        words |= {"made": "s3-mixed --marked", "copy": MARKED} if study.marked else {"made": "s3-mixed", "copy": ""}
        parts = [fenced(*body), judged]
        parts += [s3_figures.keep(options.out / s3_figures.MIXED, options.docs)] if judged else []
        page.write_text(PAGE.format(**words, body="\n\n".join(filter(None, parts))))
        print(f"Page: {page}")


def measure(study: Study, program: Path, results: Results) -> Iterator[Turns | Trips]:
    """Repetitions are outermost, so that whatever changes with time does so for all storages."""
    with cluster.folder() as parent:
        for _ in range(study.repeat):
            for shape in study.shapes:
                with _place(study, shape, parent) as place:
                    for one in _measure(study, place, program):
                        results.add({"kind": type(one).__name__.lower(), **asdict(one)})
                        yield one


@contextmanager
def _place(study: Study, shape: str, parent: Path) -> Iterator[Cluster]:
    size = (2 * study.blocks + 64) * MIB
    with tempfile.TemporaryDirectory(dir=parent) as name:
        more = {"options": study.options}
        with cluster.cluster(shape, NODES, study.line, size, Path(name), **more) as place:
            place.attach(list(range(NODES)), fresh=True)
            yield place
            place.detach()


def _measure(study: Study, place: Cluster, program: Path) -> Iterator[Turns | Trips]:
    for beside in study.beside:
        with _copy(place, study.marked) if beside else nullcontext():
            for how in study.how:
                for count in study.counts:
                    yield _turns(study, place, program, how, count, beside)
    for load in LOADS if study.latency_s else ():
        yield _trips(study, place, program, load)


def _turns(study: Study, place: Cluster, program: Path, how: str, count: int, beside: bool) -> Turns:
    words = ["--messages", count, "--blocks", study.blocks, "--block-bytes", BLOCK_BYTES]
    words += ["--file", place.mount / "blocks", *HOW[how]]
    report, seen = _run(place, program, words)
    say(f"{place.shape}, {study.way(how, beside)}, k = {count}: {report['total_s']:.2f} s")
    return Turns(place.shape, how, count, seen, report, beside)


@contextmanager
def _copy(place: Cluster, marked: bool) -> Iterator[None]:
    """From node 1 to node 2 over the network of the messages, without pause and without a disk."""
    sender, receiver = place.computing
    address = f"{MESSAGES}.{receiver.number}"
    with iperf3.serve(place.folder, address=address, port=COPY_PORT, within=receiver.inside):
        argv = [need("iperf3"), "--client", address, "--port", COPY_PORT, "--time", f"{RUN_S_MAX:.0f}", "--forceflush"]
        argv += ["--dscp", MARK] if marked else []
        with peer(sender.inside(argv), place.folder / "copy.log") as copying:
            copying.wait_for_output("connected to")
            yield
            if not copying.running():
                raise LabError(f"{place.shape}: the copy beside ended early: {copying.output()[-500:]}")


def _run(place: Cluster, program: Path, words: list[object]) -> tuple[dict, Seen]:
    path = place.folder / "report.json"
    path.unlink(missing_ok=True)
    before = place.seen()
    argv = [program, *words, "--report", path]
    ran = place.mpirun(list(range(NODES)), 1, argv, RUN_S_MAX, MPI_IO)
    seen = place.seen().since(before)
    if ran.code:
        raise LabError(f"{place.shape}: mixed ended with {ran.code}: {ran.stderr[-1500:]}")
    return json.loads(path.read_text()), seen


def _trips(study: Study, place: Cluster, program: Path, load: str) -> Trips:
    words = ["--latency", study.latency_s]
    if LOADS[load] is None:
        report, seen = _run(place, program, words)
        rate = None
    else:
        with _loaded(study, place, LOADS[load]) as said:
            report, seen = _run(place, program, words)
        rate = said["bw_bytes"] / 1e6
    say(f"{place.shape}, {load}: p99 {report['round_trip']['p99_us']:.0f} µs")
    return Trips(place.shape, load, rate, seen, report)


@contextmanager
def _loaded(study: Study, place: Cluster, rw: str) -> Iterator[dict]:
    """fio at node 1's volume past its page cache, until the block ends; yields what it did then."""
    argv = [need("fio"), "--name=load", f"--rw={rw}", f"--filename={place.mount / 'load'}"]
    argv += [f"--size={study.blocks}m", f"--bs={BLOCK_BYTES}", f"--iodepth={LOAD_DEPTH}"]
    argv += ["--ioengine=libaio", "--direct=1", "--time_based", f"--runtime={RUN_S_MAX:g}"]
    argv += ["--thread", "--output-format=json", f"--output={place.folder / 'load.json'}"]
    said: dict = {}
    with peer(place.computing[0].inside(argv), place.folder / "load.log") as running:
        # A file to be read is written first.
        moved = Path(f"/proc/{running.pid}/io")
        running.wait_until(lambda: _moved(moved, rw) >= BLOCK_BYTES, "fio has done nothing")
        yield said
        running.signal(2)
        running.wait(LOAD_END_S_MAX)
    text = (place.folder / "load.json").read_text()
    said.update(json.loads(text[text.index("{") :])["jobs"][0][rw])


def _moved(path: Path, rw: str) -> int:
    """Bytes that a process has had read from a disk, or written to one."""
    return int(re.search(rf"^{rw}_bytes: (\d+)$", path.read_text(), re.M)[1])


def tell(study: Study, ran: list[Turns | Trips]) -> list[str]:
    turns = [one for one in ran if isinstance(one, Turns)]
    trips = [one for one in ran if isinstance(one, Trips)]
    table = render(TURNS_HEAD.split("|"), _turn_rows(study, turns))
    texts = [table, _expected(study, turns), LEGEND]
    if trips:
        texts.append(render(TRIPS_HEAD.split("|"), _trip_rows(study, trips)))
    return texts


def _turn_rows(study: Study, turns: list[Turns]) -> list[list[str]]:
    rows = []
    for beside, how, count in product(study.beside, study.how, study.counts):
        these = [one for one in turns if (one.beside, one.how, one.count) == (beside, how, count)]
        took = {shape: median([one.report["total_s"] for one in these if one.shape == shape]) for shape in study.shapes}
        ratio = took[MERGED] / took[SEPARATE] if {MERGED, SEPARATE} <= set(took) else None
        merged = [one for one in these if one.shape == MERGED]
        late = max((one.seen.late for one in merged), default=None)
        row = [study.way(how, beside), str(count)]
        row += [f"{took[shape]:.2f}" if shape in took else GAP for shape in SHAPES]
        row += [f"{ratio:.3f}" if ratio else GAP]
        row += [f"{median([m.seen.dropped for m in merged]):.0f}" if merged else GAP]
        rows.append([*row, GAP if late is None else cluster.shown_late(late)])
    return rows


def _expects(study: Study) -> bool:
    """Whether there are runs of blocks alone and of both."""
    return study.counts[0] == 0 and study.counts[-1] > 0


def _expected(study: Study, turns: list[Turns]) -> str:
    """How well the longer of both times foretells a run, for each storage."""
    if not _expects(study):
        return "Without runs of k = 0 and of k > 0 nothing is expected."
    lines = []
    for how in study.how:
        for shape in study.shapes:
            one = _by_count(study, [one for one in turns if not one.beside], shape, how)
            told = f"T(0) {one.alone_s:.2f} s, t {one.message_s * 1e3:.2f} ms"
            lines.append(f"{how}, {shape}: {told}, off by {one.off:+.0%}")
    return "\n".join(lines)


def _by_count(study: Study, turns: list[Turns], shape: str, how: str) -> s3_figures.Turns:
    mine = [one for one in turns if (one.shape, one.how) == (shape, how)]
    took_s = {count: [one.report["total_s"] for one in mine if one.count == count] for count in study.counts}
    sends = [one.report["send"] for one in mine if one.count == study.counts[-1]]
    message_s = median([send["total_s"] / send["count"] for send in sends])
    return s3_figures.Turns(took_s, message_s, study.blocks)


def _draw(study: Study, ran: list[Turns | Trips], path: Path, facts: dict) -> str:
    """Figures 13, 15 and 16, of the first way of writing; what is judged. Nothing without runs of both kinds, nor of
    a copy that is marked."""
    if study.marked or not _expects(study):
        return ""
    how = study.how[0]
    turns = [one for one in ran if isinstance(one, Turns) and one.how == how]
    run = f"{study.blocks} blocks of 1 MiB, {how}, {study.line.rate}, RTT {study.line.rtt}, {study.repeat} runs each"
    head = s3_figures.head_of(facts, machine.summary(facts), run)
    late = max(one.seen.late for one in turns)
    alone, beside = (
        {shape: _by_count(study, [one for one in turns if one.beside == copied], shape, how) for shape in study.shapes} if copied in study.beside else {}
        for copied in (False, True)
    )
    return markdown(s3_figures.mixed(path, head, alone, beside, late))


def _trip_rows(study: Study, trips: list[Trips]) -> list[list[str]]:
    rows = []
    for shape in study.shapes:
        idle_us = None
        for load in LOADS:
            these = [one for one in trips if (one.shape, one.load) == (shape, load)]
            p50, p99, p99_9 = (
                median([one.report["round_trip"][name] for one in these])
                for name in ("p50_us", "p99_us", "p99_9_us")
            )
            idle_us = p99 if LOADS[load] is None else idle_us
            rates = [one.load_mb_per_s for one in these if one.load_mb_per_s is not None]
            row = [shape, load, f"{median(rates):.1f}" if rates else GAP]
            row += [str(sum(one.report["round_trip"]["count"] for one in these))]
            row += [f"{p50:.0f}", f"{p99:.0f}", f"{p99_9:.0f}"]
            row += [GAP if LOADS[load] is None else f"{p99 - idle_us:.0f}"]
            rows.append([*row, cluster.shown_late(max(one.seen.late for one in these))])
    return rows
