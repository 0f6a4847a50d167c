"""nfs-ganesha: an NFS server in user space, version 4 only, with a configuration of its own.

No portmapper, no system service, nothing outside its folder: the recovery data of NFSv4 is there
too. The grace period after a start is left out, since no client can have state from before.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from enkaku_lab.peers import log_path, need
from enkaku_lab.process import Peer, accepts, peer

EXPORT = "/lab"
CONFIGURATION = """
NFS_CORE_PARAM {{
    Bind_addr = {address}; NFS_Port = {port}; Protocols = 4; mount_path_pseudo = true;
    Enable_NLM = false; Enable_RQUOTA = false;
}}
NFSv4 {{ RecoveryBackend = fs; RecoveryRoot = "{state}"; Grace_Period = 1; Graceless = true; }}
EXPORT {{
    Export_Id = 1; Path = "{folder}"; Pseudo = "{export}"; Access_Type = RW;
    SecType = sys; Squash = None; Transports = TCP; FSAL {{ Name = VFS; }}
}}
"""


def url(address: str, port: int, file: str) -> str:
    """libnfs's URL of a file of the export."""
    return f"nfs://{address}{EXPORT}/{file}?version=4&nfsport={port}"


@contextmanager
def serve(folder: Path, state: Path, *, address: str, port: int) -> Iterator[Peer]:
    """The folder as NFSv4 export /lab. `state` is for configuration, log and recovery data."""
    state.mkdir(parents=True, exist_ok=True)
    log = log_path(state, "ganesha-own", port)
    log.unlink(missing_ok=True)
    configuration = state / "ganesha.conf"
    configuration.write_text(
        CONFIGURATION.format(address=address, port=port, state=state, folder=folder, export=EXPORT)
    )
    argv = [need("ganesha.nfsd"), "-F", "-f", configuration, "-L", log, "-p", state / "ganesha.pid"]
    (state / "ganesha.pid").unlink(missing_ok=True)
    with peer(argv, log_path(state, "ganesha", port)) as serving:
        serving.wait_until(lambda: accepts(address, port), f"see {log}")
        # It accepts before it can answer.
        serving.wait_until(lambda: "SERVER INITIALIZED" in _text(log), f"see {log}")
        yield serving


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""
