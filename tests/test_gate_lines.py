"""The lines of `path-gate`: what of them shares are of, and what runs beside their ends."""

from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.processes import until

from enkaku_lab import REPOSITORY, gate_runs, path_gate
from enkaku_lab.experiment import Link
from enkaku_lab.gate_lines import LINES, Line
from enkaku_lab.process import LabError


def test_shares_are_of_what_passes():
    policed = Line("policed", Link(rate="1gbit"), policed="100mbit", burst="256k")
    for write in (False, True):
        assert policed.payload_bits_per_s(write) == Link(rate="100mbit").payload_bits_per_s
    assert policed.options == ["--police", "100mbit,256k"]
    uneven = Line("uneven", Link(rate="1gbit"), up="100mbit")
    assert uneven.payload_bits_per_s(write=False) == Link(rate="1gbit").payload_bits_per_s
    assert uneven.payload_bits_per_s(write=True) == Link(rate="100mbit").payload_bits_per_s
    assert uneven.options == ["--rate", "100mbit:1gbit"]


def test_the_committed_page_has_every_line_in_both_directions():
    runs = gate_runs.read(REPOSITORY / "docs" / "path-gate.csv")
    assert {(run.line, run.dir) for run in runs} == {(name, way) for name in LINES for way in ("read", "write")}


def test_what_keeps_the_machine_busy_ends_with_the_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    @contextmanager
    def up(*_):
        yield SimpleNamespace(name="none", become=lambda link: None)

    kept = tmp_path / "pids"
    kept.touch()
    program = f"import os; print(os.getpid(), file=open({str(kept)!r}, 'a'))\nwhile True: pass"
    monkeypatch.setattr(path_gate.wan, "up", up)
    monkeypatch.setattr(path_gate, "BUSY", program)
    with pytest.raises(LabError, match="in the middle"), path_gate.place(Line("busy", Link(), busy=2)):
        until(lambda: len(kept.read_text().split()) == 2, 10)
        raise LabError("a run failed in the middle")
    assert not any(Path(f"/proc/{pid}").exists() for pid in kept.read_text().split())
