"""iscsi-test-cu against `enkaku serve`, one suite at a time: no failures in what is implemented.

Skips of the tool (an operation that the target does not have) count as passed there; they are
listed at the end of the run.
"""

from pathlib import Path

import pytest
from conftest import MIB, SKIPPED_CHECKS, empty

from enkaku_lab.peers import enkaku, libiscsi

pytestmark = pytest.mark.needs("iscsi-test-cu")

_RESERVATIONS = "persistent reservations are not implemented yet"
NOT_IMPLEMENTED = {
    "ALL.PrinReadKeys": _RESERVATIONS,
    "ALL.PrinServiceactionRange": _RESERVATIONS,
    "ALL.PrinReportCapabilities": _RESERVATIONS,
    "ALL.ProutRegister": _RESERVATIONS,
    "ALL.ProutReserve": _RESERVATIONS,
    "ALL.ProutClear": _RESERVATIONS,
    "ALL.ProutPreempt": _RESERVATIONS,
    "ALL.Reserve6": "RESERVE(6) is not implemented: obsolete since SPC-3",
    "ALL.PreventAllow": "the medium is not removable",
    "ALL.Sanitize": "SANITIZE is not implemented",
    "ALL.ExtendedCopy": "EXTENDED COPY is not implemented",
    "ALL.ReceiveCopyResults": "EXTENDED COPY is not implemented",
    "ALL.WriteAtomic16": "WRITE ATOMIC is not implemented",
}


def _suites() -> list:
    try:
        names = libiscsi.compliance_suites()
    except Exception as error:  # the tool is missing: one visible skip
        return [pytest.param("-", marks=pytest.mark.skip(str(error)))]
    return [
        pytest.param(name, marks=pytest.mark.skip(NOT_IMPLEMENTED[name]))
        if name in NOT_IMPLEMENTED
        else name
        for name in names
    ]


@pytest.mark.parametrize("suite", _suites())
def test_suite(suite: str, tmp_path: Path):
    disk = empty(tmp_path / "lun0.img", 128 * MIB)
    options = ["--read-only"] if suite == "ALL.ReadOnly" else []
    with enkaku.serve([disk], tmp_path, options=options) as target:
        paths = 2 if suite == "ALL.MultipathIO" else 1
        result = libiscsi.compliance_suite(suite, *[target.url()] * paths)
        assert target.peer.running(), target.peer.output()[-2000:]
    SKIPPED_CHECKS.extend(f"{suite}.{name}: {why}" for name, why in result.skipped.items())
    assert result.tests and not result.failed, result.output[:3000]
