"""`python -m enkaku_lab media-start`: how soon a click on a video plays, in a real browser, beside what people use today.

A 1 GB video on ext4 at home, a line of 100 Mbit/s to the server, Chromium beside the server. Seen are the first frame, cold and warm,
and seeks at each RTT, without loss and with some; then a minute of a video that needs 70 % of the line, and eight viewers.
Ways: ours; ours with tgt; tgt with libiscsi, NFS and SMB behind a small range server; and the kernel's ext4 on our volume.
"""

import argparse
import shutil
import time
from pathlib import Path

from enkaku_lab import OUT, machine, wan
from enkaku_lab.media import report, study, videos
from enkaku_lab.media.study import PARTS, Pace, Plan
from enkaku_lab.media.ways import EVERY
from enkaku_lab.peers import need
from enkaku_lab.process import LabError, run
from enkaku_lab.progress import say
from enkaku_lab.results import Results, read, utc

RTTS_MS = [20.0, 50.0, 100.0]
BROWSER = "chromium"
PROGRAMS = ["ffmpeg", "ffprobe", "mke2fs", "debugfs", "unshare"]


def main(arguments: list[str]) -> None:
    options = _options(arguments)
    if options.again:
        print(f"Page: {report.write(options.again)}")
        return
    chosen = _chosen(options)
    if not shutil.which(BROWSER):
        raise LabError(f"{BROWSER} is not installed; it is Debian's package of that name, which nothing else here needs")
    for program in PROGRAMS:
        need(program)
    wan.need()
    folder = options.out
    videos.need_room(folder, options.quick)
    records = folder / ("records-quick.jsonl" if options.quick else "records.jsonl")
    made = videos.make(folder, quick=options.quick)
    facts, browser = machine.facts(), _version()
    earlier = read(records) if options.more and records.exists() else []
    results = Results(records, {"taken": facts["taken"]})
    for record in earlier[1:]:
        results.add(record)
    begin = time.monotonic()
    with study.prepared(chosen, made, folder / "logs", results.add) as going:
        going.go()
    results.close()
    first = earlier[0]["taken"] if earlier else facts["taken"]
    taken = f"{first} to {utc()}"
    say(f"{(time.monotonic() - begin) / 60:.1f} minutes")
    _tell(records, report.head_of(facts, chosen, made, browser, taken), folder, options.docs)


def _tell(records: Path, head: dict, folder: Path, docs: Path | None) -> None:
    """The page below the folder; with `docs`, there, too."""
    seen = [record for record in read(records) if "way" in record]
    if not seen:
        raise LabError("nothing was seen; see above")
    here = folder / "docs"
    table = report.keep(here / "figures" / f"{report.NAME}.csv", head, seen)
    written = report.write(here)
    print(written.read_text())
    print(f"Raw results: {records}\nPage: {written}")
    if docs:
        (docs / "figures").mkdir(parents=True, exist_ok=True)
        shutil.copy(table, docs / "figures")
        print(f"Page: {report.write(docs)}")


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="enkaku_lab media-start", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="WAY", help=f"{', '.join(EVERY)} [default: all]")
    parser.add_argument("--part", action="append", choices=PARTS, help="repeatable [default: all]")
    parser.add_argument("--rtt", action="append", type=float, metavar="MS", help="repeatable [default: 20, 50, 100]")
    parser.add_argument("--loss", type=float, default=report.LOSS, help="beside none; 0: only without [default: 1e-4]")
    parser.add_argument("--lossy", action="append", choices=list(EVERY), help="ways taken with loss, too [default: enkaku]")
    parser.add_argument("--repeat", type=int, default=5, help="sessions of each [default: 5]")
    parser.add_argument("--watches", type=int, default=1, help="of these, with the other parts, too [default: 1]")
    parser.add_argument("--seeks", type=int, default=20, help="a session [default: 20]")
    parser.add_argument("--watch", type=float, default=60.0, metavar="SECONDS", help="of the video of 70 Mbit/s")
    parser.add_argument("--quick", action="store_true", help="once, small files, few seeks: draw no conclusions")
    parser.add_argument("--more", action="store_true", help="adds to the records of an earlier run")
    parser.add_argument("--out", type=Path, default=OUT / report.NAME, help="for videos, records, logs: 12 GB")
    parser.add_argument("--docs", type=Path, metavar="DIR", help="write DIR/media-start.md, too")
    parser.add_argument("--again", type=Path, metavar="DIR", help="only the page and figure of DIR, from DIR/figures/media-start.csv")
    return parser.parse_args(arguments)


def _chosen(options: argparse.Namespace) -> Plan:
    if unknown := [name for name in options.names if name not in EVERY]:
        raise LabError(f"no way is called {unknown[0]}; there are: {', '.join(EVERY)}")
    if options.repeat < 1 or options.seeks < 1:
        raise LabError("one session with one seek is the least")
    names = options.names or list(EVERY)
    for name in list(names):
        if why := EVERY[name].missing():
            say(f"{name} is left out: {why}")
            names.remove(name)
    pace = Pace(options.repeat, options.seeks, max(options.seeks // 4, 1), options.watch, options.watches)
    if options.quick:
        pace = Pace(1, 4, 1, 10.0, 1)
    rtts = options.rtt or ([50.0] if options.quick else RTTS_MS)
    return Plan(pace, options.part or PARTS, names, rtts, options.loss, options.lossy or ["enkaku"])


def _version() -> str:
    """Of Chromium: four numbers."""
    return next(word for word in run([need(BROWSER), "--version"]).stdout.split() if word[0].isdigit())
