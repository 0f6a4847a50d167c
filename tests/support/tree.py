"""A tree of files of every kind, the same on every machine, and whether a copy of it is true.

What is on the machine already (/usr/share) is of another size and kind on each one.
"""

import hashlib
import os
import random
from collections.abc import Iterator
from pathlib import Path

KIB = 1 << 10
MIB = 1 << 20
DEPTH = 40
"""Of the deepest folder; with its names, near the longest path that tools can take at once."""
NAMES = (
    "plain", "two words", "  blanks  ", "tab\there", "line\nbreak", "quote'\"`$HOME", "-rf", "*?[a]",
    "naïve", "日本語", "🦀", "back\\slash", "a" * 255, ".hidden",
)
"""Names that shells, tools and file systems have taken for something else."""
SMALL = (0, 1, 511, 4095, 4096, 4097, 60 * KIB, 65_537)
"""Bytes: around the sizes at which an ext4 file gets another shape."""
LARGE = MIB
HOLE = 8 * MIB
SPARSE = "sparse"


def grow(folder: Path, size: int, seed: int = 1) -> list[Path]:
    """Makes about `size` bytes of data in three trees below the folder; returns their roots."""
    generator = random.Random(seed)
    roots = [folder / "small", folder / "links and holes", folder / "large"]
    for root in roots:
        root.mkdir(parents=True)
    _small(roots[0], generator)
    _links_and_holes(roots[1], generator)
    left = size - sum(_stored(root) for root in roots[:2])
    for number in range(left // LARGE):
        place = roots[2] / f"{number % 7}"
        place.mkdir(exist_ok=True)
        (place / f"{number} of many").write_bytes(generator.randbytes(LARGE))
    return roots


def _small(root: Path, generator: random.Random) -> None:
    """Each name with each size, flat; then one folder in the other."""
    for name in NAMES:
        place = root / name
        place.mkdir()
        for length in SMALL:
            (place / f"{length} bytes").write_bytes(generator.randbytes(length))
        (place / name).write_bytes(name.encode())
        (place / name).chmod(0o640)
    deep = root
    for level in range(DEPTH):
        deep = deep / f"level {level} of the deep one"
        deep.mkdir(mode=0o711)
        (deep / "file").write_bytes(generator.randbytes(level * 100))
    (root / "empty folder").mkdir()


def _links_and_holes(root: Path, generator: random.Random) -> None:
    (root / "first").write_bytes(generator.randbytes(MIB))
    os.link(root / "first", root / "second name of the first")
    for name, to in (("inside", "first"), ("dangling", "nowhere/at all"), ("long", "x" * 1000)):
        (root / name).symlink_to(to)
    with (root / SPARSE).open("wb") as file:
        for piece in range(4):
            file.seek(piece * HOLE + 123)
            file.write(generator.randbytes(4 * KIB))
        file.truncate(5 * HOLE)


def _stored(root: Path) -> int:
    """Bytes of data; holes and a second name have none of their own."""
    every = [path.lstat() for path in walk(root) if path.name != SPARSE]
    return sum({status.st_ino: status.st_size for status in every}.values())


def tree_bytes(*roots: Path) -> int:
    """Bytes that a copy which keeps holes and links has to move, about."""
    return sum(_stored(root) for root in roots)


def fingerprints(roots: list[Path]) -> dict[str, str]:
    """Every path below the roots, relative to its root's parent: type, mode, names, contents."""
    return {
        str(path.relative_to(root.parent)): _fingerprint(path)
        for root in roots
        for path in walk(root)
    }


def walk(root: Path) -> Iterator[Path]:
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
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return f"{mode} {path.stat().st_nlink} names, {digest}"
