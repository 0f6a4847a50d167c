"""What runs on this machine itself: `enkaku mirror`, and QEMU's mirror job. Their far end is a target."""

import json
import re
import socket
import time
from functools import partial
from pathlib import Path

from enkaku_lab import stamped, wan
from enkaku_lab.peers import disk_url, enkaku, need, qemu_mirror
from enkaku_lab.process import LabError, Peer, peer, run
from enkaku_lab.replicas import BLOCKS, IQN, MIB, PORT, VOLUME_BYTES, Replica, Writing

REMOTE_TIMEOUT = '"2s"'
TAIL_BYTES = 16 * MIB
"""Room at the leg for the redo log of such a volume, a tenth of it, and what else the mirror keeps there."""


class OnThisMachine(Writing):
    def __init__(self, running: Peer):
        self._running = running

    def newest(self) -> int:
        told = re.findall(r"^stable (\d+)$", self._running.output(), re.M)
        return int(told[-1]) if told else 0

    def running(self) -> bool:
        return self._running.running()

    def wait(self, s_max: float) -> None:
        if code := self._running.wait(s_max):
            raise LabError(f"the writer ended with {code}: {self._running.output()[-500:]}")

    def stop(self) -> None:
        # A write that waits for the other site ends when that does.
        self._running.signal(9)


class Here(Replica):
    """The volume is a file at the near end; the far end is `enkaku serve`."""

    file: Path

    def _serve(self, tail_bytes: int = 0) -> None:
        """A disk that has room for so much behind the image."""
        self._image = sparse(self.place.folder / "far.img", VOLUME_BYTES + tail_bytes)
        argv = [enkaku.binary(), "serve", "--lun", self._image, "--iqn", IQN]
        argv += ["--listen", f"{wan.FAR}:{PORT}"]
        log = self.place.folder / "serve.log"
        far = self.closing.enter_context(peer(self.place.lab.exec("far", argv), log))
        far.wait_for_output("listening on")

    def write(self, first: int, count: int, pause_us: int) -> Writing:
        argv = [stamped.stamper(), self.file, BLOCKS, first, count, pause_us]
        log = self.place.folder / f"stamps-{first}-{time.monotonic_ns()}.log"
        running = Peer(argv, log)
        self.closing.callback(running.stop)
        return OnThisMachine(running)

    def fill(self, noise: Path) -> float:
        argv = [need("dd"), f"if={noise}", f"of={self.file}", "bs=256k", "seek=256", "status=none"]
        return run([*argv, "conv=notrunc,fsync", "oflag=direct"], timeout_s=600).seconds

    def image(self) -> Path:
        return self._image


class EnkakuMirror(Here):
    name = "enkaku mirror, sync"
    what = "iSCSI, any target"
    mode = "sync"

    def open(self) -> None:
        self._serve(TAIL_BYTES)
        folder = self.place.folder
        self._etc, mount = folder / "etc", folder / "m"
        mount.mkdir()
        local = sparse(folder / "local.img", VOLUME_BYTES)
        url = disk_url(f"{wan.FAR}:{PORT}", IQN, 0)
        words = ["--local", local, "--remote", url, "--metadata", folder / "metadata"]
        self._command("create", *words, "--mode", self.mode, "--skip-initial-copy", "--force")
        config = self._etc / "peers.toml"
        text = config.read_text()
        text = re.sub(r"^remote_timeout = .*\n", "", text, flags=re.M)
        config.write_text(
            text.replace("[mirror]\n", f"[mirror]\nremote_timeout = {REMOTE_TIMEOUT}\n", 1)
        )
        argv = [enkaku.binary(), "mirror", "run", "peers", "--config-dir", self._etc, "--fuse", mount]
        running = self.closing.enter_context(
            peer(self.place.lab.exec("near", argv), folder / "mirror.log")
        )
        self.closing.callback(run, [need("fusermount3"), "-u", "-z", mount], check=False)
        running.wait_until(lambda: mount.is_mount() and any(mount.iterdir()), "a file")
        self.file = next(mount.iterdir())
        running.wait_until(self.in_sync, "its leg is not in sync")

    def _command(self, what: str, *words: object):
        argv = [enkaku.binary(), "mirror", what, "peers", "--config-dir", self._etc, *words]
        return run(self.place.lab.exec("near", argv))

    def leg(self) -> dict:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(30)
            client.connect(str(self._etc / "mirror-peers.sock"))
            client.sendall(b'{"do":"status"}\n')
            return json.loads(client.makefile().readline())["status"]["legs"][0]

    def in_sync(self) -> bool:
        leg = self.leg()
        return leg["state"] == "in-sync" and not leg["dirty_bytes"] and not leg["lag_bytes"]

    def gone(self) -> bool:
        return self.leg()["state"] == "lost"

    def recover(self) -> None:
        self._command("resync")

    def admits(self, copy: Path) -> bool:
        said = enkaku.report("mirror", "inspect", copy)
        return said["consistency"]["is"] == "inconsistent"

    def take_over(self, copy: Path) -> None:
        # The host that has it gave a sign of life a moment ago.
        enkaku.command("mirror", "promote", copy, "--force")


class EnkakuMirrorAsync(EnkakuMirror):
    name = "enkaku mirror, async"
    mode = "async"

    @classmethod
    def missing(cls) -> str | None:
        said = enkaku.command("mirror", "create", "--help").stdout
        return None if "async" in said else "this build has no asynchronous mode"


class BlockdevMirror(Here):
    """qemu-storage-daemon: `blockdev-mirror` to libiscsi's disk, its source as an NBD export and a file."""

    name = "QEMU mirror, background"
    what = "iSCSI, any target"
    copy_mode = "background"

    @classmethod
    def missing(cls) -> str | None:
        for program in qemu_mirror.PROGRAMS:
            try:
                need(program)
            except LabError as error:
                return str(error)
        return None

    def open(self) -> None:
        self._serve()
        folder = self.place.folder
        local = sparse(folder / "local.img", VOLUME_BYTES)
        job = {"sync": "full", "copy-mode": self.copy_mode, "on-target-error": "ignore"}
        far = qemu_mirror.Far(f"{wan.FAR}:{PORT}", IQN)
        near = partial(self.place.lab.exec, "near")
        running = qemu_mirror.mirrored(local, far, job, folder, folder, near)
        self._job = self.closing.enter_context(running)
        self.file = self._job.file

    def in_sync(self) -> bool:
        return self._job.in_sync()

    def gone(self) -> bool:
        return self._job.behind()

    def admits(self, copy: Path) -> bool:
        return False


class BlockdevMirrorWaiting(BlockdevMirror):
    name = "QEMU mirror, write-blocking"
    copy_mode = "write-blocking"


def sparse(path: Path, size: int) -> Path:
    with path.open("wb") as file:
        file.truncate(size)
    return path
