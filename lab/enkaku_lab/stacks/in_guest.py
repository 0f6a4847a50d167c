"""Stacks of the kernel, both ends in one guest with a stretched line between them (enkaku_lab.in_guest).

They are not opened at the ends of a lab of namespaces, as others are, but in the guest
(in_guest.laboratory): `opened_in` has the path of a disk or a file there.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from enkaku_lab import in_guest
from enkaku_lab.experiment import GUEST, KIB, MIB, Link, Load
from enkaku_lab.in_guest import line, nfs
from enkaku_lab.peers import lio, open_iscsi
from enkaku_lab.peers.guest import TARGET_PORT, Guest
from enkaku_lab.process import LabError
from enkaku_lab.stacks import Place, Stack

DISK_BYTES = 96 * MIB
COMMAND_KIB = 2048
"""The largest command of the kernel's initiator (its `max_sectors`); a call of 4 MiB is two of them at once."""
BURST = {"InitialR2T": "No", "FirstBurstLength": 4 * MIB, "MaxBurstLength": 4 * MIB, "MaxRecvDataSegmentLength": 256 * KIB}
"""S0's, and data segments as open-iscsi takes them."""
WMEM_MAX = 212992
"""Linux's `net.core.wmem_max`, to which SO_SNDBUF is cut before the kernel doubles it."""


class InGuest(Stack):
    """What one boot serves. `far` sets the server's end up, once for a guest."""

    programs = in_guest.HOST_PROGRAMS

    def server(self) -> None:
        return None

    def opened(self, place: Place, link: Link, load: Load) -> NoReturn:
        raise LabError(f"{self.label} runs in the guest, not at an end of the lab")

    @contextmanager
    def opened_in(self, guest: Guest) -> Iterator[str]:
        """A context: mounted or logged in. Yields what is read or written, a path in the guest."""
        raise NotImplementedError


class OpenIscsi(InGuest):
    """open-iscsi and LIO, as a distribution installs them."""

    name = f"{GUEST}iscsi"
    label = "open-iscsi + LIO, as installed"
    kinds = ("read-file", "write")
    port = TARGET_PORT
    target: dict[str, object] = {}
    settings: dict[str, str] = {}
    wmem_max = WMEM_MAX
    read_ahead_kib: int | None = None

    @contextmanager
    def opened_in(self, guest: Guest) -> Iterator[str]:
        guest.run(f"echo {self.wmem_max} >/proc/sys/net/core/wmem_max")
        # The guest's time flies while it is asked for nothing: no pings in it.
        quiet = {"node.conn[0].timeo.noop_out_interval": "0", "node.conn[0].timeo.noop_out_timeout": "0"}
        with (
            lio.serve(guest, self.name, DISK_BYTES, parameters=self.target, within=line.IN_FAR) as target,
            open_iscsi.session(guest, target.iqn, TARGET_PORT, quiet | self.settings, host=line.FAR) as session,
        ):
            guest.run(f"meter fill {target.file} {DISK_BYTES}", 120)
            queue = f"/sys/block/{Path(session.disk).name}/queue"
            guest.run(f"echo {COMMAND_KIB} >{queue}/max_sectors_kb")
            if self.read_ahead_kib:
                guest.run(f"echo {self.read_ahead_kib} >{queue}/read_ahead_kb")
            yield session.disk


class OpenIscsiBursts(OpenIscsi):
    """S0's tuning: bursts of 4 MiB that nothing has to be awaited for. The buffer is what is installed."""

    name = f"{GUEST}iscsi-bursts"
    label = "open-iscsi + LIO, bursts of 4 MiB"
    target = BURST
    settings = {
        "node.session.iscsi.InitialR2T": "No",
        "node.session.iscsi.FirstBurstLength": str(4 * MIB),
        "node.session.iscsi.MaxBurstLength": str(4 * MIB),
        "node.conn[0].iscsi.MaxXmitDataSegmentLength": str(256 * KIB),
    }


class OpenIscsiMebibyte(OpenIscsiBursts):
    """The same where the kernel lets iscsid have the buffer that it asks for: `tcp.window_size`, 512 KiB, which
    the kernel counts twice."""

    name = f"{GUEST}iscsi-1m"
    label = "… and iscsid's 512 KiB, doubled by the kernel"
    wmem_max = 512 * KIB


class OpenIscsiWide(OpenIscsiBursts):
    """Its setting raised."""

    name = f"{GUEST}iscsi-8m"
    label = "… and tcp.window_size = 4 MiB"
    wmem_max = 4 * MIB
    settings = OpenIscsiBursts.settings | {"node.conn[0].tcp.window_size": str(4 * MIB)}


class OpenIscsiAhead(OpenIscsi):
    name = f"{GUEST}iscsi-ahead"
    label = "open-iscsi + LIO, read-ahead 4 MiB"
    read_ahead_kib = 4096


class KernelNfs(InGuest):
    """The kernel's client and server over TCP; what is read ahead is Linux's default, 128 KiB."""

    name = f"{GUEST}nfs"
    label = "kernel NFSv3, TCP"
    kinds = ("read-file",)
    port = nfs.NFS_PORT
    transport = "tcp"
    read_ahead_kib: int | None = None

    @contextmanager
    def opened_in(self, guest: Guest) -> Iterator[str]:
        with nfs.mounted(guest, self.transport, self.read_ahead_kib) as path:
            yield path


class KernelNfsAhead(KernelNfs):
    name = f"{GUEST}nfs-ahead"
    label = "kernel NFSv3, TCP, read-ahead 4 MiB"
    read_ahead_kib = 4096


class KernelNfsUdp(KernelNfs):
    """As in 2004."""

    name = f"{GUEST}nfs-udp"
    label = "kernel NFSv3, UDP"
    transport = "udp"


class KernelNfsUdpAhead(KernelNfsUdp):
    name = f"{GUEST}nfs-udp-ahead"
    label = "kernel NFSv3, UDP, read-ahead 4 MiB"
    read_ahead_kib = 4096


class GuestServer(InGuest):
    """A program at the far end that serves one connection of a program at the near end."""

    program: str
    arguments: str
    ready: str
    """What it says as soon as it listens."""
    port: int

    @contextmanager
    def opened_in(self, guest: Guest) -> Iterator[str]:
        server = guest.start(f"{line.IN_FAR} {self.program} {self.arguments.format(port=self.port)}")
        server.wait_for(self.ready, 60)
        try:
            yield ""
        finally:
            if server.running():
                guest.run(f"killall {self.program}", check=False)
            server.wait(60, check=False)


class GuestTcp(GuestServer):
    """iperf3 in the guest, a connection whose buffers grow by themselves."""

    name = f"{GUEST}tcp"
    label = "plain TCP in the guest (iperf3)"
    kinds = ("read-file", "write")
    program, arguments, ready = "iperf3", "-s -1 -p {port} --forceflush", "Server listening"
    port = 5201


class GuestSocket(GuestServer):
    """A socket that a program writes to and blocks on, as S0's; for the kernel's log, not for rates."""

    name = f"{GUEST}socket"
    label = "a socket that blocks"
    program, arguments, ready = "meter", "sink {port}", "ready"
    port = 5202


ALL = (
    *(OpenIscsi(), OpenIscsiBursts(), OpenIscsiMebibyte(), OpenIscsiWide(), OpenIscsiAhead()),
    *(KernelNfs(), KernelNfsAhead(), KernelNfsUdp(), KernelNfsUdpAhead(), GuestTcp(), GuestSocket()),
)
