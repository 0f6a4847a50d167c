"""What an operator does to a mirror that runs: a leg more, a leg less, a larger size, another rate. Its
user goes on meanwhile; and whatever is killed in between, it has the old shape or the new one
afterwards. Mirrors that the target daemon runs; and what is said where a leg or a file is not what was
expected."""

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
from support.daemon import NAME_A, Daemon
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
def second(tmp_path: Path) -> Path:
    return empty(tmp_path / "second.img", SIZE + TAIL)


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


GOLDEN = Path(__file__).with_name("golden") / "mirror_found.txt"


class Found:
    """What a mirror has found where it expected something else, for the golden file."""

    def __init__(self, folder: Path):
        self.folder, self.said = folder, []

    def note(self, what: str, said: str) -> None:
        said = said.strip().replace(str(self.folder), "$TMP")
        said = re.sub(r"\b[0-9a-f]{8}-[0-9a-f]{4}\b", "$UUID", said)
        said = re.sub(r"\b[0-9a-f]{8}\b", "$ID", said)
        said = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)? UTC", "$TIME", said)
        said = re.sub(r"writer is [^)]*", "writer is $HOST", said)
        said = re.sub(r"checksum 0x\w+ stands there, 0x\w+", "checksum $A stands there, $B", said)
        said = re.sub(r"(number|epoch) \d+", r"\1 $N", said)
        self.said.append(f"# {what}\n{said}\n")


@NEEDS_FUSE
def test_what_is_found_what_was_expected_and_who_decides(tmp_path: Path):
    """Nothing is written before it is understood; each message names the command that decides."""
    found = Found(tmp_path)
    started: list[Mirror] = []

    def mirror(name: str, *, leg: Path | None = None, seed: int = 1) -> tuple[Mirror, Path]:
        local = noise(tmp_path / f"{name}.img", 4 * MIB, seed)
        leg = leg or empty(tmp_path / f"{name}-far.img", 4 * MIB + TAIL)
        started.append(Mirror(tmp_path, local, [leg], name))
        return started[-1], leg

    def settle(it: Mirror, leg: Path) -> None:
        it.create()
        it.start_fuse()
        it.wait_in_sync()
        assert it.stop() == 0

    def told(it: Mirror, leg: Path, *states: str) -> str:
        """What it says of the leg, which is as it was."""
        before = leg.read_bytes()
        it.start_fuse()
        message = it.wait_state(*states)["legs"][0]["message"]
        write(it.mount / "volume", 0, os.urandom(BLOCK))
        assert it.stop() == 0
        assert leg.read_bytes() == before, "it was written to"
        return f"{states[0]}: {message}"

    try:
        first, far = mirror("first")
        settle(first, far)
        metadata = tmp_path / "first.img.mirror"
        second, _ = mirror("second", seed=2)
        over = second.create("--metadata", metadata, check=False)
        found.note("create: the metadata of another mirror", over.stderr)
        other, _ = mirror("other", leg=far)
        found.note("create: a leg of another mirror", other.create(check=False).stderr)
        first.config.unlink()
        over = second.create("--metadata", metadata, check=False)
        found.note("create: the metadata of a mirror whose configuration is gone", over.stderr)

        third, leg = mirror("third")
        settle(third, leg)
        whole = leg.read_bytes()
        leg.write_bytes(far.read_bytes())
        found.note("the leg of another mirror at its place", told(third, leg, "unrelated"))
        leg.write_bytes(whole[:-BLOCK])
        found.note("a smaller leg", told(third, leg, "failed"))
        leg.write_bytes(whole[: -(64 << 10)] + b"\xa5" * (64 << 10))
        found.note("something else at its end", told(third, leg, "unrelated"))
        torn = bytearray(whole)
        for at in (offset for offset in range(len(torn) - (64 << 10), len(torn), 512)):
            torn[at + 100] ^= 0xFF
        leg.write_bytes(torn)
        found.note("a superblock that is torn", told(third, leg, "unrelated"))
        leg.write_bytes(whole)
        enkaku.command("mirror", "promote", leg)
        with leg.open("r+b") as file:
            file.write(b"written there")
        found.note("two primaries", told(third, leg, "diverged", "fenced"))

        fourth, leg = mirror("fourth")
        settle(fourth, leg)
        old = leg.read_bytes()
        write(fourth.start_fuse(), 0, os.urandom(BLOCK))
        fourth.wait_in_sync()
        assert fourth.stop() == 0
        leg.write_bytes(old)
        fourth.start_fuse()
        fourth.wait_in_sync()
        said = fourth.peer.output()
        line = next(line for line in said.splitlines() if "it is older than it was" in line)
        found.note("an older snapshot", line[line.index("it is older") :].split(" leg=")[0])
        assert fourth.stop() == 0
        assert_equal(tmp_path / "fourth.img", leg, size=4 * MIB)
    finally:
        for it in started:
            it.clean_up()
    text = "\n".join(found.said)
    if os.environ.get("ENKAKU_GOLDEN") == "write":
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


class MirrorDaemon(Daemon):
    """The target daemon, with mirrors whose configurations are in a folder of the test."""

    def head(self) -> str:
        folder = f'mirror_directory = "{self.folder}/mirrors"\n'
        return super().head().replace("[server]\n", "[server]\n" + folder)


def with_luns(*luns: str, name: str = NAME_A) -> str:
    text = f'[[target]]\nname = "{name}"\nanyone = true\n'
    return text + "".join(f"[[target.lun]]\nnumber = {at}\n{lun}\n" for at, lun in enumerate(luns))


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[MirrorDaemon]:
    made = MirrorDaemon(tmp_path)
    yield made
    if made.peer is not None:
        made.peer.stop()


@pytest.mark.needs("iscsi-ls", "iscsi-readcapacity16")
def test_the_daemon_runs_a_mirror_as_a_lun(
    daemon: MirrorDaemon, local: Path, far: Path, second: Path, tmp_path: Path
):
    mirror = Mirror(tmp_path, local, [far])
    mirror.create()
    daemon.write(with_luns('mirror = "vm1"', 'path = "mem:8M"'))
    checked = enkaku.command("target", "check", "--config", daemon.config)
    assert "LUN 0: the mirror vm1" in checked.stdout, checked
    daemon.start()
    report = mirror.wait_in_sync()
    assert report["front"] == f"LUN 0 of {NAME_A}", report
    source = noise(tmp_path / "source", SIZE, seed=3)
    enkaku.command("copy", source, daemon.url(), "--force")
    assert mirror.command("status").code == 0
    sample = {"mirror": "vm1", "leg": "1"}
    assert daemon.metric("enkaku_mirror_consistent", **sample) == 1
    assert daemon.metric("enkaku_mirror_written_bytes_total", mirror="vm1") >= SIZE
    assert daemon.metric("enkaku_lun_size_bytes", lun="0") == SIZE
    added = mirror.command("add-leg", "--remote", second)
    assert "is leg 2 of vm1" in added.stdout, added
    mirror.wait_in_sync()
    grown = SIZE + 4 * MIB
    with session(daemon.portal, NAME_A, HOST) as host:
        assert host.test_unit_ready() == Outcome(0)
        for path in (local, far, second):
            os.truncate(path, path.stat().st_size + 4 * MIB)
        assert "initiators are told" in mirror.command("grow").stdout
        assert host.test_unit_ready() == CAPACITY_CHANGED
    assert f"Total size:{grown}" in libiscsi.readcapacity16(daemon.url()).stdout
    mirror.wait_in_sync()
    # Without it, it is closed in order, and another reload has it back.
    daemon.write(with_luns('path = "mem:8M"'))
    assert "LUN 0: replaced" in daemon.reload()
    mirror_ended(mirror)
    stopped = mirror.command("status", check=False)
    assert "closed in order" in stopped.stdout, stopped
    assert_equal(source, local, far, second)
    daemon.write(with_luns('mirror = "vm1"', 'path = "mem:8M"'))
    assert "LUN 0: replaced" in daemon.reload()
    report = mirror.wait_in_sync()
    assert all(leg["sent_bytes"] < MIB for leg in report["legs"]), report
    daemon.peer.signal(signal.SIGTERM)
    assert daemon.peer.wait(30) == 0, daemon.peer.output()
    assert "closed in order" in mirror.command("status", check=False).stdout
    assert_equal(local, far, second, size=grown)


def mirror_ended(mirror: Mirror) -> None:
    deadline = time.monotonic() + 20
    while (mirror.config_dir / f"mirror-{mirror.name}.sock").exists():
        assert time.monotonic() < deadline, "its control socket stays"
        time.sleep(0.05)


@pytest.mark.needs("iscsi-ls")
def test_a_mirror_that_fails_leaves_the_other_luns_alone(
    daemon: MirrorDaemon, local: Path, far: Path, tmp_path: Path
):
    with enkaku.serve([far], tmp_path) as target:
        mirror = Mirror(tmp_path, local, [target.url()])
        mirror.create()
        mirror.edit(remote_timeout='"1s"')
        metadata = tmp_path / "local.img.mirror"
        hidden = metadata.rename(tmp_path / "hidden")
        daemon.write(with_luns('mirror = "vm1"', 'path = "mem:8M"'))
        checked = enkaku.command("target", "check", "--config", daemon.config, check=False)
        assert checked.code == 1 and "the mirror vm1: " in checked.stderr, checked
        daemon.start()
        assert f"Total size:{8 * MIB}" in libiscsi.readcapacity16(daemon.url(lun=1)).stdout
        code, health = daemon.page("/health")
        assert code == 503 and "LUN 0: not served" in health and "such file" in health, health
        hidden.rename(metadata)
        assert "LUN 0: added" in daemon.reload()
        mirror.wait_in_sync()
        assert daemon.page("/health")[0] == 200
        target.peer.kill()
        enkaku.command("copy", noise(tmp_path / "source", SIZE, 5), daemon.url(), "--force")
        mirror.wait_state("lost")
        code, health = daemon.page("/health")
        assert code == 503 and "LUN 0: leg 1" in health and "lost" in health, health
    daemon.config.write_text(
        daemon.head()
        + with_luns('mirror = "a/b"', 'mirror = "vm1"\npath = "mem:1M"', 'mirror = "none"')
        + with_luns('mirror = "vm1"', name="iqn.2026-11.org.example:b")
    )
    wrong = enkaku.command("target", "check", "--config", daemon.config, check=False)
    for what in (
        'lun[0].mirror: "a/b" is no name of a mirror (allowed:',
        "path is not for a mirror",
        "is behind LUN",
    ):
        assert what in wrong.stderr, wrong


@NEEDS_FUSE
def test_the_rate_of_a_copy_changes_while_it_runs(local: Path, far: Path, tmp_path: Path):
    with cleaned_up(Mirror(tmp_path, local, [far])) as mirror:
        mirror.create()
        mirror.edit(resync_rate='"1mbit"')
        mirror.start_fuse()
        slow = mirror.wait_for("copying", lambda report: report["legs"][0]["dirty_bytes"] < SIZE)
        assert slow["legs"][0]["state"] == "copying", slow
        wrong = mirror.command("resync", "--rate", "180%", check=False)
        assert wrong.code == 2 and "from 1% to 100%" in wrong.stderr, wrong
        said = mirror.command("resync", "--rate", "80%").stdout
        assert said == "copies may go at 80% until the mirror is started anew\n", said
        begin = time.monotonic()
        mirror.wait_in_sync()
        assert time.monotonic() - begin < SIZE / (1e6 / 8) / 2, "it goes on at 1 Mbit/s"
        assert mirror.stop() == 0
        assert_equal(local, far)
        mirror.edit(resync_rate='"0%"')
        wrong = mirror.command("status", check=False)
        assert "from 1% to 100%" in wrong.stderr, wrong
