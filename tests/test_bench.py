"""`make bench`: its rows, its table from made-up results, and a moment of a few rows with real programs."""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from enkaku_lab import REPOSITORY, bench, bench_rows, bench_table
from enkaku_lab.bench_rows import AIMS, BOUNDS, MANY, MEMORY, OURS, SMALL, Cell, cells
from enkaku_lab.foreign import Foreign, descendants
from enkaku_lab.peers import spdk
from enkaku_lab.process import LabError

MODULE = [sys.executable, "-m", "enkaku_lab", "bench"]
FACTS = {"processor": "abacus", "cores": 2, "memory_bytes": 1 << 34, "kernel": "6.0", "taken": "2026-01-02"}


def _record(cell: Cell, operations: int, **more) -> dict:
    got = {"bytes": operations * 4096, "seconds": 1.0, "client_cpu_s": 0.5, "server_cpu_s": 0.25}
    load = {"workload": asdict(cell.workload)} if cell.workload else {}
    return {"target": cell.target, "client": cell.client, **load, **got, **more}


def _report(tmp_path: Path, records: list[dict]) -> str:
    path = tmp_path / "results.jsonl"
    path.write_text("\n".join(map(json.dumps, [FACTS, *records])))
    return bench_table.report(path)


def test_every_aim_is_of_rows_that_are_measured():
    every = cells([""], with_spdk=False)
    assert len(set(every)) == len(every)
    for aim in AIMS:
        assert {aim.row, aim.over} <= set(every), aim
    assert {bound.row for bound in BOUNDS} <= set(every)


def test_rows_are_chosen_by_whole_words_and_those_of_a_peer_only_with_it():
    d1 = cells(["randread d1"], with_spdk=False)
    assert d1 and all(cell.workload == SMALL[0] for cell in d1)
    both = cells(["d32 limit", "d128 mem"], with_spdk=False)
    assert {cell.target for cell in both} == {"limit", MEMORY}
    assert not cells(["spdk"], with_spdk=False)
    assert {cell.client for cell in cells(["spdk"], with_spdk=True)} == {OURS, bench_rows.ALL}


def test_the_table_tells_ratios_both_ends_and_others_on_the_machine(tmp_path: Path):
    limit, ours = Cell(SMALL[1], "limit", "sleeping"), Cell(SMALL[1], MEMORY, OURS)
    lat_us = {"lat_us": {"p50": 10.0, "p99": 25.0}}
    records = [_record(limit, 1000, slowest_to_mean=1.0, connections=1)]
    records += [_record(ours, n, **lat_us, foreign=0.03) for n in (900, 800, 700)]
    text = _report(tmp_path, records)
    row = next(line for line in text.splitlines() if f"{MEMORY}  {OURS}" in line)
    # 0.25 s of the target for 800 operations of 4 KiB.
    for figure in ("800", "×0.80", "10", "25", "76.29", "3%"):
        assert figure in row.split(), row
    assert f"{ours.name} is × 0.80 of limit with sleeping (aim: ≥ 0.85, NOT reached)" in text
    assert "p99 over p50 2.50 (aim: ≤ 2, NOT reached)" in text
    assert "iscsi-perf with" not in text, "an aim without its rows"


def test_the_slowest_session_is_told(tmp_path: Path):
    cell = Cell(MANY, MEMORY, bench_rows.ALL)
    text = _report(tmp_path, [_record(cell, 6400, connections=64, slowest_to_mean=0.8)])
    assert "slowest session over the mean 0.80 (aim: ≥ 0.7, reached)" in text
    # 64 × 4 under way, 6400 a second.
    assert "40,000" in text


def test_a_peer_that_is_absent_is_left_out_and_a_wrong_one_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("BENCH_PEER", f"spdk:{tmp_path}/iscsi_tgt")
    assert bench._peer() is None
    monkeypatch.setenv("BENCH_PEER", "lio")
    with pytest.raises(LabError, match="spdk:/path/to/iscsi_tgt"):
        bench._peer()


def test_spdk_is_given_one_disk_behind_one_portal():
    calls = {
        call["method"]: call["params"]
        for part in spdk.configuration("127.0.0.1", 3260, 1 << 20)["subsystems"]
        for call in part["config"]
    }
    assert calls["bdev_malloc_create"]["num_blocks"] * 512 == 1 << 20
    portal = calls["iscsi_create_portal_group"]
    target = calls["iscsi_create_target_node"]
    assert portal["portals"] == [{"host": "127.0.0.1", "port": "3260"}]
    assert target["pg_ig_maps"][0]["pg_tag"] == portal["tag"]
    assert target["luns"] == [{"bdev_name": calls["bdev_malloc_create"]["name"], "lun_id": 0}]


def test_foreign_is_what_does_not_descend_from_us():
    assert descendants({10: 1, 11: 10, 12: 11, 20: 1, 2: 0, 30: 2}, {10, 2}) == {10, 11, 12, 2, 30}


def test_what_a_stranger_uses_is_seen():
    seen = Foreign()
    # Its parent has gone when it begins, so that it descends from nobody of ours.
    busy = "import time\nend = time.process_time() + 0.5\nwhile time.process_time() < end: pass"
    script = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {busy!r}]).pid)"
    argv = [sys.executable, "-c", script]
    started = subprocess.run(argv, check=True, capture_output=True, text=True)
    pid, most = Path(f"/proc/{started.stdout.strip()}"), 0.0
    while pid.exists():
        most = max(most, seen.share())
    assert most > 0.02


@pytest.mark.serial
def test_a_few_rows_with_real_programs():
    chosen = ("randread d32 limit", "randwrite d32 limit", "randread d32 mem", "randread d1 poll")
    words = [word for rows in chosen for word in ("--only", rows)]
    done = subprocess.run(
        [*MODULE, *words, "--repetitions", "1", "--seconds", "1"],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=REPOSITORY,
    )
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith("rand")]
    assert len(rows) >= 6 and "aim: ≥ 0.85" in done.stdout, done.stdout
    records = [json.loads(line) for line in (bench.FOLDER / "results.jsonl").read_text().splitlines()[1:]]
    measured = [record for record in records if "workload" in record]
    assert len(measured) == 6
    for record in measured:
        assert record["bytes"] > 0 and record["client_cpu_s"] > 0 and record["server_cpu_s"] > 0, record
