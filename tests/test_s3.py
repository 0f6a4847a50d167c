"""The S3 studies on clusters of namespaces: right on every storage, over the right networks."""

import json
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.processes import that_name, until

from enkaku_lab import cluster, s3_beyond, s3_btio, s3_mixed
from enkaku_lab.cluster import Line, Seen
from enkaku_lab.peers import btio, enkaku
from enkaku_lab.peers.btio import Work
from enkaku_lab.process import LabError

pytestmark = pytest.mark.needs(
    *("root", "/dev/net/tun", "/dev/fuse", "/dev/loop-control"), *cluster.PROGRAMS
)
W_BYTES = 22_118_400
MIB = 1 << 20
STALLED_S = 10.0
MODULE = [sys.executable, "-m", "enkaku_lab"]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For results, which each test writes anew, and for the program, which is built once."""
    return tmp_path_factory.mktemp("s3")


def _runs(out: Path) -> list[dict]:
    path = out / "s3-btio.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [one for one in map(json.loads, lines) if one["kind"] == "run"]


def test_it_is_right_on_one_network_and_on_two(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture
):
    words = ["--quick", "separate", "merged", "--subtype", "full"]
    s3_btio.main([*words, "--out", str(out), "--docs", str(tmp_path)])
    runs = {(one["shape"], one["subtype"]): one for one in _runs(out)}
    assert len(runs) == 2
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
    assert text.count("1 of 1     1 of 1") == table.count("1 of 1     1 of 1") == 2
    assert "Run time on one network" in text


def test_every_subtype_is_right_on_local_disks_and_by_romio(out: Path):
    s3_btio.main(["--quick", "local", "--class", "S", "--mpi-io", "ROMIO", "--out", str(out)])
    runs = _runs(out)
    assert [one["subtype"] for one in runs] == ["full", "simple", "fortran", "epio"]
    assert all(one["verified"] and one["elsewhere"] for one in runs)


@pytest.mark.parametrize("mpi_io", ["OMPIO", "ROMIO"])
def test_files_of_the_nodes_laid_over_each_other_are_the_one_file(
    mpi_io: str, out: Path, tmp_path: Path
):
    """Nothing is missing and nothing is there twice with different content."""
    program = btio.build(out / "program")
    whole = tmp_path / "whole"
    assert btio.run_here(program, 1, Work("S", "simple", whole), tmp_path).verified
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


def test_a_target_is_killed_while_dumps_are_written(out: Path, tmp_path: Path):
    """It comes back once something waits for it: the flush, behind the last dump, or a write before,
    whose file system has begun to commit its journal."""
    program = btio.build(out / "program")
    report = tmp_path / "report"
    with cluster.cluster("merged", 2, Line(), 192 << 20, tmp_path / "lab") as place:
        place.attach([0, 1], fresh=True)
        file = place.mount / "dumps"
        words = [program, *Work("W", "simple", file, sync=True).words(report)]
        with ThreadPoolExecutor() as pool:
            running = pool.submit(place.mpirun, [0, 1], 2, words, 300.0, "OMPIO")
            seen = place.computing[0].seen(file)
            until(lambda: running.done() or _size(seen) > W_BYTES // 4, 120)
            assert not running.done(), running.result()
            place.targets[0].kill()
            growth = Growth(seen)
            until(lambda: running.done() or _size(seen) == W_BYTES or growth.has_ended(), 120)
            assert not running.done(), "nothing was flushed to a target that is gone"
            place.targets[0].restart()
            done = running.result()
        assert done.code == btio.VERIFIED, done
        checksum = json.loads(report.read_text())["checksum"]
        place.detach()
        place.attach([1, 0])
        words = [program, *Work("W", "simple", file, True, checksum).words(report)]
        assert place.mpirun([1, 0], 2, words, 60.0, "OMPIO").code == btio.VERIFIED
        place.detach()


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


class Growth:
    """Of a file that gets a dump several times a second, unless its writer waits for a disk."""

    def __init__(self, path: Path):
        self._path, self._size, self._at_s = path, -1, 0.0

    def has_ended(self) -> bool:
        if (size := _size(self._path)) != self._size:
            self._size, self._at_s = size, time.monotonic()
        return time.monotonic() - self._at_s > STALLED_S


@pytest.mark.parametrize(("verified", "elsewhere"), [(False, True), (True, False)])
def test_what_is_not_verified_fails_the_study(
    verified: bool, elsewhere: bool, out: Path, monkeypatch: pytest.MonkeyPatch
):
    report = {"mpi": "MPI", "mop_per_s": 1.0, "seconds": {"max": 1.0}}
    report["io"] = {"seconds": 1.0, "mb_per_s": 1.0, "sync_s": {"max": 1.0}}
    seen = Seen(1.0, (1,), 0, 0.0, 0.0)
    wrong = s3_btio.Ran("merged", "full", 0, verified, seen, report, elsewhere)
    monkeypatch.setattr(s3_btio, "measure", lambda *_: iter([wrong]))
    with pytest.raises(LabError, match="not verified: merged full"):
        s3_btio.main(["merged", "--subtype", "full", "--out", str(out)])


def test_blocks_messages_and_round_trips_go_where_they_should(out: Path, tmp_path: Path):
    words = ["--quick", "separate", "merged", "--count", "0", "--count", "2", "--beside"]
    s3_mixed.main([*words, "--out", str(out), "--docs", str(tmp_path)])
    lines = map(json.loads, (out / "s3-mixed.jsonl").read_text().splitlines())
    found = {kind: [] for kind in ("machine", "turns", "trips")}
    for one in lines:
        found[one["kind"]].append(one)
    blocks, message = 24 * MIB, MIB
    turns = {(one["shape"], one["count"], one["beside"]): one for one in found["turns"]}
    assert len(turns) == 8 and all(one["report"]["right"] for one in turns.values())
    for (shape, count, beside), one in turns.items():
        messages, storage = one["seen"]["carried"][0], one["seen"]["carried"][-1]
        assert storage >= blocks and messages >= 24 * count * message, (shape, count)
        if shape == "merged":
            assert messages >= blocks + 24 * count * message
        # The copy goes over the network of the messages.
        assert not beside or messages > turns[shape, count, False]["seen"]["carried"][0] + MIB
    trips = {(one["shape"], one["load"]): one for one in found["trips"]}
    assert len(trips) == 6
    for (shape, load), one in trips.items():
        assert one["report"]["right"] and one["report"]["round_trip"]["count"] > 10
        carried = one["seen"]["carried"][-1]
        # A load that is served from a cache would be none.
        assert carried > 5 * MIB if load != "idle" else carried < 5 * MIB, (shape, load, carried)
    text = (tmp_path / "s3-mixed.md").read_text()
    assert "flushed, merged: T(0)" in text and "enkaku attach --cache=none" in text
    assert "flushed, beside a copy" in text and "“merged is as fast as separate at every k”" in text
    assert all((tmp_path / "figures" / f"s3-mixed.{kind}").exists() for kind in ("svg", "csv"))


def test_a_marked_copy_goes_in_a_class_of_its_own(out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    carried: list[dict[str, int]] = []

    def counted(place: cluster.Cluster, *words: object) -> tuple[dict, Seen]:
        ran = measured(place, *words)
        first = enkaku.report("wan", "show", place.lab.name)["nodes"][0]
        carried.append({part["class"]: part["bytes"] for part in first["to_switch"]["classes"]})
        return ran

    measured = s3_mixed._run
    monkeypatch.setattr(s3_mixed, "_run", counted)
    words = ["--quick", "merged", "--marked", "--count", "2", "--beside", "--latency", "0"]
    s3_mixed.main([*words, "--out", str(out), "--docs", str(tmp_path)])
    alone, beside = carried
    assert alone["rest"] > 72 * MIB and alone["cs1"] == 0, alone
    assert beside["cs1"] > MIB and beside["rest"] - alone["rest"] > 72 * MIB, beside
    assert "flushed, beside a marked copy" in (tmp_path / "s3-mixed-marked.md").read_text()


def _turns(count: int, total_s: float, send_s: float) -> s3_mixed.Turns:
    report = {"total_s": total_s, "send": {"count": 10 * count, "total_s": send_s}}
    return s3_mixed.Turns("merged", "flushed", count, Seen(1.0, (1,), 7, 0.0, 0.2), report)


def test_a_run_is_expected_to_take_the_longer_of_both():
    study = s3_mixed.Study(Line(), ["merged"], ["flushed"], [0, 1, 4], 10, 1, 0, [])
    # 0.1 s a message: 1 s and 4 s of them beside 2 s of blocks.
    turns = [_turns(0, 2.0, 0.0), _turns(1, 2.6, 1.0), _turns(4, 4.4, 4.0)]
    table, expected, _ = s3_mixed.tell(study, turns)
    assert expected == "flushed, merged: T(0) 2.00 s, t 100.00 ms, off by +30%"
    assert "20.0%*" in table and " 7 " in table


@pytest.mark.needs("tgtd", "tgtadm", "qemu-img")
def test_checkpoints_go_beside_steps_in_the_class_of_their_mark(out: Path, tmp_path: Path):
    # Slow enough that a checkpoint is under way for a while, and that this machine can do it.
    s3_beyond.main(["--quick", "--scale", "0.1", "--out", str(out), "--docs", str(tmp_path)])
    lines = [json.loads(line) for line in (out / "s3-beyond.jsonl").read_text().splitlines()]
    runs = {one["policy"]: one for one in lines if one["kind"] == "run"}
    assert list(runs) == ["no checkpoints", "stock", "ours", "ours with QoS"]
    for name, one in runs.items():
        report, way = one["report"], one["lines"]["near_to_far"]
        assert report["right"] and report["ranks"] == 2
        classes = {part["class"]: part["bytes"] for part in way["classes"]}
        if name == "no checkpoints":
            assert report["step"]["count"] > 1 and report["step_beside"]["count"] == 0
            assert one["alone_s"] is None and list(classes) == ["all"]
            continue
        # How many, is a matter of the machine.
        assert report["step_beside"]["count"] > 0 and report["round_trip_beside"]["count"] > 0
        # 20 MB of a checkpoint alone, and more of it beside steps.
        assert way["bytes"] > 25 * MIB and one["alone_s"] > 1.0, name
        if name == "ours with QoS":
            assert classes["cs1"] > 20_000_000 and classes["rest"] > 2 * MIB, classes
        else:
            assert list(classes) == ["all"]
    text = (tmp_path / "s3-beyond.md").read_text()
    assert "2 compute nodes" in text and "--max-rate 16mbit" in text
    assert "0.02 of what the title" in text and "ours with QoS" in text


def _beyond(policy: str, which: str, step_s: float, alone_s: float | None, took: list[float]):
    report = {}
    for name in ("step", "reduce", "round_trip"):
        report |= {name: {"count": 0}, f"{name}_beside": {"count": 0}}
    report[f"step{which}"] = {"p50_us": step_s * 1e6}
    report[f"reduce{which}"] = {"p99_us": 400_000.0}
    report[f"round_trip{which}"] = {"p99_us": 300.0 * step_s}
    return s3_beyond.Ran(policy, report, Seen(1.0, (1,), 7, 0.0, 0.2), alone_s, took, {})


def test_what_a_step_and_a_checkpoint_cost_is_told_beside_each_alone():
    study = s3_beyond.Study(0.1, 2, "100us", ["ours", "qos"], "weighted,rest=9,cs1=1", 0.8, 1000, 20.0, 80, 1)
    assert (study.reduce_bytes, study.part_bytes, study.limit) == (6_400_000, 48 * MIB, "80mbit")
    assert study.line() == Line("100mbit", "100us", "65536b")
    assert study.words(s3_beyond.OURS) == study.line().words()
    assert study.words(s3_beyond.QOS)[-1] == study.classes
    ran = [
        _beyond("no checkpoints", "", 2.0, None, []),
        _beyond("ours", "_beside", 3.0, 10.0, [12.0, 14.0, 13.0]),
        # None ended while steps ran.
        _beyond("ours with QoS", "_beside", 2.1, 10.0, []),
    ]
    alone, ours, qos = s3_beyond.rows(study, ran)
    assert alone == ["no checkpoints", "2.000", "–", "400", "600", "–", "–", "–", "7", "20.0%*"]
    assert ours[1:8] == ["3.000", "1.500", "400", "900", "300", "7.7", "1.30"]
    assert qos[1:8] == ["2.100", "1.050", "400", "630", "30", "–", "–"]


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


def test_a_killed_study_leaves_no_process_and_no_device(out: Path, tmp_path: Path):
    before = _devices()
    (out / "s3-btio.jsonl").unlink(missing_ok=True)
    argv = [*MODULE, "s3-btio", "--quick", "merged", "--class", "S", "--repeat", "50"]
    with (tmp_path / "log").open("w") as log:
        child = subprocess.Popen(
            [*argv, "--out", out], stdout=log, stderr=log, start_new_session=True
        )
    try:
        until(lambda: _runs(out) or child.poll() is not None, 120)
        assert child.poll() is None, (tmp_path / "log").read_text()
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    until(lambda: not that_name(f"star-{child.pid}"), 20)
    until(lambda: _devices() <= before, 20)
    for folder in Path("/var/tmp").glob(f"star-{child.pid}-*"):
        shutil.rmtree(folder)


def _devices() -> set[str]:
    """Loop devices whose file was in a folder of the lab."""
    said = subprocess.run(
        ["losetup", "--list", "--noheadings", "--output", "NAME,BACK-FILE"],
        capture_output=True, text=True, check=True,
    )
    return {line for line in said.stdout.splitlines() if line.endswith("/volume")}
