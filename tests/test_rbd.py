"""Images of a Ceph cluster of this machine: as volumes of every command, behind targets, and what holds when
two targets have one, when one of them is killed, and when one is stopped and wakes up.
"""

import json
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import COMPLIANCE, MIB, empty, noise, sha256
from support.daemon import NAME_A, Daemon, target
from support.faulty_volume import until
from support.processes import until as within

from enkaku_lab import rbd_bench
from enkaku_lab.peers import Target, ceph, enkaku, fio, libiscsi, need
from enkaku_lab.peers.libiscsi_session import Outcome, Session, session
from enkaku_lab.process import Completed, peer, run

pytestmark = pytest.mark.needs(*ceph.PROGRAMS)

SIZE = 32 * MIB
HOST = "iqn.2026-11.org.example:host"
GOOD, CHECK_CONDITION = 0, 2
MISCOMPARE = 0xE
UNIT_ATTENTION, CAPACITY_CHANGED = 6, 0x2A09
INCREMENTS = 10_000
SHARED = ("--image-feature", "layering")
"""Without the exclusive lock: two clients write at once, instead of handing the lock to and fro."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[ceph.Cluster]:
    with ceph.cluster(tmp_path_factory.mktemp("ceph")) as made:
        yield made


def copy(source: str | Path, destination: str | Path, *more: object, **how) -> Completed:
    return enkaku.command("copy", source, destination, "--force", *more, **how)


def refused(*words: object) -> str:
    done = enkaku.command(*words, check=False, timeout_s=60)
    assert done.code != 0, done
    return done.stderr


def read(host: Session, lba: int) -> bytes:
    done = host.command(struct.pack(">BBQIBB", 0x88, 0, lba, 1, 0, 0), room=512)
    assert done.status == GOOD, done
    return done.data


def write(host: Session, lba: int, block: bytes) -> Outcome:
    return host.command(struct.pack(">BBQIBB", 0x8A, 0, lba, 1, 0, 0), block)


def swap(host: Session, lba: int, old: bytes, new: bytes) -> Outcome:
    """COMPARE AND WRITE of one block."""
    return host.command(struct.pack(">BBQ3xBBB", 0x89, 0, lba, 1, 0, 0), old + new)


def ready(host: Session) -> None:
    """Takes what a session is told first."""
    until(lambda: host.test_unit_ready().status == GOOD, "unit attentions have no end")


def test_what_is_copied_to_an_image_comes_back(cluster: ceph.Cluster, tmp_path: Path):
    """And its holes stay holes."""
    url = cluster.create("copied", SIZE)
    image = empty(tmp_path / "image", SIZE)
    with image.open("r+b") as file:
        for at in (0, 5 * MIB, 17 * MIB, SIZE - 4096):
            file.seek(at)
            file.write(noise(tmp_path / "noise", 4096, seed=at).read_bytes())
    about = json.loads(enkaku.command("info", url, "--json").stdout)
    assert (about["size"], about["block_size"], about["connections"]) == (SIZE, 512, 1)
    assert about["can_extents"] and about["can_fua"] and about["can_zero"] and about["thin"]
    assert not about["volatile_cache"]
    report = json.loads(copy(image, url, "--verify", "--json").stdout)
    assert report["verified"] and report["zero_bytes"] >= SIZE - 5 * MIB
    back = tmp_path / "back"
    copy(url, back)
    assert sha256(back) == sha256(image)
    # Four objects of 4 MiB have data.
    assert back.stat().st_blocks * 512 <= 16 * MIB
    # Ceph's own tool sees the same.
    cluster.rbd("export", "rbd/copied", tmp_path / "exported")
    assert sha256(tmp_path / "exported") == sha256(image)
    full = noise(tmp_path / "full", SIZE)
    copy(full, url, "--verify")
    bench = ("bench", url, "--time", "1s", "--rw", "randread", "--json")
    report = json.loads(enkaku.command(*bench).stdout)
    assert report["bytes"] > 0 and report["connections"] == 1 and "path" not in report


def test_a_snapshot_is_read_and_never_written(cluster: ceph.Cluster, tmp_path: Path):
    url = cluster.create("snapped", 8 * MIB)
    older = noise(tmp_path / "older", 8 * MIB)
    newer = noise(tmp_path / "newer", 8 * MIB, seed=2)
    copy(older, url)
    cluster.rbd("snap", "create", "rbd/snapped@before")
    copy(newer, url)
    snapshot = cluster.url("snapped@before")
    assert json.loads(enkaku.command("info", snapshot, "--json").stdout)["read_only"]
    copy(snapshot, tmp_path / "old")
    copy(url, tmp_path / "new")
    assert sha256(tmp_path / "old") == sha256(older)
    assert sha256(tmp_path / "new") == sha256(newer)
    assert "read-only" in refused("copy", newer, snapshot, "--force")
    with enkaku.serve([snapshot], tmp_path) as serving:
        copy(serving.url(), tmp_path / "served")
        assert sha256(tmp_path / "served") == sha256(older)


def test_what_is_not_there_is_named(cluster: ceph.Cluster, tmp_path: Path):
    conf = f"?conf={cluster.conf}"
    said = refused("info", f"rbd:rbd/nothing{conf}")
    assert "the image rbd:rbd/nothing: No such file or directory" in said and "rbd ls" in said
    cluster.create("odd", 8 * MIB)
    assert "rbd snap ls" in refused("info", f"rbd:rbd/odd@nothing{conf}")
    assert 'there is no pool "nothing"' in refused("info", f"rbd:nothing/odd{conf}")
    gone = tmp_path / "gone.conf"
    assert f"configuration {gone}" in refused("info", f"rbd:rbd/odd?conf={gone}")
    nobody = tmp_path / "nobody.conf"
    nobody.write_text("[global]\nmon host = 127.0.0.1:1\nclient mount timeout = 2\n")
    said = refused("info", f"rbd:rbd/odd?conf={nobody}")
    assert "no monitor answers" in said and str(nobody) in said, said
    assert "--max-rate is for volumes" in refused("info", cluster.url("odd"), "--max-rate", "1mbit")
    assert "the only parameters are" in refused("info", "rbd:rbd/odd?mon=x")
    cluster.rbd("create", "--size", "0B", "rbd/empty")
    assert "has 0 bytes" in refused("info", cluster.url("empty"))
    again = refused("serve", "--listen", "127.0.0.1:0", *("--lun", cluster.url("odd")) * 2)
    assert "the same volume" in again


@pytest.mark.needs("root", "unshare")
def test_where_there_is_no_ceph_it_says_what_to_install(tmp_path: Path):
    """A file that is no library, in the place of the library, for this process only."""
    found = run(["/sbin/ldconfig", "-p"]).stdout
    library = next(line.split()[-1] for line in found.splitlines() if "librbd.so.1" in line)
    script = 'mount --bind /dev/null "$1" && exec "$2" info rbd:rbd/image'
    words = ["unshare", "--mount", "sh", "-c", script, "sh", library, enkaku.binary()]
    done = run(words, check=False)
    assert done.code == 1 and "apt install librbd1" in done.stderr, done


def test_a_unit_of_a_target_may_be_an_image(cluster: ceph.Cluster, tmp_path: Path):
    url = cluster.create("served", SIZE)
    image = noise(tmp_path / "image", SIZE)
    with enkaku.serve([url], tmp_path) as serving:
        copy(image, serving.url(), "--verify")
        where = tmp_path / "volume.sock"
        with enkaku.attach_nbd(serving.url(), where, tmp_path):
            checked = fio.start_verify(fio.nbd(f"nbd+unix:///?socket={where}"), 16, tmp_path / "fio")
            assert checked.wait(120) == 0, checked.output()
    assert cluster.watchers("served") == 0, "the image was not closed"


@pytest.mark.needs("iscsi-test-cu")
def test_iscsi_test_cu_finds_nothing_wrong(cluster: ceph.Cluster, tmp_path: Path):
    """One suite after the other at one unit; SANITIZE, which takes a minute, is not this backend's."""
    url = cluster.create("compliance", 256 * MIB)
    verdicts, outputs = COMPLIANCE.setdefault("rbd", {}), []
    for suite in libiscsi.compliance_suites():
        if suite == "ALL.Sanitize":
            continue
        options = ["--exclusive"]
        if suite == "ALL.GetLBAStatus":  # see test_compliance.py
            options += ["--physical-block-size", 512]
        with enkaku.serve([url], tmp_path, options=options) as serving:
            paths = 2 if suite == "ALL.MultipathIO" else 1
            result = libiscsi.compliance_suite(suite, *[serving.url()] * paths)
        for name in result.tests:
            verdict = "failed" if name in result.failed else result.skipped.get(name, "passed")
            verdicts[f"{suite}.{name}"] = verdict
        if result.failed:
            outputs.append(result.output[:2000])
    assert not outputs, "\n".join(outputs)
    assert verdicts["ALL.CompareAndWrite.Simple"] == "passed"


def incremented(target: Target, wins: list[int], failures: list[object]) -> None:
    """Adds one to the counter in block 0 until both together have done so often enough."""
    won = 0
    try:
        with session(target.portal, target.iqn, f"{HOST}{target.port}") as host:
            ready(host)
            known = read(host, 0)
            while (count := struct.unpack_from(">Q", known)[0]) < INCREMENTS:
                new = struct.pack(">Q", count + 1) + known[8:]
                done = swap(host, 0, known, new)
                if done.status == GOOD:
                    known, won = new, won + 1
                else:
                    assert (done.status, done.key) == (CHECK_CONDITION, MISCOMPARE), done
                    known = read(host, 0)
    except Exception as error:  # told by the test
        failures.append(error)
    wins.append(won)


def test_increments_through_two_targets_are_exact(cluster: ceph.Cluster, tmp_path: Path):
    """COMPARE AND WRITE is one step in the cluster, so it needs neither a lock nor the other target."""
    url = cluster.create("counted", 8 * MIB, *SHARED)
    wins, failures = [], []
    with enkaku.serve([url], tmp_path) as one, enkaku.serve([url], tmp_path) as other:
        racing = [
            threading.Thread(target=incremented, args=(target, wins, failures))
            for target in (one, other)
        ]
        for thread in racing:
            thread.start()
        for thread in racing:
            thread.join(300)
        assert not failures, failures
        with session(one.portal, one.iqn, HOST) as host:
            ready(host)
            assert struct.unpack_from(">Q", read(host, 0))[0] == INCREMENTS
            # Where they differ is told: the ninth byte of the block.
            block = read(host, 0)
            assert swap(host, 0, block[:8] + b"x" + block[9:], block).key == MISCOMPARE
            # Of more than a block there is no one step, and it is refused, not torn.
            cdb = struct.pack(">BBQ3xBBB", 0x89, 0, 0, 2, 0, 0)
            assert host.command(cdb, bytes(2048)).key == 5
    assert sum(wins) == INCREMENTS and min(wins) > 0, wins


def used(cluster: ceph.Cluster, image: str) -> int:
    """Bytes of the objects that are there."""
    told = json.loads(cluster.rbd("du", f"rbd/{image}", "--format", "json").stdout)
    return told["images"][0]["used_size"]


def test_a_target_that_is_killed_under_load_comes_back(cluster: ceph.Cluster, tmp_path: Path):
    """The killed one owned the image's lock: the next takes it over when the cluster counts it as dead."""
    url = cluster.create("killed", SIZE)
    image = noise(tmp_path / "image", SIZE)
    with enkaku.serve([url], tmp_path) as serving:
        argv = [enkaku.binary(), "copy", image, serving.url(), "--force", "--verify"]
        argv += ["--block-size", "64k", "--depth", "4", "--max-rate", "60mbit"]
        with peer(argv, tmp_path / "copy.log") as copying:
            written = lambda: used(cluster, "killed") > SIZE // 4  # noqa: E731
            copying.wait_until(written, "nothing is written")
            serving.peer.kill()
            assert copying.running(), "it was done before the target was killed"
            enkaku.restart(serving)
            assert copying.wait(120) == 0, copying.output()
    copy(url, tmp_path / "back")
    assert sha256(tmp_path / "back") == sha256(image)


def test_a_session_is_told_of_a_resize(cluster: ceph.Cluster, tmp_path: Path):
    url = cluster.create("resized", 8 * MIB)
    with enkaku.serve([url], tmp_path) as serving:
        with session(serving.portal, serving.iqn, HOST) as host:
            ready(host)
            for size in (16 * MIB, 12 * MIB):
                cluster.rbd("resize", "--allow-shrink", "--size", f"{size}B", "rbd/resized")
                told = lambda: host.test_unit_ready()  # noqa: E731
                expected = Outcome(CHECK_CONDITION, UNIT_ATTENTION, CAPACITY_CHANGED)
                until(lambda told=told, expected=expected: told() == expected, "nobody tells")
                capacity = host.command(bytes([0x9E, 0x10]) + bytes(11) + b"\x20\0\0", room=32)
                assert struct.unpack_from(">Q", capacity.data)[0] == size // 512 - 1


def test_a_target_that_sleeps_through_a_takeover_writes_nothing(
    cluster: ceph.Cluster, tmp_path: Path
):
    """With the exclusive lock: who takes it from an owner that is silent has the cluster refuse whatever
    that one sends, first."""
    url = cluster.create("fenced", 8 * MIB)
    block = lambda letter: letter * 512  # noqa: E731
    with enkaku.serve([url], tmp_path) as sleeper, enkaku.serve([url], tmp_path) as other:
        with (
            session(sleeper.portal, sleeper.iqn, HOST) as one,
            session(other.portal, other.iqn, HOST) as two,
        ):
            ready(one)
            ready(two)
            assert write(one, 0, block(b"1")).status == GOOD
            run(["kill", "-STOP", sleeper.peer.pid])
            try:
                # The watch has to time out first, while the write waits.
                within(lambda: cluster.watchers("fenced") < 2, 6 * ceph.WATCH_TIMEOUT_S)
                assert write(two, 0, block(b"2")).status == GOOD
            finally:
                run(["kill", "-CONT", sleeper.peer.pid])
            failed = write(one, 0, block(b"3"))
            assert failed.status == CHECK_CONDITION and failed.key == 2, failed
            assert read(two, 0) == block(b"2")
            assert "another client has taken the image over" in sleeper.peer.output()


def test_the_daemon_serves_images_and_says_what_is_not_there(
    cluster: ceph.Cluster, daemon: Daemon, tmp_path: Path
):
    url = cluster.create("daemons", 8 * MIB)
    image = noise(tmp_path / "image", 8 * MIB)
    daemon.write(target(NAME_A, url, cluster.url("nothing")))
    daemon.start()
    copy(image, daemon.url(), "--verify")
    code, health = daemon.page("/health")
    assert code != 200 and "LUN 1: not served" in health and "rbd ls" in health
    daemon.write(target(NAME_A, "rbd:rbd"))
    wrong = daemon.ask("reload", check=False)
    assert wrong.code != 0 and "the pool or the image is missing" in wrong.stdout + wrong.stderr
    need("rbd")


def test_how_fast_it_is_beside_rbd_bench_is_a_table_that_anybody_can_make(
    cluster: ceph.Cluster, tmp_path: Path
):
    """Short, and beside other tests: that it works, not what it says."""
    rows = rbd_bench.measured(cluster, tmp_path, 0.5, 1)
    assert [row[0] for row in rows] == [
        *("write 256k d16", "read 256k d16", "randwrite 4k d32", "randread 4k d32"),
    ]
    assert all(float(row[2]) > 0 and float(row[4]) > 0 for row in rows), rows
