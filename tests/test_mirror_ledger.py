"""Data bases on a mirrored volume while this site dies: what the other site takes over is their ledger up
to some commit, without a hole.

A data base commits the rows 1, 2, 3, …; what it was told is kept outside of the volume. At some moment the
line is cut and the mirror is killed, in sync, after the leg was lost, or in the middle of a catch-up. The
other site's image is promoted, attached and mounted, its data base started: the rows there are 1 … m. With
`mode = "sync"`, m is not less than the last commit that was told while the leg was in sync; with `async`,
row m + 1 was told no earlier than the lag and a second before the cut. There is a redo log on the leg, so the
image is one of one moment during a catch-up, too. Then this site goes on with its own disk, and the next round begins.

`make test` has a few rounds; ENKAKU_ROUNDS=50 has more of each (make soak), and ENKAKU_FIRST_ROUND=50 the ones
behind those. The number is the seed.
"""

import functools
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import MIB
from support.fail_over import SETTLED_S_MAX, Far, FarOurs, FarTgt, Site, disk_bytes
from support.far_lio import FarLio, LioHost
from support.faulty_volume import until
from support.ledgers import Ledger, Postgres, Sqlite, note, postgres_folder

from enkaku_lab.process import LabError

ROUNDS = int(os.environ.get("ENKAKU_ROUNDS") or 0)
FIRST_ROUND = int(os.environ.get("ENKAKU_FIRST_ROUND") or 0)
FARS = ["ours", "tgt", "lio"]
SIZE = {"sqlite": 96 * MIB, "postgresql": 192 * MIB}
WHERE = [
    (far, kind) for far in FARS for kind in SIZE if ROUNDS or (far, kind) != ("lio", "postgresql")
]
"""LIO's guest is interpreted: PostgreSQL at LIO is left to the soak."""
ROUNDS_QUICK = {"postgresql": 2, "sqlite": 3}
"""At each target: with the seeds of the four tests every kind of cut comes up."""
COMMITS = 12
"""That have to be told before a cut, and again while a leg is lost."""
CHANGED_BYTES = 4 * MIB
"""Written while a leg is lost, so that catching up takes a while."""
SLOW_BYTES_PER_S = 8 * MIB
"""Of a connection meanwhile."""
SILENCE_S_MAX = 1.0
"""Between a cut that nobody is told of and the end of the mirror: no leg is lost so soon."""
LATE_S = 1.0
"""Added to the lag: the data base, the file system and the clock take their time, too."""
pytestmark = pytest.mark.needs(
    "root", "/dev/fuse", "/dev/loop-control", "mkfs.ext4", "e2fsck", "fusermount3", "cc", "losetup"
)


@dataclass(frozen=True)
class Promise:
    """What a cut leaves to be found: row `told` in sync mode; what was told before `at_s` and the lag in
    async mode."""

    told: int
    at_s: float


class Round:
    """One round's site, data base, and dice."""

    def __init__(self, site: Site, ledger: Ledger, seed: int):
        self.site, self.ledger = site, ledger
        self.seed, self.dice = seed, random.Random(seed)
        self.dropped = 0

    def commits(self, more: int = COMMITS) -> None:
        wanted = self.ledger.acknowledged() + more
        until(
            lambda: self.ledger.refused() or self.ledger.acknowledged() >= wanted,
            f"{more} commits",
            lambda: self.ledger.said()[-1500:] + self.site.mirror.peer.output()[-1500:],
        )
        assert not self.ledger.refused(), self.ledger.said()[-1500:]

    def begin(self) -> None:
        self.site.open()
        self.site.wait_for_leg("in-sync")
        self.ledger.start(self.site.mount)
        self.commits(COMMITS + self.dice.randrange(COMMITS))

    def promise_now(self) -> Promise:
        return Promise(self.ledger.last_told(), time.time())

    def die(self) -> None:
        """The mirror is killed; then what stands on it."""
        self.site.mirror.peer.kill()
        self.ledger.stop()
        self.ledger.settle()
        self.site.crash()

    def die_with_the_line(self) -> None:
        """Both in either order."""
        if self.dice.random() < 0.5:
            self.site.line.cut(reset=True)
        self.die()
        self.site.line.cut(reset=True)

    def lose_the_leg(self) -> Promise:
        promise = self.promise_now()
        self.site.line.cut(reset=self.dice.random() < 0.5)
        self.site.wait_for_leg("lost")
        self.commits()
        return promise

    def meet_the_catch_up(self, promise: Promise) -> Promise:
        """Waits for the middle of a catch-up, or its end and a bit: then everything counts again."""
        share = self.dice.uniform(0.0, 1.2)
        deadline = time.monotonic() + SETTLED_S_MAX
        while (leg := self.site.leg())["state"] != "in-sync":
            if (copy := leg["copy"]) and leg["state"] == "catching-up":
                whole = copy["done_bytes"] + copy["left_bytes"]
                if copy["done_bytes"] >= share * whole:
                    return promise
            assert time.monotonic() < deadline, leg
        if self.ledger.writer.running():
            self.commits(self.dice.randrange(3))
        return self.promise_now()


def killed(turn: Round) -> Promise:
    """The mirror first. What the data base was told until then, it was told with the leg in sync."""
    turn.die()
    promise = turn.promise_now()
    turn.site.line.cut(reset=True)
    return promise


def silent_line(turn: Round) -> Promise:
    """Nothing arrives any more, and nobody is told; then the mirror is killed, with writes that wait."""
    at_s = time.time()
    turn.site.line.cut(reset=False)
    time.sleep(turn.dice.uniform(0.0, SILENCE_S_MAX))
    turn.die()
    return Promise(turn.ledger.last_told(), at_s)


def lost_leg(turn: Round) -> Promise:
    """This site goes on without the leg, and dies: what was told since the cut is not there."""
    promise = turn.lose_the_leg()
    turn.die()
    return promise


def catch_up(turn: Round) -> Promise:
    """The leg is back, and gets what it lacks; meanwhile commits go on."""
    promise = turn.lose_the_leg()
    bulk = turn.site.mount / f"bulk-{turn.seed % 2}"
    bulk.write_bytes(turn.dice.randbytes(CHANGED_BYTES))
    turn.commits()
    turn.site.line.limit(SLOW_BYTES_PER_S)
    turn.site.line.mend()
    turn.site.mirror.command("resync")
    promise = turn.meet_the_catch_up(promise)
    turn.die_with_the_line()
    return promise


def killed_twice(turn: Round) -> Promise:
    """The mirror dies, comes back, and dies again while the leg gets what may differ."""
    turn.die()
    promise = turn.promise_now()
    turn.site.line.limit(SLOW_BYTES_PER_S)
    turn.site.open()
    promise = turn.meet_the_catch_up(promise)
    turn.die_with_the_line()
    return promise


def both_sites(turn: Round) -> Promise:
    """The power fails here and there: what was not synced there is gone."""
    if turn.dice.random() < 0.5:
        turn.die()
        promise = turn.promise_now()
        turn.dropped = turn.site.far.cut_power(turn.seed)
    else:
        promise = turn.promise_now()
        turn.dropped = turn.site.far.cut_power(turn.seed)
        turn.die()
    turn.site.line.cut(reset=True)
    return promise


CUTS: list[Callable[[Round], Promise]] = [
    killed, catch_up, silent_line, both_sites, lost_leg, killed_twice,
]


def judge(turn: Round, promise: Promise, rows: dict[int, str]) -> None:
    last = len(rows)
    assert rows.keys() == set(range(1, last + 1)), f"rows are missing before {max(rows)}: " + str(
        sorted(set(range(1, max(rows))) - rows.keys())[:10]
    )
    wrong = [number for number, text in rows.items() if text != note(number)]
    assert not wrong, f"rows with another note: {wrong[:10]}"
    if turn.site.mode == "sync":
        assert last >= promise.told, f"{promise.told} was told, and {last} rows are there"
        return
    told_at_s = turn.ledger.told_at.get(last + 1)
    if told_at_s is not None:
        behind_s = promise.at_s - told_at_s
        assert behind_s <= turn.site.lag_s + LATE_S, (
            f"commit {last + 1} was told {behind_s:.1f} s before the cut, and is not there"
        )


def one_round(turn: Round, cut: Callable[[Round], Promise]) -> str:
    """Returns how it ended."""
    turn.begin()
    promise = cut(turn)
    turn.site.far.kill()
    with turn.site.taken_over() as mount:
        if mount is not None:
            judge(turn, promise, turn.ledger.rows(mount))
    assert mount is not None, "the image is one all the time: catch-ups go through the redo log"
    turn.site.far.start()
    turn.site.line.mend()
    turn.site.line.limit(None)
    return "promoted"


def ledger_of(kind: str, logs: Path) -> Ledger:
    if kind == "sqlite":
        return Sqlite(logs, "truncate", gapless=True)
    if postgres_folder() is None:
        pytest.skip("postgresql is not installed (packages.txt)")
    return Postgres(logs, gapless=True)


@pytest.fixture(scope="module")
def lio_host(request, tmp_path_factory) -> Iterator[LioHost]:
    """One guest for all tests at LIO."""
    try:
        host = LioHost(tmp_path_factory.mktemp("lio"), disk_bytes(max(SIZE.values())))
    except LabError as missing:
        pytest.skip(f"no stock-kernel guest: {missing}")
    failed_before = request.session.testsfailed
    try:
        yield host
    finally:
        host.keep_log = request.session.testsfailed > failed_before
        host.power_off()


@pytest.fixture
def far(request) -> Callable[[Path, int], Far]:
    """What makes the other site, by the name of its target."""
    if request.param == "lio":
        return functools.partial(FarLio, host=request.getfixturevalue("lio_host"))
    return {"ours": FarOurs, "tgt": FarTgt}[request.param]


def rounds_of(site: Site, ledger: Ledger, seeds: range, endings: Counter[str]) -> int:
    """One after the other; then both disks are the same. How many blocks were lost there?"""
    dropped = 0
    for seed in seeds:
        cut = CUTS[seed % len(CUTS)]
        turn = Round(site, ledger, seed)
        try:
            endings[one_round(turn, cut)] += 1
        except Exception as error:
            error.add_note(f"round {seed}, {cut.__name__}")
            raise
        dropped += turn.dropped
    site.open()
    ledger.start(site.mount)
    ledger.stop()
    ledger.settle()
    site.mirror.wait_in_sync()
    site.close()
    site.far.kill()
    site.compare()
    return dropped


@pytest.mark.parametrize(("far", "kind"), WHERE, indirect=["far"])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_other_site_has_the_ledger_up_to_some_commit(
    request, mode: str, far: Callable[[Path, int], Far], kind: str, tmp_path: Path
):
    name = request.node.callspec.params["far"]
    words = (name, mode, far, kind)
    try:
        rounds_at(tmp_path, *words)
    except Exception:
        # An interpreted processor has been seen to return from an interrupt with flags that were
        # no flags. That is not what this is about.
        if name != "lio" or not request.getfixturevalue("lio_host").has_panicked():
            raise
        print("count: the guest's kernel has ended by itself: all of it again")
        rounds_at(tmp_path / "2", *words)


def rounds_at(folder: Path, name: str, mode: str, far: Callable[[Path, int], Far], kind: str) -> None:
    """Ledgers at one kind of target, in one mode."""
    folder.mkdir(exist_ok=True)
    first = FIRST_ROUND + sum(ROUNDS_QUICK.values()) * FARS.index(name)
    first += ROUNDS_QUICK["postgresql"] if kind == "sqlite" else 0
    endings: Counter[str] = Counter()
    ledger = ledger_of(kind, folder)
    try:
        with Site(folder, SIZE[kind], far, mode) as site:
            if why := site.create():
                pytest.skip(why)
            seeds = range(first, first + (ROUNDS or ROUNDS_QUICK[kind]))
            dropped = rounds_of(site, ledger, seeds, endings)
    finally:
        ledger.close()
    told = ", ".join(f"{count} {ending}" for ending, count in sorted(endings.items()))
    print(
        f"count: {kind} on a {mode} mirror to {name}: {endings.total()} rounds ({told}), "
        f"{len(ledger.committed)} commits told, 0 illegal images, {dropped} blocks lost there"
    )
