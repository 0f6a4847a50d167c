"""How close two processors are: what it costs one to overwrite what the other has just read.

That is what a loopback socket does with its buffers, and a virtual machine does not say where its
processors are. Two threads of one core share its caches (20 GB/s on an EPYC), two cores pass every
line through a cache further out (2 GB/s), and a host may move them from one to the other between
two runs.
"""

import mmap
import multiprocessing
import os
import time
from multiprocessing.connection import Connection

from enkaku_lab.results import median

COPY_BYTES = 1 << 20


def overwrite_rate(rounds: int = 200) -> float | None:
    """Bytes per second, the median of so many copies of 1 MiB. `None` with one processor."""
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        return None
    shared = mmap.mmap(-1, COPY_BYTES)
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    reader = context.Process(target=_read, args=(shared, theirs, allowed[1]), daemon=True)
    reader.start()
    try:
        os.sched_setaffinity(0, {allowed[0]})
        own = memoryview(bytearray(COPY_BYTES))
        return COPY_BYTES / median([_overwrite(shared, own, ours) for _ in range(rounds)])
    finally:
        os.sched_setaffinity(0, allowed)
        ours.send(False)
        reader.join()


def _overwrite(shared: mmap.mmap, own: memoryview, reader: Connection) -> float:
    """Seconds of one copy of `own` into what `reader` has read."""
    reader.send(True)
    reader.recv()
    before = time.perf_counter()
    memoryview(shared)[:] = own
    return time.perf_counter() - before


def _read(shared: mmap.mmap, writer: Connection, processor: int) -> None:
    os.sched_setaffinity(0, {processor})
    own = memoryview(bytearray(COPY_BYTES))
    while writer.recv():
        own[:] = memoryview(shared)
        writer.send(True)
