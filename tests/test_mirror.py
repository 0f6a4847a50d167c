"""`enkaku mirror` with real processes: what is written to it is at its legs, whatever is killed or
cut off meanwhile. Every test of a fault compares content: the local file and the leg's, byte by byte."""

import json
import os
import random
import re
import stat
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from conftest import MIB, empty, noise
from support.mirror import BLOCK, TAIL, Mirror, cleaned_up, differences, write
from support.tree import fingerprints, grow
from support.volume import check_ext4, loop_device, make_ext4, mounted

from enkaku_lab.peers import Target, enkaku, need, qemu, tgt
from enkaku_lab.process import Peer, free_port, run

SIZE = 24 * MIB
NEEDS_FUSE = pytest.mark.needs("/dev/fuse", "fusermount3")
NEEDS_VOLUME = pytest.mark.needs(
    "root", "/dev/fuse", "/dev/loop-control", "mkfs.ext4", "e2fsck", "fusermount3"
)
SHORT = '"1s"'
"""For a leg that does not answer: what an operator would not choose, and a test does."""


@pytest.fixture
def local(tmp_path: Path) -> Path:
    """A disk with something on it, and a hole."""
    path = noise(tmp_path / "local.img", SIZE // 2)
    os.truncate(path, SIZE)
    return path


@pytest.fixture
def mirror(local: Path, target: Target, tmp_path: Path) -> Iterator[Mirror]:
    """One that was created, and does not run yet."""
    with cleaned_up(Mirror(tmp_path, local, [target.url()])) as made:
        made.create()
        made.edit(remote_timeout=SHORT)
        yield made


def assert_same(local: Path, leg: Path) -> None:
    found = differences(local, leg, SIZE)
    assert not found, f"{len(found)} blocks differ, the first at {found[:5]}"


def scattered(volume: Path, count: int, seed: int) -> None:
    """Blocks of noise here and there, each stable before the next."""
    generator = random.Random(seed)
    for _ in range(count):
        offset = generator.randrange(SIZE // BLOCK) * BLOCK
        write(volume, offset, generator.randbytes(BLOCK))


class Writer:
    """Writes scattered blocks to the volume until it is told to end. Every write is stable before
    the next; an error ends it."""

    def __init__(self, volume: Path, seed: int):
        self.volume, self.seed = volume, seed
        self.count = 0
        self.error: OSError | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def _write(self) -> None:
        generator = random.Random(self.seed)
        try:
            while not self._stop.is_set():
                offset = generator.randrange(SIZE // BLOCK) * BLOCK
                write(self.volume, offset, generator.randbytes(BLOCK))
                self.count += 1
        except OSError as error:
            self.error = error

    def wait_for_more(self, mirror: Mirror, count: int) -> None:
        wanted = self.count + count
        mirror.peer.wait_until(
            lambda: self.count >= wanted or self.error is not None, f"{count} more writes"
        )
        assert self.error is None, self.error

    def end(self) -> None:
        self._stop.set()
        self._thread.join(30)
        assert not self._thread.is_alive(), "a write hangs"


@NEEDS_FUSE
def test_first_copy_and_writes_over_fuse(mirror: Mirror, local: Path, far: Path):
    volume = mirror.start_fuse()
    assert volume.stat().st_size == SIZE
    report = mirror.wait_in_sync()
    assert report["legs"][0]["consistent"]
    assert report["legs"][0]["loss"] == {"seconds": 0.0, "bytes": 0}
    assert_same(local, far)
    scattered(volume, 50, seed=2)
    mirror.wait_in_sync()
    assert_same(local, far)
    assert mirror.stop() == 0, mirror.peer.output()
    assert_same(local, far)
    assert not (mirror.config_dir / "mirror-vm1.sock").exists()


@pytest.mark.needs("qemu-img", "tgtd")
def test_writes_over_nbd_reach_a_leg_at_tgt(local: Path, far: Path, tmp_path: Path):
    with (
        tgt.serve([far], tmp_path) as target,
        cleaned_up(Mirror(tmp_path, local, [target.url()])) as mirror,
    ):
        mirror.create()
        socket = tmp_path / "nbd.sock"
        mirror.start("--nbd", socket)
        mirror.wait_in_sync()
        source = noise(tmp_path / "source", SIZE, seed=3)
        qemu.convert(source, f"nbd+unix:///?socket={socket}")
        mirror.wait_in_sync()
        assert mirror.stop() == 0, mirror.peer.output()
    assert_same(source, local)
    assert_same(local, far)


@pytest.mark.needs("qemu-img")
def test_iscsi_front_and_a_leg_at_a_path(local: Path, far: Path, tmp_path: Path):
    with cleaned_up(Mirror(tmp_path, local, [far])) as mirror:
        mirror.create()
        port = free_port()
        mirror.start("--iscsi", f"127.0.0.1:{port}")
        mirror.wait_in_sync()
        source = noise(tmp_path / "source", SIZE, seed=4)
        url = f"iscsi://127.0.0.1:{port}/iqn.2026-11.io.enkaku:mirror-vm1/0"
        enkaku.command("copy", source, url, "--force", "--verify")
        mirror.wait_in_sync()
        assert mirror.stop() == 0, mirror.peer.output()
    assert_same(source, local)
    assert_same(local, far)


@NEEDS_FUSE
def test_two_legs_each_with_its_own_state(local: Path, target: Target, far: Path, tmp_path: Path):
    second = empty(tmp_path / "second.img", SIZE + TAIL)
    with cleaned_up(Mirror(tmp_path, local, [target.url(), second])) as mirror:
        mirror.create()
        mirror.edit(remote_timeout=SHORT)
        volume = mirror.start_fuse()
        mirror.wait_in_sync()
        target.peer.kill()
        scattered(volume, 20, seed=5)
        report = mirror.wait_state("lost", leg=1)
        assert report["legs"][1]["state"] == "in-sync"
        assert_same(local, second)
        enkaku.restart(target)
        mirror.wait_in_sync()
        assert mirror.stop() == 0, mirror.peer.output()
    assert_same(local, second)
    assert_same(local, far)


@NEEDS_FUSE
def test_a_killed_target_is_caught_up_with(mirror: Mirror, target: Target, local: Path, far: Path):
    volume = mirror.start_fuse()
    mirror.wait_in_sync()
    writer = Writer(volume, seed=6)
    try:
        for _ in range(2):
            writer.wait_for_more(mirror, 10)
            target.peer.kill()
            mirror.wait_state("lost", "connecting")
            writer.wait_for_more(mirror, 10)
            enkaku.restart(target)
            mirror.wait_state("in-sync")
    finally:
        writer.end()
    assert writer.error is None, writer.error
    mirror.wait_in_sync()
    assert mirror.stop() == 0, mirror.peer.output()
    assert_same(local, far)


@NEEDS_FUSE
def test_a_catch_up_sends_what_has_changed(mirror: Mirror, target: Target, local: Path, far: Path):
    """Far less than the disk: 64 blocks of 4 KiB."""
    volume = mirror.start_fuse()
    mirror.wait_in_sync()
    target.peer.kill()
    for block in range(64):
        write(volume, block * 37 * BLOCK, os.urandom(BLOCK))
    before = mirror.wait_state("lost")["legs"][0]
    assert 0 < before["dirty_bytes"] <= 65 * BLOCK, before
    enkaku.restart(target)
    after = mirror.wait_in_sync()["legs"][0]
    sent = after["sent_bytes"] - before["sent_bytes"]
    assert sent <= 2 * 64 * BLOCK + MIB // 4, f"{sent} bytes for {64 * BLOCK}"
    assert mirror.stop() == 0, mirror.peer.output()
    assert_same(local, far)


@NEEDS_FUSE
def test_a_stopped_and_started_mirror_copies_nothing(mirror: Mirror, local: Path, far: Path):
    mirror.start_fuse()
    mirror.wait_in_sync()
    assert mirror.stop() == 0
    mirror.start_fuse()
    report = mirror.wait_in_sync()
    assert report["legs"][0]["sent_bytes"] < MIB // 4, report
    assert mirror.stop() == 0
    assert_same(local, far)


@NEEDS_FUSE
def test_a_killed_mirror_goes_on_with_what_may_differ(mirror: Mirror, local: Path, far: Path):
    volume = mirror.start_fuse()
    mirror.wait_in_sync()
    for seed in (7, 8):
        writer = Writer(volume, seed)
        writer.wait_for_more(mirror, 15)
        mirror.kill()
        writer.end()
        volume = mirror.start_fuse()
        mirror.wait_in_sync()
        assert_same(local, far)
    assert mirror.stop() == 0, mirror.peer.output()
    assert_same(local, far)


@NEEDS_FUSE
def test_both_ends_killed(mirror: Mirror, target: Target, local: Path, far: Path):
    volume = mirror.start_fuse()
    mirror.wait_in_sync()
    writer = Writer(volume, seed=9)
    writer.wait_for_more(mirror, 15)
    mirror.kill()
    target.peer.kill()
    writer.end()
    # The local disk can be used at once; the leg follows when it is back.
    volume = mirror.start_fuse()
    scattered(volume, 10, seed=10)
    enkaku.restart(target)
    mirror.wait_in_sync()
    assert mirror.stop() == 0, mirror.peer.output()
    assert_same(local, far)


@NEEDS_FUSE
def test_a_target_that_hangs_is_a_lost_leg_after_its_time(
    mirror: Mirror, target: Target, local: Path, far: Path
):
    """As a link that is cut: nothing is answered, and nothing is refused."""
    volume = mirror.start_fuse()
    mirror.wait_in_sync()
    with target.peer.standing_still():
        scattered(volume, 5, seed=11)
        lost = mirror.wait_state("lost")["legs"][0]
        assert lost["message"] and lost["consistent"], lost
        assert lost["loss"]["bytes"] >= BLOCK, lost
    mirror.wait_in_sync()
    assert mirror.stop() == 0, mirror.peer.output()
    assert_same(local, far)


@NEEDS_FUSE
def test_pause_and_resume(mirror: Mirror, local: Path, far: Path):
    volume = mirror.start_fuse()
    mirror.wait_in_sync()
    assert mirror.command("pause").stdout == "paused\n"
    before = far.read_bytes()
    scattered(volume, 5, seed=12)
    report = mirror.wait_state("paused")
    assert report["legs"][0]["dirty_bytes"] > 0
    assert far.read_bytes()[:SIZE] == before[:SIZE], "something was sent to a paused leg"
    mirror.command("resume", "--leg", "1")
    mirror.wait_in_sync()
    assert mirror.stop() == 0, mirror.peer.output()
    assert_same(local, far)


@NEEDS_FUSE
def test_verify_finds_a_flipped_byte_and_mends_it(mirror: Mirror, local: Path, far: Path):
    mirror.start_fuse()
    mirror.wait_in_sync()
    found = json.loads(mirror.command("verify", "--json").stdout)
    assert (found["compared_bytes"], found["mismatches"]) == (SIZE, 0), found
    place = 5 * MIB + 123
    with far.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))
    said = mirror.command("verify", check=False)
    assert said.code == 1 and "1 blocks of 4 KiB differ" in said.stdout, said
    mended = mirror.command("verify", "--heal")
    assert "1 of them mended" in mended.stdout, mended
    assert mirror.command("verify").stdout.endswith("nothing differs\n")
    assert mirror.stop() == 0
    assert_same(local, far)


@NEEDS_FUSE
def test_it_verifies_by_itself_and_tells_what_differs(mirror: Mirror, local: Path, far: Path):
    mirror.edit(verify='{ every = "1s", rate = "max" }')
    mirror.start_fuse("--metrics", "127.0.0.1:0")

    def verdict(report: dict) -> dict:
        return report["legs"][0]["verified"] or {"mismatches": -1}

    report = mirror.wait_for("verified", lambda report: verdict(report)["mismatches"] == 0)
    assert verdict(report)["compared_bytes"] == SIZE, report
    with far.open("r+b") as file:
        file.seek(5 * MIB)
        file.write(b"\xa5" * 512)
    report = mirror.wait_for("found", lambda report: verdict(report)["mismatches"] == 1)
    assert report["legs"][0]["state"] == "in-sync", report
    told = mirror.command("status", check=False).stdout
    assert "1 blocks of 4 KiB differ (`enkaku mirror verify --heal`)" in told, told
    sample = f'enkaku_mirror_verify_mismatches{{mirror="vm1",leg="1",name="{mirror.leg()["name"]}"}}'
    assert mirror.metrics()[sample] == 1
    assert differences(local, far, SIZE) == [5 * MIB], "it mends nothing by itself"
    assert mirror.stop() == 0, mirror.peer.output()
    mirror.edit(verify='{ every = "7d" }')
    mirror.start_fuse()
    mirror.wait_in_sync()
    assert verdict(mirror.report())["mismatches"] == 1, "it is known again"
    assert "1 of them mended" in mirror.command("verify", "--heal").stdout
    mirror.wait_for("mended", lambda report: verdict(report)["mismatches"] == 0)
    assert mirror.stop() == 0, mirror.peer.output()
    assert_same(local, far)


@NEEDS_FUSE
def test_resync_of_everything(mirror: Mirror, local: Path, far: Path):
    mirror.start_fuse()
    mirror.wait_in_sync()
    with far.open("r+b") as file:
        file.write(b"\xff" * MIB)  # behind everybody's back
    mirror.command("resync", "--whole")
    mirror.wait_for(
        "copied again", lambda report: report["legs"][0]["sent_bytes"] > SIZE // 2 + MIB
    )
    mirror.wait_in_sync()
    assert mirror.stop() == 0
    assert_same(local, far)


@NEEDS_VOLUME
def test_a_promoted_leg_is_mounted_with_everything_on_it(
    mirror: Mirror, target: Target, far: Path, tmp_path: Path
):
    """Fail over: the near site is gone, at once and without a word."""
    roots = grow(tmp_path / "tree", 6 * MIB)
    volume = mirror.start_fuse()
    with loop_device(volume) as device:
        make_ext4(device)
        with mounted(device, tmp_path / "near") as folder:
            run([need("cp"), "-a", *roots, folder])
            run(["sync", "-f", folder])
            mirror.wait_in_sync()
            mirror.peer.kill()
    mirror.unmount()
    promoted = enkaku.report("mirror", "promote", target.url())
    assert promoted["consistent"] and promoted["size"] == SIZE, promoted
    with (
        enkaku.attach_fuse(target.url(), tmp_path / "far", tmp_path) as file,
        loop_device(file) as device,
    ):
        with mounted(device, tmp_path / "there") as folder:
            copied = [folder / root.name for root in roots]
            assert fingerprints(copied) == fingerprints(roots)
        check_ext4(device)


@NEEDS_FUSE
def test_both_have_written_and_neither_is_touched(
    mirror: Mirror, target: Target, local: Path, far: Path
):
    """Split-brain: the leg was promoted and written to, and the old side has gone on."""
    volume = mirror.start_fuse()
    mirror.wait_in_sync()
    assert mirror.stop() == 0
    enkaku.command("mirror", "promote", target.url())
    image = noise(far.with_name("other"), MIB, seed=13)
    target.peer.kill()
    volume = mirror.start_fuse()
    scattered(volume, 5, seed=14)
    with far.open("r+b") as file:
        file.write(image.read_bytes())
    before = far.read_bytes()
    enkaku.restart(target)
    report = mirror.wait_state("diverged", "fenced")
    scattered(volume, 5, seed=15)
    assert far.read_bytes() == before, "a promoted leg was written to"
    assert report["legs"][0]["loss"] is None, report
    mirror.command("resolve", "--discard", "1")
    mirror.wait_in_sync()
    assert mirror.stop() == 0, mirror.peer.output()
    assert not differences(mirror.local, far, SIZE), "the leg got the local content"


@NEEDS_FUSE
def test_an_image_that_is_not_of_one_moment_is_promoted_with_force_only(
    local: Path, target: Target, tmp_path: Path
):
    with cleaned_up(Mirror(tmp_path, local, [target.url()])) as mirror:
        mirror.create()
        # It never ran: there is no image at the leg.
        refused = enkaku.command("mirror", "promote", target.url(), check=False)
        assert refused.code == 1 and "--force" in refused.stderr, refused
        forced = enkaku.report("mirror", "promote", target.url(), "--force")
        assert not forced["consistent"], forced


@NEEDS_FUSE
def test_what_an_operator_is_told(mirror: Mirror, target: Target, local: Path):
    volume = mirror.start_fuse("--metrics", "127.0.0.1:0")
    mirror.wait_in_sync()
    scattered(volume, 3, seed=16)
    mirror.wait_in_sync()
    done = mirror.command("status")
    assert done.stdout.startswith("vm1: 25.2 MB, sync, 1 leg; running for "), done.stdout
    assert "promote now would lose: nothing" in done.stdout, done.stdout
    assert target.url() in done.stdout, done.stdout
    socket = mirror.config_dir / "mirror-vm1.sock"
    assert stat.S_IMODE(socket.stat().st_mode) == 0o600
    assert mirror.ask({"do": "status"})["status"]["front"] == str(volume)
    assert "not a request" in mirror.ask({"do": "fly"})["errors"][0]
    labels = f'{{mirror="vm1",leg="1",name="{target.url()}"'
    samples = mirror.metrics()
    assert samples[f'enkaku_mirror_state{labels},state="in-sync"}}'] == 1.0, samples
    assert samples[f"enkaku_mirror_lag_seconds{labels}}}"] == 0.0
    assert samples[f"enkaku_mirror_dirty_bytes{labels}}}"] == 0.0
    assert samples['enkaku_mirror_written_bytes_total{mirror="vm1"}'] >= 3 * BLOCK
    assert samples[f"enkaku_mirror_wire_bytes_total{labels}}}"] > 0
    assert mirror.stop() == 0
    stopped = mirror.command("status", check=False)
    assert stopped.code == 1 and "vm1 does not run; its metadata says:" in stopped.stdout, stopped
    assert f"leg 1: {target.url()}, last seen in sync" in stopped.stdout, stopped
    assert "closed in order" in stopped.stdout, stopped
    there = enkaku.report("mirror", "inspect", target.url())
    assert there["what"] == "leg" and there["consistency"] == {"is": "consistent"}, there
    assert there["size_bytes"] == SIZE, there


@NEEDS_FUSE
def test_watch_tells_again_and_again(mirror: Mirror, tmp_path: Path):
    mirror.start_fuse()
    argv = [enkaku.binary(), "mirror", "status", "vm1", "--config-dir", mirror.config_dir]
    watch = Peer([*argv, "--watch", "--json"], tmp_path / "watch.log")
    try:
        watch.wait_until(lambda: watch.output().count("\n") >= 3, "three reports")
        reports = [json.loads(line) for line in watch.output().splitlines()[:3]]
        assert reports[0]["time_s"] < reports[1]["time_s"] < reports[2]["time_s"]
        assert mirror.stop() == 0
        assert watch.wait(10) == 1
    finally:
        watch.stop()


class Refusals:
    """Command lines that are refused, and what is said, for the golden file."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.said: list[str] = []
        self.names: dict[str, str] = {str(folder): "$TMP"}

    def note(self, what: str, done) -> None:
        assert done.code in (1, 2), (what, done)
        said = (done.stdout + done.stderr).strip()
        assert "\n" not in said or "toml" in said, said
        for value, name in self.names.items():
            said = said.replace(value, name)
        said = re.sub(r"\b[0-9a-f]{8}-[0-9a-f]{4}\b", "$UUID", said)
        said = re.sub(r"generation [0-9a-f]{8}\b", "generation $ID", said)
        said = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+ UTC", "$TIME", said)
        self.said.append(f"# {what}\n{said}\n→ {done.code}\n")


GOLDEN = Path(__file__).with_name("golden") / "mirror.txt"
WRONG = """[mirror]
local = "disk.img"
metadata = "$TMP/m"
mode = "asink"
lag = { seconds = 0, byts = "1M" }
on_los = "stop"
[[mirror.remote]]
url = "iscsi://u%hunter2@far/iqn.2026-11.org.example:a/0"
[[mirror.remote]]
url = "iscsi://far/iqn.2026-11.org.example:a"
"""


@NEEDS_FUSE
def test_what_is_refused_and_how_it_is_said(tmp_path: Path):
    folder = tmp_path / "t"
    folder.mkdir()
    local = noise(folder / "local.img", 4 * MIB)
    far, small = empty(folder / "far.img", 8 * MIB), empty(folder / "small.img", 4 * MIB)
    other_local = noise(folder / "other.img", 4 * MIB, seed=2)
    full = noise(folder / "full.img", 8 * MIB)
    full.write_bytes(b"x" * MIB + full.read_bytes()[MIB:])
    refusals = Refusals(folder)
    with ExitStack() as stack:
        def mirror(name: str, local: Path, *legs: str | Path) -> Mirror:
            made = Mirror(folder, local, list(legs), name)
            return stack.enter_context(cleaned_up(made))

        target = stack.enter_context(enkaku.serve([far], tmp_path))
        refusals.names |= {f":{target.port}": ":$PORT"}
        first = mirror("first", local, target.url())
        refusals.note("a name that is none", mirror("a/b", local, far).create(check=False))
        refusals.note("a mirror that is not there", first.command("status", check=False))
        refusals.note("no local disk", mirror("m", folder / "none", far).create(check=False))
        refusals.note("no leg there", mirror("m", local, folder / "none").create(check=False))
        refusals.note("a leg too small", mirror("m", local, small).create(check=False))
        refusals.note("a leg with something on it", mirror("m", local, full).create(check=False))
        refusals.note("the local disk as its own leg", mirror("m", local, local).create(check=False))
        password = target.url().replace("iscsi://", "iscsi://u%hunter2@")
        refusals.note("a password in the URL", mirror("m", local, password).create(check=False))
        assert not list(folder.glob("mirrors/*")), "something is left of what was refused"
        assert not list(folder.glob("*.mirror")), "something is left of what was refused"

        first.create()
        refusals.note("what is there already", first.create(check=False))
        second = mirror("second", other_local, target.url())
        refusals.note("a leg of another mirror", second.create(check=False))
        refusals.note("to ask one that does not run", first.command("pause", check=False))
        refusals.note(
            "no front", enkaku.command("mirror", "run", "first", check=False)
        )
        first.start_fuse()
        first.wait_in_sync()
        twice = enkaku.command(*first.argv("--nbd", folder / "s")[1:], check=False)
        refusals.note("to run it twice", twice)
        refusals.note("a leg that is not there", first.command("pause", "--leg", "2", check=False))
        refusals.note(
            "a leg that a mirror uses, from this host",
            enkaku.command("mirror", "promote", target.url(), check=False),
        )
        assert first.stop() == 0
        (first.config_dir / "wrong.toml").write_text(WRONG.replace("$TMP", str(folder)))
        wrong = mirror("wrong", local)
        refusals.note("a configuration full of mistakes", wrong.command("status", check=False))
    text = "\n".join(refusals.said)
    if os.environ.get("ENKAKU_GOLDEN") == "write":
        GOLDEN.write_text(text)
    assert "hunter2" not in text
    assert text == GOLDEN.read_text()


@NEEDS_FUSE
def test_two_mirrors_on_one_leg(local: Path, far: Path, target: Target, tmp_path: Path):
    """The leg was given to another mirror by force: the first one finds that and leaves it alone."""
    first = Mirror(tmp_path, local, [target.url()], "first")
    other = noise(tmp_path / "other.img", SIZE, seed=17)
    second = Mirror(tmp_path, other, [target.url()], "second")
    with cleaned_up(first), cleaned_up(second):
        first.create()
        first.start_fuse()
        first.wait_in_sync()
        assert first.stop() == 0
        second.create("--force")
        second.start_fuse()
        second.wait_in_sync()
        assert second.stop() == 0
        before = far.read_bytes()
        volume = first.start_fuse()
        report = first.wait_state("unrelated")
        assert "mirror" in report["legs"][0]["message"], report
        scattered(volume, 5, seed=18)
        assert far.read_bytes() == before
        assert first.stop() == 0
        assert_same(other, far)


@NEEDS_FUSE
def test_a_leg_is_reserved_for_its_mirror(
    mirror: Mirror, target: Target, local: Path, far: Path, tmp_path: Path
):
    volume = mirror.start_fuse()
    assert mirror.wait_in_sync()["legs"][0]["guard"] == "reservation"
    assert "  fence        reservation\n" in mirror.command("status").stdout
    scattered(volume, 5, seed=19)
    mirror.wait_in_sync()
    other = noise(tmp_path / "other", 2 * MIB, seed=20)
    for runs in (True, False):
        before = far.read_bytes()
        refused = enkaku.command("copy", other, target.url(), "--force", check=False)
        assert refused.code == 1 and "reserved" in refused.stderr, refused
        assert far.read_bytes() == before, "another host has written to a leg"
        if runs:
            assert mirror.stop() == 0, mirror.peer.output()
    assert_same(local, far)


@NEEDS_FUSE
def test_reservations_as_the_configuration_says(
    mirror: Mirror, target: Target, local: Path, far: Path, tmp_path: Path
):
    text = mirror.config.read_text()
    url_line = next(line for line in text.splitlines() if line.startswith("url = "))
    mirror.config.write_text(text.replace(url_line, url_line + '\nfence = "none"'))
    mirror.start_fuse()
    assert mirror.wait_in_sync()["legs"][0]["guard"] == "superblock"
    assert mirror.stop() == 0, mirror.peer.output()
    # A file knows none: asked for, it is not used without.
    second = empty(tmp_path / "second.img", SIZE + TAIL)
    other = noise(tmp_path / "other.img", SIZE)
    with cleaned_up(Mirror(tmp_path, other, [second], "vm2")) as strict:
        strict.create()
        text = strict.config.read_text()
        path_line = next(line for line in text.splitlines() if line.startswith("path = "))
        strict.config.write_text(text.replace(path_line, path_line + '\nfence = "reservation"'))
        strict.start_fuse()
        report = strict.wait_state("failed")
        assert "cannot be reserved" in report["legs"][0]["message"], report
        assert strict.stop() == 0, strict.peer.output()


def elsewhere(target: Target, *words: object, check: bool = True):
    """`promote` from another host, as far as the target can tell."""
    name = ("--initiator-name", "iqn.2026-11.org.example:far")
    return enkaku.command("mirror", "promote", target.url(), *name, *words, check=check)


@NEEDS_FUSE
def test_after_a_promotion_the_old_mirror_writes_nothing(
    mirror: Mirror, target: Target, local: Path, far: Path
):
    """It runs on, and is written to, by a user who knows nothing of all that."""
    volume = mirror.start_fuse()
    mirror.wait_in_sync()
    writer = Writer(volume, seed=21)
    try:
        writer.wait_for_more(mirror, 10)
        done = elsewhere(target)
        assert "reserved under key 0x" in done.stdout, done
        promoted = far.read_bytes()
        writer.wait_for_more(mirror, 20)
        # The next write to be refused says that the leg is fenced. But PREEMPT AND ABORT may end a
        # write in flight without an answer: the leg is then lost, and what the next attempt reads
        # from its metadata is that it was written elsewhere. Both are true, both send nothing more.
        mirror.wait_state("fenced", "diverged")
        writer.wait_for_more(mirror, 20)
        assert far.read_bytes() == promoted, "the old side has written to a promoted leg"
        # As often as it is tried again, and by a process of its own.
        mirror.command("resume")
        mirror.wait_state("fenced", "diverged")
    finally:
        writer.end()
    assert writer.error is None, writer.error
    mirror.kill()
    mirror.start_fuse()
    mirror.wait_state("fenced", "diverged")
    assert mirror.stop() == 0, mirror.peer.output()
    assert far.read_bytes() == promoted


@NEEDS_FUSE
def test_a_mirror_that_ended_in_order_says_so_to_its_leg(mirror: Mirror, target: Target, far: Path):
    text = mirror.config.read_text()
    url_line = next(line for line in text.splitlines() if line.startswith("url = "))
    mirror.config.write_text(text.replace(url_line, url_line + '\nfence = "none"'))
    mirror.start_fuse()
    mirror.wait_in_sync()
    assert mirror.stop() == 0, mirror.peer.output()
    target.peer.stop()
    done = enkaku.command("mirror", "promote", far)
    assert "promoted" in done.stdout, "one that ended in order is taken over at once"


def blocks_that_differ(one: Path, other: Path) -> int:
    return len(differences(one, other, min(one.stat().st_size, other.stat().st_size, FAILBACK)))


FAILBACK = 64 * MIB


@NEEDS_FUSE
def test_fail_over_and_back_by_the_difference(tmp_path: Path):
    """The near site goes down with writes that are not at the far one; the far one takes over and
    writes; the near disk comes back and gets what differs; and the roles change again."""
    local = noise(tmp_path / "near.img", FAILBACK)
    far = empty(tmp_path / "far.img", FAILBACK + TAIL)
    generator = random.Random(22)

    def some(volume: Path, count: int) -> None:
        for _ in range(count):
            at = generator.randrange(FAILBACK // BLOCK) * BLOCK
            write(volume, at, generator.randbytes(BLOCK))

    with ExitStack() as stack:
        far_target = stack.enter_context(enkaku.serve([far], tmp_path))
        near = stack.enter_context(cleaned_up(Mirror(tmp_path, local, [far_target.url()], "near")))
        near.create()
        near.edit(remote_timeout=SHORT)
        volume = near.start_fuse()
        some(volume, 20)
        near.wait_in_sync()
        far_target.peer.kill()
        some(volume, 100)
        near.wait_state("lost")
        near.kill()

        # The other site takes the leg over, and knows from then on what is written.
        port = free_port()
        old_disk = f"iscsi://127.0.0.1:{port}/{enkaku.IQN}/0"
        back = stack.enter_context(cleaned_up(Mirror(tmp_path, far, [old_disk], "back")))
        back.create("--from-leg", "--force")
        back.edit(remote_timeout=SHORT)
        volume = back.start_fuse()
        some(volume, 200)
        assert back.wait_state("lost")["legs"][0]["dirty_bytes"] > 0
        # The old site gives its disk back, which does not run any more.
        given = json.loads(near.command("failback", "--json").stdout)
        assert BLOCK * 100 <= given["differing_bytes"] <= FAILBACK, given
        refused = near.command("run", "--nbd", tmp_path / "n.sock", check=False)
        assert refused.code == 1 and "failback" in refused.stderr, refused
        differ = blocks_that_differ(local, far)
        assert differ >= 250, differ
        near_target = stack.enter_context(enkaku.serve([local], tmp_path, port=port))
        sent = back.wait_in_sync()["legs"][0]["sent_bytes"]
        assert sent <= 1.1 * differ * BLOCK, f"{sent} bytes for {differ} blocks"
        some(volume, 20)
        assert back.stop() == 0, back.peer.output()
        assert not differences(local, far, FAILBACK)

        # And back: nothing is lost, and next to nothing sent.
        near_target.peer.stop()
        near.create("--from-leg", "--force")
        near.edit(remote_timeout=SHORT)
        volume = near.start_fuse()
        some(volume, 20)
        back.command("failback")
        enkaku.restart(far_target)
        sent = near.wait_in_sync()["legs"][0]["sent_bytes"]
        assert sent <= 30 * BLOCK, sent
        assert near.stop() == 0, near.peer.output()
        assert not differences(local, far, FAILBACK)


@NEEDS_FUSE
def test_both_have_written_and_the_local_side_is_given_up(
    mirror: Mirror, target: Target, local: Path, far: Path
):
    volume = mirror.start_fuse()
    mirror.wait_in_sync()
    target.peer.kill()
    scattered(volume, 5, seed=23)
    mirror.wait_state("lost")
    enkaku.restart(target)
    mirror.wait_in_sync()
    assert mirror.stop() == 0
    enkaku.command("mirror", "promote", target.url())
    target.peer.kill()
    volume = mirror.start_fuse()
    scattered(volume, 5, seed=24)
    with far.open("r+b") as file:
        file.write(b"far" * 10_000)
    there = far.read_bytes()[:SIZE]
    running = mirror.command("resolve", "--discard", "local", check=False)
    assert running.code == 2 and "in use" in running.stderr, running
    enkaku.restart(target)
    mirror.wait_state("diverged")
    assert mirror.stop() == 0
    done = mirror.command("resolve", "--discard", "local", "--keep", "1")
    assert "differed" in done.stdout, done
    assert local.read_bytes() == there
    mirror.start_fuse()
    mirror.wait_in_sync()
    assert mirror.stop() == 0, mirror.peer.output()
    assert local.read_bytes() == there == far.read_bytes()[:SIZE]


@NEEDS_FUSE
def test_legs_come_and_go(mirror: Mirror, target: Target, local: Path, far: Path, tmp_path: Path):
    mirror.start_fuse()
    mirror.wait_in_sync()
    second = empty(tmp_path / "second.img", SIZE + TAIL)
    assert mirror.stop() == 0
    assert mirror.command("add-leg", "--remote", second).stdout.endswith("is leg 2 of vm1\n")
    twice = mirror.command("add-leg", "--remote", second, check=False)
    assert twice.code == 2 and "twice" in twice.stderr, twice
    volume = mirror.start_fuse()
    report = mirror.wait_in_sync()
    assert report["legs"][0]["sent_bytes"] < MIB <= report["legs"][1]["sent_bytes"], report
    scattered(volume, 10, seed=25)
    assert mirror.stop() == 0, mirror.peer.output()
    assert_same(local, far)
    assert_same(local, second)

    removed = json.loads(mirror.command("remove-leg", "--leg", "1", "--json").stdout)
    assert removed["image"]["consistent"] and removed["image"]["size"] == SIZE, removed
    nothing = enkaku.command("mirror", "inspect", target.url())
    assert nothing.stdout == "nothing of a mirror\n", nothing
    image = far.read_bytes()
    volume = mirror.start_fuse()
    report = mirror.wait_in_sync()
    assert [leg["name"] for leg in report["legs"]] == [str(second)], report
    assert report["legs"][0]["sent_bytes"] < MIB, "the leg that is left lost its bits"
    scattered(volume, 5, seed=26)
    assert mirror.stop() == 0, mirror.peer.output()
    assert_same(local, second)
    assert far.read_bytes() == image
    # It is a plain volume: anybody writes to it.
    enkaku.command("copy", noise(tmp_path / "other", MIB, seed=27), target.url(), "--force")
    last = mirror.command("remove-leg", "--leg", "1", check=False)
    assert last.code == 1 and "1 to 3" in last.stderr, last


@NEEDS_FUSE
def test_a_mirror_grows(local: Path, tmp_path: Path):
    far = empty(tmp_path / "far.img", SIZE + TAIL)
    with cleaned_up(Mirror(tmp_path, local, [far])) as mirror:
        mirror.create()
        mirror.start_fuse()
        mirror.wait_in_sync()
        assert mirror.stop() == 0
        refused = mirror.command("grow", check=False)
        assert refused.code == 1 and "make it larger first" in refused.stderr, refused
        os.truncate(local, SIZE + 8 * MIB)
        refused = mirror.command("grow", check=False)
        assert refused.code == 1 and str(far) in refused.stderr, refused
        os.truncate(far, SIZE + 8 * MIB + TAIL)
        assert mirror.command("grow").stdout.startswith(f"vm1 has {SIZE + 8 * MIB} bytes")
        volume = mirror.start_fuse()
        assert volume.stat().st_size == SIZE + 8 * MIB
        report = mirror.wait_in_sync()
        assert report["legs"][0]["sent_bytes"] < MIB, "what is new is zero, and the rest is there"
        write(volume, SIZE + 4 * MIB, os.urandom(BLOCK))
        mirror.wait_in_sync()
        assert mirror.stop() == 0, mirror.peer.output()
        assert not differences(local, far, SIZE + 8 * MIB)
