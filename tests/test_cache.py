"""`enkaku attach --cache`: what is read and written through each mode, what survives a killed
client, an interrupted target and a failed write, and what each mode really sends."""

import errno
import mmap
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from conftest import MIB, empty, noise
from support.daemon import NAME_A, Daemon
from support.daemon import target as daemon_target

from enkaku_lab.peers import Target, enkaku, need
from enkaku_lab.process import Peer, peer, run

SIZE = 256 * MIB
KIB = 1 << 10
MODES = ["none", "read", "write-back"]
WITH_KERNEL = "--kernel-write-back"
OPTIONS = [[mode] for mode in MODES] + [["read", WITH_KERNEL], ["write-back", WITH_KERNEL]]
NEEDS_FUSE = pytest.mark.needs("root", "/dev/fuse", "fusermount3")


@contextmanager
def attached(url: str, folder: Path, *options: object) -> Iterator[tuple[Peer, Path]]:
    """`enkaku attach --fuse`, to be killed if a test wants that; its process and its file."""
    mount = folder / "mount"
    mount.mkdir(exist_ok=True)
    argv = [enkaku.binary(), "attach", url, "--fuse", mount, *options]
    with peer(argv, folder / "attach.log") as attach:
        try:
            attach.wait_for_output("attached as")
            yield attach, mount / "volume"
        finally:
            attach.stop()
            run([need("fusermount3"), "-u", "-z", mount], check=False)


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    return empty(tmp_path / "lun0.img", SIZE)


@pytest.fixture
def target(disk: Path, tmp_path: Path):
    with enkaku.serve([disk], tmp_path) as serving:
        yield serving


def read_direct(descriptor: int, offset: int, length: int) -> bytes:
    """Past the kernel's page cache."""
    with mmap.mmap(-1, length) as buffer:
        assert os.preadv(descriptor, [buffer], offset) == length
        return buffer[:]


@NEEDS_FUSE
@pytest.mark.parametrize("options", OPTIONS, ids="-".join)
def test_contents_are_what_was_written(
    options: list[str], target: Target, disk: Path, tmp_path: Path
):
    model = bytearray(64 * MIB)
    generator = random.Random("-".join(options))
    with attached(target.url(), tmp_path, "--cache", *options) as (_, file):
        descriptor = os.open(file, os.O_RDWR | os.O_DIRECT)
        try:
            offset = 0
            for step in range(600):
                length = generator.choice([4, 64, 256, 1024]) * KIB
                # Mostly onwards, and back over what may still be on its way.
                if step % 5 == 4:
                    offset = generator.randrange(0, len(model) // 4096) * 4096
                offset = min(offset, len(model) - length)
                if step % 3:
                    with mmap.mmap(-1, length) as data:
                        data.write(generator.randbytes(length))
                        assert os.pwrite(descriptor, data, offset) == length
                        model[offset : offset + length] = data[:]
                else:
                    back = read_direct(descriptor, offset, length)
                    assert back == model[offset : offset + length], f"step {step} at {offset}"
                offset = (offset + length) % len(model)
            os.fsync(descriptor)
            with disk.open("rb") as there:
                assert there.read(len(model)) == model
            for offset in range(0, len(model), MIB):
                assert read_direct(descriptor, offset, MIB) == model[offset : offset + MIB]
        finally:
            os.close(descriptor)


@NEEDS_FUSE
@pytest.mark.parametrize("options", OPTIONS, ids="-".join)
def test_what_was_synced_is_at_the_target_when_attach_is_killed(
    options: list[str], target: Target, disk: Path, tmp_path: Path
):
    source = noise(tmp_path / "source", 48 * MIB).read_bytes()
    with attached(target.url(), tmp_path, "--cache", *options) as (attach, file):
        descriptor = os.open(file, os.O_RDWR)
        try:
            for offset in range(0, len(source), 128 * KIB):
                os.pwrite(descriptor, source[offset : offset + 128 * KIB], offset)
            os.fsync(descriptor)
            # Not synced, so it may be lost; what was synced may not.
            os.pwrite(descriptor, bytes(MIB), 128 * MIB)
            attach.kill()
        finally:
            # Nobody is left to answer the kernel's flush at close.
            with suppress(OSError):
                os.close(descriptor)
    with disk.open("rb") as there:
        assert there.read(len(source)) == source


WRITER = """
import os, sys
file = os.open(sys.argv[1], os.O_WRONLY)
source = open(sys.argv[2], "rb")
offset = 0
while piece := source.read(65536):
    os.pwrite(file, piece, offset)
    offset += len(piece)
    print(offset, flush=True)
os.fsync(file)
"""


@NEEDS_FUSE
def test_a_target_that_restarts_during_write_back_loses_nothing(
    target: Target, disk: Path, tmp_path: Path
):
    source = noise(tmp_path / "source", 160 * MIB)
    with attached(target.url(), tmp_path, "--cache", "write-back") as (_, file):
        argv = [need("python3"), "-c", WRITER, file, source]
        with peer(argv, tmp_path / "writer.log") as writer:
            for mib in (24, 72):
                writer.wait_until(lambda: disk.stat().st_blocks * 512 >= mib * MIB, "data arrives")
                target.peer.kill()
                assert writer.running(), "the writer was done before the target was killed"
                enkaku.restart(target)
            assert writer.wait(60) == 0, writer.output()[-2000:]
        with disk.open("rb") as there:
            assert there.read(source.stat().st_size) == source.read_bytes()


def synced(descriptor: int) -> bool:
    """A flush that still cannot write what has failed says so; any other error is wrong."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        assert error.errno == errno.EIO
        return False
    return True


@NEEDS_FUSE
def test_a_failed_write_is_told_by_fsync_and_its_data_are_kept(
    target: Target, disk: Path, tmp_path: Path
):
    options = ["--cache", "write-back", "--replacement-timeout", "1s"]
    data = noise(tmp_path / "source", 4 * MIB).read_bytes()
    with attached(target.url(), tmp_path, *options) as (attach, file):
        descriptor = os.open(file, os.O_RDWR)
        try:
            target.peer.kill()
            os.pwrite(descriptor, data, 0)
            assert not synced(descriptor)
            enkaku.restart(target)
            # The session is set up again in the background.
            attach.wait_until(lambda: synced(descriptor), "the data can be written again")
            with disk.open("rb") as there:
                assert there.read(len(data)) == data
        finally:
            os.close(descriptor)


URL = "iscsi://127.0.0.1:1/iqn.2026-01.lab.enkaku:none/0"
BAD_OPTIONS = {
    "unknown mode": (["--cache", "sometimes"], "sometimes"),
    "no mode": (["--cache", ""], "--cache"),
    "bad size": (["--cache-bytes", "12parsecs"], "12parsecs"),
    "negative size": (["--cache-bytes=-1M"], "-1M"),
    "gathered writes of a reader": ([WITH_KERNEL, "--read-only"], "--read-only"),
}


@pytest.mark.parametrize("words, named", BAD_OPTIONS.values(), ids=BAD_OPTIONS.keys())
def test_bad_options_get_one_clear_line_and_code_2(words: list[str], named: str, tmp_path: Path):
    done = enkaku.command("attach", URL, "--fuse", tmp_path, *words, check=False, timeout_s=20)
    assert done.code == 2, done
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and named in lines[0], done.stderr


@pytest.fixture
def daemon(tmp_path: Path):
    made = Daemon(tmp_path)
    made.write(daemon_target(NAME_A, "mem:64M"))
    made.start()
    yield made
    made.peer.stop()


@NEEDS_FUSE
@pytest.mark.parametrize("mode", MODES)
def test_what_a_mode_sends_for_sequential_reads_and_writes(
    mode: str, daemon: Daemon, tmp_path: Path
):
    block, count = 4 * KIB, 1024

    def commands(operation: str) -> float:
        return daemon.metric("enkaku_lun_latency_seconds_count", operation=operation)

    with attached(daemon.url(), tmp_path, "--cache", mode) as (_, file):
        descriptor = os.open(file, os.O_RDWR | os.O_DIRECT)
        try:
            before = commands("read")
            for step in range(count):
                read_direct(descriptor, step * block, block)
            reads = commands("read") - before
            before = commands("write")
            with mmap.mmap(-1, block) as data:
                for step in range(count):
                    os.pwrite(descriptor, data, step * block)
            os.fsync(descriptor)
            writes = commands("write") - before
        finally:
            os.close(descriptor)
    # Ahead by 256 KiB at a time, behind by up to 1 MiB.
    assert reads == count if mode == "none" else reads <= count / 8, reads
    assert writes <= count / 2 if mode == "write-back" else writes == count, writes
