"""QEMU's mirror job: qemu-storage-daemon copies what is written to a file to libiscsi's disk."""

import json
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from enkaku_lab.peers import need
from enkaku_lab.process import LabError, peer, run

PROGRAMS = ("qemu-storage-daemon", "nbdfuse", "fusermount3")


@dataclass(frozen=True)
class Far:
    """The disk that it copies to."""

    portal: str
    iqn: str
    lun: int = 0


@dataclass(frozen=True)
class Job:
    """A running job. `monitor` is the daemon's socket, `file` what is mirrored."""

    monitor: Path
    file: Path

    def in_sync(self) -> bool:
        job = self._asked()
        return job["ready"] and job["offset"] == job["len"]

    def behind(self) -> bool:
        """It never says that the target is gone; what it has not sent grows."""
        job = self._asked()
        return job["offset"] < job["len"]

    def _asked(self) -> dict:
        if not (jobs := _ask(self.monitor, "query-block-jobs")["return"]):
            raise LabError("QEMU's job has ended by itself: are both disks of one size?")
        return jobs[0]


@contextmanager
def mirrored(
    local: Path,
    far: Far,
    job: dict[str, str],
    folder: Path,
    logs: Path,
    near: Callable[[Sequence[object]], Sequence[object]] = list,
) -> Iterator[Job]:
    """A file of `local`, each of whose writes is mirrored; `job` has more words of `blockdev-mirror`.

    The daemon is started by `near` of its command line. The job is in sync when this yields.
    """
    monitor, nbd, mount = folder / "qmp.sock", folder / "nbd.sock", folder / "m"
    mount.mkdir(parents=True)
    target = f"transport=tcp,portal={far.portal},target={far.iqn},lun={far.lun}"
    argv = [need("qemu-storage-daemon")]
    argv += ["--chardev", f"socket,path={monitor},server=on,wait=off,id=qmp"]
    argv += ["--monitor", "chardev=qmp"]
    argv += ["--blockdev", f"driver=file,node-name=near,filename={local},cache.direct=on"]
    argv += ["--blockdev", f"driver=iscsi,node-name=far,{target},cache.direct=on"]
    argv += ["--nbd-server", f"addr.type=unix,addr.path={nbd}"]
    argv += ["--export", "type=nbd,id=front,node-name=near,name=,writable=on"]
    with peer(near(argv), logs / "qemu.log") as running:
        running.wait_until(lambda: monitor.exists() and nbd.exists(), "its sockets")
        words = {"job-id": "copy", "device": "near", "target": "far", **job}
        _ask(monitor, "blockdev-mirror", **words)
        fuse = [need("nbdfuse"), mount, f"nbd+unix:///?socket={nbd}"]
        with peer(fuse, logs / "nbdfuse.log") as mounted:
            try:
                mounted.wait_until(lambda: mount.is_mount() and any(mount.iterdir()), "a file")
                found = Job(monitor, next(mount.iterdir()))
                running.wait_until(found.in_sync, "its job is not ready")
                yield found
            finally:
                run([need("fusermount3"), "-u", "-z", mount], check=False)


def _ask(monitor: Path, command: str, **arguments: object) -> dict:
    """One command over a connection of its own; the answer behind the events."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(30)
        client.connect(str(monitor))
        lines = client.makefile()
        lines.readline()
        answer: dict = {}
        for name, words in (("qmp_capabilities", {}), (command, arguments)):
            request = {"execute": name, **({"arguments": words} if words else {})}
            client.sendall(json.dumps(request).encode() + b"\n")
            answer = {"event": ""}
            while "event" in answer:
                answer = json.loads(lines.readline())
    if "error" in answer:
        raise LabError(f"{command}: {answer['error']}")
    return answer
