"""istgt (Debian), a target of 2011: real connections per session, RFC 3720, and habits of its own.

It closes connections now and then before its Logout Response is out, and takes command numbers
lightly. It runs in the foreground with a configuration of its own and is stopped by process id.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from enkaku_lab.peers import Target, log_path, need
from enkaku_lab.process import Peer, accepts, free_port

NODE_BASE = "iqn.2026-01.lab.enkaku"
NAME = "istgt"

CONFIGURATION = """
[Global]
  NodeBase "{base}"
  PidFile {folder}/istgt.pid
  AuthFile {folder}/auth.conf
  MediaDirectory {folder}
  LogFacility "local7"
  Timeout 30
  NopInInterval 20
  DiscoveryAuthMethod None
  MaxSessions 16
  MaxConnections {connections}
  FirstBurstLength 262144
  MaxBurstLength 1048576
  MaxRecvDataSegmentLength 262144
  InitialR2T Yes
  ImmediateData Yes
  DataPDUInOrder Yes
  DataSequenceInOrder Yes
  ErrorRecoveryLevel 0

[UnitControl]
  AuthMethod None
  Netmask {address}/32
  Portal UC1 {address}:{control_port}

[PortalGroup1]
  Portal DA1 {address}:{port}

[InitiatorGroup1]
  InitiatorName "ALL"
  Netmask {address}/32

[LogicalUnit1]
  TargetName {name}
  Mapping PortalGroup1 InitiatorGroup1
  AuthMethod None
  UnitType Disk
  QueueDepth 32
  LUN0 Storage {disk} Auto
"""


@contextmanager
def serve(disk: Path, logs: Path, *, connections: int = 4) -> Iterator[Target]:
    """An istgt with one target whose LUN 0 is the given file."""
    address, port, control_port = "127.0.0.1", free_port(), free_port()
    folder = logs / f"istgt-{port}"
    folder.mkdir()
    (folder / "auth.conf").write_text("")
    (folder / "auth.conf").chmod(0o600)
    values = {"base": NODE_BASE, "folder": folder, "connections": connections, "disk": disk}
    values |= {"address": address, "port": port, "control_port": control_port, "name": NAME}
    (folder / "istgt.conf").write_text(CONFIGURATION.format(**values))
    # -D: it stays in the foreground.
    argv = [need("istgt"), "-D", "-c", folder / "istgt.conf"]
    peer = Peer(argv, log_path(logs, "istgt", port))
    try:
        peer.wait_until(lambda: accepts(address, port), "its portal does not accept connections")
        yield Target("istgt", peer, address, port, f"{NODE_BASE}:{NAME}")
    finally:
        peer.kill()
