"""Nobody's data is overwritten unasked: `copy` and `bench --rw write` onto volumes, block devices and
files that hold something need `--force`, or a yes on a terminal. What is blank needs neither."""

import os
import pty
import subprocess
from pathlib import Path

import pytest
from conftest import MIB, empty, noise, sha256
from support.volume import loop_device, make_ext4

from enkaku_lab.peers import Target, enkaku, need
from enkaku_lab.process import run

SIZE = 16 * MIB
TERMINAL_S_MAX = 60


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    return empty(tmp_path / "lun0.img", SIZE)


@pytest.fixture
def target(disk: Path, tmp_path: Path):
    with enkaku.serve([disk], tmp_path) as serving:
        yield serving


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return noise(tmp_path / "source", SIZE // 2, seed=9)


def _ext4(disk: Path) -> None:
    run([need("mkfs.ext4"), "-q", "-F", "-L", "home", disk])


def _writes(url: str, source: Path) -> dict[str, tuple[list[object], Path | None]]:
    """Every command that writes to a volume, and its standard input."""
    return {
        "copy": (["copy", source, url], None),
        "copy -": (["copy", "-", url], source),
        "bench write": (["bench", url, "--rw", "write", "--time", "0.2s"], None),
        "bench randwrite": (["bench", url, "--rw", "randwrite", "--time", "0.2s"], None),
    }


KINDS = pytest.mark.parametrize("kind", ["copy", "copy -", "bench write", "bench randwrite"])


@KINDS
@pytest.mark.needs("mkfs.ext4")
def test_a_volume_with_a_file_system_is_left_alone(
    target: Target, disk: Path, source: Path, kind: str
):
    _ext4(disk)
    before = sha256(disk)
    words, stdin = _writes(target.url(), source)[kind]
    done = enkaku.command(*words, stdin=stdin, check=False)
    assert done.code == 2, done
    [line] = done.stderr.splitlines()
    assert target.url() in line and 'looks like ext4, label "home"' in line, line
    assert "--force" in line and "first and last MiB" in line, line
    assert sha256(disk) == before
    enkaku.command(*words, "--force", stdin=stdin)
    assert sha256(disk) != before


@KINDS
def test_a_blank_volume_needs_no_force(target: Target, disk: Path, source: Path, kind: str):
    words, stdin = _writes(target.url(), source)[kind]
    enkaku.command(*words, stdin=stdin)
    assert sha256(disk) != sha256(empty(disk.with_name("zeroes"), SIZE))


def test_data_of_an_unknown_kind_is_data(target: Target, disk: Path, source: Path):
    with disk.open("r+b") as file:
        file.seek(SIZE - 1)
        file.write(b"x")
    done = enkaku.command("copy", source, target.url(), check=False)
    assert done.code == 2 and f"at byte {SIZE - 1}" in done.stderr, done
    enkaku.command("copy", source, target.url(), "--force")


def test_reading_asks_for_nothing(target: Target, disk: Path, tmp_path: Path):
    noise(disk, SIZE)
    enkaku.command("copy", target.url(), tmp_path / "back")
    enkaku.command("bench", target.url(), "--time", "0.2s")
    assert sha256(tmp_path / "back") == sha256(disk)


def _on_a_terminal(answer: str, *words: object) -> tuple[int, str]:
    """Exit code and output of a command whose user answers so."""
    ours, theirs = pty.openpty()
    argv = [str(word) for word in (enkaku.binary(), *words)]
    try:
        with subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs) as running:
            os.close(theirs)
            os.write(ours, answer.encode())
            said = b""
            try:
                while got := os.read(ours, 4096):
                    said += got
            except OSError:
                pass  # EIO: the other side is closed, that is how a terminal ends
            return running.wait(TERMINAL_S_MAX), said.decode()
    finally:
        os.close(ours)


@pytest.mark.parametrize("answer, overwritten", [("y\n", True), ("\n", False), ("no\n", False)])
def test_a_terminal_is_asked(
    target: Target, disk: Path, source: Path, answer: str, overwritten: bool
):
    noise(disk, SIZE)
    before = sha256(disk)
    code, said = _on_a_terminal(answer, "copy", source, target.url())
    assert "Overwrite it? [y/N]" in said, said
    assert (code, sha256(disk) != before) == ((0, True) if overwritten else (2, False)), said


def test_an_existing_file_says_what_it_is(target: Target, source: Path, tmp_path: Path):
    there = noise(tmp_path / "there", MIB)
    before = sha256(there)
    done = enkaku.command("copy", target.url(), there, check=False)
    assert done.code == 2 and "exists and holds data" in done.stderr and "--force" in done.stderr
    assert sha256(there) == before
    (tmp_path / "touched").touch()
    enkaku.command("copy", target.url(), tmp_path / "touched")
    assert (tmp_path / "touched").stat().st_size == SIZE


def test_a_file_is_not_copied_onto_itself(source: Path, tmp_path: Path):
    before = sha256(source)
    other_name = tmp_path / "link"
    other_name.symlink_to(source)
    done = enkaku.command("copy", source, other_name, "--force", check=False)
    assert done.code == 2 and "SRC and DST are both" in done.stderr, done
    assert sha256(source) == before


def test_a_file_that_is_being_served_is_not_emptied(target: Target, disk: Path, source: Path):
    noise(disk, SIZE)
    before = sha256(disk)
    done = enkaku.command("copy", source, disk, "--force", check=False)
    assert done.code == 2 and "in use" in done.stderr, done
    assert sha256(disk) == before


@pytest.mark.needs("root", "/dev/loop-control", "mkfs.ext4")
def test_a_block_device_is_looked_at(source: Path, tmp_path: Path):
    with loop_device(empty(tmp_path / "device", SIZE)) as device:
        enkaku.command("copy", source, device)  # blank
        make_ext4(device)
        done = enkaku.command("copy", source, device, check=False)
        assert done.code == 2 and f"{device} looks like ext4" in done.stderr, done
        enkaku.command("copy", source, device, "--force")
