"""`enkaku mirror --mode async` with real processes: writes wait for no leg, what is at a leg is always
the beginning of what was written, and how far it may be behind is bounded."""

import os
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from conftest import MIB, empty
from support.mirror import BLOCK, TAIL, Mirror, cleaned_up, differences, write

from enkaku_lab.peers import Target, enkaku, tgt

SIZE = 24 * MIB
NEEDS_FUSE = pytest.mark.needs("/dev/fuse", "fusermount3")
GROUP = 4
"""Blocks that are written before each flush."""
GROUPS = SIZE // BLOCK // GROUP


@pytest.fixture
def local(tmp_path: Path) -> Path:
    return empty(tmp_path / "local.img", SIZE)


def made(stack: ExitStack, folder: Path, local: Path, target: Target, **keys: str) -> Mirror:
    mirror = stack.enter_context(cleaned_up(Mirror(folder, local, [target.url()])))
    mirror.create(mode="async")
    mirror.edit(**keys)
    return mirror


def numbered(group: int) -> bytes:
    """A block of this group, which no block of zeroes and of no other group is like."""
    return group.to_bytes(8, "little") * (BLOCK // 8)


class Ledger:
    """Writes group after group, each stable before the next, until it is told to end or the volume is
    gone."""

    def __init__(self, volume: Path):
        self.volume = volume
        self.acknowledged = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def _write(self) -> None:
        descriptor = None
        try:
            descriptor = os.open(self.volume, os.O_RDWR)
            for group in range(1, GROUPS + 1):
                if self._stop.is_set():
                    return
                for block in range(GROUP):
                    offset = ((group - 1) * GROUP + block) * BLOCK
                    os.pwrite(descriptor, numbered(group), offset)
                os.fsync(descriptor)
                self.acknowledged = group
        except OSError:
            pass  # The mirror was killed.
        finally:
            if descriptor is not None:
                with suppress(OSError):
                    os.close(descriptor)

    def wait_for(self, mirror: Mirror, group: int) -> None:
        mirror.peer.wait_until(lambda: self.acknowledged >= group, f"group {group} is stable")

    def end(self) -> None:
        self._stop.set()
        self._thread.join(30)
        assert not self._thread.is_alive(), "a write hangs"


def groups_of(image: Path) -> int:
    """Groups that are there whole. What is there must be a beginning of what was written: behind the
    first group that is not whole there is nothing."""
    content = image.read_bytes()[:SIZE]
    blocks = [content[at : at + BLOCK] for at in range(0, SIZE, BLOCK)]
    found = [block == numbered(at // GROUP + 1) for at, block in enumerate(blocks)]
    blank = bytes(BLOCK)
    whole = 0
    while whole < GROUPS and all(found[whole * GROUP : (whole + 1) * GROUP]):
        whole += 1
    behind = (whole + 1) * GROUP
    later = [at for at in range(behind, len(blocks)) if blocks[at] != blank]
    assert not later, f"groups 1 to {whole} are whole, and block {later[0]} is of a later one"
    torn = range(whole * GROUP, min(behind, len(blocks)))
    assert all(found[at] or blocks[at] == blank for at in torn), "a block that nobody wrote"
    return whole


@NEEDS_FUSE
@pytest.mark.parametrize(
    "kind", ["enkaku", pytest.param("tgt", marks=pytest.mark.needs("tgtd"))]
)
def test_a_killed_mirror_leaves_a_beginning_of_what_was_written(
    kind: str, local: Path, far: Path, tmp_path: Path
):
    """kill -9 at three moments; then the leg is promoted, without anything of the near site. Our target
    is sent a stream; tgt goes on behind a failure, so that its answers are waited for."""
    serve = {"enkaku": enkaku.serve, "tgt": tgt.serve}[kind]
    order = {"enkaku": "stream", "tgt": "waited"}[kind]
    epochs = []
    for groups in (7, 40, 150):
        local.with_name("local.img.mirror").unlink(missing_ok=True)
        for path, size in ((local, SIZE), (far, SIZE + TAIL)):
            path.unlink()
            empty(path, size)
        folder = tmp_path / str(groups)
        folder.mkdir()
        with ExitStack() as stack:
            target = stack.enter_context(serve([far], folder))
            mirror = made(stack, folder, local, target)
            volume = mirror.start_fuse()
            mirror.wait_in_sync()
            sending = mirror.leg()["sending"]
            assert sending["order"] == order and sending["why"], sending
            ledger = Ledger(volume)
            ledger.wait_for(mirror, groups)
            mirror.kill()
            ledger.end()
            promoted = enkaku.report("mirror", "promote", target.url())
            assert promoted["consistent"], promoted
            epochs.append(promoted["epoch"])
        there, here = groups_of(far), groups_of(local)
        assert there <= here and ledger.acknowledged <= here, (there, here, ledger.acknowledged)
    # Of the first moments a busy machine may have sent nothing yet.
    assert epochs[-1] > 0, epochs


@NEEDS_FUSE
def test_writes_wait_for_no_leg_and_get_there_when_it_answers_again(
    local: Path, far: Path, target: Target, tmp_path: Path
):
    with ExitStack() as stack:
        mirror = made(stack, tmp_path, local, target, lag='{ seconds = 600, bytes = "64M" }')
        volume = mirror.start_fuse("--metrics", "127.0.0.1:0")
        mirror.wait_in_sync()
        copied = mirror.leg()["sent_bytes"]
        with target.peer.standing_still():
            begun = time.monotonic()
            for group in range(1, 21):
                write(volume, (group - 1) * GROUP * BLOCK, numbered(group) * GROUP)
            took = time.monotonic() - begun
            # Far less than the time after which a leg is lost (10 s), which is the least that a
            # write would take that waits for the leg.
            assert took < 8, f"{took:.1f} s"
            leg = mirror.leg()
            assert leg["state"] == "in-sync" and leg["consistent"], leg
            assert leg["lag_bytes"] >= 20 * GROUP * BLOCK and leg["epochs"] == 20, leg
            assert leg["loss"]["bytes"] == leg["lag_bytes"] and leg["loss"]["seconds"] > 0, leg
            text = mirror.command("status", check=False).stdout
            assert "async, 1 leg" in text and "promote now would lose: " in text, text
            assert "in 20 epochs" in text and "at the bound of the lag" in text, text
            labels = f'{{mirror="vm1",leg="1",name="{target.url()}"'
            samples = mirror.metrics()
            assert samples[f"enkaku_mirror_lag_bytes{labels}}}"] == leg["lag_bytes"]
            assert samples[f"enkaku_mirror_lag_seconds{labels}}}"] > 0
            assert 'enkaku_mirror_guest_wait_seconds_total{mirror="vm1",why="lag"}' in samples
        mirror.wait_in_sync()
        assert groups_of(far) == 20
        assert mirror.leg()["sent_bytes"] - copied < 2 * 20 * GROUP * BLOCK, "sent once, and stamps"
        assert mirror.stop() == 0, mirror.peer.output()
    assert not differences(local, far, SIZE)


@NEEDS_FUSE
def test_a_killed_target_is_resumed_in_order_and_its_image_stays_one(
    local: Path, far: Path, target: Target, tmp_path: Path
):
    """While the leg is away for less than the lag, nothing is copied: the log goes on behind its stamp,
    and at no time is the image there none."""
    with ExitStack() as stack:
        lag = '{ seconds = 600, bytes = "64M" }'
        mirror = made(stack, tmp_path, local, target, lag=lag, remote_timeout='"2s"')
        volume = mirror.start_fuse()
        mirror.wait_in_sync()
        ledger = Ledger(volume)
        for groups in (20, 60, 120):
            ledger.wait_for(mirror, groups)
            target.peer.kill()
            groups_of(far)
            lost = mirror.wait_state("lost")["legs"][0]
            assert lost["consistent"] and lost["dirty_bytes"] == 0, lost
            enkaku.restart(target)
            back = mirror.wait_state("in-sync")["legs"][0]
            assert back["consistent"] and back["dirty_bytes"] == 0, back
        ledger.end()
        mirror.wait_in_sync()
        assert groups_of(far) == ledger.acknowledged >= 120
        assert mirror.stop() == 0, mirror.peer.output()
    assert not differences(local, far, SIZE)


@NEEDS_FUSE
def test_with_fall_behind_a_leg_is_left_behind_and_caught_up_with(
    local: Path, far: Path, target: Target, tmp_path: Path
):
    with ExitStack() as stack:
        lag = '{ seconds = 1, bytes = "64M", on = "fall-behind" }'
        mirror = made(stack, tmp_path, local, target, lag=lag)
        volume = mirror.start_fuse()
        mirror.wait_in_sync()
        with target.peer.standing_still():
            write(volume, 0, numbered(1) * GROUP)
            lost = mirror.wait_state("lost")["legs"][0]
            assert "left behind" in lost["message"], lost
            assert lost["lag_bytes"] == 0 and lost["dirty_bytes"] == GROUP * BLOCK, lost
            write(volume, GROUP * BLOCK, numbered(2) * GROUP)
        mirror.wait_in_sync()
        assert groups_of(far) == 2
        assert mirror.stop() == 0, mirror.peer.output()
    assert not differences(local, far, SIZE)


@NEEDS_FUSE
def test_stopped_in_order_it_has_sent_everything_and_copies_nothing_later(
    local: Path, far: Path, target: Target, tmp_path: Path
):
    with ExitStack() as stack:
        mirror = made(stack, tmp_path, local, target)
        volume = mirror.start_fuse()
        mirror.wait_in_sync()
        for group in range(1, 40):
            write(volume, (group - 1) * GROUP * BLOCK, numbered(group) * GROUP)
        assert mirror.stop() == 0, mirror.peer.output()
        assert groups_of(far) == 39
        mirror.start_fuse()
        report = mirror.wait_in_sync()
        assert report["legs"][0]["sent_bytes"] < MIB, report
        assert mirror.stop() == 0, mirror.peer.output()


@NEEDS_FUSE
def test_the_order_is_what_the_configuration_says(local: Path, target: Target, tmp_path: Path):
    """`status` names the order in use, and why it is no other."""
    with ExitStack() as stack:
        mirror = made(stack, tmp_path, local, target)
        text = mirror.config.read_text()
        for order, used, why in (
            ("auto", "stream", "keeps the order"),
            ("waited", "waited", "the configuration says so"),
            ("stream", "stream", "keeps the order"),
        ):
            mirror.config.write_text(f'{text}\norder = "{order}"\n')
            mirror.start_fuse()
            mirror.wait_in_sync()
            sending = mirror.leg()["sending"]
            assert sending["order"] == used and why in sending["why"], sending
            told = mirror.command("status", check=False).stdout
            assert f"order        {used}" in told and why in told, told
            assert mirror.stop() == 0, mirror.peer.output()
