"""What the black-box tests share: data to move, comparisons, and what a machine must have.

The tests run the binary of the dev profile (ENKAKU_BIN, else target/debug/enkaku), which checks its
assertions and overflows, against real programs.
A machine that lacks a program or a right skips the test and says so; a missing binary fails.
"""

import hashlib
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.daemon import Daemon
from support.mirror import TAIL

from enkaku_lab import REPOSITORY
from enkaku_lab.peers import Target, enkaku

MIB = 1 << 20
os.environ.setdefault("ENKAKU_BIN", str(REPOSITORY / "target/debug/enkaku"))
COMPLIANCE: dict[str, dict[str, str]] = {}
"""Kind of unit → test of iscsi-test-cu → `passed`, `failed`, or why it skipped itself; counted at the
end, because the tool calls skipped tests passed."""

NOT_HERE: dict[str, list[str]] = {}
"""Guide → why blocks of it cannot run in namespaces; told at the end."""


@pytest.fixture(autouse=True)
def own_initiator_name(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of a leg, or of an attached volume, belongs to one process of a host, and files of tests
    that run at once have targets that are called the same."""
    if request.module.__name__.startswith(("test_attach", "test_media", "test_mirror")):
        monkeypatch.setenv("ENKAKU_INITIATOR_NAME", f"iqn.2026-11.org.example:test-{os.getpid()}")


@pytest.fixture
def far(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """An empty leg's file at its target, for a disk of the module's SIZE."""
    return empty(tmp_path / "far.img", request.module.SIZE + TAIL)


@pytest.fixture
def target(far: Path, tmp_path: Path) -> Iterator[Target]:
    """Our own target with that leg; modules of other tests have their own."""
    with enkaku.serve([far], tmp_path) as serving:
        yield serving


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """One that the test configures and starts; modules of other tests have their own."""
    made = Daemon(tmp_path)
    yield made
    if made.peer is not None:
        made.peer.stop()


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("needs"):
        for what in marker.args:
            if reason := lack(what):
                pytest.skip(reason)


def lack(what: str) -> str | None:
    """Why a test cannot run here that needs a program, a device node or a right."""
    if what == "root":
        return None if os.geteuid() == 0 else "needs root (loop devices, mounts)"
    if what.startswith("/dev/"):
        return None if os.access(what, os.R_OK | os.W_OK) else f"{what} cannot be opened"
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    return None if shutil.which(what, path=path) else f"{what} is not installed (packages.txt)"


def pytest_terminal_summary(terminalreporter) -> None:
    if blocks := [why for page in NOT_HERE.values() for why in page]:
        terminalreporter.section("guides")
        what = f"{len(blocks)} blocks of {len(NOT_HERE)} guides cannot run here:"
        terminalreporter.write_line(what)
        for page, reasons in NOT_HERE.items():
            for why in reasons:
                terminalreporter.write_line(f"    {page}: {why}")
    if COMPLIANCE:
        terminalreporter.section("iscsi-test-cu")
        for line in compliance_summary(COMPLIANCE):
            terminalreporter.write_line(line)


def compliance_summary(results: dict[str, dict[str, str]]) -> list[str]:
    """How many tests passed, skipped themselves and failed, then each reason with its tests."""
    lines, reasons = [], {}
    for unit, verdicts in results.items():
        skips = {name: why for name, why in verdicts.items() if why not in ("passed", "failed")}
        failed = sum(verdict == "failed" for verdict in verdicts.values())
        passed = len(verdicts) - len(skips) - failed
        counts = f"{passed} passed, {len(skips)} skipped, {failed} failed"
        lines.append(f"{unit}: {len(verdicts)} tests: {counts}")
        for name, why in skips.items():
            reasons.setdefault(why, {}).setdefault(name, []).append(unit)
    for why, tests in sorted(reasons.items()):
        lines.append(f"skipped: {why}")
        lines += [f"    {name} ({', '.join(units)})" for name, units in sorted(tests.items())]
    return lines


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
