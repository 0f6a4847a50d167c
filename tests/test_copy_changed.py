"""`enkaku copy --changed-since`: only what has changed is sent, whatever happens meanwhile.

Contents are compared after every run that ends well; the state file and the destination after every run
that does not are only as good as the next run shows.
"""

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
from conftest import MIB, empty, noise, sha256

from enkaku_lab.peers import Target, enkaku

SIZE = 8 * MIB
BLOCK = 64 << 10
HOLE = 256 * MIB
KILLS = 50
PAGE = 4096
PAGES_AT = 2 * PAGE
PAGE_HASHES = 254


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    return empty(tmp_path / "lun0.img", SIZE)


@pytest.fixture
def target(disk: Path, tmp_path: Path):
    with enkaku.serve([disk], tmp_path) as serving:
        yield serving


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return noise(tmp_path / "source", SIZE, seed=3)


def copy(source: Path, destination: object, state: Path, *more: object, **options) -> dict:
    """One run that ends well; what it says of the changes."""
    said = enkaku.report("copy", source, destination, "--changed-since", state, *more, **options)
    assert said["bytes"] == -(-source.stat().st_size // 512) * 512
    return said["changed"]


def refused(*words: object, code: int = 2) -> str:
    done = enkaku.command("copy", *words, check=False)
    assert done.code == code, done
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and "panicked" not in done.stderr, done.stderr
    return lines[0]


def write(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def change(path: Path, generator: random.Random, times: int) -> None:
    """Writes here and there, a third of it zeroes."""
    for _ in range(times):
        size = generator.randrange(512, 200 << 10, 512)
        at = generator.randrange(0, path.stat().st_size - size, 512)
        write(path, at, bytes(size) if generator.random() < 0.3 else generator.randbytes(size))


def test_a_later_run_sends_what_has_changed(source: Path, disk: Path, target: Target, tmp_path: Path):
    state = tmp_path / "state"
    first = copy(source, target.url(), state)
    assert (first["run"], first["sent_bytes"], first["resumed"]) == (1, SIZE, False)
    assert sha256(disk) == sha256(source)
    again = copy(source, target.url(), state, "--verify")
    assert (again["run"], again["sent_bytes"], again["same_bytes"]) == (2, 0, SIZE)
    assert again["verify"] == {
        "compared_bytes": SIZE, "mismatches": 0, "healed": 0, "offsets": [],
    }
    write(source, 5 * BLOCK + 100, b"x")
    write(source, 100 * BLOCK, bytes(2 * BLOCK))
    said = copy(source, target.url(), state)
    assert (said["sent_bytes"], said["zero_bytes"]) == (BLOCK, 2 * BLOCK)
    assert sha256(disk) == sha256(source)
    assert state.stat().st_mode & 0o777 == 0o600, "hashes tell something of the content"


def test_holes_are_neither_read_nor_sent(tmp_path: Path):
    source, back, state = tmp_path / "source", tmp_path / "back", tmp_path / "state"
    empty(source, HOLE)
    write(source, 100 * MIB, os.urandom(MIB))
    said = copy(source, back, state)
    assert said["sent_bytes"] == MIB and said["read_bytes"] <= 2 * MIB
    assert back.stat().st_blocks * 512 <= 2 * MIB and sha256(back) == sha256(source)
    said = copy(source, back, state)
    assert (said["sent_bytes"], said["zero_bytes"]) == (0, 0) and said["read_bytes"] <= 2 * MIB
    # What became a hole in the source becomes one at the destination.
    source.unlink()
    empty(source, HOLE)
    said = copy(source, back, state)
    assert (said["sent_bytes"], said["zero_bytes"]) == (0, MIB)
    assert back.stat().st_blocks == 0 and sha256(back) == sha256(source)


def test_odd_lengths_and_small_blocks(tmp_path: Path):
    source, back, state = tmp_path / "source", tmp_path / "back", tmp_path / "state"
    noise(source, 3 * MIB)
    with source.open("ab") as file:
        file.write(b"tail")
    copy(source, back, state, "--hash-block", "4k")
    write(source, 3 * MIB, b"Tail")
    said = copy(source, back, state)
    assert (said["sent_bytes"], said["block_bytes"]) == (512, 4096)
    assert back.read_bytes() == source.read_bytes() + bytes(508)


def test_what_others_changed_is_found_and_healed(source: Path, disk: Path, target: Target, tmp_path: Path):
    state = tmp_path / "state"
    copy(source, target.url(), state)
    write(disk, 7 * BLOCK + 9, b"somebody else's")
    words = [source, target.url(), "--changed-since", state]
    # Without a look it is not seen: that is what hashes are for.
    assert copy(source, target.url(), state)["sent_bytes"] == 0
    said = refused(*words, "--verify", code=1)
    assert "1 blocks of 65536 bytes" in said and f"at byte {7 * BLOCK}" in said, said
    # The next run knows.
    assert copy(source, target.url(), state)["sent_bytes"] == BLOCK
    assert sha256(disk) == sha256(source)
    write(disk, 0, b"again")
    write(disk, SIZE - 1, b"!")
    said = copy(source, target.url(), state, "--verify", "--heal")["verify"]
    assert (said["mismatches"], said["healed"], said["offsets"]) == (2, 2, [0, SIZE - BLOCK])
    assert sha256(disk) == sha256(source)


def test_a_copy_that_was_carried_there_is_not_sent(source: Path, tmp_path: Path):
    back, state = tmp_path / "back", tmp_path / "state"
    back.write_bytes(source.read_bytes())
    write(source, 0, b"newer")
    assert "exists" in refused(source, back, "--changed-since", state)
    assert not state.exists()
    said = copy(source, back, state, "--seeded")
    assert (said["seeded_bytes"], said["sent_bytes"]) == (SIZE, BLOCK)
    assert sha256(back) == sha256(source)


def test_a_lost_state_file_costs_a_read_of_the_destination(source: Path, target: Target, tmp_path: Path):
    state = tmp_path / "state"
    copy(source, target.url(), state)
    state.unlink()
    said = copy(source, target.url(), state, "--seeded")
    assert (said["seeded_bytes"], said["sent_bytes"]) == (SIZE, 0)


def test_torn_pages_and_headers_are_found(source: Path, disk: Path, target: Target, tmp_path: Path):
    state = tmp_path / "state"
    small = ("--hash-block", "4k")
    copy(source, target.url(), state, *small)
    pages = SIZE // 4096 // PAGE_HASHES + 1
    generator = random.Random(1)
    for page in range(pages):
        # The last one has zeroes behind its few hashes.
        sector = generator.randrange(8) if page < pages - 1 else 0
        write(state, PAGES_AT + page * PAGE + 512 * sector, bytes(512))
    said = copy(source, target.url(), state)
    assert (said["damaged_pages"], said["sent_bytes"]) == (pages, SIZE)
    # One header is enough, and the newer one counts.
    whole = state.read_bytes()
    for torn in (0, PAGE):
        write(state, torn, bytes(512))
        assert copy(source, target.url(), state)["sent_bytes"] == 0
        assert sha256(disk) == sha256(source)
    state.write_bytes(whole)
    write(state, 16, b"\xff")
    write(state, PAGE + 16, b"\xff")
    said = refused(source, target.url(), "--changed-since", state)
    assert "state" in said and "checksum" in said, said
    state.write_bytes(whole[: len(whole) // 2])
    os.truncate(state, len(whole) // 2 // 512 * 512)
    assert "cut off" in refused(source, target.url(), "--changed-since", state)


def test_what_does_not_belong_together_is_refused(source: Path, target: Target, tmp_path: Path):
    state, back = tmp_path / "state", tmp_path / "back"
    copy(source, back, state)
    before = sha256(back)
    other = noise(tmp_path / "other", SIZE, seed=4)
    larger = noise(tmp_path / "larger", SIZE + MIB)
    cases = {
        "its source is": [other, back],
        "its destination is": [source, target.url()],
        f"{SIZE} bytes long": [larger, back, "--force"],
        "is SRC itself": [state, back],
        "is DST itself": [source, state],
        "the same file": [source, source],
        "--hash-block is for the first run": [source, back, "--hash-block", "4k"],
        "not -": ["-", back],
        "is not a power of two from 4k to 64k": [source, back, "--hash-block", "5k"],
        "--verify": [source, back, "--heal"],
    }
    for what, words in cases.items():
        said = refused(*words, "--changed-since", state)
        assert what in said, said
    for file in (other, back):
        keep = sha256(file)
        said = refused(source, target.url(), "--changed-since", file)
        assert "is no state file" in said and sha256(file) == keep, said
    assert "--changed-since" in refused(source, back, "--seeded")
    missing = tmp_path / "no" / "state"
    assert "no folder" in refused(source, target.url(), "--changed-since", missing)
    assert sha256(back) == before
    # A snapshot under another name.
    assert copy(other, back, state, "--force")["sent_bytes"] == SIZE
    assert sha256(back) == sha256(other)


def test_another_destination_under_the_name_is_noticed(source: Path, tmp_path: Path):
    state, back, moved = tmp_path / "state", tmp_path / "back", tmp_path / "moved"
    copy(source, back, state)
    back.rename(moved)
    said = refused(source, back, "--changed-since", state)
    assert "is it mounted?" in said and not back.exists(), said
    back.write_bytes(b"\x00" * SIZE)
    said = refused(source, back, "--changed-since", state)
    assert "DST is not what it was" in said, said
    assert back.read_bytes() == bytes(SIZE)
    moved.rename(back)
    assert copy(source, back, state)["sent_bytes"] == 0


def test_two_runs_do_not_share_a_state_file(source: Path, target: Target, tmp_path: Path):
    state = tmp_path / "state"
    slow = [enkaku.binary(), "copy", source, target.url(), "--changed-since", state]
    slow += ["--max-rate", "8mbit"]
    with subprocess.Popen([str(word) for word in slow], stdout=subprocess.DEVNULL) as running:
        try:
            deadline = time.monotonic() + 30
            while not state.exists():
                assert running.poll() is None and time.monotonic() < deadline
                time.sleep(0.01)
            said = refused(source, target.url(), "--changed-since", state)
            assert "in use by another process" in said, said
        finally:
            running.kill()
            running.wait()


def test_an_interrupted_first_run_goes_on_where_it_was(source: Path, disk: Path, target: Target, tmp_path: Path):
    big, state = noise(tmp_path / "big", 96 * MIB), tmp_path / "state"
    with enkaku.serve([empty(tmp_path / "lun1.img", 96 * MIB)], tmp_path) as serving:
        slow = [enkaku.binary(), "copy", big, serving.url(), "--changed-since", state]
        slow += ["--max-rate", "200mbit"]
        there = tmp_path / "lun1.img"
        with subprocess.Popen([str(word) for word in slow], stdout=subprocess.DEVNULL) as running:
            deadline = time.monotonic() + 60
            while there.stat().st_blocks * 512 < 64 * MIB:
                assert running.poll() is None and time.monotonic() < deadline
                time.sleep(0.01)
            running.kill()
            running.wait()
        said = copy(big, serving.url(), state)
        assert said["resumed"]
        # 64 MiB were there; a checkpoint is 16 MiB, two may be open, and 16 MiB are under way.
        assert said["sent_bytes"] <= (96 - 64 + 48) * MIB, said
        assert sha256(there) == sha256(big)


@pytest.mark.parametrize("kind", ["volume", "file"])
def test_kills_at_random_moments_spoil_nothing(kind: str, source: Path, disk: Path, target: Target, tmp_path: Path):
    """kill -9 at any moment, also of the first run, also twice in a row; then a run to its end."""
    generator = random.Random(KILLS)
    state, back = tmp_path / "state", tmp_path / "back"
    destination, content = (target.url(), disk) if kind == "volume" else (back, back)
    words = [enkaku.binary(), "copy", source, destination, "--changed-since", state, "--json"]
    words += ["--hash-block", "4k"] if kind == "file" else []
    words = [str(word) for word in words]
    killed, longest = 0, 0.5
    while killed < KILLS:
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
            began = time.monotonic()
            try:
                running.wait(generator.uniform(0.0, longest))
            except subprocess.TimeoutExpired:
                running.send_signal(signal.SIGKILL)
            out, err = running.communicate()
        if running.returncode == 0:
            longest = max(0.02, min(longest, 1.2 * (time.monotonic() - began)))
            assert json.loads(out)["changed"]["run"] > 0
            assert sha256(content) == sha256(source), "after an undisturbed run"
            change(source, generator, 12)
            continue
        assert running.returncode == -signal.SIGKILL, err
        killed += 1
        if generator.random() < 0.3:
            change(source, generator, 3)
        if generator.random() < 0.3:
            said = copy(source, destination, state, "--verify")
            assert said["verify"]["mismatches"] == 0
            assert sha256(content) == sha256(source), f"after kill {killed}"
    copy(source, destination, state)
    assert sha256(content) == sha256(source)


def test_a_target_that_goes_away_leaves_a_state_that_is_true(source: Path, disk: Path, tmp_path: Path):
    state = tmp_path / "state"
    target = enkaku.start_target([disk], tmp_path)
    try:
        copy(source, target.url(), state)
        change(source, random.Random(2), 40)
        target.peer.kill()
        words = ["copy", source, target.url(), "--changed-since", state]
        done = enkaku.command(*words, "--replacement-timeout", "1s", check=False)
        assert done.code == 1 and len(done.stderr.splitlines()) == 1, done
        enkaku.restart(target)
        said = copy(source, target.url(), state, "--verify")
        assert 0 < said["sent_bytes"] <= SIZE and said["verify"]["mismatches"] == 0
        assert sha256(disk) == sha256(source)
    finally:
        target.peer.stop()
