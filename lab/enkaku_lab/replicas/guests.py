"""What needs a stock kernel at the near end, or at both: md's raid1 over open-iscsi, and DRBD. Guests that are
interpreted (peers/guest.py) run in the line's namespaces: fast enough for a slow line, for function and for bytes.
"""

import re
import struct
import time
from pathlib import Path

from enkaku_lab import stamped, wan
from enkaku_lab.peers import enkaku, guest_image, need, open_iscsi
from enkaku_lab.peers.guest import Guest, Order
from enkaku_lab.process import LabError, peer
from enkaku_lab.replicas import BLOCKS, IQN, MIB, PORT, VOLUME_BYTES, Replica, Writing
from enkaku_lab.replicas.here import sparse

INSIDE = "10.0.2.15"
"""A guest's own address in QEMU's user network."""
DRBD_PORT = 7789
REPLACED_S = 5
"""open-iscsi gives a dead session up so soon (its default is 120 s)."""
ORDER_S_MAX = 120.0
MD_MAGIC, MD_RECOVERS = 0xA92B4EFC, 2 | 128
"""Recovery offset, recovery by bitmap (md_p.h)."""


def recipe() -> guest_image.Recipe:
    return guest_image.Recipe(
        kernels=("linux-image-cloud-amd64",),
        packages=("mdadm", "drbd-utils", "libudev1"),
        programs=("mdadm/sbin/mdadm", "drbd-utils/lib/drbd/drbdsetup-84", "drbd-utils/sbin/drbdmeta"),
        modules=("raid1", "drbd"),
        own=(stamped.stamper(),),
    )


class InAGuest(Writing):
    def __init__(self, guest: Guest, order: Order):
        self._guest, self._order = guest, order

    def newest(self) -> int:
        told = re.findall(r"^stable (\d+)$", self._order.output, re.M)
        return int(told[-1]) if told else 0

    def running(self) -> bool:
        return self._order.running()

    def wait(self, s_max: float) -> None:
        self._order.wait(s_max)

    def stop(self) -> None:
        self._guest.run("killall stamper", check=False)


class InGuests(Replica):
    """The volume is a disk of a guest at the near end."""

    disk: str

    @classmethod
    def missing(cls) -> str | None:
        try:
            need("qemu-system-x86_64")
            guest_image.image(recipe())
        except LabError as error:
            return str(error)
        return None

    def _guest(self, end: str, own_disk: Path, forwards: list[int] | None = None) -> Guest:
        guest = Guest(
            guest_image.image(recipe()),
            self._noise if end == "near" else None,
            own_disks=[own_disk],
            forwards=forwards,
            within=lambda argv: self.place.lab.exec(end, argv),
        )
        return self.closing.enter_context(guest)

    @property
    def _noise(self) -> Path:
        """What is filled in comes to the guest as a disk."""
        return self.place.folder / "noise"

    def write(self, first: int, count: int, pause_us: int) -> Writing:
        words = [self.disk, BLOCKS, first, count, pause_us]
        order = self._near.start(" ".join(["stamper", *map(str, words)]))
        return InAGuest(self._near, order)

    def fill(self, noise: Path) -> float:
        assert noise == self._noise
        copy = f"dd if=/dev/vda of={self.disk} bs=256k seek=256 conv=fsync"
        begin = time.monotonic()
        self._near.run(copy, 600.0)
        return time.monotonic() - begin


class Md(InGuests):
    """raid1 with an internal write-intent bitmap over a disk of the guest and one of the target."""

    name = "md raid1 + bitmap"
    what = "iSCSI, any target"
    options = ""

    def open(self) -> None:
        folder = self.place.folder
        self._image = sparse(folder / "far.img", VOLUME_BYTES + MIB)
        argv = [enkaku.binary(), "serve", "--lun", self._image, "--iqn", IQN]
        argv += ["--listen", f"{wan.FAR}:{PORT}"]
        far = self.closing.enter_context(
            peer(self.place.lab.exec("far", argv), folder / "serve.log")
        )
        far.wait_for_output("listening on")
        self._near = self._guest("near", sparse(folder / "near.img", VOLUME_BYTES + MIB))
        settings = {
            "node.session.timeo.replacement_timeout": str(REPLACED_S),
            "node.conn[0].timeo.noop_out_interval": "1",
            "node.conn[0].timeo.noop_out_timeout": "2",
        }
        session = open_iscsi.session(self._near, IQN, PORT, settings, host=wan.FAR)
        self._far_disk = self.closing.enter_context(session).disk
        self.disk = "/dev/md0"
        create = "mdadm --create /dev/md0 --run --assume-clean --level=1 --raid-devices=2"
        create += f" --metadata=1.0 --bitmap=internal {self.options} --size={VOLUME_BYTES >> 10}"
        self._near.run(f"{create} /dev/vdb --write-mostly {self._far_disk}", ORDER_S_MAX)
        self._near.run("mdadm --wait /dev/md0", ORDER_S_MAX, check=False)

    def _state(self) -> str:
        return self._near.run("cat /proc/mdstat")

    def in_sync(self) -> bool:
        state = self._state()
        return "[UU]" in state and "recovery" not in state and "resync" not in state

    def gone(self) -> bool:
        return "(F)" in self._state()

    def recover(self) -> None:
        """What a script would do: once the disk is there again, back into the array by its bitmap."""
        disk = Path(self._far_disk).name
        self._near.run(
            f"""
            until [ "$(cat /sys/block/{disk}/device/state)" = running ] &&
                dd if={self._far_disk} of=/dev/null bs=4k count=1 iflag=direct 2>/dev/null; do sleep 0.1; done
            mdadm /dev/md0 --remove {self._far_disk}
            mdadm /dev/md0 --re-add {self._far_disk}
            """,
            ORDER_S_MAX,
        )

    def image(self) -> Path:
        return self._image

    def admits(self, copy: Path) -> bool:
        """The superblock of metadata 1.0 is 8 KiB before the end, on a boundary of 4 KiB."""
        with copy.open("rb") as file:
            file.seek((((VOLUME_BYTES + MIB) // 512 - 16) & ~7) * 512)
            magic, _, features = struct.unpack("<III", file.read(12))
        if magic != MD_MAGIC:
            raise LabError(f"{copy} is not a member of an array")
        return bool(features & MD_RECOVERS)


class MdBehind(Md):
    name = "md raid1, write-behind"
    options = "--write-behind=256"


class Drbd(InGuests):
    """In-tree DRBD 8.4, a guest at each end."""

    name = "DRBD C"
    what = "DRBD at both ends"
    protocol = "C"

    def open(self) -> None:
        folder = self.place.folder
        self._image = sparse(folder / "far.img", VOLUME_BYTES + MIB)
        near = sparse(folder / "near.img", VOLUME_BYTES + MIB)
        self._near = self._guest("near", near, [DRBD_PORT])
        self._far = self._guest("far", self._image, [DRBD_PORT])
        self.disk = "/dev/drbd0"
        for guest, disk, other in ((self._near, "vdb", wan.FAR), (self._far, "vda", wan.NEAR)):
            guest.run(
                f"""
                set -e
                [ -b /dev/drbd0 ] || mknod /dev/drbd0 b 147 0
                mkdir -p /var/lib/drbd /run/drbd
                drbdmeta --force 0 v08 /dev/{disk} internal create-md
                drbdsetup-84 new-resource r0
                drbdsetup-84 new-minor r0 0 0
                drbdsetup-84 attach 0 /dev/{disk} /dev/{disk} internal
                drbdsetup-84 connect r0 ipv4:{INSIDE}:{DRBD_PORT} ipv4:{other}:{DRBD_PORT} \\
                    --protocol={self.protocol} --timeout=20 --ping-int=1 --ping-timeout=10 --connect-int=1
                """,
                ORDER_S_MAX,
            )
        self._until("Connected")
        # Both are empty: nothing is to be copied to begin with.
        self._near.run("drbdsetup-84 new-current-uuid --clear-bitmap 0", ORDER_S_MAX)
        self._near.run("drbdsetup-84 primary 0", ORDER_S_MAX)
        self._until("UpToDate/UpToDate")

    def _until(self, text: str) -> None:
        deadline = time.monotonic() + ORDER_S_MAX
        while text not in (state := self._state(self._near)):
            if time.monotonic() > deadline:
                raise LabError(f"DRBD is never {text}:\n{state}\n{self._near.kernel_log()[-2000:]}")
            time.sleep(0.2)

    @staticmethod
    def _state(guest: Guest) -> str:
        return guest.run("cat /proc/drbd")

    def in_sync(self) -> bool:
        state = self._state(self._near)
        return "UpToDate/UpToDate" in state and "oos:0" in state

    def gone(self) -> bool:
        return "Connected" not in self._state(self._near)

    def image(self) -> Path:
        return self._image

    def admits(self, copy: Path) -> bool:
        state = self._state(self._far)
        return "ds:Inconsistent" in state


class DrbdA(Drbd):
    name = "DRBD A"
    protocol = "A"
