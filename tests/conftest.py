"""What the black-box tests share: data to move, comparisons, and what a machine must have.

The tests run the release binary (ENKAKU_BIN, else target/release/enkaku) against real programs.
A machine that lacks a program or a right skips the test and says so; a missing binary fails.
"""

import hashlib
import os
import random
import shutil
from pathlib import Path

import pytest

from enkaku_lab.peers import enkaku

MIB = 1 << 20
SKIPPED_CHECKS: dict[str, str] = {}
"""Tests that iscsi-test-cu skipped; shown at the end, because it counts them as passed."""


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("needs"):
        for what in marker.args:
            if reason := _lack(what):
                pytest.skip(reason)


def _lack(what: str) -> str | None:
    if what == "root":
        return None if os.geteuid() == 0 else "needs root (loop devices, mounts)"
    if what.startswith("/dev/"):
        return None if os.access(what, os.R_OK | os.W_OK) else f"{what} cannot be opened"
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    return None if shutil.which(what, path=path) else f"{what} is not installed (packages.txt)"


def pytest_terminal_summary(terminalreporter) -> None:
    if SKIPPED_CHECKS:
        terminalreporter.section(f"{len(SKIPPED_CHECKS)} checks skipped by iscsi-test-cu itself")
        for name, why in sorted(SKIPPED_CHECKS.items()):
            terminalreporter.write_line(f"{name}: {why}")


@pytest.fixture(scope="session", autouse=True)
def binary() -> Path:
    """Fails the run at once where the binary was not built."""
    return enkaku.binary()


def noise(path: Path, size: int, seed: int = 1) -> Path:
    """A file of bytes that no compression, deduplication or lucky zero can fake."""
    generator = random.Random(seed)
    with path.open("wb") as file:
        for begin in range(0, size, MIB):
            file.write(generator.randbytes(min(MIB, size - begin)))
    return path


def empty(path: Path, size: int) -> Path:
    """A sparse file."""
    path.touch()
    os.truncate(path, size)
    return path


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
