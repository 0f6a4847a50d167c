"""The confusion matrix of `python -m enkaku_lab bottlenecks`: what is counted, and that it resumes."""

import json
from pathlib import Path

from enkaku_lab import bottlenecks, confusion

MACHINE = {
    "processor": "none", "cores": 1, "memory_bytes": 1 << 30, "kernel": "6.0",
    "taken": "2026-11-22T00:00:00Z", "versions": {},
}


def _said(cause: str, *untold: str) -> dict:
    cannot_tell = [{"cause": one, "why": "", "command": ""} for one in untold]
    return {"cause": cause, "not_excluded": list(untold), "cannot_tell": cannot_tell}


def _store(folder: Path, version: bytes = b"one") -> confusion.Store:
    binary = folder / "binary"
    binary.write_bytes(version)
    return confusion.Store(folder / "results.jsonl", binary)


def _run(cause: str, seed: int, stack: str = "enkaku") -> bottlenecks.Run:
    return bottlenecks.plan(bottlenecks.CASES[cause], stack, seed)


def test_a_cell_is_right_wrong_or_says_that_it_cannot_tell(tmp_path: Path):
    store = _store(tmp_path)
    work = [_run("r2t", seed) for seed in (10, 11, 12, 13)]
    store.add(work[0], _said("r2t"), _said("r2t"), _said("r2t"), 5.0)
    store.add(work[1], _said("queue_depth", "r2t"), _said("r2t"), _said("r2t"), 5.0)
    # Naming something else without a word about it is wrong, and so is seeing nothing.
    store.add(work[2], _said("queue_depth", "send_buffer"), None, _said("storage"), 6.0)
    store.add(work[3], None, None, _said("r2t"), 7.0)
    tables = confusion.Tables(store.of(work), list(bottlenecks.CASES), bottlenecks.TUNED_SEEDS)
    totals = {(one["source"], one["stack"]): one for one in tables.totals()}
    samples, capture = totals["samples", "all"], totals["capture", "enkaku"]
    assert (samples["right"], samples["wrong"], samples["cannot_tell"]) == (1, 2, 1)
    told = totals["diagnose", "enkaku"]
    assert (told["right"], told["wrong"], told["cannot_tell"]) == (2, 2, 0)
    assert (capture["right"], capture["wrong"], capture["cannot_tell"]) == (3, 1, 0)
    head, rows = tables.matrix("samples", "enkaku")
    row = dict(zip(head, rows[0], strict=True))
    assert (row["r2t"], row["queue_depth"], row["none"]) == ("1", "1", "1")
    assert (row["cannot tell"], row["right"]) == ("1", "1 (25%)")
    assert len(tables.mistakes()) == 2 and "WRONG" in tables.text()
    page = confusion.write(tables, tmp_path / "docs", MACHINE, "--first-seed 10").read_text()
    assert "| r2t |" in page and "--first-seed 10" in page and "tuned on other seeds" in page
    whole = json.loads((tmp_path / "docs/bottlenecks.json").read_text())
    assert [cell["seed"] for cell in whole["cells"]] == whole["seeds"] == [10, 11, 12, 13]


def test_finished_cells_are_not_measured_again_unless_the_binary_is_another(tmp_path: Path):
    one, other = _run("r2t", 10), _run("r2t", 11)
    _store(tmp_path).add(one, None, None, _said("r2t"), 1.0)
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write('{"binary": "half a li')
    again = _store(tmp_path)
    assert again.has(one) and not again.has(other)
    again.add(other, None, None, _said("r2t"), 1.0)
    assert [cell["seed"] for cell in _store(tmp_path).of([one, other])] == [10, 11]
    assert not _store(tmp_path, b"two").has(one)
    again.forget()
    assert not _store(tmp_path).has(one)


def test_the_page_says_when_seeds_are_those_of_the_tuning(tmp_path: Path):
    store = _store(tmp_path)
    work = [_run("storage", 9), _run("storage", 10)]
    for one in work:
        store.add(one, _said("storage"), _said("storage"), _said("storage"), 1.0)
    tables = confusion.Tables(store.of(work), list(bottlenecks.CASES), bottlenecks.TUNED_SEEDS)
    page = confusion.write(tables, tmp_path, MACHINE, "").read_text()
    assert "**Seeds 9 to 9 are those that the thresholds were tuned on**" in page
    assert "| 2 (100%) |" in page
