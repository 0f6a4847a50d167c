"""Users of the FUSE file while the target is gone: they can be killed, and what they had begun spoils
nothing afterwards."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import MIB, noise, sha256

from enkaku_lab.peers import Target, enkaku
from enkaku_lab.process import run

SIZE = 64 * MIB
GONE_S_MAX = 20
"""A killed process is gone within so many seconds, far below what I/O waits for its target (120 s)."""
WAITS_S_MAX = 20

pytestmark = pytest.mark.needs("/dev/fuse", "fusermount3")


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    return noise(tmp_path / "lun0.img", SIZE)


@pytest.fixture
def target(disk: Path, tmp_path: Path):
    with enkaku.serve([disk], tmp_path) as serving:
        yield serving


@pytest.fixture
def volume(target: Target, tmp_path: Path):
    with enkaku.attach_fuse(target.url(), tmp_path / "fuse", tmp_path) as file:
        yield file


def _waits(process: subprocess.Popen) -> tuple[str, str] | None:
    """How often it has waited so far, if that is what it does now; the same twice: it did not run."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    seen = dict(line.split(":", 1) for line in lines)
    if seen["State"].split()[0] not in "DS":
        return None
    return seen["voluntary_ctxt_switches"], seen["nonvoluntary_ctxt_switches"]


def _until_it_waits(process: subprocess.Popen) -> None:
    deadline_s = time.monotonic() + WAITS_S_MAX
    before = None
    while (now := _waits(process)) is None or now != before:
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline_s, f"{process.args} never waits"
        before = now
        time.sleep(0.3)


@contextmanager
def _stuck(*argv: object) -> Iterator[None]:
    """A command that waits for I/O; it is killed at the end, and has to be gone soon."""
    words = [str(word) for word in argv]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        _until_it_waits(process)
        try:
            yield
        finally:
            process.kill()
            process.wait(GONE_S_MAX)


def _dd(volume: Path, *words: str) -> list[object]:
    return ["dd", f"of={volume}", "bs=1M", "conv=notrunc", "status=none", *words]


def _commands(volume: Path, new: Path) -> dict[str, list[object]]:
    return {
        "cat": ["cat", volume],
        "read directly": ["dd", f"if={volume}", "of=/dev/null", "bs=1M", "iflag=direct"],
        "write": _dd(volume, f"if={new}"),
        "write directly": _dd(volume, f"if={new}", "oflag=direct"),
        "zero": ["fallocate", "--zero-range", "--offset", "0", "--length", "1M", volume],
        "fsync": ["sync", volume],
    }


@pytest.mark.parametrize(
    "name", ["cat", "read directly", "write", "write directly", "zero", "fsync"]
)
def test_a_killed_user_is_gone_though_the_target_is_not_back(
    target: Target, volume: Path, disk: Path, tmp_path: Path, name: str
):
    before = sha256(disk)
    new = noise(tmp_path / "new", MIB, seed=2)
    if name == "fsync":
        run(_dd(volume, f"if={new}", "seek=3"))
    target.peer.kill()
    with _stuck(*_commands(volume, new)[name]):
        # Whoever comes second waits in open(2), for pages that the first one reads.
        with _stuck("cat", volume):
            pass
    assert volume.parent.is_mount()
    enkaku.restart(target)
    assert sha256(volume) == sha256(disk)
    if name in ("cat", "read directly"):
        assert sha256(disk) == before


def test_what_a_killed_writer_left_does_not_land_on_newer_data(
    target: Target, volume: Path, disk: Path, tmp_path: Path
):
    old, new = noise(tmp_path / "old", 4 * MIB, seed=2), noise(tmp_path / "new", 4 * MIB, seed=3)
    for _ in range(3):
        target.peer.kill()
        with _stuck(*_dd(volume, f"if={old}", "oflag=direct")):
            pass
        words = [str(word) for word in _dd(volume, f"if={new}", "oflag=direct", "conv=fsync")]
        with subprocess.Popen(words) as writer:
            enkaku.restart(target)
            assert writer.wait(60) == 0
        with disk.open("rb") as file:
            assert file.read(4 * MIB) == new.read_bytes()
    assert sha256(volume) == sha256(disk)
