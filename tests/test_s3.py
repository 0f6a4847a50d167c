"""BT-IO on a cluster of namespaces: right on every storage, and elsewhere, over the networks it should use."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from enkaku_lab import cluster, s3_btio
from enkaku_lab.cluster import Line, Seen
from enkaku_lab.peers import btio
from enkaku_lab.peers.btio import Work
from enkaku_lab.process import LabError

pytestmark = pytest.mark.needs(
    *("root", "/dev/net/tun", "/dev/fuse", "/dev/loop-control"), *cluster.PROGRAMS
)
W_BYTES = 22_118_400
MODULE = [sys.executable, "-m", "enkaku_lab"]


def _runs(out: Path) -> list[dict]:
    path = out / "s3-btio.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [one for one in map(json.loads, lines) if one["kind"] == "run"]


def test_it_is_right_on_one_network_and_on_two(tmp_path: Path, capsys: pytest.CaptureFixture):
    words = ["--quick", "separate", "merged", "--subtype", "full", "--subtype", "fortran"]
    s3_btio.main([*words, "--out", str(tmp_path), "--docs", str(tmp_path)])
    runs = {(one["shape"], one["subtype"]): one for one in _runs(tmp_path)}
    assert len(runs) == 4
    assert all(one["verified"] and one["elsewhere"] for one in runs.values())
    assert len({one["report"]["checksum"] for one in runs.values()}) == 1
    assert {one["report"]["ranks"] for one in runs.values()} == {4}
    for (shape, subtype), one in runs.items():
        carried = one["seen"]["carried"]
        assert len(carried) == (2 if shape == "separate" else 1)
        # What is not in a file system's journal or cache yet has been flushed to the targets.
        assert sum(carried) > W_BYTES, (shape, subtype, carried)
        if shape == "separate":
            assert carried[1] > W_BYTES, "storage is on the second network"
            assert carried[0] > 50e6, "messages are on the first"
            merged = runs["merged", subtype]["seen"]["carried"][0]
            assert merged > max(carried), "both are on the one network"
    text, table = (tmp_path / "s3-btio.md").read_text(), capsys.readouterr().out
    assert text.count("1 of 1     1 of 1") == table.count("1 of 1     1 of 1") == 4
    assert "Run time on one network" in text


def test_every_subtype_is_right_on_local_disks_and_by_romio(tmp_path: Path):
    s3_btio.main(["--quick", "local", "--class", "S", "--mpi-io", "ROMIO", "--out", str(tmp_path)])
    runs = _runs(tmp_path)
    assert [one["subtype"] for one in runs] == ["full", "simple", "fortran", "epio"]
    assert all(one["verified"] and one["elsewhere"] for one in runs)


@pytest.mark.parametrize("mpi_io", ["OMPIO", "ROMIO"])
def test_files_of_the_nodes_laid_over_each_other_are_the_one_file(mpi_io: str, tmp_path: Path):
    """Nothing is missing and nothing is there twice with different content."""
    program = btio.build(tmp_path / "program")
    whole = tmp_path / "whole"
    assert btio.run_here(program, 1, Work("S", "simple", whole), tmp_path).verified
    (tmp_path / "lab").mkdir()
    with cluster.cluster("local", 2, Line(), 64 << 20, tmp_path / "lab") as place:
        place.attach([0, 1], fresh=True)
        for subtype in ("full", "simple", "fortran"):
            words = [program, *Work("S", subtype, place.mount / subtype).words(tmp_path / "report")]
            assert place.mpirun([0, 1], 2, words, 60.0, mpi_io).code == btio.VERIFIED
            parts = [node.seen(place.mount / subtype).read_bytes() for node in place.computing]
            laid = 0
            for part in parts:
                laid |= int.from_bytes(part, "little")
            assert laid.to_bytes(whole.stat().st_size, "little") == whole.read_bytes(), subtype
        place.detach()


@pytest.mark.parametrize(("verified", "elsewhere"), [(False, True), (True, False)])
def test_what_is_not_verified_fails_the_study(
    verified: bool, elsewhere: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    report = {"mpi": "MPI", "mop_per_s": 1.0, "seconds": {"max": 1.0}}
    report["io"] = {"seconds": 1.0, "mb_per_s": 1.0, "sync_s": {"max": 1.0}}
    seen = Seen(1.0, (1,), 0, 0.0, 0.0)
    wrong = s3_btio.Ran("merged", "full", 0, verified, seen, report, elsewhere)
    monkeypatch.setattr(s3_btio, "measure", lambda *_: iter([wrong]))
    with pytest.raises(LabError, match="not verified: merged full"):
        s3_btio.main(["merged", "--subtype", "full", "--out", str(tmp_path)])


def test_each_node_has_its_own_name_and_volume_under_one_path(tmp_path: Path):
    with cluster.cluster("local", 2, Line(), 16 << 20, tmp_path) as place:
        place.attach([0, 1], fresh=True)
        for node in place.computing:
            node.seen(place.mount / "whose").write_text(node.name)
        script = f'echo "$(hostname) $(cat {place.mount}/whose)"'
        for order in ([0, 1], [1, 0]):
            said = place.mpirun(order, 1, ["sh", "-c", script], 60.0, "OMPIO")
            assert sorted(said.stdout.split("\n"))[-2:] == ["node1 node1", "node2 node2"], said
        place.detach()
        # The disks change places.
        place.attach([1, 0])
        assert place.computing[0].seen(place.mount / "whose").read_text() == "node2"
        assert not (place.mount / "whose").exists(), "nobody else sees it"


def test_a_killed_study_leaves_no_process_and_no_device(tmp_path: Path):
    before = _devices()
    argv = [*MODULE, "s3-btio", "--quick", "merged", "--class", "S", "--repeat", "50"]
    with (tmp_path / "log").open("w") as log:
        child = subprocess.Popen(
            [*argv, "--out", tmp_path], stdout=log, stderr=log, start_new_session=True
        )
    try:
        _until(lambda: _runs(tmp_path) or child.poll() is not None, 120)
        assert child.poll() is None, (tmp_path / "log").read_text()
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    _until(lambda: not _of_the_lab(child.pid), 20)
    _until(lambda: _devices() <= before, 20)
    for folder in Path("/var/tmp").glob(f"star-{child.pid}-*"):
        shutil.rmtree(folder)


def _devices() -> set[str]:
    """Loop devices whose file was in a folder of the lab."""
    said = subprocess.run(
        ["losetup", "--list", "--noheadings", "--output", "NAME,BACK-FILE"],
        capture_output=True, text=True, check=True,
    )
    return {line for line in said.stdout.splitlines() if line.endswith("/volume")}


def _of_the_lab(pid: int) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if f"star-{pid}" in words:
                found.append(words)
    return found


def _until(condition, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.1)
