"""The stock iSCSI stack: tgt at the far end, libiscsi (in QEMU's tools) at the near end.

Files are read below qemu-storage-daemon's FUSE export, so through the same page cache and
read-ahead of the kernel as enkaku's; writes are qemu-img bench's. `tgt-tuned` is S0's “optimised
iSCSI”: the target takes bursts of 4 MiB without waiting for R2T. libiscsi cannot ask for those, so
the initiator there is enkaku's, which offers them, with one connection and one command at a time.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from enkaku_lab.experiment import FILE_BYTES, Link, Load
from enkaku_lab.peers import Target, Workload, disk_url, qemu, tgt
from enkaku_lab.stacks import GIVE_UP_S, Go, Place, Reached, Stack
from enkaku_lab.stacks.commands import command_client
from enkaku_lab.stacks.enkaku import bench
from enkaku_lab.stacks.reading import reader

DATA, SCRATCH = 0, 1
PROBE_COMMANDS = 1
BURST_BYTES = 4 << 20
OFFERED = ("--first-burst", BURST_BYTES, "--max-burst", BURST_BYTES)


class TgtLibiscsi(Stack):
    name = "tgt-libiscsi"
    label = "tgt + libiscsi"
    programs = ("tgtd", "tgtadm", "qemu-img", "qemu-storage-daemon", "fusermount3")
    kinds = ("read-file", "read", "write")
    port = 3260
    parameters: dict[str, str] = {}

    @contextmanager
    def serve(self, place: Place) -> Iterator[None]:
        disks = [place.data, place.scratch]
        more = {"address": place.far, "port": self.port, "parameters": self.parameters}
        with tgt.serve(disks, place.logs, **more):
            yield

    @contextmanager
    def opened(self, place: Place, link: Link, load: Load) -> Iterator[Go]:
        # The target runs at the far end, so there is no process of it here.
        target = Target("tgt", None, place.far, self.port, tgt.IQN, tgt.FIRST_LUN)
        if load.kind != "read-file":
            yield command_client(lambda: _bench(target.url(SCRATCH), load))
            return
        with (
            tempfile.TemporaryDirectory(dir=place.memory) as folder,
            qemu.attach_fuse(target, DATA, Path(folder) / "m", place.logs) as file,
            reader("file", file, load, original=place.data) as go,
        ):
            yield go


def _bench(url: str, load: Load) -> Reached:
    """qemu-img bench counts commands, not seconds: one tells how many fill the time."""
    workload = Workload(load.kind == "write", False, load.block_bytes, load.depth)
    timeout_s = load.seconds_max + GIVE_UP_S
    probe = qemu.bench(url, workload, PROBE_COMMANDS, FILE_BYTES, timeout_s)
    commands = max(2, int(load.seconds_max / (probe.seconds / PROBE_COMMANDS)))
    commands = min(commands, FILE_BYTES // load.block_bytes)
    got = qemu.bench(url, workload, commands, FILE_BYTES, timeout_s)
    return Reached(got.bytes, got.seconds, got.client_cpu_s)


class TgtTuned(TgtLibiscsi):
    name = "tgt-tuned"
    label = "tgt, 4 MiB bursts"
    programs = ("tgtd", "tgtadm")
    kinds = ("read", "write")
    port = 3262
    parameters = {
        "FirstBurstLength": str(BURST_BYTES),
        "MaxBurstLength": str(BURST_BYTES),
        "InitialR2T": "No",
        "ImmediateData": "Yes",
    }

    @contextmanager
    def opened(self, place: Place, link: Link, load: Load) -> Iterator[Go]:
        lun = tgt.FIRST_LUN + (SCRATCH if load.kind == "write" else DATA)
        url = disk_url(f"{place.far}:{self.port}", tgt.IQN, lun)
        yield command_client(lambda: bench(url, load, OFFERED))
