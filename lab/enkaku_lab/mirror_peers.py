"""`python -m enkaku_lab mirror-peers`: ways to keep a disk at another site, side by side.

20 Mbit/s, RTT 50 ms, cubic, the queue 2,000 packets: so slow that guests which are interpreted are not the limit.
Each way gets the same writes, the same outage, and the same cuts at moments in sync and in the middle of catching
up; of each cut the other site's image is looked at: is it one that the disk had at some moment, and if not, does
the other site say so?
"""

import argparse
import random
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from enkaku_lab import machine, stamped, wan
from enkaku_lab.experiment import Link
from enkaku_lab.mirror_outage import IP_SHARE
from enkaku_lab.peers import enkaku, need
from enkaku_lab.process import LabError, run
from enkaku_lab.progress import say
from enkaku_lab.replicas import BLOCKS, MIB, Place, Replica
from enkaku_lab.replicas.guests import Drbd, DrbdA, Md, MdBehind
from enkaku_lab.replicas.here import (
    BlockdevMirror,
    BlockdevMirrorWaiting,
    EnkakuMirror,
    EnkakuMirrorAsync,
)
from enkaku_lab.table import GAP, fenced, render

LINK = Link(50.0, rate="20mbit")
LINE_BYTES_PER_S = LINK.payload_bits_per_s / 8
BLOCK = 4096
WAYS: list[type[Replica]] = [
    *(EnkakuMirror, EnkakuMirrorAsync, BlockdevMirrorWaiting, BlockdevMirror),
    *(Md, MdBehind, Drbd, DrbdA),
]
SETTLED_S_MAX = 300.0
AWARE_S_MAX = 30.0
"""Until the end of the line is noticed, and writes go on without the other site."""
PAUSE_US = 20_000
"""Between a stable write and the next."""
ARRIVES_S = 1.0
"""What the line had taken before the cut is there after so long."""
HEAD = "way|far end|line|lacked|sent|× lacked|illegal in sync|illegal in catch-up|admitted".split("|")
PAGE = """# Beside others: an outage, and the image at the other site

Made by `python -m enkaku_lab mirror-peers --docs docs`; do not edit. 20 Mbit/s, RTT 50 ms, cubic, the queue 2,000
packets; a volume of 128 MiB. md and DRBD run in guests with Debian's 6.1 kernel that are interpreted, at a line that
is slower than they are; QEMU's job runs in qemu-storage-daemon. {machine}

{body}
"""
LEGEND = (
    "line: what is written in one go, 256 KiB at a time, until all of it is at the other site, as a share of what the\n"
    "line carries. lacked: distinct blocks of 4 KiB written during an outage; sent: bytes towards the other site from\n"
    "the return of the line until both are equal, headers left out. illegal: images at the other site that the disk\n"
    "never had (stamped.py), of so many cuts of the line, after what the site has to do before it uses the image (ours:\n"
    "promote); admitted: of the illegal ones, so many say themselves that they are not to be used (DRBD: Inconsistent;\n"
    "md: recovery in the superblock; ours: inspect)."
)


@dataclass(frozen=True)
class Pace:
    fill_bytes: int
    outage_writes: int
    cuts: int


FULL = Pace(32 * MIB, 400, 20)
QUICK = Pace(4 * MIB, 60, 2)


@dataclass
class Seen:
    """What became of one way."""

    way: type[Replica]
    line: float | None = None
    lacked: int = 0
    sent: float = 0.0
    cuts: dict[str, int] = field(default_factory=lambda: {"in sync": 0, "catch-up": 0})
    illegal: dict[str, int] = field(default_factory=lambda: {"in sync": 0, "catch-up": 0})
    admitted: int = 0
    waits: bool = False
    """As long as the line is cut nothing that is written gets complete."""
    why: str = ""

    def row(self) -> list[str]:
        if self.line is None:
            return [self.way.name, self.way.what, *([GAP] * 6), self.why or GAP]
        kinds = [f"{self.illegal[kind]} of {self.cuts[kind]}" for kind in self.cuts]
        admitted = f"{self.admitted} of {sum(self.illegal.values())}"
        row = [self.way.name, self.way.what, f"{self.line:.2f}"]
        if self.waits:
            return [*row, "user waits", GAP, GAP, kinds[0], GAP, admitted]
        row += [f"{self.lacked / MIB:.2f} MiB", f"{self.sent / MIB:.2f} MiB"]
        row += [f"{self.sent / max(self.lacked, 1):.2f}", *kinds]
        return [*row, admitted]


class Trial:
    """One way on the line, one phase after the other."""

    def __init__(self, replica: Replica, noise: Path, seen: Seen):
        self.replica, self.noise, self.seen = replica, noise, seen
        self.place = replica.place
        self.next = 1
        self.dice = random.Random(1)

    def until(self, condition: Callable[[], bool], what: str, s_max: float = SETTLED_S_MAX) -> None:
        deadline = time.monotonic() + s_max
        while not condition():
            if time.monotonic() > deadline:
                raise LabError(f"{self.replica.name}: never {what}")
            time.sleep(0.05)

    def settled(self) -> None:
        self.until(self.replica.in_sync, "in sync")

    def fill(self) -> None:
        """In one go."""
        begin = time.monotonic()
        self.replica.fill(self.noise)
        self.settled()
        took = time.monotonic() - begin
        self.seen.line = self.noise.stat().st_size / took / LINE_BYTES_PER_S

    def outage(self, writes: int) -> None:
        """Writes while the line is down; then it is back."""
        self.place.cut()
        self._lose()
        if self.seen.waits:
            return
        self._write(writes)
        before = self._sent()
        self.seen.lacked = writes * BLOCK
        self.place.mend()
        self.replica.recover()
        self.settled()
        self.seen.sent = (self._sent() - before) / IP_SHARE

    def _write(self, count: int) -> None:
        writing = self.replica.write(self.next, count, 0)
        writing.wait(SETTLED_S_MAX)
        self.next += count

    def _lose(self) -> None:
        """Something has to be written for the other site to be missed."""
        writing = self.replica.write(self.next, 1, 0)
        self.next += 1
        self.until(self.replica.gone, "aware that the line is cut", AWARE_S_MAX)
        try:
            self.until(lambda: not writing.running(), "writing", AWARE_S_MAX)
        except LabError:
            self.seen.waits = True
            self.place.mend()
            self.settled()
        writing.wait(SETTLED_S_MAX)

    def _sent(self) -> int:
        return enkaku.report("wan", "show", self.place.lab.name)["near_to_far"]["bytes"]

    def cut_in_sync(self) -> None:
        writing = self.replica.write(self.next, 0, PAUSE_US)
        wanted = self.next + self.dice.randrange(5, 30)
        self.until(lambda: writing.newest() >= wanted, "writing", 60.0)
        self._look("in sync")
        writing.stop()
        self._again(writing)

    def cut_in_catch_up(self, writes: int) -> None:
        """The line comes back, and goes again in the middle of what follows."""
        if self.seen.waits:
            return
        self.place.cut()
        self._lose()
        self._write(writes)
        self.place.mend()
        writing = self.replica.write(self.next, 0, PAUSE_US)
        # As many bytes as the outage before has cost; a login and the like are not the middle.
        share = self.dice.uniform(0.2, 0.9) * self.seen.sent * IP_SHARE
        begin = self._sent()
        with suppress(LabError):
            self.replica.recover()
        deadline = time.monotonic() + 4 * self.seen.sent / LINE_BYTES_PER_S + 10.0
        while self._sent() - begin < share and time.monotonic() < deadline:
            time.sleep(0.005)
        self._look("catch-up")
        writing.stop()
        self._again(writing)

    def _again(self, writing) -> None:
        """The line is back, and both sides become equal."""
        with suppress(LabError):
            self.until(self.replica.gone, "aware that the line is cut", 15.0)
        self.place.mend()
        self.until(lambda: not writing.running(), "at its end")
        with suppress(LabError):
            self.replica.recover()
        self.settled()
        # One more may be there than was told: the state of both sides tells how many.
        self.next = stamped.look(self.replica.image(), BLOCKS).newest + 1

    def _look(self, kind: str) -> None:
        self.place.cut()
        time.sleep(ARRIVES_S)
        copy = self.place.folder / "copy.img"
        run([need("cp"), "--sparse=always", self.replica.image(), copy])
        admits = self.replica.admits(copy)
        self.replica.take_over(copy)
        self.seen.cuts[kind] += 1
        if not stamped.look(copy, BLOCKS).legal:
            self.seen.illegal[kind] += 1
            self.seen.admitted += admits


def _try(way: type[Replica], pace: Pace) -> Seen:
    seen = Seen(way)
    if why := way.missing():
        seen.why = why.splitlines()[-1]
        return seen
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name, wan.up(LINK, Path(name)) as lab:
        folder = Path(name)
        noise = folder / "noise"
        noise.write_bytes(random.Random(2).randbytes(pace.fill_bytes))
        lab.become(LINK)
        with way(Place(lab, LINK, folder)) as replica:
            trial = Trial(replica, noise, seen)
            steps = [trial.fill, lambda: trial.outage(pace.outage_writes)]
            steps += [trial.cut_in_sync] * pace.cuts
            steps += [lambda: trial.cut_in_catch_up(pace.outage_writes)] * pace.cuts
            try:
                for step in steps:
                    step()
            except LabError as error:
                seen.why = str(error).splitlines()[0]
                say(f"{way.name}: {error}")
            lab.set(LINK)
    return seen


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="enkaku_lab mirror-peers", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="WAY", help=", ".join(w.__name__ for w in WAYS))
    parser.add_argument("--quick", action="store_true", help="few cuts: draw no conclusions")
    parser.add_argument("--cuts", type=int, metavar="N", help="so many of each kind instead")
    parser.add_argument("--docs", type=Path, metavar="DIR", help="write DIR/mirror-peers.md, too")
    options = parser.parse_args(arguments)
    known = {way.__name__: way for way in WAYS}
    if unknown := [name for name in options.names if name not in known]:
        raise LabError(f"no way is called {unknown[0]}; there are: {', '.join(known)}")
    pace = QUICK if options.quick else FULL
    pace = replace(pace, cuts=options.cuts) if options.cuts else pace
    wan.need()
    rows = []
    for name in options.names or known:
        seen = _try(known[name], pace)
        rows.append(seen.row())
        say(" · ".join(rows[-1]) + (f" ({seen.why})" if seen.why else ""))
    table = render(HEAD, rows)
    print(f"{table}\n{LEGEND}")
    if options.docs:
        page, where = options.docs / "mirror-peers.md", machine.summary(machine.facts())
        page.write_text(PAGE.format(body=fenced(table, LEGEND), machine=where))
        print(f"Page: {page}")
