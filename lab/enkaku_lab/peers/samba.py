"""Samba's smbd as a server of one folder to guests, with a configuration of its own.

Every folder that it would use below /var and /run is in its own state folder instead, so that it
never meets a Samba of the machine's owner. It drops to no other user: guests are whoever runs it.
It listens on every address of its network namespace, because it leaves out point-to-point devices
when it is told which to take; so it belongs into a namespace that holds nothing else.
"""

import getpass
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from enkaku_lab.peers import log_path, need
from enkaku_lab.process import Peer, accepts, peer

SHARE = "lab"
FOLDERS = ("private dir", "lock directory", "state directory", "cache directory", "pid directory")
PROTOCOLS = ("server min protocol", "server max protocol")
CONFIGURATION = """
[global]
    server role = standalone server
    smb ports = {port}
    bind interfaces only = no
    log file = {state}/log.smbd
    map to guest = Bad User
    guest account = {user}
{folders}
    ncalrpc dir = {state}/ncalrpc
    disable netbios = yes
    load printers = no
    disable spoolss = yes
{protocols}
[{share}]
    path = {folder}
    guest ok = yes
    read only = no
"""


def url(address: str, port: int, file: str) -> str:
    """libsmbclient's URL of a file of the share."""
    return f"smb://{address}:{port}/{SHARE}/{file}"


@contextmanager
def serve(
    folder: Path, state: Path, *, address: str, port: int, only: str | None = None
) -> Iterator[Peer]:
    """The folder as share `lab`. `state` is emptied first. `only`: the server speaks
    nothing else (`NT1`: SMB 1)."""
    shutil.rmtree(state, ignore_errors=True)
    state.mkdir(parents=True, mode=0o755)
    configuration = state / "smb.conf"
    configuration.write_text(
        CONFIGURATION.format(
            port=port,
            user=getpass.getuser(),
            folders="\n".join(f"    {name} = {state}" for name in FOLDERS),
            state=state,
            share=SHARE,
            folder=folder,
            protocols="\n".join(f"    {name} = {only}" for name in PROTOCOLS if only),
        )
    )
    # In a process group of its own (so never --no-process-group): when it ends it sends SIGTERM to
    # its whole group.
    options = ["--foreground", "--debug-stdout"]
    argv = [need("smbd"), *options, "--configfile", configuration]
    with peer(argv, log_path(state, "smbd", port)) as serving:
        serving.wait_until(lambda: accepts(address, port), "its port does not accept connections")
        yield serving
