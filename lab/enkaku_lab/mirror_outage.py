"""`python -m enkaku_lab mirror-outage`: what an outage costs a mirror, and how it gets over it.

1 Gbit/s, RTT 50 ms, cubic, the queue 2,000 packets. The line is cut under random writes and comes back; one
block changes during an outage; the power fails here; a sparse disk is copied for the first time, and the copy
is killed in the middle; everything is verified, with a byte flipped at the other site; a full disk is copied over a
line that loses packets; all is verified beside writes; a sparse tebibyte is promoted.
"""

import argparse
import json
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from enkaku_lab import machine, wan
from enkaku_lab.experiment import Link
from enkaku_lab.mirror_site import BLOCK, MirrorSite, p99_s, site
from enkaku_lab.peers import enkaku
from enkaku_lab.process import LabError, run
from enkaku_lab.progress import say
from enkaku_lab.table import fenced, render

LINK = Link(50.0)
LOSSY = Link(100.0, 1e-3)
VERIFY_RATE, VERIFY_IOPS = "100mbit", 500
LINE_BYTES_PER_S = LINK.payload_bits_per_s / 8
IP_SHARE = 1500 / 1448
"""What the emulator counts of a full packet, beside its payload."""
KIB, MIB, GIB, TIB = (1 << power for power in (10, 20, 30, 40))
IOPS = 2000
REMOTE_TIMEOUT = '"2s"'
"""The leg is lost so soon after the cut, and not after the 10 s of the default."""
STEADY_S = 2.0
"""The load's first seconds are not counted."""
HEAD = ["what", "seen", "wanted", "held"]
PAGE = """# What an outage costs a mirror

Made by `python -m enkaku_lab mirror-outage --docs docs`; do not edit. A mirror (`mode = "{mode}"`) to `enkaku
serve`, 1 Gbit/s, RTT 50 ms, cubic, the queue 2,000 packets, Linux's default buffers; sparse files at both ends.
{machine}

{body}
"""
LEGEND = (
    "Bytes are those of IP packets that the line was given towards the leg, less their share of headers. line: what\n"
    "1 Gbit/s carries of TCP payload. wanted: the goals that were set before anything was measured; held: whether this\n"
    "run has met them. lacked: what is owed when the line is back, and what the user writes until all is equal. Through the\n"
    "redo log the image there is a legal one all the time, and each block goes over the line once where the target copies\n"
    "it home by itself, else twice; in place it is none."
)


@dataclass(frozen=True)
class Pace:
    """How long and how large."""

    before_s: float
    outage_s: float
    area_bytes: int
    data_bytes: int
    """Of a disk that is full."""
    sparse_bytes: int
    sparse_data_bytes: int
    """What a disk of `sparse_bytes` has. It is read as often as it is verified, too."""
    verify_s: float
    """Beside writes."""
    room_bytes: int
    """Of /var/tmp."""


FULL = Pace(20.0, 60.0, 2 * GIB, 2 * GIB, 100 * GIB, 10 * GIB, 60.0, 24 * GIB)
QUICK = Pace(4.0, 5.0, 256 * MIB, 64 * MIB, 4 * GIB, 64 * MIB, 5.0, 2 * GIB)


@dataclass(frozen=True)
class Row:
    """A number with its goal."""

    what: str
    seen: str
    wanted: str = ""
    held: bool | None = None

    def cells(self) -> list[str]:
        return [self.what, self.seen, self.wanted, "" if self.held is None else _word(self.held)]


def _word(held: bool) -> str:
    return "yes" if held else "NO"


def at_most(what: str, seen: float, limit: float, unit: str) -> Row:
    return Row(what, _number(seen, unit), f"≤ {_number(limit, unit)}", seen <= limit)


def at_least(what: str, seen: float, limit: float, unit: str) -> Row:
    return Row(what, _number(seen, unit), f"≥ {_number(limit, unit)}", seen >= limit)


def _number(value: float, unit: str) -> str:
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:.{digits}f} {unit}".rstrip()


class Counted:
    """What the line was given since this was made."""

    def __init__(self, place: MirrorSite):
        self._place, self._begin = place, place.carried()

    def sent(self) -> float:
        """Payload bytes towards the leg, about."""
        return (self._place.carried()[0] - self._begin[0]) / IP_SHARE

    def received(self) -> float:
        return (self._place.carried()[1] - self._begin[1]) / IP_SHARE


def outage(pace: Pace, mode: str) -> list[Row]:
    """The line is cut under random writes, and comes back; with a redo log at the leg and without."""
    return [*_outage(pace, mode, pace.area_bytes), *_outage(pace, mode, 0)]


def _outage(pace: Pace, mode: str, log_bytes: int) -> list[Row]:
    with site(LINK, pace.area_bytes, log_bytes=log_bytes) as place:
        keys = {"redo": f'"{log_bytes >> 20}M"'} if log_bytes else {}
        place.create(mode, "--skip-initial-copy", remote_timeout=REMOTE_TIMEOUT, **keys)
        place.start()
        place.wait_in_sync()
        load = place.load(10 * (pace.before_s + pace.outage_s), IOPS, pace.area_bytes)
        time.sleep(STEADY_S + pace.before_s)
        cut_s = time.time()
        place.cut()
        place.wait("lost", lambda leg: leg["state"] not in ("in-sync",))
        time.sleep(max(cut_s + pace.outage_s - time.time(), 0.0))
        dirty, written = place.leg()["dirty_bytes"], place.report()["written_bytes"]
        counted, back_s = Counted(place), time.time()
        place.mend()
        place.command("resync")
        connected = place.wait("reached", lambda leg: leg["state"] in ("catching-up", "in-sync"))
        begun_s = time.time() - connected["since_s"]
        place.wait_in_sync()
        equal_s = time.time()
        fallbacks = place.leg()["redo_overflows"]
        sent, written = counted.sent(), place.report()["written_bytes"] - written
        time.sleep(1.0)
        writes = load.end()
        place.stop()
    lacked = dirty + written
    before, during = p99_s(writes, cut_s - pace.before_s, cut_s), p99_s(writes, back_s, equal_s)
    took = equal_s - begun_s
    way = "through the redo log" if log_bytes and not fallbacks else "in place"
    if fallbacks:
        way += ", as the log was too small"
    return [
        Row(
            f"outage of {pace.outage_s:g} s, caught up {way}",
            f"{dirty / MIB:.0f} MiB owed, {written / MIB:.0f} MiB written meanwhile",
        ),
        at_most("    sent / lacked", sent / lacked, 2.1 if log_bytes else 1.05, "×"),
        Row("    time from the line's return until the leg was reached", f"{begun_s - back_s:.2f} s"),
        at_most("    time from there / (sent / line)", took * LINE_BYTES_PER_S / sent, 1.15, "×"),
        Row("    user's p99 before", f"{1e3 * before:.1f} ms"),
        at_most("    user's p99 meanwhile / before", during / before, 1.5, "×"),
    ]


def one_block(pace: Pace, mode: str) -> list[Row]:
    """One block changes during an outage."""
    with site(LINK, pace.area_bytes) as place:
        place.create(mode, "--skip-initial-copy", remote_timeout=REMOTE_TIMEOUT)
        place.start()
        place.wait_in_sync()
        place.cut()
        place.write_a_block()
        place.wait("lost", lambda leg: leg["state"] == "lost")
        counted = Counted(place)
        place.mend()
        place.command("resync")
        place.wait_in_sync()
        sent = counted.sent()
        place.stop()
    return [at_most("one dirty block of 4 KiB: sent, logins and metadata, too", sent / KIB, 64, "KiB")]


def power_cut(pace: Pace, mode: str) -> list[Row]:
    """The mirror is killed under random writes, and started again."""
    with site(LINK, pace.area_bytes) as place:
        place.create(mode, "--skip-initial-copy")
        place.start()
        place.wait_in_sync()
        load = place.load(10 * pace.outage_s, IOPS, pace.area_bytes)
        time.sleep(STEADY_S + pace.before_s)
        if not load.still_runs():
            raise LabError("the load ended before the power cut")
        place.mirror.kill()
        counted = Counted(place)
        up_s = place.start()
        owed = place.leg()["dirty_bytes"]
        place.wait_in_sync()
        sent = counted.sent()
        place.stop()
    return [
        at_most("power cut here: the volume can be used after", up_s, 5, "s"),
        at_most("    to be compared or copied", owed / MIB, 1024, "MiB"),
        Row("    sent", f"{sent / MIB:.0f} MiB"),
    ]


def first_copy(pace: Pace, mode: str) -> list[Row]:
    """A sparse disk is copied, and the copy is killed in the middle; then all of it is verified."""
    with site(LINK, pace.sparse_bytes) as place:
        _scatter(place.local, pace.sparse_bytes, pace.sparse_data_bytes)
        place.create(mode)
        counted, begin = Counted(place), time.monotonic()
        place.start()
        place.wait("half", lambda leg: leg["sent_bytes"] >= pace.sparse_data_bytes / 2)
        place.mirror.kill()
        place.start()
        place.wait_in_sync()
        took, sent = time.monotonic() - begin, counted.sent()
        rows = [
            Row(
                f"first copy of {pace.sparse_bytes // GIB} GiB with",
                f"{pace.sparse_data_bytes / GIB:.2f} GiB",
            ),
            at_most("    sent / data, with a kill at half", sent / pace.sparse_data_bytes, 1.01, "×"),
            Row("    data / time / line", f"{pace.sparse_data_bytes / took / LINE_BYTES_PER_S:.2f}"),
        ]
        rows += _verified(place, pace)
        place.stop()
    return rows


def _verified(place: MirrorSite, pace: Pace) -> list[Row]:
    counted, begin = Counted(place), time.monotonic()
    clean = _verify(place)
    took = time.monotonic() - begin
    inbound = counted.received() / took / LINE_BYTES_PER_S
    with place.image.open("r+b") as file:
        # In the first piece of data.
        file.seek(123)
        byte = file.read(1)[0]
        file.seek(123)
        file.write(bytes([byte ^ 1]))
    found = _verify(place, "--heal")
    again = _verify(place)
    mended = found["mismatches"] == found["healed"] == 1 and again["mismatches"] == 0
    return [
        at_least("verify: inbound / line", inbound, 0.80, "×"),
        Row("    false alarms", f"{clean['mismatches']}", "0", clean["mismatches"] == 0),
        Row("    a flipped byte is found and mended", _word(mended), "yes", mended),
    ]


def _verify(place: MirrorSite, *words: str) -> dict:
    # Code 1 says that something differs.
    done = place.command("verify", "--json", *words, check=False, timeout_s=1800)
    return json.loads(done.stdout)


def _scatter(path: Path, size: int, data: int) -> None:
    """So much noise all over a sparse file, in pieces of a mebibyte, the first at its beginning."""
    generator = random.Random(1)
    stride = size // (data // MIB)
    with path.open("r+b") as file:
        for piece in range(data // MIB):
            file.seek(piece * stride // BLOCK * BLOCK)
            file.write(generator.randbytes(MIB))


def lossy(pace: Pace, mode: str) -> list[Row]:
    """The first copy of a full disk over a line that loses packets: where a program may choose a congestion control
    that is not stopped by losses, and where it has to use cubic."""
    free = _copied_bytes_per_s(replace(LOSSY, cc_free=True), pace, mode)
    cubic, bound = _copied_bytes_per_s(LOSSY, pace, mode), _planned_bytes_per_s(LOSSY)
    line = LOSSY.payload_bits_per_s / 8
    where = f"loss {LOSSY.loss:g}, RTT {LOSSY.rtt_ms:g} ms"
    return [
        at_least(f"copy at {where} / line, bbr allowed", free / line, 0.60, "×"),
        Row(f"copy at {where} / line, {LOSSY.cc} alone", f"{cubic / line:.2f} ×"),
        at_least("    / what `enkaku plan` says of 64 connections", cubic / bound, 0.90, "×"),
    ]


def _copied_bytes_per_s(link: Link, pace: Pace, mode: str) -> float:
    with site(link, pace.data_bytes) as place:
        _scatter(place.local, pace.data_bytes, pace.data_bytes)
        place.create(mode)
        begin = time.monotonic()
        place.start()
        place.wait_in_sync()
        took = time.monotonic() - begin
        place.stop()
    return pace.data_bytes / took


def _planned_bytes_per_s(link: Link) -> float:
    """What the law of the link's congestion control gives with as many connections as are allowed."""
    argv = [enkaku.binary(), "plan", "--rate", link.rate, "--rtt", f"{link.rtt_ms}ms", "--loss", link.loss, "--json"]
    laws = json.loads(run(argv).stdout)["congestion_controls"]
    return next(law["session_bytes_per_s"] for law in laws if law["name"] == link.cc)


def alarms(pace: Pace, mode: str) -> list[Row]:
    """All is compared again and again while it is written to."""
    with site(LINK, pace.area_bytes) as place:
        place.create(mode, "--skip-initial-copy")
        place.start()
        place.wait_in_sync()
        load = place.load(10 * pace.verify_s + 60, VERIFY_IOPS, pace.area_bytes)
        begin, rounds, false, compared = time.monotonic(), 0, 0, 0
        while time.monotonic() < begin + pace.verify_s:
            found = _verify(place, "--rate", VERIFY_RATE)
            rounds, false = rounds + 1, false + found["mismatches"]
            compared += found["compared_bytes"]
        took = time.monotonic() - begin
        if not load.still_runs():
            raise LabError("the load ended before the last look")
        load.end()
        last = _verify(place)
        place.stop()
    what = f"verify {rounds} times in {took:.0f} s of {VERIFY_IOPS} writes a second, {compared / GIB:.1f} GiB"
    false += last["mismatches"]
    return [Row(f"{what}: false alarms", f"{false}", "0", false == 0)]


def promote(pace: Pace, mode: str) -> list[Row]:
    """A sparse tebibyte is taken over."""
    with site(LINK, TIB) as place:
        place.create(mode)
        counted, begin = Counted(place), time.monotonic()
        place.start()
        place.wait_in_sync()
        took, sent = time.monotonic() - begin, counted.sent()
        place.mirror.kill()
        argv = [enkaku.binary(), "mirror", "promote", place.url, "--json"]
        begin = time.monotonic()
        promoted = run(place.lab.exec("far", argv))
        up_s = time.monotonic() - begin
    if not json.loads(promoted.stdout)["consistent"]:
        raise LabError(f"the leg was in sync, and now: {promoted.stdout}")
    return [
        Row("a tebibyte of nothing in sync after", f"{took:.1f} s, {sent / MIB:.1f} MiB sent"),
        at_most("    promoted in", up_s, 10, "s"),
    ]


PARTS: dict[str, Callable[[Pace, str], list[Row]]] = {
    "outage": outage,
    "one-block": one_block,
    "power-cut": power_cut,
    "first-copy": first_copy,
    "lossy": lossy,
    "alarms": alarms,
    "promote": promote,
}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="enkaku_lab mirror-outage", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--mode", choices=["sync", "async"], default="sync")
    parser.add_argument("--quick", action="store_true", help="short and small: draw no conclusions")
    parser.add_argument("--verify-s", type=float, metavar="S", help="so long is verified beside writes")
    parser.add_argument("--docs", type=Path, metavar="DIR", help="write DIR/mirror-outage.md, too")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.names if name not in PARTS]:
        raise LabError(f"no part is called {unknown[0]}; there are: {', '.join(PARTS)}")
    pace, rows = QUICK if options.quick else FULL, []
    pace = replace(pace, verify_s=options.verify_s) if options.verify_s else pace
    if (free := shutil.disk_usage("/var/tmp").free) < pace.room_bytes:
        raise LabError(f"/var/tmp has {free >> 20} MiB free; this needs {pace.room_bytes >> 20} MiB")
    wan.need()
    for name in options.names or PARTS:
        found = PARTS[name](pace, options.mode)
        rows += found
        for row in found:
            say(" · ".join(cell for cell in row.cells() if cell))
    table = render(HEAD, [row.cells() for row in rows])
    print(f"{table}\n{LEGEND}")
    if options.docs:
        page = options.docs / "mirror-outage.md"
        words = {"mode": options.mode, "body": fenced(table, LEGEND)}
        page.write_text(PAGE.format(**words, machine=machine.summary(machine.facts())))
        print(f"Page: {page}")
