"""`python -m enkaku_lab review`: docs/review.md, the papers' data figures one by one: axes, range,
stacks and length of a run, theirs and ours, and what of ours is not so.

What the papers have is written down here (`PAPERS`), with what cannot be as there. What ours have
is read from the CSVs committed beside the figures, so the page changes with them; a curve or a
point that an experiment has and its CSV has not is named.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from enkaku_lab import claims, data, packets, s3_figures
from enkaku_lab.claims import Claim
from enkaku_lab.experiments import load
from enkaku_lab.findings import DOCS, PLACES, Committed, folder_of, write
from enkaku_lab.in_guest import senders
from enkaku_lab.ns2 import commands as s2

PAGE = "review.md"
HEAD = """# The papers' figures, one by one

Made by `python -m enkaku_lab review` from the numbers committed beside the figures (CSV); do not edit. Of each of the papers' {count} data figures:
axes with their range, stacks, length of a run. *Not so*: what differs by design, what the committed picture has not yet, and what the experiment
measures but the committed numbers do not have. *Judged*: how many of the paper's statements code found confirmed (yes), not confirmed (no), not
measured (open); [findings.md](findings.md) has the statements. {commanded} of the figures are made by `python -m enkaku_lab run all`;
a line without “here” has nothing committed yet. Whether a figure is older than the code that it shows: `make lab-stale`.
"""
COLUMNS = ("figure", "the paper", "here", "not so", "judged")


@dataclass(frozen=True)
class Shown:
    """A data figure of a paper, and what ours cannot or does not have of it by design."""

    name: str
    axes: str
    """And what more is particular to it."""
    differs: str = ""
    study: str = ""
    """The study of several figures that has it."""
    figures: int = 1
    """That the row stands for."""


ENTRIES = "Memory in full packets, sampled; the paper counts entries at each event"
NFS = "kernel NFS over UDP"


@dataclass(frozen=True)
class Paper:
    """One of the five, what holds for all of its figures, and these."""

    title: str
    text: str
    figures: Sequence[Shown]


PAPERS = (
    Paper(
        "S0: packet transmission in remote iSCSI access (Higa et al. 2009)",
        "The paper: open-iscsi 2.0 to IET, writes, RTT 20 ms unless it says another; lengths of runs are not told. Here: qemu's libiscsi to tgt as installed; bursts of 4 MiB by "
        "enkaku's initiator to tgt, because libiscsi offers none, with a send buffer of 1 MiB that is set; enkaku. With open-iscsi, where nothing is set, in a guest: "
        "[s0-guest](guest/README.md) (figure 4), [s0-guest-queue](guest/kernel-log.md) (figures 9 to 16, at every event).",
        (
            Shown("s0-fig4", "Throughput against RTT (32 ms is named): default and optimised iSCSI, iperf, bonnie++", "To memory, not to a disk"),
            Shown("s0-fig8", "Ta, Tb, Tc against RTT 0, 2, 5, 10, 20, 50 ms; 2 and 4 MiB, one command at a time (sg_dd)"),
            Shown("s0-fig9", "Packet number against time, some writes of 4 MiB"),
            Shown("s0-fig10", "One write of figure 9; RTT 50 and 80 ms were looked at, too", "RTT 50 and 80 ms are not drawn"),
            Shown("s0-fig11", "Congestion window and packets in flight against time"),
            Shown("s0-fig12", "Queue length, packets, acknowledgements over one write of 4 MiB", ENTRIES),
            Shown("s0-fig13", "10 ms of figure 12: from the command to the first stop", ENTRIES),
            Shown("s0-fig14", "20 ms of figure 12: from the stop to the restart", ENTRIES),
            Shown("s0-fig15", "Queue length (entries) against time, iSCSI", ENTRIES),
            Shown("s0-fig16", "Queue length (entries) against time, a socket, from its start on", ENTRIES),
            Shown("s0-fig17", "The kernel's log of two senders: where they sleep, what wakes them", "open-iscsi and LIO of today"),
        ),
    ),
    Paper(
        "S1: iSCSI over a 43 Gbit/s line (Teraoka et al. 2004)",
        "The paper: a file of 512 MB, opened, read to its end, closed; iSCSI over a TCP without window scaling, NFS by the kernel over UDP. Here: the raw volume through a FUSE "
        "file, no file system; NFSv4 over TCP through libnfs. With the kernel's own initiator and NFS client, over UDP too, in a guest: [s1-guest-block, -rtt, -loss](guest/README.md).",
        (
            Shown("s1-fig2", "Mbit/s against block size 1 to 256 KB: local disk", "This disk has a cache below it that is faster than any disk of 2004"),
            Shown("s1-fig3", "Mbit/s against block size 1 to 256 KB, RTT 2.8 ms: iSCSI"),
            Shown("s1-fig5", "Mbit/s against RTT 0 to 200 ms, a curve per block size: iSCSI"),
            Shown("s1-fig6", "Figure 5, RTT 0 to 20 ms"),
            Shown("s1-fig7", "Mbit/s against packet error rate from 0 on, a curve per block size: iSCSI"),
            Shown("s1-fig8", f"Mbit/s against block size 1 to 256 KB, RTT 2.8 ms: {NFS}"),
            Shown("s1-fig9", f"Mbit/s against RTT 0 to 200 ms: {NFS}"),
            Shown("s1-fig10", "Figure 9, RTT 0 to 20 ms"),
            Shown("s1-fig11", f"Mbit/s against packet error rate from 0 on: {NFS}"),
        ),
    ),
    Paper(
        "S2: iSCSI-APT (2009)",
        "The paper and here: ns-2, FullTCP/Tahoe, 1 Gbit/s, RTT 10 ms, DropTail 500 packets, buffers of 64 KB, PDUs of 1 MB, a storage of 30 to 40 ms for each. Beside it the same on "
        "real TCP: [tuner/engines.md](tuner/engines.md).",
        (
            Shown("s2-fig6", "Measuring time against PDUs in a chunk, by N"),
            Shown("s2-fig7", "Throughput against N, by the amount of data"),
            Shown("s2-fig10", "G against Tm"),
            Shown("s2-fig11", "N against time, by Tm"),
            Shown("s2-fig12", "Throughput of connections No. 1 and No. 40 against time, Tm 5 s", "The search closes one of the two: others stand for them"),
            Shown("s2-fig13", "Congestion window of No. 1 against time", "As figure 12"),
            Shown("s2-fig14", "Congestion window of No. 40 against time", "As figure 12"),
            Shown("s2-fig15", "Time of each read, N = 47 fixed", "N is where this search ended, not 47"),
            Shown("s2-fig16", "Time of each read, APT, which ended at 47", "It ended elsewhere"),
            Shown("s2-fig17", "Time of each read, N = 53 fixed, PDU of 3 MB", "N is where this search ended, not 53"),
            Shown("s2-fig18", "Time of each read, APT, which ended at 53, PDU of 3 MB", "It ended elsewhere"),
        ),
    ),
    Paper(
        "S3: the storage network merged into a cluster's front-end network (2006)",
        "The paper: PCs with UNH-iSCSI 1.5 and MPICH2, a disk, a second network, or one network for both. Here: `enkaku attach` to `enkaku serve` and Open MPI between network "
        "namespaces of one machine, so class A in place of B ([btio.md](btio.md)).",
        (
            Shown("s3-fig7 to 12", "Run time and Mop/s of BT-IO, classes W, A, B: simple, fortran, epio; local, separate, merged; 5 runs each", "", s3_figures.BTIO, 6),
            Shown("s3-fig13", "Time of 1000 writes of 1 MB, of 1000 messages of 1 MB", "", s3_figures.MIXED),
            Shown("s3-fig15", "Run time against k messages of 1 MB behind each write of 1 MB; local, separate, merged", "", s3_figures.MIXED),
            Shown("s3-fig16", "Figure 15 beside a copy of 2 GB, again and again", "The copy is TCP without a disk", s3_figures.MIXED),
        ),
    ),
    Paper(
        "S4: a video file sharing system on iSCSI storage (Isamu et al. 2008)",
        "The paper: iSCSI (at most 64 KB at a time) and SMB/CIFS at 100 Mbit/s, a file of 512 MB in calls of 32 KB. Here: SMB 3, and SMB 1 as the paper's where it was measured; iSCSI by the kernel's read-ahead, and by commands of 64 KiB as the paper's.",
        (Shown("s4-fig3", "Throughput against added delay 0, 4 … 24 ms each way, windows of 64 and 128 KB", "x is the RTT, twice the delay each way"),),
    ),
)
EVERY = [shown for paper in PAPERS for shown in paper.figures]
WORDS = {claims.CONFIRMED: "yes", claims.NOT_CONFIRMED: "no", claims.NOT_MEASURED: "open"}


@dataclass(frozen=True)
class Ours:
    """What is committed of a figure."""

    axes: str
    stacks: str
    run: str
    lacks: Sequence[str] = ()
    judged: Sequence[Claim] = ()


def _curves(of: Committed, name: str) -> Ours:
    curves = of.curves(name)
    known = load()[name]
    there = [curve for curve in curves.curves if curve.measured]
    xs = sorted({point.x for curve in there for point in curve.points})
    wanted = [x * known.x.factor for x in known.x.values]
    axes = f"Mbit/s against {known.x.label}: {_numbers(xs)}"
    axes += f"; {' | '.join(curves.experiment.panels)}" if len(curves.experiment.panels) > 1 else ""
    lacks = [curve.series.label for curve in curves.curves if not curve.measured]
    points = [x for x in wanted if x not in xs]
    yet = [*dict.fromkeys(lacks), *([f"{known.x.label} {_numbers(points)}"] if points else [])]
    labels = dict.fromkeys(curve.series.label for curve in there)
    run = ". ".join(part for part in (curves.kept.get("run", ""), curves.kept.get("shrunk", "")) if part)
    told = [f"Not measured yet: {', '.join(yet)}"] if yet else []
    return Ours(axes, "; ".join(labels), f"{run} ({_day(curves.kept)})", told, known.claims(curves))


def _packets(of: Committed, docs: Path, name: str) -> Ours:
    trace = packets.load()[name]
    head = data.read(docs / "packets" / f"{packets.NUMBERS}.csv").head
    own = docs / "packets" / f"{name}.csv"
    axes = _axes(data.read(own).head) if own.exists() else trace.title
    note = head.get(name, "")
    lacks = [note.rstrip(".")] if note.startswith("The picture") else []
    lacks += [] if own.exists() else ["What was drawn was not kept as numbers"]
    return Ours(axes, "", f"{head['run']} ({_day(head)})", lacks, trace.claims(of.numbers))


def _study(docs: Path, name: str) -> Ours:
    path = docs / "tuner" / f"{name}.csv"
    head = data.read(path).head
    lacks = [head["origin"]] if "origin" in head else []
    return Ours(_axes(head), "", f"{head['runs']} ({_day(head)})", lacks, claims.of_head(head))


def _log(of: Committed, docs: Path, name: str) -> Ours:
    path = docs / "guest" / f"{name}.csv"
    found = data.read(path)
    there = [row["label"] for row in found.rows]
    lacks = [one.label for one in senders.load()[name].senders if one.label not in there]
    told = [f"Not measured yet: {', '.join(lacks)}"] if lacks else []
    axes = "KiB in the queue and in flight against time (ms), sleeps marked; where and what woke in a table"
    return Ours(axes, f"{'; '.join(there)}, {found.head['guest']}", f"{found.head['run']} ({_day(found.head)})", told, of.kernel_log(name))


def _cluster(of: Committed, docs: Path, study: str) -> Ours:
    head = data.read(docs / "figures" / f"{study}.csv").head
    return Ours(_axes(head), "", f"{head['run']} ({_day(head)})", (), of.cluster(study))


def _axes(head: dict[str, str]) -> str:
    """Each once, of the head of a CSV of what was drawn."""
    return "; ".join(dict.fromkeys(value for key, value in head.items() if key.startswith("axes ")))


def _day(head: dict[str, str]) -> str:
    return head.get("taken", "")[:10]


def _numbers(values: Iterable[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def ours(docs: Path, name: str, study: str = "") -> Ours | None:
    """None where nothing is committed."""
    of = Committed(docs)
    if study:
        return _cluster(of, docs, study) if of.cluster(study) else None
    if name in packets.load():
        return _packets(of, docs, name)
    if name in senders.load():
        return _log(of, docs, name) if (docs / "guest" / f"{name}.csv").exists() else None
    if name in s2.load():
        return _study(docs, name) if (docs / "tuner" / f"{name}.csv").exists() else None
    return _curves(of, name) if name in load() and of.has(name) else None


def every() -> set[str]:
    """What `run` makes a figure of by its name."""
    return {*load(), *packets.load(), *senders.load(), *s2.load()}


def judged(found: Sequence[Claim]) -> str:
    """`2 yes, 1 no`: how many of each verdict."""
    count = Counter(one.verdict for one in found)
    return ", ".join(f"{count[verdict]} {word}" for verdict, word in WORDS.items() if count[verdict]) or "–"


def row(shown: Shown, found: Ours | None) -> str:
    """A line of the table."""
    place = f"[{shown.name}]({PLACES[folder_of(shown.study or shown.name)]})" if found else shown.name
    made = f"{place} (`run {shown.study}`)" if shown.study else place
    here = ". ".join(part for part in (found.axes, found.stacks, found.run) if part) if found else "–"
    lacks = ". ".join(part for part in (shown.differs, *(found.lacks if found else ())) if part)
    cells = (made, shown.axes, here.replace("|", "/"), lacks or "–", judged(found.judged) if found else "–")
    return f"| {' | '.join(cells)} |"


def page(docs: Path = DOCS) -> str:
    """The page, from the CSVs in a folder of documents."""
    count = sum(one.figures for one in EVERY)
    commanded = sum(one.figures for one in EVERY if one.study or one.name in every())
    parts = [HEAD.format(count=count, commanded=commanded)]
    for paper in PAPERS:
        rows = [row(one, ours(docs, one.name, one.study)) for one in paper.figures]
        table = "\n".join([f"| {' | '.join(COLUMNS)} |", "|---|---|---|---|---|", *rows])
        parts.append(f"## {paper.title}\n\n{paper.text}\n\n{table}\n")
    return "\n".join(parts)


def main(arguments: list[str]) -> None:
    write(arguments, "review", __doc__, PAGE, page)
