"""open-iscsi in the guest: Debian's iscsid and iscsiadm with the kernel's initiator, iscsi_tcp."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from enkaku_lab.peers import guest
from enkaku_lab.peers.guest import Guest

DIGESTS = {
    "node.conn[0].iscsi.HeaderDigest": "CRC32C",
    "node.conn[0].iscsi.DataDigest": "CRC32C",
}
LOGIN_S_MAX = 60.0


def chap(
    credentials: tuple[str, str],
    mutual: tuple[str, str] | None = None,
    algorithm: str = "SHA256",
    prefix: str = "node.session.auth",
) -> dict[str, str]:
    """Settings for CHAP with one algorithm: MD5, SHA1, SHA256 or SHA3-256; mutual with `mutual`."""
    settings = {
        f"{prefix}.authmethod": "CHAP",
        f"{prefix}.username": credentials[0],
        f"{prefix}.password": credentials[1],
        f"{prefix}.chap_algs": algorithm,
    }
    if mutual:
        settings |= {f"{prefix}.username_in": mutual[0], f"{prefix}.password_in": mutual[1]}
    return settings


@dataclass(frozen=True)
class Session:
    """A logged-in session and the disk of its LUN 0, like /dev/sda."""

    guest: Guest
    iqn: str
    portal: str
    disk: str

    WAIT_FOR_TASK_MANAGEMENT = """
        until iscsiadm -m session -s | grep -q 'tmfcmd_pdus: [1-9]'; do sleep 0.2; done
    """
    """Until the kernel has sent a task management function in some session."""

    def parameters(self) -> dict[str, str]:
        """What was negotiated, from `iscsiadm -m session -P 2`: `HeaderDigest`: `CRC32C`, …"""
        shown = self.guest.run("iscsiadm -m session -P 2")
        return dict(re.findall(r"^\s*(\w+): (\S+)\s*$", shown, re.MULTILINE))


def discover(
    machine: Guest, port: int, settings: dict[str, str] | None = None, check: bool = True
) -> list[str]:
    """Names of the targets that the portal on the host offers; their records are not kept."""
    keys = {"discovery.sendtargets.iscsi.MaxRecvDataSegmentLength": "32768"} | (settings or {})
    portal = f"{guest.HOST}:{port}"
    asked = machine.run(
        _configuration(keys)
        + f"iscsiadm -m discovery -t sendtargets -p {portal} -o nonpersistent\n",
        LOGIN_S_MAX,
        check,
    )
    return re.findall(r"^\S+:\d+,\S+ (\S+)$", asked, re.MULTILINE)


def try_login(machine: Guest, iqn: str, port: int, settings: dict[str, str]) -> tuple[int, str]:
    """One attempt to log in; iscsiadm's exit code and output. The record is removed again."""
    where = _where(iqn, port)
    order = machine.start(
        _configuration(settings)
        + f"""
        iscsiadm {where} -o new >/dev/null || exit 99
        iscsiadm {where} --login
        code=$?
        iscsiadm {where} --logout
        iscsiadm {where} -o delete
        exit $code
        """
    )
    output = order.wait(LOGIN_S_MAX, check=False)
    return order.code, output


@contextmanager
def session(
    machine: Guest,
    iqn: str,
    port: int,
    settings: dict[str, str] | None = None,
    *,
    discovered: bool = False,
    host: str = guest.HOST,
) -> Iterator[Session]:
    """A session with a target on the host, or elsewhere, logged out and forgotten at the end.

    The target's record is made by hand, because targets usually say where the *host* reaches them;
    with `discovered`, it is made of what SendTargets says.
    """
    where = _where(iqn, port, host)
    record = f"{where} -o new"
    if discovered:
        record = f"-m discovery -t sendtargets -p {host}:{port}"
    machine.run(
        _configuration(settings or {})
        + f"iscsiadm {record} >/dev/null && iscsiadm {where} --login",
        LOGIN_S_MAX,
    )
    try:
        disk = machine.run(FIND_DISK.format(iqn=iqn), LOGIN_S_MAX).strip()
        yield Session(machine, iqn, f"{host}:{port}", disk)
    finally:
        machine.run(
            f"iscsiadm {where} --logout; iscsiadm {where} -o delete", LOGIN_S_MAX, check=False
        )


FIND_DISK = """
while :; do
    for session in /sys/class/iscsi_session/session*; do
        [ "$(cat $session/targetname)" = {iqn} ] || continue
        for disk in $session/device/target*/*:0/block/*; do
            if [ -e "$disk" ]; then echo /dev/${{disk##*/}}; exit; fi
        done
    done
    sleep 0.1
done
"""


def _where(iqn: str, port: int, host: str = guest.HOST) -> str:
    return f"-m node -T {iqn} -p {host}:{port},1"


def _configuration(settings: dict[str, str]) -> str:
    """iscsid.conf, from which iscsiadm takes the settings of new records and of discovery."""
    keys = {"node.startup": "manual", "node.session.scan": "auto"} | settings
    lines = "".join(f"{name} = {value}\n" for name, value in keys.items())
    return f"cat >/etc/iscsi/iscsid.conf <<'END'\n{lines}END\n"
