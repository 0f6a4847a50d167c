"""The lab's studies of the mirror: what judges an image judges right, tables say what was seen, and one
part runs for real."""

import random
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import empty

from enkaku_lab import mirror_outage, mirror_peers, stamped, wan
from enkaku_lab.experiment import Link
from enkaku_lab.mirror_site import PORT, Write, p99_s, site
from enkaku_lab.process import run
from enkaku_lab.replicas.here import EnkakuMirror

BLOCKS = 64


def _written(path: Path, count: int, first: int = 1) -> Path:
    argv = [stamped.stamper(), path, BLOCKS, first, count, 0]
    done = subprocess.run(map(str, argv), capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == f"stable {first + count - 1}"
    return path


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    return empty(tmp_path / "disk", BLOCKS * stamped.BLOCK)


@pytest.mark.needs("cc")
@pytest.mark.parametrize("count", [1, 7, BLOCKS, BLOCKS + 1, 5 * BLOCKS + 3])
def test_every_state_that_a_disk_had_is_legal(disk: Path, count: int):
    assert stamped.look(disk, BLOCKS) == stamped.Found(0, 0)
    _written(disk, count)
    assert stamped.look(disk, BLOCKS) == stamped.Found(count, 0)
    _written(disk, 2, first=count + 1)
    assert stamped.look(disk, BLOCKS) == stamped.Found(count + 2, 0)


@pytest.mark.needs("cc")
@pytest.mark.parametrize("seed", range(20))
def test_a_newer_block_without_an_older_one_is_not(disk: Path, seed: int, tmp_path: Path):
    """As a copy in any order leaves it: some blocks of a later state, and at least one that is not."""
    dice = random.Random(seed)
    before = dice.randrange(2 * BLOCKS)
    if before:
        _written(disk, before)
    early = bytearray(disk.read_bytes())
    changed = 2 + dice.randrange(BLOCKS - 2)
    late = _written(disk, changed, first=before + 1).read_bytes()
    newest = before + changed
    numbers = [newest, *dice.sample(range(before + 1, newest), dice.randrange(changed - 1))]
    for number in numbers:
        place = number * stamped.STEP % BLOCKS * stamped.BLOCK
        early[place : place + stamped.BLOCK] = late[place : place + stamped.BLOCK]
    mixed = tmp_path / "mixed"
    mixed.write_bytes(early)
    found = stamped.look(mixed, BLOCKS)
    assert found == stamped.Found(newest, changed - len(numbers)) and not found.legal


@pytest.mark.needs("cc")
def test_a_torn_block_is_not(disk: Path):
    _written(disk, 10)
    with disk.open("r+b") as file:
        file.seek(10 * stamped.STEP % BLOCKS * stamped.BLOCK + 2048)
        file.write(bytes(512))
    assert not stamped.look(disk, BLOCKS).legal


def test_a_percentile_is_of_what_was_complete_in_time():
    writes = [Write(at_s=float(n), took_s=n / 100) for n in range(200)]
    assert p99_s(writes, 0.0, 100.0) == 0.99
    assert p99_s(writes, 50.0, 51.0) == 0.50
    assert p99_s(writes, 900.0, 999.0) != p99_s(writes, 900.0, 999.0)  # not a number


def test_a_goal_that_was_missed_is_said():
    assert mirror_outage.at_most("x", 1.06, 1.05, "×").cells() == ["x", "1.06 ×", "≤ 1.05 ×", "NO"]
    assert mirror_outage.at_least("x", 0.8, 0.8, "×").cells()[-1] == "yes"
    # Nothing was measured.
    assert mirror_outage.at_most("x", float("nan"), 1.0, "s").cells()[-1] == "NO"


def test_a_way_that_could_not_be_tried_says_why():
    assert mirror_peers.Seen(EnkakuMirror, why="no gcc").row()[-1] == "no gcc"
    seen = mirror_peers.Seen(EnkakuMirror, line=0.5, lacked=1 << 20, sent=1.5 * (1 << 20))
    seen.cuts["catch-up"], seen.illegal["catch-up"], seen.admitted = 4, 3, 3
    assert seen.row()[2:] == ["0.50", "1.00 MiB", "1.50 MiB", "1.50", "0 of 0", "3 of 4", "3 of 3"]
    seen.waits = True
    assert "user waits" in seen.row()
    for row in (seen.row(), mirror_peers.Seen(EnkakuMirror).row()):
        assert len(row) == len(mirror_peers.HEAD)


CHOOSE = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as one:
    begin = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\\0")
    try:
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
    except OSError:
        pass
    end = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\\0")
    print(begin.decode(), end.decode())
"""


@pytest.mark.needs("root", "/dev/net/tun", "ip")
@pytest.mark.parametrize(("free", "end"), [(False, "cubic"), (True, "reno")])
def test_a_program_may_choose_its_congestion_control_where_the_link_says_so(free: bool, end: str):
    with site(Link(1.0, cc_free=free), 1 << 20) as place:
        argv = place.lab.exec("near", [sys.executable, "-c", CHOOSE, wan.FAR, PORT])
        assert run(argv).stdout.split() == ["cubic", end]


@pytest.mark.serial
@pytest.mark.needs("root", "/dev/net/tun", "ip", "fio")
def test_one_block_costs_little_on_the_line():
    argv = [sys.executable, "-m", "enkaku_lab", "mirror-outage", "--quick", "one-block"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "one dirty block of 4 KiB" in done.stdout and " yes" in done.stdout, done.stdout
