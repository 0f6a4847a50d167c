"""The runs of `path-gate`: kept as numbers, joined by later ones, and shown on a page."""

from dataclasses import replace
from pathlib import Path

import pytest

from enkaku_lab import gate_runs
from enkaku_lab.gate_runs import TCP, Run
from enkaku_lab.process import LabError

OURS = Run("abc1234", "2026-01-02T03:04:05Z", "rtt-50", "read", "adaptive", 0.96, 0.99, 4, 0.5, "an abacus, 2026-01-02")
THEIRS = replace(OURS, way=TCP, first=0.97, steady=1.0, connections=16)


def _rows(runs: list[Run]) -> list[list[str]]:
    lines = gate_runs.table(runs).splitlines()
    return [line.split() for line in lines if line.startswith(("rtt-", "queue-"))]


def test_what_is_read_is_what_was_put(tmp_path: Path):
    runs = [THEIRS, OURS, replace(OURS, load=None)]
    gate_runs.put(tmp_path, runs)
    assert gate_runs.read(tmp_path / "path-gate.csv") == runs
    assert gate_runs.read(tmp_path / "nothing.csv") == []


def test_runs_of_another_time_join_those_that_are_there(tmp_path: Path):
    later = [replace(run, commit="def5678", taken="2026-01-03T00:00:00Z", load=2.5, machine="an astrolabe") for run in (THEIRS, OURS)]
    later[1] = replace(later[1], first=0.90, connections=7)
    gate_runs.put(tmp_path, [THEIRS, OURS])
    gate_runs.put(tmp_path, gate_runs.read(tmp_path / "path-gate.csv") + later)
    page = (tmp_path / "path-gate.md").read_text()
    told = "2 runs of commit abc1234, 2 runs of commit def5678, 2026-01-02 to 2026-01-03; load average 0.5 to 2.5, 1.5 in the median."
    assert told in page
    assert "an abacus, 2026-01-02; an astrolabe; 2 runs" in page, "each machine is named once"
    assert "0.93 (0.90–0.96)" in page and "4–7" in page and "held in 0 of 1" in page


def test_a_line_is_held_within_two_hundredths_in_both_halves():
    assert _rows([THEIRS, OURS])[0][-2:] == ["1", "yes"]
    assert _rows([THEIRS, replace(OURS, first=0.94)])[0][-1] == "NO"
    assert _rows([THEIRS, replace(OURS, steady=0.97)])[0][-1] == "NO"
    best = replace(OURS, way="fixed:16", steady=1.03)
    assert _rows([THEIRS, best, OURS])[0][-1] == "NO", "the best of the others counts"


def test_a_line_has_a_row_when_each_way_had_its_turn():
    other = replace(OURS, line="queue-250")
    assert [row[0] for row in _rows([THEIRS, OURS, other])] == ["rtt-50"]
    twice = [THEIRS, OURS, THEIRS]
    assert _rows(twice)[0][-2] == "1", "so many rounds are whole"


def test_what_is_no_table_of_runs_is_refused(tmp_path: Path):
    path = tmp_path / "path-gate.csv"
    path.write_text("# figure: another\nx,mbit\n1,2\n")
    with pytest.raises(LabError, match="has the columns x, mbit; wanted are commit, taken"):
        gate_runs.read(path)
    for wrong, told in (("0.96", "many"), (",4,", ",four,")):
        gate_runs.put(tmp_path, [OURS])
        path.write_text(path.read_text().replace(wrong, told))
        with pytest.raises(LabError, match=f"rtt-50, read: .*{told.strip(',')}"):
            gate_runs.read(path)
    gate_runs.put(tmp_path, [replace(OURS, first=117.0)])
    with pytest.raises(LabError, match="rtt-50, read: a share of the line is 0 to 1"):
        gate_runs.read(path)
