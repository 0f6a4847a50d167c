"""S0's and S1's own kind of stack: the kernel's initiator and target, its NFS client and server, in one stock
Debian guest, with a line between two of its network namespaces.

The guest is interpreted, and its clock is made of what it executes: a nanosecond for each instruction
(peers/guest.py, `counted`). So how fast or how busy this machine is changes nothing of what is measured, and a
run waits for nobody. What remains is that its processor would be slow for 1 Gbit/s, both ends and the router
being on it. So the line is stretched: STRETCH times slower and longer, all times that are measured divided by it,
which makes the processor as many times faster (“To infinity and beyond”, Gupta et al., NSDI 2006). A run in which
it was busy for most of the time counts as none.
"""

from dataclasses import dataclass
from pathlib import Path

from enkaku_lab.in_guest import udp
from enkaku_lab.peers import built, guest_image, need
from enkaku_lab.process import LabError

METER = Path(__file__).with_name("meter.c")
HOST_PROGRAMS = ("qemu-system-x86_64", "busybox", "cc", "ip", "tc", "ss", "iperf3", "mke2fs", "e2fsck")


def recipe() -> guest_image.Recipe:
    """The image: besides open-iscsi and LIO a line, NFS, iperf3 and the meter."""
    return guest_image.Recipe(
        packages=("nfs-kernel-server", "rpcbind", "libnfsidmap1", "libevent-core-2.1-7", "libsqlite3-0"),
        programs=(
            "nfs-kernel-server/usr/sbin/rpc.mountd",
            "nfs-kernel-server/usr/sbin/exportfs",
            "rpcbind/sbin/rpcbind",
        ),
        modules=("veth", "nfs", "nfsv3", "nfsd"),
        own=(*(Path(need(name)) for name in ("ip", "tc", "ss", "iperf3")), meter()),
        replaced=udp.modules(),
    )


def versions() -> dict[str, str]:
    """Of what runs in it; nothing where there can be none."""
    try:
        image = guest_image.image(recipe())
    except LabError:
        return {}
    return {"guest": f"Linux {image.kernel_version}", "open-iscsi (guest)": image.open_iscsi_version}


def missing() -> str | None:
    """What this machine lacks for it; whether the packages can be had shows when they are."""
    try:
        for program in HOST_PROGRAMS:
            need(program)
    except LabError as error:
        return str(error)
    return None


def meter() -> Path:
    """The program, compiled once for each version of its source."""
    return built.program(METER, "-static")


@dataclass(frozen=True)
class Metered:
    """What the meter says, in the guest's time."""

    bytes: int
    seconds: float
    all_bytes: int
    all_seconds: float
    calls: int
    right: bool
    """Every word was what is written there."""
    error: str
