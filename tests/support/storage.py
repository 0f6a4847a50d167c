"""A disk that can lose power, fail a sync, fill up, hang and lose a page, under a target's file.

The rules are at the head of storage_shim.c, which stands between the target and the file. This is the
test's side: the files, the orders, and the power cut, made when the target is dead.

    storage = Storage(folder, size)
    daemon.start(storage.env)              # or any program that serves storage.image
    storage.order("fail_sync", 3)          # the third sync from now fails
    daemon.peer.kill()
    storage.power_cut(seed=7)
"""

import hashlib
import mmap
import os
import random
import struct
from dataclasses import dataclass
from pathlib import Path

from enkaku_lab import REPOSITORY
from enkaku_lab.peers import need
from enkaku_lab.process import run

SOURCE = Path(__file__).with_name("storage_shim.c")
BLOCK = 4096
MAGIC = 0x656E6B616B753031
FIELDS = (
    "magic", "blocks",
    "fail_sync", "fail_errno", "space", "space_late", "hang_sync", "hang", "read_first", "read_last",
    "seed",
    "writes", "sync_writes", "syncs", "errors", "lost", "hanging", "folder_syncs",
)
"""As in the shim's `struct control`."""
CLEAN, DIRTY, LOST = range(3)
NEEDS = ("cc",)


@dataclass(frozen=True)
class Cut:
    """What a power cut met, in blocks: dirty ones that were kept and lost, and what failed before."""

    kept: int
    dropped: int
    failed: int


def shim() -> Path:
    """The library, compiled once for each version of its source."""
    folder = REPOSITORY / "target/tests"
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    library = folder / f"storage_shim-{digest}.so"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        # Somebody else may do so at the same time.
        own = library.with_suffix(f".{os.getpid()}")
        options = ["-std=gnu11", "-O2", "-Wall", "-Werror", "-shared", "-fPIC"]
        run([need("cc"), *options, "-o", own, SOURCE, "-ldl", "-lpthread"])
        own.replace(library)
    return library


class Storage:
    """An image of zeroes and the disk below it."""

    def __init__(self, folder: Path, size: int):
        self.image = folder / "disk.img"
        self._shadow = folder / "disk.shadow"
        self._control = folder / "disk.control"
        self._blocks = size // BLOCK
        for path in (self.image, self._shadow):
            path.touch(mode=0o600)
            os.truncate(path, size)
        head = len(FIELDS) * 8
        self._control.write_bytes(bytes(head + 2 * self._blocks))
        with self._control.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._states = head
        self.order("magic", MAGIC)
        self.order("blocks", self._blocks)
        self.order("space", -1)

    @property
    def env(self) -> dict[str, str]:
        """For the process that serves the image, and nobody else."""
        return {
            "LD_PRELOAD": str(shim()),
            "ENKAKU_SHIM_IMAGE": str(self.image),
            "ENKAKU_SHIM_SHADOW": str(self._shadow),
            "ENKAKU_SHIM_CONTROL": str(self._control),
        }

    def order(self, name: str, value: int) -> None:
        struct.pack_into("q", self._map, FIELDS.index(name) * 8, value)

    def count(self, name: str) -> int:
        return struct.unpack_from("q", self._map, FIELDS.index(name) * 8)[0]

    def dirty(self) -> int:
        """Blocks that a power cut may take."""
        return self._map[self._states : self._states + self._blocks].count(DIRTY)

    def no_faults(self) -> None:
        """Every order is withdrawn; what was lost is lost."""
        for name in FIELDS[2:11]:
            self.order(name, -1 if name == "space" else 0)

    def power_cut(self, seed: int) -> Cut:
        """The image becomes what the disk has. Nobody may have the image open."""
        generator = random.Random(seed)
        kept = dropped = failed = 0
        # Write-back goes by itself rarely, half of the time, or nearly always.
        share = generator.choice((0.1, 0.5, 0.9))
        states = bytearray(self._map[self._states : self._states + self._blocks])
        with self.image.open("r+b") as image, self._shadow.open("r+b") as shadow:
            for block, state in enumerate(states):
                if state == DIRTY and generator.random() < share:
                    kept += 1
                    if _copy(image, shadow, block):
                        self._map[self._states + self._blocks + block] = 1
                elif state != CLEAN:
                    dropped, failed = dropped + (state == DIRTY), failed + (state == LOST)
                    _copy(shadow, image, block)
        self._map[self._states : self._states + self._blocks] = bytes(self._blocks)
        return Cut(kept, dropped, failed)

    def close(self) -> None:
        self._map.close()


def _copy(source, sink, block: int) -> bool:
    """Whether the block has other bytes than zeroes."""
    data = os.pread(source.fileno(), BLOCK, block * BLOCK)
    os.pwrite(sink.fileno(), data, block * BLOCK)
    return any(data)
