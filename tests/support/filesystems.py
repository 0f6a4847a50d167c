"""File systems in image files, made and filled without mounting, and what was put in, to be compared."""

import os
import random
import shutil
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from support.volume import loop_device

from enkaku_lab.peers import need
from enkaku_lab.process import run

KIB, MIB = 1 << 10, 1 << 20

UNICODE = ["日本語の映画 🎬.mkv", "Ça été là.mp4", "ein Name mit Leerzeichen", "x" * 120 + ".mp4"]
DEEP = "/".join(f"folder{level}" for level in range(30))


def content(size: int, seed: int) -> bytes:
    return random.Random(seed).randbytes(size)


def tree(folder: Path, *, scattered: bool = True, many: int = 300) -> dict[str, bytes]:
    """Fills a folder; returns path → content of its files."""
    files = {
        "empty": b"",
        "one byte": b"x",
        "short.txt": b"a short file\n",
        "inline.txt": content(100, 1),
        "block": content(4096, 2),
        "odd": content(70_001, 3),
        "large.bin": content(3 * MIB + 17, 4),
        f"{DEEP}/at the end": content(5000, 5),
        **{f"names/{name}": name.encode() for name in UNICODE},
        **{f"many/file-{i:05}.txt": f"{i}".encode() for i in range(many)},
    }
    if scattered:
        files["sparse"] = sparse(400, 16 * KIB)
        files["hole at the end"] = content(8 * KIB, 6) + bytes(900_000)
        files["only a hole"] = bytes(2 * MIB)
    for path, data in files.items():
        write(folder / path, data)
    (folder / "an empty folder").mkdir()
    return files


def sparse(pieces: int, every: int) -> bytes:
    """Each piece begins with data, the rest is zeroes."""
    return b"".join(content(every // 4, i).ljust(every, b"\0") for i in range(pieces))


def write(path: Path, data: bytes) -> None:
    """What is zero is not written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for begin in range(0, len(data), KIB):
            piece = data[begin : begin + KIB]
            if piece.strip(b"\0"):
                file.seek(begin)
                file.write(piece)
        file.truncate(len(data))


def image(path: Path, size: int) -> Path:
    path.unlink(missing_ok=True)
    path.touch()
    os.truncate(path, size)
    return path


def ext(path: Path, size: int, source: Path, *options: object) -> Path:
    """An ext file system that holds what is in `source`."""
    kind = [] if "-t" in options else ["-t", "ext4"]
    words = [need("mke2fs"), "-q", "-F", *kind, "-d", source, *options]
    run([*words, image(path, size)], timeout_s=180)
    return path


def debugfs(path: Path, commands: Iterable[str], scratch: Path) -> str:
    """Changes an ext file system from outside."""
    script = scratch / "debugfs"
    script.write_text("\n".join(commands) + "\n")
    done = run([need("debugfs"), "-w", "-f", script, path], timeout_s=180)
    return done.stdout + done.stderr


def fat(path: Path, size: int, source: Path, *options: object) -> Path:
    """A FAT that holds what is in `source`, filled by mtools."""
    run([need("mkfs.fat"), *options, image(path, size)])
    entries = sorted(source.iterdir())
    mtools(["mcopy", "-i", path, "-s", "-Q", *entries, "::/"])
    return path


def fat_free(path: Path) -> int:
    """Free bytes of a FAT."""
    last = mtools(["mdir", "-i", path, "::/"]).strip().splitlines()[-1]
    return int("".join(filter(str.isdigit, last)))


def mtools(words: list[object]) -> str:
    environment = {"MTOOLS_SKIP_CHECK": "1", "MTOOLSRC": "/dev/null", "LC_ALL": "C.UTF-8"}
    return run([need(str(words[0])), *words[1:]], env=environment, timeout_s=300).stdout


@contextmanager
def exfat(path: Path, size: int, folder: Path, *options: object) -> Iterator[Path]:
    """An exFAT, mounted by FUSE at `folder` as long as it is filled."""
    run([need("mkfs.exfat"), *options, image(path, size)])
    folder.mkdir(exist_ok=True)
    with loop_device(path) as device:
        run([need("mount.exfat-fuse"), device, folder])
        try:
            yield folder
        finally:
            run([need("umount"), folder], timeout_s=180)


def fill(target: Path, source: Path) -> None:
    shutil.copytree(source, target, dirs_exist_ok=True)


def disk(path: Path, size: int, script: str, parts: dict[int, Path]) -> Path:
    """A disk with the partition table of an sfdisk script; file systems go to their first sectors."""
    table = path.with_suffix(".sfdisk")
    table.write_text(script)
    run([need("sfdisk"), "--quiet", image(path, size)], stdin=table)
    for sector, part in parts.items():
        put(path, sector * 512, part.read_bytes())
    return path


def put(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def put_number(path: Path, offset: int, form: str, value: int) -> None:
    put(path, offset, struct.pack(form, value))
