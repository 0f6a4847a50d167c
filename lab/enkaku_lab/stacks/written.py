"""enkaku's file as an application writes it, one call after the other and an fsync at the end, with
and without the cache of `attach`, and with the kernel's before it (docs/cache.md)."""

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from enkaku_lab.experiment import FILE_BYTES, Link, Load
from enkaku_lab.peers import enkaku
from enkaku_lab.stacks import Go, Place, Reached
from enkaku_lab.stacks.enkaku import DATA_LUN, LONG_LUN, SCRATCH_LUN, Enkaku
from enkaku_lab.stacks.reading import reader


class EnkakuCached(Enkaku):
    """Reads ahead, writes behind."""

    name = "enkaku-cached"
    label = "enkaku attach --cache write-back"
    kinds = ("read-file", "write-file")
    cache = "write-back"
    more_options: tuple[str, ...] = ()

    @contextmanager
    def opened(self, place: Place, link: Link, load: Load) -> Iterator[Go]:
        writes = load.kind == "write-file"
        options = ["--cache", self.cache, "--connections", load.connections, *self.more_options]
        data = LONG_LUN if load.bytes_max > FILE_BYTES else DATA_LUN
        url = self.url(place, SCRATCH_LUN if writes else data)
        with (
            tempfile.TemporaryDirectory(dir=place.memory) as folder,
            enkaku.attach_fuse(url, Path(folder) / "m", place.logs, options) as file,
        ):
            if writes:
                yield lambda: write_file(file, load)
                return
            with reader("file", file, load, original=place.data) as go:
                yield go


class EnkakuUncached(EnkakuCached):
    """One command for each call, one after the other."""

    name = "enkaku-uncached"
    label = "enkaku attach --cache none"
    cache = "none"


class EnkakuGathered(EnkakuCached):
    """The kernel gathers small writes first."""

    name = "enkaku-gathered"
    label = "enkaku attach --cache write-back --kernel-write-back"
    kinds = ("write-file",)
    more_options = ("--kernel-write-back",)


def write_file(path: Path, load: Load) -> Reached:
    """write(block) until the time is over, then fsync, which counts. The file is written again
    where more bytes are asked for than it has."""
    block = os.urandom(load.block_bytes)
    total = 0
    descriptor = os.open(path, os.O_WRONLY)
    begin, begin_cpu = time.monotonic(), time.process_time()
    try:
        while total < load.bytes_max and time.monotonic() - begin < load.seconds_max:
            total += os.pwrite(descriptor, block, total % FILE_BYTES)
        os.fsync(descriptor)
        seconds = time.monotonic() - begin
    finally:
        os.close(descriptor)
    return Reached(total, seconds, time.process_time() - begin_cpu)
