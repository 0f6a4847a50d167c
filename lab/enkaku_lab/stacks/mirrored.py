"""A local disk and a copy at the far end: the mirror, the same without its leg, and QEMU's mirror job."""

import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from enkaku_lab.experiment import FILE_BYTES, Link, Load
from enkaku_lab.peers import enkaku, mirror, qemu_mirror
from enkaku_lab.stacks import Go, Place
from enkaku_lab.stacks.enkaku import Enkaku
from enkaku_lab.stacks.reading import reader
from enkaku_lab.stacks.written import write_file

TAIL_BYTES = 1 << 20
"""More than what the mirror keeps at the end of a leg."""


class MirrorSync(Enkaku):
    """A write is told complete when it is at both."""

    name = "mirror-sync"
    label = "mirror, sync"
    kinds = ("read-file", "write-file")
    port = 3271
    mode, paused = "sync", False
    leg_bytes = FILE_BYTES + TAIL_BYTES

    def server(self) -> str:
        return self.name

    @contextmanager
    def serve(self, place: Place) -> Iterator[None]:
        leg = place.served / f"{self.name}.leg"
        with leg.open("wb") as file:
            file.truncate(self.leg_bytes)
        with enkaku.serve([leg], place.logs, address=place.far, port=self.port):
            yield

    @contextmanager
    def opened(self, place: Place, link: Link, load: Load) -> Iterator[Go]:
        with (
            tempfile.TemporaryDirectory(dir=place.memory) as folder,
            self._mirrored(place, _local(place, load), Path(folder)) as file,
        ):
            if load.kind == "write-file":
                yield lambda: write_file(file, load)
                return
            # The local disk is read; whether it is right has tests of its own.
            with reader("file", file, load, original=None) as go:
                yield go

    def _mirrored(self, place: Place, local: Path, folder: Path) -> AbstractContextManager[Path]:
        leg = self.url(place, 0)
        return mirror.mirrored(local, leg, self.mode, folder, place.logs, paused=self.paused)


class MirrorAsync(MirrorSync):
    """A write is told complete when it is here; the leg follows within the lag that is allowed."""

    name = "mirror-async"
    label = "mirror, async"
    port = 3273
    mode = "async"


class MirrorPaused(MirrorSync):
    """The local disk through the same front, and the same bookkeeping: nothing is sent."""

    name = "mirror-paused"
    label = "local only (mirror, leg paused)"
    port = 3272
    paused = True


class QemuMirror(MirrorSync):
    """`blockdev-mirror` to the same target: a write waits for both."""

    name = "qemu-mirror"
    label = "QEMU mirror, write-blocking"
    programs = qemu_mirror.PROGRAMS
    kinds = ("write-file",)
    port = 3274
    leg_bytes = FILE_BYTES
    """Its job wants both of one size."""
    copy_mode = "write-blocking"

    @contextmanager
    def opened(self, place: Place, link: Link, load: Load) -> Iterator[Go]:
        far = qemu_mirror.Far(f"{place.far}:{self.port}", enkaku.IQN)
        # What is there before is nobody's matter: only writes from now on are sent.
        job = {"sync": "none", "copy-mode": self.copy_mode}
        with tempfile.TemporaryDirectory(dir=place.memory) as name:
            folder, local = Path(name), _local(place, load)
            with qemu_mirror.mirrored(local, far, job, folder, place.logs) as running:
                yield lambda: write_file(running.file, load)


class QemuMirrorBehind(QemuMirror):
    """The same, and a write waits for the local disk only."""

    name = "qemu-mirror-behind"
    label = "QEMU mirror, background"
    port = 3275
    copy_mode = "background"


def _local(place: Place, load: Load) -> Path:
    """What is read is noise; what is written over is a file of its own."""
    if load.kind == "read-file":
        return place.local
    path = place.folder / "mirrored.bin"
    with path.open("ab") as file:
        file.truncate(FILE_BYTES)
    return path
