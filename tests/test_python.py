"""The Python package: the wheel, installed for two Pythons by a user who has nothing
else, and a real target. What that user does is in support/wheel_check.py."""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import MIB, noise
from support import from_pypi

from enkaku_lab import REPOSITORY, wheel_bench
from enkaku_lab.peers import enkaku
from enkaku_lab.process import CommandFailed, run

OLDEST = (3, 11)
"""requires-python of crates/python/pyproject.toml."""
BUILD_S_MAX, CHECK_S_MAX = 1500, 300
WANTED = ["numpy", "fsspec"]
WHEELS = REPOSITORY / "target/wheels"
CHECK = Path(__file__).with_name("support") / "wheel_check.py"


def _version(python: str) -> tuple[int, ...] | None:
    asked = run([python, "-c", "import sys; print(*sys.version_info[:2])"], check=False)
    return tuple(int(word) for word in asked.stdout.split()) if asked.code == 0 else None


def _pythons() -> dict[str, str]:
    """The oldest and the newest version of PATH, the system, pyenv, and what runs this."""
    names = ["python3", *(f"python3.{minor}" for minor in range(OLDEST[1], 20)), sys.executable]
    names += [str(Path(sys.base_prefix) / "bin/python3"), "/usr/bin/python3"]
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    names += map(str, sorted(pyenv.glob("versions/3.*/bin/python3")))
    found: dict[tuple[int, ...], str] = {}
    for python in filter(None, map(shutil.which, names)):
        version = _version(python)
        if version and version >= OLDEST:
            found.setdefault(version, python)
    ends = {min(found), max(found)} if found else set()
    return {".".join(map(str, version)): found[version] for version in sorted(ends)}


PYTHONS = _pythons()


@pytest.fixture(scope="module")
def wheel() -> Path:
    """Of the dev profile, as everything that is tested."""
    for old in WHEELS.glob("enkaku-*.whl"):
        old.unlink()
    try:
        run([REPOSITORY / "scripts/wheel", "--profile", "dev"], timeout_s=BUILD_S_MAX)
    except CommandFailed as failed:
        if from_pypi.OUT_OF_REACH.search(failed.stderr):
            pytest.skip("maturin cannot be had: PyPI is out of reach")
        raise
    (made,) = WHEELS.glob("enkaku-*.whl")
    return made


@pytest.fixture(scope="module", params=PYTHONS, ids=lambda version: f"python-{version}")
def python(request, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("python")
    own = from_pypi.installed(place, *WANTED, python=PYTHONS[request.param])
    install = [own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run([*install, "--no-index", wheel], timeout_s=from_pypi.INSTALL_S_MAX)
    yield own


def test_the_wheel_is_one_for_all_versions_and_typed(wheel: Path):
    assert re.fullmatch(r"enkaku-[\d.]+-cp311-abi3-linux_\w+\.whl", wheel.name)
    names = run([sys.executable, "-m", "zipfile", "-l", wheel]).stdout
    for name in ("py.typed", "_enkaku.pyi", "_enkaku.abi3.so", "fsspec.py", "entry_points.txt"):
        assert name in names, names


def test_a_user_reads_writes_and_makes_mistakes(python: Path, tmp_path: Path):
    content = noise(tmp_path / "content", 64 * MIB)
    disk = tmp_path / "disk.img"
    shutil.copyfile(content, disk)
    said: list[str] = []
    with enkaku.serve([disk], tmp_path) as target, (tmp_path / "check.log").open("w") as log:
        checking = subprocess.Popen(
            [python, "-I", CHECK, target.url(), content],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONFAULTHANDLER": "1"},
        )
        too_long = threading.Timer(CHECK_S_MAX, checking.kill)
        too_long.start()
        try:
            for line in map(str.strip, checking.stdout):
                said.append(line)
                # It asks for these, to see what becomes of a call that nobody answers.
                wanted = {"stop": signal.SIGSTOP, "go on": signal.SIGCONT}.get(line)
                if wanted:
                    target.peer.signal(wanted)
                    checking.stdin.write("done\n")
                    checking.stdin.flush()
            code = checking.wait(10)
        finally:
            too_long.cancel()
            target.peer.signal(signal.SIGCONT)
            checking.kill()
            checking.wait()
    assert code == 0 and said[-1] == "fine", (said, (tmp_path / "check.log").read_text())
    assert disk.read_bytes() == content.read_bytes(), "what it wrote is what was there"


def test_how_fast_it_is_beside_bench_is_a_table_that_anybody_can_make(python: Path, tmp_path: Path):
    """Short, of the dev profile and beside other tests: that it works, not what it says."""
    rows, least = wheel_bench.measured(python, tmp_path, 0.3, 1, ["pread", "pwrite"], [(2, 1)])
    assert [row[:3] for row in rows] == [["pread", "2", "1"], ["pwrite", "2", "1"]] and least > 0
