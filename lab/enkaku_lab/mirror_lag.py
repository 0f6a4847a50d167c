"""`python -m enkaku_lab mirror-lag`: the asynchronous mirror: how far the other site is behind, and what its
user pays for it.

RTT 50 ms, cubic, the queue 2,000 packets, the lag at most 5 s and 256 MiB. Bursts and random writes beside the same
mirror with its leg paused; writes faster than the line for a minute; PostgreSQL at 200 commits a second.
"""

import argparse
import os
import pwd
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from enkaku_lab import machine, wan
from enkaku_lab.experiment import Link
from enkaku_lab.mirror_outage import GIB, HEAD, LINE_BYTES_PER_S, LINK, MIB, Row, at_least, at_most
from enkaku_lab.mirror_site import MirrorSite, site
from enkaku_lab.peers import need
from enkaku_lab.process import LabError, Peer, run
from enkaku_lab.progress import say
from enkaku_lab.results import median
from enkaku_lab.table import fenced, render

LAG_S, LAG_BYTES = 5.0, 256 * MIB
LAG = '{ seconds = 5, bytes = "256M", on = "slow" }'
EPOCH_S = 1.0
"""What an epoch may add to the bound: it is closed when a flush ends, or when it is large."""
LOOK_EVERY_S = 0.05
VOLUME_BYTES = 2 * GIB
COMMITS_PER_S = 200
RTTS_MS = (50.0, 200.0)
AREAS_BYTES = (768 * MIB, 2 * GIB)
"""What the activity log holds at a time, and more than that."""
RANDOM_IOPS = 8000
PAGE = """# The asynchronous mirror: lag and price

Made by `python -m enkaku_lab mirror-lag --docs docs`; do not edit. A mirror (`mode = "async"`, a lag of at most 5 s and
256 MiB, `on = "slow"`) to `enkaku serve`, 1 Gbit/s, RTT 50 ms unless said, cubic, the queue 2,000 packets; sparse files
at both ends. Local is the same mirror with its leg paused. {machine}

{body}
"""
LEGEND = (
    "Bursts and random writes: medians of three ratios, taken in turn. Lag is asked for 20 times a second: the age of\n"
    "the oldest write that is not stable at the leg, and bytes of such writes. The activity log holds 1008 MiB at a time.\n"
    "wanted: the goals that were set before anything was measured; held: whether this run has met them."
)


@dataclass(frozen=True)
class Pace:
    burst_bytes: int
    random_s: float
    flood_s: float
    commits_s: float
    rounds: int
    """Of bursts and random writes: medians."""


FULL = Pace(128 * MIB, 8.0, 60.0, 30.0, 3)
QUICK = Pace(32 * MIB, 3.0, 8.0, 6.0, 1)


@dataclass
class Watch:
    """The lag over time, until it is stopped."""

    place: MirrorSite
    seen: list[tuple[float, int]] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> "Watch":
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stop.wait(LOOK_EVERY_S):
            leg = self.place.leg()
            self.seen.append((leg["lag_s"], leg["lag_bytes"]))

    @property
    def longest_s(self) -> float:
        return max((lag_s for lag_s, _ in self.seen), default=0.0)

    @property
    def most_bytes(self) -> int:
        return max((lag_bytes for _, lag_bytes in self.seen), default=0)


@contextmanager
def _mirror(link: Link = LINK, *, fuse: bool = False) -> Iterator[MirrorSite]:
    with site(link, VOLUME_BYTES) as place:
        place.create("async", "--skip-initial-copy", lag=LAG)
        place.start(fuse=fuse)
        place.wait_in_sync()
        yield place
        place.stop()


@contextmanager
def _paused(place: MirrorSite) -> Iterator[None]:
    """Nothing is sent meanwhile, and what was kept back is sent before it ends."""
    place.command("pause")
    yield
    place.command("resume")
    place.wait_in_sync()


def price(pace: Pace) -> list[Row]:
    """A burst that the lag has room for, and random writes that the line has room for: in turn with the
    same beside a paused leg, on a file whose blocks are all there."""
    burst = ["--rw=write", "--bs=256k", "--iodepth=8", f"--size={pace.burst_bytes}", "--end_fsync=1"]
    fill = ["--rw=write", "--bs=1m", "--iodepth=8", f"--size={VOLUME_BYTES}", "--end_fsync=1"]
    loads = [burst, *(_scattered(area, pace) for area in AREAS_BYTES)]
    with _mirror() as place:
        with _paused(place):
            place.measured(fill)
        rounds = [_side_by_side(place, loads) for _ in range(pace.rounds)]
    ratios = list(zip(*rounds, strict=True))
    rows = [
        at_least(f"{pace.burst_bytes // MIB} MiB in one go and a flush / local",
                 median([rate for rate, _ in ratios[0]]), 0.95, "×"),
    ]
    for area, seen in zip(AREAS_BYTES, ratios[1:], strict=True):
        rates, p99s = zip(*seen, strict=True)
        rows += [
            at_least(f"4 KiB at random in {area // MIB} MiB, {RANDOM_IOPS:,}/s wanted / local",
                     median(list(rates)), 0.90, "×"),
            at_most("    p99 / local", median(list(p99s)), 1.3, "×"),
        ]
    return rows


def _scattered(area: int, pace: Pace) -> list[str]:
    words = ["--rw=randwrite", "--bs=4k", "--iodepth=32", f"--size={area}", "--time_based"]
    return [*words, f"--rate_iops={RANDOM_IOPS}", f"--runtime={pace.random_s:g}"]


def _side_by_side(place: MirrorSite, loads: list[list[str]]) -> list[tuple[float, float]]:
    """Each load on the mirror, and then beside a paused leg: the ratio of their rates, and of their p99."""
    ours = []
    for load in loads:
        ours.append(place.measured(load))
        place.wait_in_sync()
    with _paused(place):
        local = [place.measured(load) for load in loads]
    return [
        (one["bw_bytes"] / other["bw_bytes"], _p99(one) / _p99(other))
        for one, other in zip(ours, local, strict=True)
    ]


def _p99(ran: dict) -> float:
    return ran["clat_ns"]["percentile"]["99.000000"]


def flood(pace: Pace) -> list[Row]:
    """Writes faster than the line."""
    words = ["--rw=write", "--bs=256k", "--iodepth=32", f"--size={VOLUME_BYTES}", "--time_based"]
    with _mirror() as place:
        with Watch(place) as watch:
            ran = place.measured([*words, f"--runtime={pace.flood_s:g}"], pace.flood_s + 120)
        place.wait_in_sync()
    # What the lag has room for is taken at the local disk's rate.
    share = (ran["io_bytes"] - watch.most_bytes) / (ran["runtime"] / 1e3) / LINE_BYTES_PER_S
    return [
        at_most(f"writes faster than the line for {pace.flood_s:g} s: lag", watch.longest_s,
                LAG_S + EPOCH_S, "s"),
        at_most("    lag", watch.most_bytes / MIB, LAG_BYTES / MIB, "MiB"),
        at_least("    the user's rate, less what the lag took, / line", share, 0.90, "×"),
    ]


def commits(pace: Pace) -> list[Row]:
    """PostgreSQL on ext4 on the mirror, beside the same with its leg paused."""
    if postgres_folder() is None:
        raise LabError("postgresql is not installed (packages.txt)")
    rows = []
    for rtt_ms in RTTS_MS:
        with _mirror(Link(rtt_ms), fuse=True) as place, _postgres(place) as base:
            base.run(2.0)
            with Watch(place) as watch:
                ours = base.run(pace.commits_s)
            with _paused(place):
                local = base.run(pace.commits_s)
        rows += [
            at_least(
                f"PostgreSQL, RTT {rtt_ms:g} ms, {COMMITS_PER_S} commits/s wanted: {ours:.0f} / local",
                ours / local, 0.90, "×",
            ),
            at_most("    lag", watch.longest_s, rtt_ms / 1e3 + 0.5, "s"),
        ]
    return rows


def postgres_folder() -> Path | None:
    """Debian keeps the server's programs out of PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[-1].parent if found else None


class Base:
    """A cluster on the volume; pgbench's tables in it."""

    def __init__(self, folder: Path, sockets: Path, logs: Path):
        self._bin, self._data = postgres_folder(), folder / "cluster"
        self._sockets = sockets
        self._data.mkdir(mode=0o700)
        for path in (self._data, sockets):
            shutil.chown(path, USER)
        initdb = [self._bin / "initdb", "-D", self._data, "--auth=trust", "-U", "postgres"]
        run(_as_user([*initdb, "--no-locale", "--no-instructions"]), timeout_s=300)
        settings = ["listen_addresses=", f"unix_socket_directories={sockets}"]
        words = [word for setting in settings for word in ("-c", setting)]
        argv = [self._bin / "postgres", "-D", self._data, *words]
        self.server = Peer(_as_user(argv), logs / "postgres.log")
        self.server.wait_until(lambda: not self._pgbench("-i", "-q", check=False).code, "tables")

    def run(self, seconds: float) -> float:
        """Commits a second."""
        words = ["-N", "-c", "8", "-j", "2", "-n", "-R", COMMITS_PER_S, "-T", round(seconds)]
        said = self._pgbench(*words).stdout
        return float(re.search(r"^tps = ([\d.]+)", said, re.M)[1])

    def stop(self) -> None:
        self.server.signal(2)
        self.server.wait(60)

    def _pgbench(self, *words: object, check: bool = True):
        argv = [self._bin / "pgbench", "-h", self._sockets, "-U", "postgres", *words, "postgres"]
        return run(argv, check=check, timeout_s=300)


USER = "postgres" if any(one.pw_name == "postgres" for one in pwd.getpwall()) else "nobody"
"""PostgreSQL does not run as root."""


def _as_user(argv: list[object]) -> list[object]:
    if os.geteuid() != 0:
        return argv
    group = str(pwd.getpwnam(USER).pw_gid)
    return [need("setpriv"), "--reuid", USER, "--regid", group, "--clear-groups", *argv]


@contextmanager
def _postgres(place: MirrorSite) -> Iterator[Base]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.chmod(0o711)
        (mount := folder / "volume").mkdir()
        (sockets := folder / "s").mkdir()
        losetup = [need("losetup"), "--find", "--show", "--direct-io=on", place.file]
        device = run(losetup).stdout.strip()
        stack.callback(run, [need("losetup"), "--detach", device])
        run([need("mkfs.ext4"), "-q", device])
        run([need("mount"), device, mount])
        stack.callback(run, [need("umount"), mount], timeout_s=180)
        base = Base(mount, sockets, place.folder)
        stack.callback(base.stop)
        yield base


PARTS: dict[str, Callable[[Pace], list[Row]]] = {"price": price, "flood": flood, "commits": commits}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="enkaku_lab mirror-lag", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--quick", action="store_true", help="short: draw no conclusions")
    parser.add_argument("--docs", type=Path, metavar="DIR", help="write DIR/mirror-lag.md, too")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.names if name not in PARTS]:
        raise LabError(f"no part is called {unknown[0]}; there are: {', '.join(PARTS)}")
    wan.need()
    rows = []
    for name in options.names or PARTS:
        found = PARTS[name](QUICK if options.quick else FULL)
        rows += found
        for row in found:
            say(" · ".join(cell for cell in row.cells() if cell))
    table = render(HEAD, [row.cells() for row in rows])
    print(f"{table}\n{LEGEND}")
    if options.docs:
        page, where = options.docs / "mirror-lag.md", machine.summary(machine.facts())
        page.write_text(PAGE.format(body=fenced(table, LEGEND), machine=where))
        print(f"Page: {page}")
