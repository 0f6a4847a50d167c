"""What an operator does to a mirror that runs: a leg more, a leg less, a larger size. Its user goes on
meanwhile; and whatever is killed in between, it has the old shape or the new one afterwards."""

import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import MIB, empty, noise
from support.mirror import BLOCK, TAIL, Mirror, cleaned_up, differences, write

from enkaku_lab.peers import Target, enkaku, libiscsi, need, tgt
from enkaku_lab.peers.libiscsi_session import Outcome, session
from enkaku_lab.process import Peer, free_port

SIZE = 8 * MIB
CUTS = int(os.environ.get("ENKAKU_SHAPE_CUTS", "4"))
"""Steps of each change at which the mirror is killed, beside those that replace a file."""
STEPS = "fsync,fdatasync,pwrite64,pwritev2,rename,renameat,renameat2,unlink,unlinkat"
"""What makes a step of a change durable, or visible."""
NEEDS_FUSE = pytest.mark.needs("/dev/fuse", "fusermount3")
CAPACITY_CHANGED = Outcome(2, 6, 0x2A09)
HOST = "iqn.2026-11.org.example:host"


@pytest.fixture
def local(tmp_path: Path) -> Path:
    return noise(tmp_path / "local.img", SIZE)


@pytest.fixture
def far(tmp_path: Path) -> Path:
    return empty(tmp_path / "far.img", SIZE + TAIL)


@pytest.fixture
def second(tmp_path: Path) -> Path:
    return empty(tmp_path / "second.img", SIZE + TAIL)


@pytest.fixture
def target(far: Path, tmp_path: Path) -> Iterator[Target]:
    with enkaku.serve([far], tmp_path) as serving:
        yield serving


class Writer(threading.Thread):
    """A user of the volume who does not stop, and wants every write to succeed."""

    def __init__(self, volume: Path):
        super().__init__()
        self.volume, self.over = volume, threading.Event()
        self.writes, self.slowest_s = 0, 0.0
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.over.is_set():
                begin = time.monotonic()
                offset = self.writes * 7 % (SIZE // BLOCK) * BLOCK
                write(self.volume, offset, self.writes.to_bytes(8, "little") * (BLOCK // 8))
                self.slowest_s = max(self.slowest_s, time.monotonic() - begin)
                self.writes += 1
        except BaseException as error:  # told where the thread is joined
            self.failure = error

    def __enter__(self) -> "Writer":
        self.start()
        return self

    def __exit__(self, *_) -> None:
        self.over.set()
        self.join()
        if self.failure is not None:
            raise self.failure


def assert_equal(local: Path, *legs: Path, size: int = SIZE) -> None:
    for leg in legs:
        assert not differences(local, leg, size), leg


@NEEDS_FUSE
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_legs_come_and_go_while_their_user_writes(
    local: Path, target: Target, far: Path, second: Path, tmp_path: Path, mode: str
):
    with cleaned_up(Mirror(tmp_path, local, [target.url()])) as mirror:
        mirror.create(mode=mode)
        volume = mirror.start_fuse()
        mirror.wait_in_sync()
        with Writer(volume) as writer:
            before = writer.writes
            added = mirror.command("add-leg", "--remote", second)
            assert added.stdout.endswith("is leg 2 of vm1; its first copy has begun\n"), added
            twice = mirror.command("add-leg", "--remote", second, check=False)
            assert twice.code == 2 and "twice" in twice.stderr, twice
            report = mirror.wait_state("in-sync", leg=2)
            assert report["legs"][0]["state"] == "in-sync", report
            assert report["written_bytes"] > 0 and writer.writes > before
            none = mirror.command("remove-leg", "--leg", "3", check=False)
            assert none.code == 1 and "there is no leg 3" in none.stderr, none
            removed = json.loads(mirror.command("remove-leg", "--leg", "1", "--json").stdout)
            assert removed["image"]["size"] == SIZE and removed["image"]["consistent"], removed
            assert [leg["name"] for leg in mirror.report()["legs"]] == [str(second)]
            last = mirror.command("remove-leg", "--leg", "1", check=False)
            assert last.code == 1 and "1 to 3" in last.stderr, last
            after = writer.writes
            mirror.wait_for("written to", lambda _: writer.writes > after + 3)
        assert writer.slowest_s < 10, f"a write waited {writer.slowest_s:.1f} s"
        mirror.wait_in_sync()
        nothing = enkaku.command("mirror", "inspect", target.url())
        assert nothing.stdout == "nothing of a mirror\n", nothing
        assert mirror.stop() == 0, mirror.peer.output()
        assert_equal(local, second)
        # What it is at the next start is what it was told while it ran.
        mirror.start_fuse()
        report = mirror.wait_in_sync()
        assert [leg["name"] for leg in report["legs"]] == [str(second)]
        assert report["legs"][0]["sent_bytes"] < MIB, "it is copied again"
        assert mirror.stop() == 0


@NEEDS_FUSE
def test_a_leg_that_is_lost_is_removed_by_force_only(local: Path, far: Path, second: Path, tmp_path: Path):
    target = enkaku.serve([far], tmp_path)
    with target as serving, cleaned_up(Mirror(tmp_path, local, [serving.url(), second])) as mirror:
        mirror.create()
        mirror.edit(remote_timeout='"1s"', on_loss='"stop"')
        volume = mirror.start_fuse()
        mirror.wait_in_sync()
        serving.peer.kill()
        mirror.wait_state("lost")
        with Writer(volume) as writer:
            # With on_loss = "stop" it waits; the leg that it waits for goes, and it goes on.
            refused = mirror.command("remove-leg", "--leg", "1", check=False, timeout_s=60)
            assert refused.code == 1 and "--force forgets" in refused.stderr, refused
            removed = mirror.command("remove-leg", "--leg", "1", "--force", timeout_s=60)
            assert "nothing was changed there" in removed.stdout, removed
            before = writer.writes
            mirror.wait_for("written to", lambda _: writer.writes > before)
        mirror.wait_in_sync()
        assert mirror.stop() == 0, mirror.peer.output()
        assert_equal(local, second)


@NEEDS_FUSE
def test_a_mirror_grows_in_use_when_all_sides_have(local: Path, far: Path, second: Path, tmp_path: Path):
    grown = SIZE + 4 * MIB
    with cleaned_up(Mirror(tmp_path, local, [far, second])) as mirror:
        mirror.create()
        volume = mirror.start_fuse()
        mirror.wait_in_sync()
        with Writer(volume):
            refused = mirror.command("grow", check=False)
            assert refused.code == 1 and "make it larger first" in refused.stderr, refused
            os.truncate(local, grown)
            os.truncate(second, grown + TAIL)
            refused = mirror.command("grow", check=False)
            assert refused.code == 1 and str(second) not in refused.stderr, refused
            lacks = re.search(rf"{re.escape(str(far))} has {SIZE + TAIL} bytes of (\d+), (\d+) too few",
                              refused.stderr)
            assert lacks and int(lacks[1]) - int(lacks[2]) == SIZE + TAIL, refused
            assert mirror.report()["size_bytes"] == SIZE
            os.truncate(far, grown + TAIL)
            done = mirror.command("grow").stdout
            assert done.startswith(f"vm1 has {grown} bytes") and "within a second" in done, done
        mirror.wait_for("as large", lambda _: volume.stat().st_size == grown)
        write(volume, grown - BLOCK, os.urandom(BLOCK))
        report = mirror.wait_in_sync()
        assert report["size_bytes"] == grown
        assert mirror.stop() == 0, mirror.peer.output()
        assert_equal(local, far, second, size=grown)


@pytest.mark.needs("iscsi-readcapacity16", "tgtd", "root")
def test_initiators_are_told_that_it_has_grown(local: Path, tmp_path: Path):
    """At tgt's LUN as the leg, which has grown before."""
    grown = SIZE + 4 * MIB
    far = empty(tmp_path / "far.img", grown + TAIL)
    with tgt.serve([far], tmp_path) as target, cleaned_up(Mirror(tmp_path, local, [target.url()])) as mirror:
        mirror.create()
        portal = f"127.0.0.1:{free_port()}"
        mirror.start("--iscsi", portal)
        mirror.wait_in_sync()
        iqn = "iqn.2026-11.io.enkaku:mirror-vm1"
        with session(portal, iqn, HOST) as host:
            assert host.test_unit_ready() == Outcome(0)
            os.truncate(local, grown)
            assert "initiators are told" in mirror.command("grow").stdout
            assert host.test_unit_ready() == CAPACITY_CHANGED
        read = libiscsi.readcapacity16(f"iscsi://{portal}/{iqn}/0").stdout
        assert f"Total size:{grown}" in read, read
        mirror.wait_in_sync()
        assert mirror.stop() == 0, mirror.peer.output()
        assert_equal(local, far, size=grown)


class Killer:
    """Kills a process where one of its threads makes its n-th step of a kind; counts where n is none."""

    def __init__(self, peer: Peer, log: Path, when: tuple[str, int] | None):
        self.log = log
        inject = f"trace={STEPS}" if when is None else f"inject={when[0]}:signal=SIGKILL:when={when[1]}"
        argv = [need("strace"), "-f", "-q", "-e", inject, "-o", log, "-p", str(peer.pid)]
        self.strace = subprocess.Popen(argv, stderr=subprocess.DEVNULL)
        if when:
            threading.Thread(target=self._let_go, daemon=True).start()

    def _let_go(self) -> None:
        """A tracer that waits for the last of a killed process's threads would keep it for ever."""
        while self.strace.poll() is None:
            time.sleep(0.05)
            if self.log.exists() and "SIGKILL" in self.log.read_text():
                time.sleep(0.1)
                self.strace.kill()
                return

    def wait_attached(self, pid: int) -> None:
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            tasks = Path(f"/proc/{pid}/task")
            traced = [
                "TracerPid:\t0\n" not in (task / "status").read_text() for task in tasks.iterdir()
            ]
            if all(traced):
                return
            time.sleep(0.01)
        raise AssertionError("strace does not attach")

    def end(self) -> int:
        """Steps of the thread that made most."""
        if self.strace.poll() is None:
            self.strace.send_signal(signal.SIGINT)
        self.strace.wait(10)
        threads = re.findall(r"^(\d+) +[a-z0-9]+\(", self.log.read_text(), re.M)
        return max(map(threads.count, threads))


def changed_and_killed(mirror: Mirror, when: tuple[str, int] | None, words: list, log: Path) -> int:
    """Whether it was killed; or the number of steps."""
    killer = Killer(mirror.peer, log, when)
    killer.wait_attached(mirror.peer.pid)
    mirror.command(*words, check=False, timeout_s=60)
    steps = killer.end()
    killed = not mirror.peer.running()
    if when:
        mirror.kill()
    return killed if when else steps


SHAPES = {
    "add-leg": lambda folder: ["add-leg", "--remote", folder / "second.img", "--force"],
    "remove-leg": lambda folder: ["remove-leg", "--leg", "1"],
    "grow": lambda folder: ["grow"],
}


@NEEDS_FUSE
@pytest.mark.needs("strace", "root")
@pytest.mark.parametrize("what", SHAPES)
def test_killed_at_any_step_it_has_the_old_shape_or_the_new_one(what: str, tmp_path: Path):
    """Not one of them in its metadata and another in its configuration, and with all that was told
    complete; the same command again brings it to its end."""
    steps, killed, old = 0, 0, 0
    renames = [("rename", 1)]
    for cut in range(CUTS + len(renames) + 1):
        folder = tmp_path / str(cut)
        folder.mkdir()
        local = noise(folder / "local.img", SIZE)
        legs = [empty(folder / f"{name}.img", SIZE + TAIL) for name in ("first", "second", "third")]
        given = [legs[0], legs[2]] if what == "add-leg" else legs
        with cleaned_up(Mirror(folder, local, given)) as mirror:
            mirror.create()
            volume = mirror.start_fuse()
            mirror.wait_in_sync()
            told = os.urandom(BLOCK)
            write(volume, 5 * BLOCK, told)
            grown = SIZE + 2 * MIB
            if what == "grow":
                for path in (local, *legs):
                    os.truncate(path, path.stat().st_size + 2 * MIB)
            # The first round only counts the steps there are.
            when = (STEPS, 1 + (cut - 1) * steps // CUTS) if cut else None
            if cut > CUTS:
                when = renames[cut - CUTS - 1]
            words = SHAPES[what](folder)
            seen = changed_and_killed(mirror, when, words, folder / "strace.log")
            if cut == 0:
                steps = seen
            else:
                killed += seen
                volume = mirror.start_fuse()
            before, after = (len(given), len(given) + {"add-leg": 1, "remove-leg": -1}.get(what, 0))
            report = mirror.wait_for("any", lambda _: True)
            shape = (len(report["legs"]), report["size_bytes"])
            assert shape in ((before, SIZE), (after, grown if what == "grow" else SIZE)), (cut, shape)
            if shape[0] == before and shape[1] == SIZE:
                old += 1
                again = mirror.command(*words, check=False)
                assert again.code == 0, (cut, again, mirror.peer.output()[-2000:])
            report = mirror.wait_in_sync()
            assert len(report["legs"]) == after, report
            with volume.open("rb") as file:
                file.seek(5 * BLOCK)
                assert file.read(BLOCK) == told, "what was told complete is gone"
            assert mirror.stop() == 0, mirror.peer.output()
            left = legs[1:] if what == "remove-leg" else legs
            assert_equal(local, *left, size=grown if what == "grow" else SIZE)
            assert not list(mirror.config_dir.glob("*.next*")), "something is left"
    # Which thread makes which step is not the same each time, so the last cuts may be none.
    assert killed >= CUTS // 2 and old > 0, (steps, killed, old)
    print(f"{what}: {steps} steps, killed {killed} times, {old} of them before the change")
