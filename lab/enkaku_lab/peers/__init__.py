"""One adapter per program: how it is started, when it is ready, what its numbers mean.

Every adapter runs the real program. What a program cannot do is said by the adapter
(`NotSupported`), never guessed at.
"""

import shutil
from dataclasses import dataclass, field
from pathlib import Path

from enkaku_lab.process import LabError, Peer


class NotSupported(LabError):
    """The program has no such operation; a table shows it as a gap."""


def need(program: str) -> str:
    """The path of a program, or an error that says which package has it."""
    found = shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin:/usr/local/sbin")
    if not found:
        raise LabError(f"{program} is not installed; scripts/setup installs it (packages.txt)")
    return found


def host_for_url(address: str) -> str:
    return f"[{address}]" if ":" in address else address


@dataclass(frozen=True)
class Target:
    """A running iSCSI target. LUN numbers of its disks are counted from `first_lun`."""

    name: str
    peer: Peer
    address: str
    port: int
    iqn: str
    first_lun: int = 0

    @property
    def portal(self) -> str:
        return f"{host_for_url(self.address)}:{self.port}"

    def url(self, disk: int = 0, credentials: tuple[str, str] | None = None) -> str:
        """libiscsi's URL of the disk with this position in the list that the target was given."""
        return disk_url(self.portal, self.iqn, self.first_lun + disk, credentials)


def disk_url(
    portal: str, iqn: str, lun: int, credentials: tuple[str, str] | None = None
) -> str:
    login = f"{credentials[0]}%{credentials[1]}@" if credentials else ""
    return f"iscsi://{login}{portal}/{iqn}/{lun}"


@dataclass(frozen=True)
class Workload:
    """What a client does: direction, order, block size in bytes, commands in flight."""

    write: bool
    random: bool
    block_bytes: int
    depth: int

    @property
    def rw(self) -> str:
        """fio's word for it, which `enkaku bench` uses too."""
        return ("rand" if self.random else "") + ("write" if self.write else "read")

    @property
    def label(self) -> str:
        return f"{self.rw} {self.block_bytes // 1024}k d{self.depth}"


@dataclass(frozen=True)
class Measurement:
    """What a client reached. `lat_us` has the percentiles that the client itself reports."""

    bytes: int
    seconds: float
    client_cpu_s: float
    lat_us: dict[str, float] = field(default_factory=dict)
    connections: int = 1

    @property
    def bytes_per_s(self) -> float:
        return self.bytes / self.seconds


def log_path(folder: Path, name: str, port: int) -> Path:
    return folder / f"{name}-{port}.log"
