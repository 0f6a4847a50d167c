"""The other site with the Linux kernel's target: LIO in the guest, over disks that are files here.

One guest serves test after test. Its page cache is the disk's volatile cache: LIO writes through
it, and takes it to the disk for a SYNCHRONIZE CACHE. A power cut is one: QEMU is killed, and what
the guest had not written is nowhere; the next start boots it again.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.fail_over import Far
from support.storage import BLOCK

from enkaku_lab.peers import Target, guest_image, lio, need
from enkaku_lab.peers.guest import Guest
from enkaku_lab.process import free_port

LEG, COPY = "/dev/vda", "/dev/vdb"


class LioHost:
    """The guest, while it has power, and its two disks: the leg's, and one for a copy of it."""

    def __init__(self, folder: Path, disk_bytes: int):
        self.leg, self.copy = folder / "leg.img", folder / "copy.img"
        self.disk_bytes = disk_bytes
        self.blank()
        self.port = free_port()
        """The same after every boot."""
        self.keep_log = False
        need("qemu-system-x86_64")
        self._image = guest_image.image()
        self._guest: Guest | None = None

    def blank(self) -> None:
        """Disks of zeroes. No target has them open."""
        for path in (self.leg, self.copy):
            path.touch()
            os.truncate(path, 0)
            os.truncate(path, self.disk_bytes)

    def has_panicked(self) -> bool:
        """Its kernel has ended by itself."""
        guest = self._guest
        return guest is not None and not guest.peer.running() and "Kernel panic" in guest.peer.output()

    def guest(self) -> Guest:
        if self.has_panicked():
            self.power_off()
        if self._guest is None:
            booting = Guest(self._image, own_disks=[self.leg, self.copy], port=self.port)
            self._guest = booting.__enter__()
        return self._guest

    def power_off(self) -> None:
        guest, self._guest = self._guest, None
        if guest:
            guest.keep_log = self.keep_log
            guest.close()

    def dirty_blocks(self) -> int:
        """About as many of the disks' are in the guest's memory only."""
        return int(self.guest().run("awk '/^Dirty:/ {print $2}' /proc/meminfo")) * 1024 // BLOCK


class FarLio(Far):
    """A target of its own for each test. What a test leaves is gone with its target."""

    def __init__(self, folder: Path, size: int, host: LioHost):
        super().__init__(folder)
        assert size <= host.disk_bytes
        self.host, self.image, self.spare = host, host.leg, host.copy
        self.port = host.port
        host.blank()
        self._short_name = f"leg-{os.getpid()}"
        self.name = lio.PREFIX + self._short_name
        self._running: lio.Lio | None = None

    def start(self) -> None:
        size = self.host.disk_bytes
        self._running = lio.start(self.host.guest(), self._short_name, size, disk=LEG)

    def kill(self) -> None:
        """Its sessions end at once. The kernel's target cannot die alone: what it had answered for
        is written to the disk as its device is closed."""
        running, self._running = self._running, None
        if running:
            lio.stop(running)

    def cut_power(self, seed: int) -> int:
        dirty = self.host.dirty_blocks()
        self.host.power_off()
        self._running = None
        return dirty

    @contextmanager
    def serve(self, disk: Path) -> Iterator[Target]:
        assert disk == self.spare
        guest = self.host.guest()
        name = f"{self._short_name}-copy"
        with lio.serve(guest, name, self.host.disk_bytes, disk=COPY) as there:
            yield Target("lio", guest.peer, "127.0.0.1", self.port, there.iqn)
