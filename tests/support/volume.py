"""Block devices and file systems on an attached volume: loop devices and mounts."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from enkaku_lab.peers import need
from enkaku_lab.process import run

EXT4_STATE_AT = 1024 + 0x3A
"""Where `s_state` of the super block is."""
EXT4_HAS_ERRORS = 2
E2FSCK_CORRECTED = 1


@contextmanager
def loop_device(file: Path) -> Iterator[str]:
    """A loop device over a file, with direct I/O so that nothing is cached twice."""
    losetup = need("losetup")
    device = run([losetup, "--find", "--show", "--direct-io=on", file]).stdout.strip()
    try:
        yield device
    finally:
        run([losetup, "--detach", device])


@contextmanager
def mounted(device: str, folder: Path, *options: str) -> Iterator[Path]:
    folder.mkdir(exist_ok=True)
    run([need("mount"), *options, device, folder])
    try:
        yield folder
    finally:
        run([need("umount"), folder], timeout_s=180)


@contextmanager
def never_left_hanging(volume: Path) -> Iterator[None]:
    """Around the use of a FUSE file by loop devices: if one is left, whatever failed, it gets errors.
    Where the process that serves the file ends below a mounted file system, every `sync` of the host
    waits for ever."""
    number = os.minor(volume.stat().st_dev)
    try:
        yield
    finally:
        backing = Path("/sys/block").glob("loop*/loop/backing_file")
        if any(file.read_text().strip() == str(volume) for file in backing):
            with tempfile.TemporaryDirectory() as control:
                run([need("mount"), "-t", "fusectl", "none", control])
                (Path(control) / str(number) / "abort").write_text("1")
                run([need("umount"), control])


def make_ext4(device: str, options: list[object] = ()) -> None:
    run([need("mkfs.ext4"), "-q", *options, device])


def recover_ext4(device: str, folder: Path) -> None:
    """Mounts once, which replays the journal, and checks that this leaves nothing to complain of.

    A file system that was told of an error has noted it, and then the kernel replays the journal, but
    does not clear the list of orphans: files that were open when their names were removed. Those are
    left to `e2fsck -p`, which does what needs no decision, and stops at everything else.
    """
    with mounted(device, folder):
        pass
    with open(device, "rb") as disk:
        state = os.pread(disk.fileno(), 2, EXT4_STATE_AT)
    if int.from_bytes(state, "little") & EXT4_HAS_ERRORS:
        done = run([need("e2fsck"), "-f", "-p", device], timeout_s=180, check=False)
        assert done.code in (0, E2FSCK_CORRECTED), f"{done.stdout}\n{done.stderr}"
    check_ext4(device)


def check_ext4(device: str) -> None:
    """A full check without repairing; raises when e2fsck has anything to say against it."""
    run([need("e2fsck"), "-f", "-n", device], timeout_s=180)
