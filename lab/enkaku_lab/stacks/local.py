"""A local file, without any network: what the disk of this machine does."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from enkaku_lab.experiment import Link, Load
from enkaku_lab.stacks import Go, Place, Reached, Stack
from enkaku_lab.stacks.reading import reader


class Local(Stack):
    """Reads are cold (its pages are dropped from the cache first); writes end with fsync."""

    name = "local"
    label = "local file"
    kinds = ("read-file", "write")

    def server(self) -> None:
        return None

    @contextmanager
    def opened(self, place: Place, link: Link, load: Load) -> Iterator[Go]:
        if load.kind == "write":
            yield lambda: _write(place.folder / "written.bin", load)
            return
        # Not compared with an original: it is its own, and comparing would warm the cache.
        with reader("file", place.local, load, original=None, cold=True) as go:
            yield go


def _write(path: Path, load: Load) -> Reached:
    block = os.urandom(load.block_bytes)
    total = 0
    begin, begin_cpu = time.monotonic(), time.process_time()
    try:
        with path.open("wb", buffering=0) as file:
            while total < load.bytes_max and time.monotonic() - begin < load.seconds_max:
                total += file.write(block)
            os.fsync(file.fileno())
        seconds = time.monotonic() - begin
    finally:
        path.unlink(missing_ok=True)
    return Reached(total, seconds, time.process_time() - begin_cpu)
