"""tgt, Debian's user-space iSCSI target: the stock target that everything is compared with.

Every instance has its own control number, so that it never meets a tgtd of the machine's owner.
tgtd does not end on SIGTERM while a target exists; it is killed by process id, and the control
socket that it leaves behind is removed.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from enkaku_lab.peers import Target, host_for_url, log_path, need
from enkaku_lab.process import Peer, accepts, free_port, run

IQN = "iqn.2026-01.lab.enkaku:tgt"
CONTROL_FOLDER = Path("/var/run/tgtd")
CONTROL_NUMBERS = range(1000, 30000)
"""tgtd stores the number in 16 bits; the low ones are left to people."""
FIRST_LUN = 1
"""LUN 0 of a tgt target is its controller, not a disk."""


@contextmanager
def serve(
    disks: list[Path],
    logs: Path,
    *,
    address: str = "127.0.0.1",
    port: int | None = None,
    credentials: tuple[str, str] | None = None,
    max_connections: int | None = None,
    parameters: dict[str, str] | None = None,
    iqn: str = IQN,
    within: Callable[[list[object]], list[object]] | None = None,
) -> Iterator[Target]:
    """A tgtd with one target whose LUNs 1, 2, … are the given files (backing store rdwr).

    `parameters` are iSCSI keys by name, in place of tgt's own values. `within` makes of its command
    one that runs elsewhere, in another network namespace for instance; give the port then, too.
    """
    port = port or free_port(address)
    control = _free_control_number()
    portal = f"portal={host_for_url(address)}:{port}"
    argv = [need("tgtd"), "-f", "-C", control, "--iscsi", portal]
    log = log_path(logs, f"tgtd-{control}" if within else "tgtd", port)
    tgtd = Peer(within(argv) if within else argv, log)
    try:
        # Seen from elsewhere it is not; it opens the portal before it answers tgtadm.
        if within is None:
            tgtd.wait_until(lambda: accepts(address, port), "its portal does not accept connections")
        tgtd.wait_until(lambda: _admin_answers(control), "tgtadm gets no answer")
        keys = dict(parameters or {})
        if max_connections is not None:
            keys["MaxConnections"] = str(max_connections)
        _configure(control, iqn, disks, credentials, keys)
        yield Target("tgt", tgtd, address, port, iqn, FIRST_LUN)
    finally:
        tgtd.kill()
        for leftover in (f"socket.{control}", f"socket.{control}.lock"):
            (CONTROL_FOLDER / leftover).unlink(missing_ok=True)


def _configure(
    control: int,
    iqn: str,
    disks: list[Path],
    credentials: tuple[str, str] | None,
    keys: dict[str, str],
) -> None:
    def admin(*words: object) -> None:
        run([need("tgtadm"), "-C", control, "--lld", "iscsi", *words])

    target = ("--mode", "target", "--tid", 1)
    admin("--op", "new", *target, "-T", iqn)
    for name, value in keys.items():
        admin("--op", "update", *target, "--name", name, "--value", value)
    for lun, disk in enumerate(disks, FIRST_LUN):
        admin("--op", "new", "--mode", "logicalunit", "--tid", 1, "--lun", lun, "-b", disk)
    if credentials:
        user, password = credentials
        admin("--op", "new", "--mode", "account", "--user", user, "--password", password)
        admin("--op", "bind", "--mode", "account", "--tid", 1, "--user", user)
    admin("--op", "bind", *target, "-I", "ALL")


def _free_control_number() -> int:
    # Neighbouring process ids, as tests that run at a time have, begin far apart.
    first = os.getpid() * 127 % len(CONTROL_NUMBERS)
    for step in range(len(CONTROL_NUMBERS)):
        number = CONTROL_NUMBERS[(first + step) % len(CONTROL_NUMBERS)]
        if not (CONTROL_FOLDER / f"socket.{number}.lock").exists():
            return number
    raise RuntimeError("every control number of tgtd is taken")


def _admin_answers(control: int) -> bool:
    asked = run([need("tgtadm"), "-C", control, "--op", "show", "--mode", "sys"], check=False)
    return asked.code == 0
