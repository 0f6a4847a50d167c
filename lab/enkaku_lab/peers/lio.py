"""LIO in the guest: the kernel's target, configured through configfs."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from enkaku_lab.peers import disk_url
from enkaku_lab.peers.guest import TARGET_PORT, Guest

CONFIG = "/sys/kernel/config/target"
INITIATOR = "iqn.2026-11.lab.enkaku:initiator"
"""The initiator that gets a higher error recovery level. The key alone does nothing: at login LIO
overwrites it with an attribute of the initiator. And it gets a minute to send data, not 3 s: the
guest is slow, and a recovery R2T for what is on its way would be no recovery."""
BACKING = "/tmp/lio"
"""Files on tmpfs: what LIO was told to keep can be read in the guest without it."""


@dataclass(frozen=True)
class Lio:
    """A target in the guest with one LUN over a file there."""

    guest: Guest
    iqn: str
    bytes: int
    credentials: tuple[str, str] | None = field(default=None, repr=False)

    def url(self, port: int | None = None) -> str:
        """The LUN, reached through a port of this host (a proxy's), else the forwarded one."""
        return disk_url(f"127.0.0.1:{port or self.guest.port}", self.iqn, 0)

    @property
    def file(self) -> str:
        return f"{BACKING}/{self.iqn}"

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
) -> Iterator[Lio]:
    """A target that everybody may write to; `parameters` are its keys: MaxConnections, …

    With `credentials`, initiators must know them; with `mutual`, LIO proves itself with those.
    """
    lio = Lio(guest, f"iqn.2026-11.lab.enkaku:{name}", size, credentials)
    try:
        guest.run(_setup(lio, parameters or {}, mutual))
        yield lio
    finally:
        guest.run(_teardown(lio))


def start(guest: Guest, name: str, size: int, parameters: dict[str, object]) -> Lio:
    """A target that stays until the guest goes, for tests after which LIO cannot be trusted."""
    lio = Lio(guest, f"iqn.2026-11.lab.enkaku:{name}", size)
    guest.run(_setup(lio, parameters, None))
    return lio


def _setup(lio: Lio, parameters: dict[str, object], mutual: tuple[str, str] | None) -> str:
    backstore, group = _backstore(lio), lio._group
    script = f"""
        set -e
        mkdir -p {BACKING} && truncate -s {lio.bytes} {lio.file}
        mkdir -p {backstore}
        echo fd_dev_name={lio.file},fd_dev_size={lio.bytes} >{backstore}/control
        echo 1 >{backstore}/enable
        mkdir -p {group}/lun/lun_0 {group}/np/0.0.0.0:{TARGET_PORT}
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
    return f"""
        echo 0 >{group}/enable
        rm -f {group}/acls/*/lun_0/disk {group}/lun/lun_0/disk
        rmdir {group}/acls/*/lun_0 {group}/acls/* 2>/dev/null
        rmdir {group}/lun/lun_0 {group}/np/* {group} {CONFIG}/iscsi/{lio.iqn}
        rmdir {backstore} {CONFIG}/core/fileio_{_index(lio)}
        rm -f {lio.file}
        true
    """


def _backstore(lio: Lio) -> str:
    return f"{CONFIG}/core/fileio_{_index(lio)}/{lio.iqn.rpartition(':')[2]}"


def _index(lio: Lio) -> int:
    """Every target has a host bus adapter of its own, so that one can go while others stay."""
    return sum(lio.iqn.encode())
