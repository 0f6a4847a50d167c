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
TOOL_DEFECTS = {
    # Asks for LBA i + 1 and expects the answer to begin at i + 8 (blocks of a physical block);
    # SBC-3 §5.6.2 wants it to begin at the LBA that was asked for.
    ("ALL.GetLBAStatus.UnmapSingle", 512),
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


@pytest.mark.parametrize("block_size", [512, 4096])
@pytest.mark.parametrize("suite", _suites())
def test_suite(suite: str, block_size: int, tmp_path: Path):
    disk = empty(tmp_path / "lun0.img", 256 * MIB)
    options = ["--block-size", block_size]
    if suite == "ALL.ReadOnly":
        options.append("--read-only")
    with enkaku.serve([disk], tmp_path, options=options) as target:
        paths = 2 if suite == "ALL.MultipathIO" else 1
        result = libiscsi.compliance_suite(suite, *[target.url()] * paths)
        assert target.peer.running(), target.peer.output()[-2000:]
    SKIPPED_CHECKS.update((f"{suite}.{name}", why) for name, why in result.skipped.items())
    failed = [name for name in result.failed if (f"{suite}.{name}", block_size) not in TOOL_DEFECTS]
    assert result.tests and not failed, result.output[:3000]
