"""iscsi-test-cu against `enkaku serve`, one suite at a time: no failures in what is implemented.

Skips of the tool (an operation that the target does not have) count as passed there; they are
listed at the end of the run.
"""

from pathlib import Path

import pytest
from conftest import MIB, SKIPPED_CHECKS, empty

from enkaku_lab.peers import enkaku, libiscsi

pytestmark = pytest.mark.needs("iscsi-test-cu")

# Options of `enkaku serve` that a suite needs in order not to skip its tests.
OPTIONS = {
    "ALL.ReadOnly": ["--read-only"],
    "ALL.PreventAllow": ["--removable"],
    "ALL.NoMedia": ["--removable"],
    "ALL.WriteAtomic16": ["--atomic-writes", "1M"],
}
NOT_PASSED = {
    # Wants the medium to be still overwritten after four seconds, ABORT TASK and two resets. A disk
    # of this size is done long before; on a slow one our ABORT TASK is answered when the command
    # ends. That the work goes on through resets is tested in crates/scsi/src/tests/sanitize.rs.
    "ALL.Sanitize.Reset",
}
# ALL.StartStopUnit skips its tests for removable media here: PwrCnd wants GOOD for every POWER
# CONDITION, the reserved ones among them.


def _suites() -> list:
    try:
        names = libiscsi.compliance_suites()
    except Exception as error:  # the tool is missing: one visible skip
        return [pytest.param("-", marks=pytest.mark.skip(str(error)))]
    return names


@pytest.mark.parametrize("block_size", [512, 4096])
@pytest.mark.parametrize("suite", _suites())
def test_suite(suite: str, block_size: int, tmp_path: Path):
    options = ["--block-size", block_size, *OPTIONS.get(suite, [])]
    if suite == "ALL.GetLBAStatus":
        # With larger physical blocks the tool asks for LBA i + 1 and expects an answer from i + 8
        # on; SBC-3 §5.6.2 wants it to begin at the LBA that was asked for.
        options += ["--physical-block-size", block_size]
    disk = empty(tmp_path / "lun0.img", 256 * MIB)
    with enkaku.serve([disk], tmp_path, options=options) as target:
        paths = 2 if suite == "ALL.MultipathIO" else 1
        result = libiscsi.compliance_suite(suite, *[target.url()] * paths)
        assert target.peer.running(), target.peer.output()[-2000:]
    SKIPPED_CHECKS.update((f"{suite}.{name}", why) for name, why in result.skipped.items())
    failed = [name for name in result.failed if f"{suite}.{name}" not in NOT_PASSED]
    assert result.tests and not failed, result.output[:3000]
