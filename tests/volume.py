"""Block devices and file systems on an attached volume: loop devices, mounts, trees of files."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from enkaku_lab.peers import need
from enkaku_lab.process import run

TREE = Path("/usr/share")
"""Real files of every size, links and folders, on every machine."""


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
def mounted(device: str, folder: Path) -> Iterator[Path]:
    folder.mkdir(exist_ok=True)
    run([need("mount"), device, folder])
    try:
        yield folder
    finally:
        run([need("umount"), folder], timeout_s=180)


def make_ext4(device: str) -> None:
    run([need("mkfs.ext4"), "-q", device])


def check_ext4(device: str) -> None:
    """A full check without repairing; raises when e2fsck has anything to say against it."""
    run([need("e2fsck"), "-f", "-n", device], timeout_s=180)


def real_tree(bytes_max: int) -> list[Path]:
    """Entries of /usr/share, in order, as many as fit."""
    chosen, total = [], 0
    for entry in sorted(TREE.iterdir()):
        size = tree_bytes(entry)
        if entry.is_dir() and not entry.is_symlink() and total + size <= bytes_max:
            chosen.append(entry)
            total += size
    return chosen


def tree_bytes(*roots: Path) -> int:
    return sum(path.lstat().st_size for root in roots for path in _walk(root))


def fingerprints(roots: list[Path]) -> dict[str, str]:
    """Every path below the roots, relative to its root's parent: type, mode, contents."""
    return {
        str(path.relative_to(root.parent)): _fingerprint(path)
        for root in roots
        for path in _walk(root)
    }


def _walk(root: Path) -> Iterator[Path]:
    yield root
    if root.is_dir() and not root.is_symlink():
        for folder, folders, names in os.walk(root):
            yield from (Path(folder, name) for name in (*folders, *names))


def _fingerprint(path: Path) -> str:
    if path.is_symlink():
        return f"link {os.readlink(path)}"
    mode = f"{path.stat().st_mode:o}"
    if not path.is_file():
        return mode
    with path.open("rb") as file:
        return f"{mode} {hashlib.file_digest(file, 'sha256').hexdigest()}"
