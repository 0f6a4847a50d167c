"""Data bases on a volume that is attached, while faults happen below: what they acknowledged is there.

A writer commits numbered rows; the numbers it was told are kept outside of the volume. Then the disk of
the target loses power, the target comes back with another cache, the line is cut, the storage is full,
one sync fails. In the end the near end is detached in order or dies, the power of the target is cut, and
a copy of its disk is looked at without the product: file system, data base, every acknowledged row.

`make test` has a few rounds of each; ENKAKU_ROUNDS=40 has more (make soak). The number is the seed.
"""

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import MIB
from support.faulty_volume import WAYS, FaultyVolume, until
from support.ledgers import Ledger, Postgres, Sqlite, note, postgres_folder
from support.stamps import Stamps

ROUNDS = int(os.environ.get("ENKAKU_ROUNDS") or 1)
"""Of each fault, with each data base, each way of attaching."""
COMMITS = 12
"""That have to be told before a fault, and again after one that the near end must not notice."""
CLIENTS = {"nbd": "nbdfuse", "gateway": "qemu-nbd"}
CACHES = ("none", "read", "write-back")
WORTH_A_CUT = 20
"""Dirty blocks at the target, between two syncs of the stamps."""
WORTH_A_CUT_S_MAX = 2.0
"""With a cache at the near end there may never be as many."""
SPACE_BLOCKS = 24
"""Left to a disk that fills up: less than the rows of a second."""
pytestmark = pytest.mark.needs(
    "root", "/dev/fuse", "/dev/loop-control", "mkfs.ext4", "e2fsck", "fusermount3", "cc", "losetup"
)


@dataclass(frozen=True)
class Fault:
    """`strike` is called while commits go on. `told`: the data base has to be told of it."""

    strike: Callable[[FaultyVolume, Ledger, int], None]
    told: bool = False


def power_cut(volume: FaultyVolume, ledger: Ledger, seed: int) -> None:
    """At a moment when much is not synced, if there is one: a data base flushes all the time."""
    with ledger.paused():
        deadline = time.monotonic() + WORTH_A_CUT_S_MAX
        while volume.storage.dirty() < WORTH_A_CUT and time.monotonic() < deadline:
            time.sleep(0.001)
        volume.cut_power(seed)
    volume.start_target()


def other_cache(volume: FaultyVolume, ledger: Ledger, seed: int) -> None:
    """As one does after a power cut: the cache is switched off; or on again."""
    volume.write_cache = not volume.write_cache
    power_cut(volume, ledger, seed)


def cut_line(volume: FaultyVolume, ledger: Ledger, seed: int) -> None:
    for link in list(volume.proxy.links):
        if link.open:
            link.reset()


def full_disk(volume: FaultyVolume, ledger: Ledger, seed: int) -> None:
    """A plain file system says so at once, a thin pool when it writes back."""
    volume.storage.order("space_late", seed % 2)
    volume.storage.order("space", SPACE_BLOCKS)


def failed_sync(volume: FaultyVolume, ledger: Ledger, seed: int) -> None:
    volume.storage.order("seed", seed)
    volume.storage.order("fail_sync", 1 + seed % 3)


FAULTS = {
    "power cut": Fault(power_cut),
    "other cache": Fault(other_cache),
    "cut line": Fault(cut_line),
    "full disk": Fault(full_disk, told=True),
    "failed sync": Fault(failed_sync, told=True),
}


def ledger_of(kind: str, way: str, logs: Path) -> Ledger:
    if kind == "sqlite":
        return Sqlite(logs, "wal" if way == "fuse" else "truncate")
    if postgres_folder() is None:
        pytest.skip("postgresql is not installed (packages.txt)")
    return Postgres(logs)


def one_round(
    volume: FaultyVolume, ledger: Ledger, stamps: Stamps, fault: Fault, seed: int
) -> str:
    """Commits, the fault, commits; then both ends are down. Returns how it ended."""
    volume.attach(CACHES[seed % len(CACHES)])
    stamps.start(volume.mount)
    ledger.start(volume.mount)

    def commits(more: int) -> None:
        wanted, syncs = ledger.acknowledged() + more, stamps.syncs() + 1
        until(
            lambda: ledger.refused()
            or ledger.acknowledged() >= wanted and stamps.syncs() >= syncs,
            f"{more} commits", lambda: ledger.said()[-1500:] + volume.said(),
        )

    commits(COMMITS)
    assert not ledger.refused(), ledger.said()[-1500:]
    fault.strike(volume, ledger, seed)
    if fault.told:
        until(ledger.refused, "the data base is told of the error", volume.said)
        assert ledger.writer.wait(timeout_s=1) != 0, ledger.said()[-1500:]
    else:
        commits(COMMITS)
        assert not ledger.refused(), ledger.said()[-1500:] + volume.said()
    stamps.stop()
    ledger.stop()
    ledger.settle()
    in_order = not fault.told and seed % 2 == 0
    if in_order:
        volume.detach()
    else:
        volume.crash_near()
    volume.cut_power(seed + 1)
    return "in order" if in_order else "crashed"


def compare(volume: FaultyVolume, ledger: Ledger, stamps: Stamps) -> None:
    with volume.copy_of_the_disk() as folder:
        stamps.check(folder)
        rows = ledger.rows(folder)
    missing = sorted(ledger.committed - rows.keys())
    assert not missing, f"{len(missing)} of {len(ledger.committed)} acknowledged commits are gone"
    wrong = [number for number, text in rows.items() if text != note(number)]
    assert not wrong, f"rows with another note: {wrong[:10]}"


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
@pytest.mark.parametrize("way", WAYS)
def test_no_acknowledged_commit_is_lost(way: str, kind: str, fault: str, tmp_path: Path):
    client = CLIENTS.get(way)
    if client and shutil.which(client) is None:
        pytest.skip(f"{client} is not installed (packages.txt)")
    ledger = ledger_of(kind, way, tmp_path)
    size = (96 if kind == "sqlite" else 192) * MIB
    # Ways begin with even and odd numbers by turns.
    first = 1000 * list(FAULTS).index(fault) + WAYS.index(way)
    stamps, endings = Stamps(tmp_path), []
    try:
        with FaultyVolume(tmp_path, size, way) as volume:
            volume.make_file_system()
            for seed in range(first, first + ROUNDS):
                endings.append(one_round(volume, ledger, stamps, FAULTS[fault], seed))
                compare(volume, ledger, stamps)
                volume.start_target()
            dropped = sum(cut.dropped for cut in volume.cuts)
    finally:
        stamps.stop()
        ledger.close()
    print(
        f"count: {kind} over {way}, {fault}: {len(endings)} rounds, {len(ledger.committed)} commits"
        f" acknowledged, 0 missing, {dropped} blocks lost in {len(volume.cuts)} power cuts"
    )
