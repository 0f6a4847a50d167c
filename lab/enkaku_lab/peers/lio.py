"""LIO in the guest: the kernel's target, configured through configfs."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from enkaku_lab.peers import disk_url
from enkaku_lab.peers.guest import TARGET_PORT, Guest

CONFIG = "/sys/kernel/config/target"
PREFIX = "iqn.2026-11.lab.enkaku:"
"""Of the targets' names."""
INITIATOR = f"{PREFIX}initiator"
"""The initiator that gets a higher error recovery level. The key alone does nothing: at login LIO
overwrites it with an attribute of the initiator. And it gets a minute to send data, not 3 s: the
guest is slow, and a recovery R2T for what is on its way would be no recovery."""
PR_FOLDER = "/etc/target/pr"
"""Where LIO keeps reservations, each unit's under its serial number. It does not make the folder,
and without it answers NOT READY to every registration (tests/test_lio.py)."""
BACKING = "/tmp/lio"
"""Files on tmpfs: what LIO was told to keep can be read in the guest without it."""


@dataclass(frozen=True)
class Lio:
    """A target in the guest with one LUN over a file there, or over a disk of the guest."""

    guest: Guest
    iqn: str
    bytes: int
    credentials: tuple[str, str] | None = field(default=None, repr=False)
    disk: str | None = None
    """With one, LIO writes through the guest's page cache, and says that it has a volatile cache.
    When the target goes, all of it is on the disk, and the guest has none of it in memory."""
    within: str = ""
    """What a command begins with that runs in the network namespace in which LIO is to listen."""

    def url(self, port: int | None = None) -> str:
        """The LUN, reached through a port of this host (a proxy's), else the forwarded one."""
        return disk_url(f"127.0.0.1:{port or self.guest.port}", self.iqn, 0)

    @property
    def file(self) -> str:
        return self.disk or f"{BACKING}/{self.iqn}"

    @property
    def serial(self) -> str:
        """The unit's serial number, where it is a disk: 32 hexadecimal digits."""
        return hashlib.md5(self.iqn.encode()).hexdigest()

    def set(self, attribute: str, value: int) -> None:
        """An attribute of the unit, by its name in configfs."""
        self.guest.run(f"echo {value} >{_backstore(self)}/attrib/{attribute}")

    def sha256(self) -> str:
        """Of what LIO keeps, computed in the guest, past the target."""
        return self.guest.run(f"sha256sum {self.file}").split()[0]

    @property
    def _group(self) -> str:
        return f"{CONFIG}/iscsi/{self.iqn}/tpgt_1"


@contextmanager
def serve(
    guest: Guest,
    name: str,
    size: int,
    *,
    parameters: dict[str, object] | None = None,
    credentials: tuple[str, str] | None = None,
    mutual: tuple[str, str] | None = None,
    disk: str | None = None,
    within: str = "",
) -> Iterator[Lio]:
    """A target that everybody may write to; `parameters` are its keys: MaxConnections, …

    With `credentials`, initiators must know them; with `mutual`, LIO proves itself with those. With
    `disk`, a block device of the guest is its LUN, as it is. `within` is Lio's.
    """
    lio = Lio(guest, f"{PREFIX}{name}", size, credentials, disk, within)
    try:
        guest.run(_setup(lio, parameters or {}, mutual))
        yield lio
    finally:
        stop(lio)


def start(
    guest: Guest,
    name: str,
    size: int,
    parameters: dict[str, object] | None = None,
    *,
    disk: str | None = None,
) -> Lio:
    """A target that stays until it is stopped or the guest goes: for tests after which LIO cannot
    be trusted, or that take the guest's power away."""
    lio = Lio(guest, f"{PREFIX}{name}", size, disk=disk)
    guest.run(_setup(lio, parameters or {}, None))
    return lio


def stop(lio: Lio) -> None:
    """Ends its sessions and removes it, with its file where it has one of its own."""
    lio.guest.run(_teardown(lio))


def _setup(lio: Lio, parameters: dict[str, object], mutual: tuple[str, str] | None) -> str:
    backstore, group = _backstore(lio), lio._group
    control = f"fd_dev_name={lio.file},fd_dev_size={lio.bytes}"
    if lio.disk:
        control += ",fd_buffered_io=1"
        before = f"mkdir -p {PR_FOLDER}"
        after = f"echo {lio.serial} >{backstore}/wwn/vpd_unit_serial"
    else:
        before, after = f"mkdir -p {BACKING} && truncate -s {lio.bytes} {lio.file}", ""
    script = f"""
        set -e
        {before}
        mkdir -p {backstore}
        echo {control} >{backstore}/control
        echo 1 >{backstore}/enable
        {after}
        {lio.within} mkdir -p {group}/lun/lun_0 {group}/np/0.0.0.0:{TARGET_PORT}
        ln -s {backstore} {group}/lun/lun_0/disk
        echo 1 >{group}/attrib/generate_node_acls
        echo 1 >{group}/attrib/cache_dynamic_acls
        echo 0 >{group}/attrib/demo_mode_write_protect
        echo {int(lio.credentials is not None)} >{group}/attrib/authentication
    """
    for name, value in parameters.items():
        script += f"echo {value} >{group}/param/{name}\n"
    if level := parameters.get("ErrorRecoveryLevel"):
        script += f"""
            mkdir -p {group}/acls/{INITIATOR}/lun_0
            ln -s {group}/lun/lun_0 {group}/acls/{INITIATOR}/lun_0/disk
            echo {level} >{group}/acls/{INITIATOR}/attrib/default_erl
            echo 60 >{group}/acls/{INITIATOR}/attrib/dataout_timeout
        """
    for suffix, pair in (("", lio.credentials), ("_mutual", mutual)):
        if pair:
            script += f"echo -n {pair[0]} >{group}/auth/userid{suffix}\n"
            script += f"echo -n {pair[1]} >{group}/auth/password{suffix}\n"
    return script + f"echo 1 >{group}/enable\n"


def _teardown(lio: Lio) -> str:
    backstore, group = _backstore(lio), lio._group
    file = "" if lio.disk else f"rm -f {lio.file}"
    return f"""
        echo 0 >{group}/enable
        rm -f {group}/acls/*/lun_0/disk {group}/lun/lun_0/disk
        rmdir {group}/acls/*/lun_0 {group}/acls/* 2>/dev/null
        rmdir {group}/lun/lun_0 {group}/np/* {group} {CONFIG}/iscsi/{lio.iqn}
        rmdir {backstore} {CONFIG}/core/fileio_{_index(lio)}
        {file}
        true
    """


def _backstore(lio: Lio) -> str:
    return f"{CONFIG}/core/fileio_{_index(lio)}/{lio.iqn.rpartition(':')[2]}"


def _index(lio: Lio) -> int:
    """Every target has a host bus adapter of its own, so that one can go while others stay."""
    return sum(lio.iqn.encode())
