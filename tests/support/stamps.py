"""A file whose blocks are stamped with rising numbers past the page cache, mostly without a flush: so
that there is something to lose when the power goes, and to send again when the target is back.

Stamp n is in block `place(n)`. Every FLUSH_EVERY stamps the file is synced, and the number up to which
that was promised is printed; afterwards no block may have an older stamp than the newest one promised.
"""

import os
import re
from pathlib import Path

from enkaku_lab.peers import need
from enkaku_lab.process import Peer

BLOCK = 4096
BLOCKS = 1024
FLUSH_EVERY = 150
PAUSE_S = 0.002
NAME = "stamps"
WRITER = """
import mmap, os, sys, time
path, first, blocks, every, pause_s = sys.argv[1], *map(int, sys.argv[2:5]), float(sys.argv[5])
fresh = not os.path.exists(path)
file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)
if fresh:
    os.posix_fallocate(file, 0, blocks * 4096)
os.fsync(file)
folder = os.open(os.path.dirname(path), os.O_RDONLY)
os.fsync(folder)
page = mmap.mmap(-1, 4096)
number = first
while True:
    page[:] = number.to_bytes(8, "big") * 512
    os.pwrite(file, page, number * 2654435761 % 2**32 % blocks * 4096)
    if number % every == 0:
        os.fsync(file)
        print("synced", number, flush=True)
    number += 1
    time.sleep(pause_s)
"""


def place(number: int) -> int:
    return number * 2654435761 % 2**32 % BLOCKS


class Stamps:
    """The writer, run after run; numbers go on."""

    def __init__(self, logs: Path):
        self._logs = logs
        self._runs = 0
        self._next = 1
        self._promised: dict[int, int] = {}
        """The newest stamp of each block that was synced."""
        self.writer: Peer | None = None

    def start(self, volume: Path) -> None:
        self._runs += 1
        words = [volume / NAME, self._next, BLOCKS, FLUSH_EVERY, PAUSE_S]
        log = self._logs / f"stamps-{self._runs}.log"
        self.writer = Peer([need("python3"), "-c", WRITER, *words], log)

    def syncs(self) -> int:
        """Promises of the present run."""
        return self.writer.output().count("synced")

    def stop(self) -> None:
        """Ends the writer and takes down what was promised."""
        if self.writer is None:
            return
        if self.writer.running():
            self.writer.kill()
        told = [int(found) for found in re.findall(r"^synced (\d+)$", self.writer.output(), re.M)]
        for number in range(self._next, max(told, default=0) + 1):
            self._promised[place(number)] = number
        # What was written behind the last sync may be there or not: those numbers are not used again.
        self._next = max(told, default=self._next) + 2 * FLUSH_EVERY
        self.writer = None

    @property
    def promised(self) -> int:
        return len(self._promised)

    def check(self, volume: Path) -> None:
        """Every block has one whole stamp, and none older than was promised."""
        path = volume / NAME
        if not path.exists():
            assert not self._promised, "the file of stamps is gone"
            return
        with path.open("rb") as file:
            assert os.fstat(file.fileno()).st_size == BLOCKS * BLOCK or not self._promised
            for block in range(BLOCKS):
                stamp = file.read(BLOCK)
                number = int.from_bytes(stamp[:8], "big")
                assert stamp == stamp[:8] * (BLOCK // 8), f"block {block} is torn or damaged"
                assert not number or place(number) == block, f"stamp {number} in block {block}"
                least = self._promised.get(block, 0)
                assert number >= least, f"block {block} has stamp {number}, {least} was promised"
