"""enkaku: its target, and its two clients.

`enkaku` is what an application sees: a file below `attach --fuse`, read through the kernel's page
cache. `enkaku-pipelined` is what its own tools do, with as many commands under way as the load
says: reads are `enkaku copy` to a file in memory (which can be stopped at any time, and compared),
writes are `enkaku bench`.
"""

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from enkaku_lab.experiment import FILE_BYTES, Link, Load
from enkaku_lab.peers import Workload, disk_url, enkaku
from enkaku_lab.stacks import GIVE_UP_S, Go, Place, Reached, Stack
from enkaku_lab.stacks.commands import command_client
from enkaku_lab.stacks.reading import reader

DATA_LUN, SCRATCH_LUN, LONG_LUN = 0, 1, 2
DRAIN_S = 25.0
"""What is under way at the end, 32 MiB, takes one connection so long where losses leave it 11
Mbit/s."""


class Enkaku(Stack):
    """A file of `enkaku attach --fuse` (the raw volume: no file system, no loop device)."""

    name = "enkaku"
    label = "enkaku attach"
    programs = ("fusermount3",)
    kinds = ("read-file",)
    port = 3261

    def server(self) -> str:
        return "enkaku"

    @contextmanager
    def serve(self, place: Place) -> Iterator[None]:
        disks = [place.data, place.scratch]
        disks += [place.long] if place.long.exists() else []
        with enkaku.serve(disks, place.logs, address=place.far, port=self.port):
            yield

    def url(self, place: Place, lun: int) -> str:
        return disk_url(f"{place.far}:{self.port}", enkaku.IQN, lun)

    @contextmanager
    def opened(self, place: Place, link: Link, load: Load) -> Iterator[Go]:
        options = ["--read-only", "--connections", load.connections]
        with (
            tempfile.TemporaryDirectory(dir=place.memory) as folder,
            enkaku.attach_fuse(
                self.url(place, DATA_LUN), Path(folder) / "m", place.logs, options
            ) as file,
            reader("file", file, load, original=place.data) as go,
        ):
            yield go


class EnkakuPipelined(Enkaku):
    """Many commands under way, over one session."""

    name = "enkaku-pipelined"
    label = "enkaku copy"
    programs = ()
    kinds = ("read", "write")

    @contextmanager
    def opened(self, place: Place, link: Link, load: Load) -> Iterator[Go]:
        if load.kind == "write":
            yield command_client(lambda: bench(self.url(place, SCRATCH_LUN), load))
            return
        words = ["copy", self.url(place, DATA_LUN), "--force", "--depth", load.depth]
        words += ["--block-size", load.block_bytes, "--connections", load.connections]
        command = json.dumps([str(word) for word in (enkaku.binary(), *words)])
        with reader("copy", command, load, original=place.data, into=place.memory) as go:
            yield go


class EnkakuBench(Enkaku):
    """Reads or writes in memory, as the load says: what the session carries in its steady state."""

    name = "enkaku-bench"
    label = "enkaku bench"
    programs = ()
    kinds = ("read", "write")

    @contextmanager
    def opened(self, place: Place, link: Link, load: Load) -> Iterator[Go]:
        yield command_client(lambda: bench(self.url(place, SCRATCH_LUN), load))


def bench(url: str, load: Load, options: Sequence[object] = ()) -> Reached:
    """`enkaku bench` as the load says, against any target."""
    workload = Workload(load.kind == "write", False, load.block_bytes, load.depth)
    assert load.bytes_max >= FILE_BYTES or load.seconds_max, "bench runs for a time"
    options = [*options, *(["--ramp", f"{load.ramp_s}s"] if load.ramp_s else [])]
    options += ["--one-command"] if load.one_command else []
    timeout_s = load.ramp_s + load.seconds_max + GIVE_UP_S + DRAIN_S
    got = enkaku.bench(url, workload, load.seconds_max, load.connections, timeout_s, options)
    return Reached(got.bytes, got.seconds, got.client_cpu_s, got.connections)
