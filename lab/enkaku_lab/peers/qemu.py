"""QEMU's tools: qemu-img, the stock client that copies (`convert`, `compare`) and one more
benchmark; qemu-storage-daemon, which makes a file of what libiscsi reaches."""

import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from enkaku_lab.peers import Measurement, Target, Workload, need
from enkaku_lab.process import Completed, peer, run

GOLDEN = (math.sqrt(5) - 1) / 2


def bench(
    url: str, workload: Workload, commands: int, disk_bytes: int, timeout_s: float = 300
) -> Measurement:
    """`qemu-img bench` of so many commands. It reports no latencies.

    It has no random order; a stride of about 0.618 of the disk (an odd number of blocks, so that
    every block of a power of two is visited) leaves a disk or a cache as little to guess.
    """
    stride = workload.block_bytes
    if workload.random:
        stride *= int(disk_bytes // workload.block_bytes * GOLDEN) | 1
    done = run(
        [
            *(need("qemu-img"), "bench", "-f", "raw", "-t", "none"),
            *("-c", commands, "-d", workload.depth),
            *("-s", workload.block_bytes, "-S", stride),
            *(["-w"] if workload.write else []),
            url,
        ],
        timeout_s=timeout_s,
    )
    seconds = float(re.search(r"Run completed in ([\d.]+) seconds", done.stdout)[1])
    return Measurement(commands * workload.block_bytes, seconds, done.cpu_s)


def convert(
    source: str | Path, destination: str | Path, *, create: bool = False, **more
) -> Completed:
    """Copies raw to raw. A destination that exists (a LUN) keeps its size unless `create`."""
    keep = [] if create else ["-n"]
    return run(
        [need("qemu-img"), "convert", "-f", "raw", "-O", "raw", *keep, source, destination],
        timeout_s=120,
        **more,
    )


def compare(one: str | Path, other: str | Path) -> Completed:
    """Raises CommandFailed where the contents differ."""
    return run([need("qemu-img"), "compare", "-f", "raw", "-F", "raw", one, other], timeout_s=120)


def iscsi_options(target: Target, disk: int = 0, of: str = "") -> str:
    """A disk as QEMU's options name it; `of` is before each, as of the `file.` of another driver."""
    options = {"driver": "iscsi", "transport": "tcp", "portal": target.portal}
    options |= {"target": target.iqn, "lun": target.first_lun + disk}
    return ",".join(f"{of}{name}={value}" for name, value in options.items())


@contextmanager
def attach_fuse(target: Target, disk: int, folder: Path, logs: Path) -> Iterator[Path]:
    """libiscsi's disk as a read-only file below the folder: what `enkaku attach --fuse` is to us.

    Both go through the kernel's page cache and its read-ahead.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "volume"
    file.touch()
    argv = [
        need("qemu-storage-daemon"),
        "--blockdev",
        f"node-name=disk,cache.direct=on,{iscsi_options(target, disk)}",
        "--export",
        f"type=fuse,id=file,node-name=disk,mountpoint={file},writable=off",
    ]
    with peer(argv, logs / "qemu-storage-daemon.log") as attached:
        # Path.is_mount is about folders only.
        attached.wait_until(lambda: os.path.ismount(file), "its file is not mounted")
        try:
            yield file
        finally:
            attached.stop()
            if os.path.ismount(file):
                run([need("fusermount3"), "-u", "-z", file])
