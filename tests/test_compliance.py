"""iscsi-test-cu against `enkaku serve`, one suite at a time: no failures in what is implemented.

Every suite runs on units with thin provisioning, without, and with blocks of 4 KiB. Most of their
time they wait, so several run side by side, each with a target and a disk of its own. The end of the
run counts the tests; what the tool skips by itself is listed with the reason.
"""

import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from conftest import COMPLIANCE, MIB, empty

from enkaku_lab.peers import enkaku, libiscsi

pytestmark = pytest.mark.needs("iscsi-test-cu")

UNITS = {
    "thin": ["--block-size", 512],
    "thick": ["--block-size", 512, "--thick"],
    "4k": ["--block-size", 4096],
}
# Options of `enkaku serve` that a suite needs in order not to skip its tests.
OPTIONS = {
    "ALL.ReadOnly": ["--read-only"],
    "ALL.PreventAllow": ["--removable"],
    "ALL.NoMedia": ["--removable"],
    "ALL.WriteAtomic16": ["--atomic-writes", "1M"],
    # Reset looks after four seconds and several resets whether the medium is still overwritten.
    "ALL.Sanitize": ["--sanitize-rate", "6M"],
}
SIZES = {"ALL.Sanitize": 64 * MIB}
DISK_BYTES = 256 * MIB
SLOWEST = ["ALL.Sanitize"]
"""These begin first: they sleep for a minute."""
# ALL.StartStopUnit skips its tests for removable media here: PwrCnd wants GOOD for every POWER
# CONDITION, the reserved ones among them.

SIDE_BY_SIDE = 2 + 2 * (os.cpu_count() or 1)
"""Suites under way at once: the slowest sleep, the others wait for round trips half of their time."""


def _suites() -> list:
    try:
        names = libiscsi.compliance_suites()
    except Exception as error:  # the tool is missing: one visible skip
        return [pytest.param("-", marks=pytest.mark.skip(str(error)))]
    return names


class Runner:
    """Runs suites ahead of the tests that ask for their results."""

    def __init__(self, folder, wanted: list[tuple[str, str]]):
        self._folder = folder
        self._starting = threading.Lock()
        self._pool = ThreadPoolExecutor(SIDE_BY_SIDE)
        order = sorted(wanted, key=lambda job: job[0] not in SLOWEST)
        self._results: dict[tuple[str, str], Future] = {
            job: self._pool.submit(self._run, *job) for job in order
        }

    def result(self, suite: str, unit: str) -> libiscsi.SuiteResult:
        return self._results[suite, unit].result()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _run(self, suite: str, unit: str) -> libiscsi.SuiteResult:
        folder = self._folder / f"{suite}-{unit}"
        folder.mkdir()
        options = [*UNITS[unit], *OPTIONS.get(suite, [])]
        if suite == "ALL.GetLBAStatus":
            # With larger physical blocks the tool asks for LBA i + 1 and expects an answer from
            # i + 8 on; SBC-3 §5.6.2 wants it to begin at the LBA that was asked for.
            options += ["--physical-block-size", UNITS[unit][1]]
        disk = empty(folder / "lun0.img", SIZES.get(suite, DISK_BYTES))
        with self._starting:  # a port that is free is taken before another one looks for one
            target = enkaku.start_target([disk], folder, options=options)
        try:
            paths = 2 if suite == "ALL.MultipathIO" else 1
            result = libiscsi.compliance_suite(suite, *[target.url()] * paths)
            assert target.peer.running(), target.peer.output()[-2000:]
            return result
        finally:
            target.peer.stop()
            disk.unlink()


@pytest.fixture(scope="module")
def runner(request, tmp_path_factory):
    """Begins with all suites that this run was asked for."""
    mine = [item for item in request.session.items if item.module is request.module]
    wanted = [(item.callspec.params["suite"], item.callspec.params["unit"]) for item in mine]
    runner = Runner(tmp_path_factory.mktemp("compliance"), wanted)
    yield runner
    runner.close()


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("suite", _suites())
def test_suite(suite: str, unit: str, runner: Runner):
    result = runner.result(suite, unit)
    verdicts = COMPLIANCE.setdefault(unit, {})
    for name in result.tests:
        verdict = "failed" if name in result.failed else result.skipped.get(name, "passed")
        verdicts[f"{suite}.{name}"] = verdict
    assert result.tests and not result.failed, result.output[:3000]
