"""The disk of tests/support/storage_shim.c does what it says, or no test on it means anything: what a
power cut takes and leaves, errors that are told once, a full disk early and late, a sync that hangs.
"""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import MIB
from support.faulty_volume import until
from support.storage import BLOCK, Storage

pytestmark = pytest.mark.needs("cc")
SIZE = 1 * MIB
SCRIPT = """
import errno, os, sys
file = os.open(sys.argv[1], os.O_RDWR)
def write(block, byte, flags=0):
    return os.pwritev(file, [bytes([byte]) * 4096], block * 4096, flags)
def told(work, *arguments):
    try:
        work(*arguments)
        return 0
    except OSError as error:
        return error.errno
def say(*words):
    print(*words, flush=True)
DSYNC = os.RWF_DSYNC
"""


@pytest.fixture
def storage(tmp_path: Path):
    made = Storage(tmp_path, SIZE)
    yield made
    made.close()


def start(storage: Storage, script: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT + script, storage.image],
        env={**os.environ, **storage.env}, stdout=subprocess.PIPE, text=True,
    )


def play(storage: Storage, script: str) -> list[int]:
    """What the script says."""
    player = start(storage, script)
    said, _ = player.communicate(timeout=30)
    assert player.returncode == 0
    return [int(word) for word in said.split()]


def block(storage: Storage, number: int) -> int:
    """The byte that the whole block has."""
    with storage.image.open("rb") as file:
        data = os.pread(file.fileno(), BLOCK, number * BLOCK)
    assert len(set(data)) == 1
    return data[0]


def test_a_power_cut_takes_what_was_not_synced_and_nothing_else(storage: Storage):
    script = """
for number in range(100): write(number, 1)
os.fdatasync(file)
for number in range(100): write(number, 2)
write(100, 3, DSYNC)
"""
    play(storage, script)
    assert storage.dirty() == 100
    cut = storage.power_cut(seed=1)
    assert cut.kept and cut.dropped and cut.kept + cut.dropped == 100
    found = [block(storage, number) for number in range(100)]
    assert found.count(2) == cut.kept and found.count(1) == cut.dropped
    assert block(storage, 100) == 3
    # Another cut finds nothing to take.
    assert storage.power_cut(seed=2).dropped == 0
    assert [block(storage, number) for number in range(100)] == found


def test_a_failed_sync_is_told_once_and_what_it_lost_is_seen_until_the_power_cut(storage: Storage):
    storage.order("fail_sync", 2)
    script = """
os.fdatasync(file)
for number in range(64): write(number, 7)
say(told(os.fdatasync, file), told(os.fdatasync, file), os.pread(file, 1, 0)[0])
"""
    assert play(storage, script) == [errno.EIO, 0, 7]
    lost = storage.count("lost")
    assert 8 < lost < 56
    assert storage.power_cut(seed=1).failed == lost
    assert [block(storage, number) for number in range(64)].count(0) == lost


def test_a_full_disk_says_so_at_the_write_and_keeps_what_it_took(storage: Storage):
    storage.order("space", 3)
    script = """
say(*(told(write, number, 5) for number in range(5)), told(write, 0, 6), told(os.fdatasync, file))
"""
    no = errno.ENOSPC
    assert play(storage, script) == [0, 0, 0, no, no, 0, 0]
    storage.power_cut(seed=1)
    assert [block(storage, number) for number in range(5)] == [6, 5, 5, 0, 0]


def test_a_full_pool_tells_the_synchronous_write_what_it_lost_of_others(storage: Storage):
    storage.order("space_late", 1)
    storage.order("space", 0)
    script = "say(told(write, 0, 5), told(write, 9, 6, DSYNC), told(os.fdatasync, file))"
    assert play(storage, script) == [0, errno.ENOSPC, 0]
    storage.power_cut(seed=1)
    assert block(storage, 0) == 0


def test_a_hole_gives_its_space_back(storage: Storage):
    storage.order("space", 1)
    script = """
write(0, 5); os.fdatasync(file)
write(0, 0); os.fdatasync(file)
say(told(write, 1, 6), told(os.fdatasync, file))
"""
    assert play(storage, script) == [0, 0]


def test_a_sync_hangs_until_it_is_let_go_and_writes_do_not(storage: Storage):
    storage.order("hang_sync", 1)
    script = """
import threading
thread = threading.Thread(target=os.fdatasync, args=(file,))
write(0, 1); thread.start()
say(told(write, 1, 2), int(thread.is_alive()))
thread.join()
"""
    player = start(storage, script)
    until(lambda: storage.count("hanging") == 1, "the sync hangs")
    assert player.stdout.readline().split() == ["0", "1"]
    storage.order("hang", 0)
    assert player.wait(timeout=30) == 0
    assert storage.count("syncs") == 1 and storage.dirty() <= 1


def test_blocks_that_cannot_be_read(storage: Storage):
    storage.order("read_first", 2)
    storage.order("read_last", 3)
    script = """
say(*(told(os.preadv, file, [bytearray(4096)], number * 4096) for number in range(5)))
say(told(os.pread, file, 3 * 4096, 0))
"""
    bad = errno.EIO
    assert play(storage, script) == [0, 0, bad, bad, 0, bad]
