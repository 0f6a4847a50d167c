"""A mirror across an emulated line: `enkaku mirror run --nbd` at the near end, `enkaku serve` at the far one.

What went over the line is read from the emulator, how long the volume's user waited from fio's log of every
write. Nothing here says what is good or bad.
"""

import json
import math
import os
import re
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from enkaku_lab import wan
from enkaku_lab.experiment import Link
from enkaku_lab.peers import disk_url, enkaku, need
from enkaku_lab.process import LabError, Peer, run

PORT = 3270
NAME = "lab"
IQN = f"{enkaku.IQN}-{os.getpid()}"
"""A host has one leg at a unit at a time, and another lab may be at work."""
TAIL_BYTES = 1 << 20
"""More than what the mirror keeps at the end of a leg."""
KEPT_BYTES_MAX = 3 << 30
"""Of the file system's room, for a disk."""
IN_SYNC_S_MAX = 1800.0
POLL_S = 0.02
BLOCK = 4096
END_S = 60.0
FIO_INTERRUPTED = 128


@dataclass(frozen=True)
class Write:
    """One write of the volume's user: when it was complete, in seconds since 1970, and how long it took."""

    at_s: float
    took_s: float


class Load:
    """fio writing at random, with a log of every write."""

    def __init__(self, running: Peer, log: Path):
        self._running, self._log = running, log

    def still_runs(self) -> bool:
        return self._running.running()

    def end(self) -> list[Write]:
        """Now. All that was written."""
        self._running.signal(2)
        if (code := self._running.wait(END_S)) not in (0, FIO_INTERRUPTED):
            raise LabError(f"fio ended with {code}: {self._running.output()[-500:]}")
        rows = (line.split(",") for line in self._log.read_text().splitlines())
        return [Write(int(row[0]) / 1e3, int(row[1]) / 1e9) for row in rows]


def p99_s(writes: list[Write], begin_s: float, end_s: float) -> float:
    """Of what was complete between two moments; NaN where nothing was."""
    took = sorted(write.took_s for write in writes if begin_s <= write.at_s < end_s)
    return took[min(int(len(took) * 0.99), len(took) - 1)] if took else math.nan


class MirrorSite:
    """One mirror with one leg. Its local disk and its leg are sparse files of the folder."""

    def __init__(self, lab: wan.Lab, link: Link, folder: Path, far: Peer, local: Path):
        self.lab, self.link, self.folder, self.far = lab, link, folder, far
        self.local, self.image = local, folder / "far.img"
        self.url = disk_url(f"{wan.FAR}:{PORT}", IQN, 0)
        self.etc, self.front, self.mount = folder / "etc", folder / "front.sock", folder / "m"
        self.mirror: Peer | None = None
        self._loads = 0

    # --- the mirror ---

    def command(self, what: str, *words: object, end: str = "near", **more):
        argv = [enkaku.binary(), "mirror", what, NAME, "--config-dir", self.etc, *words]
        return run(self.lab.exec(end, argv), **more)

    def create(self, mode: str, *options: object, **keys: str) -> None:
        """`keys` are those of [mirror], as TOML."""
        metadata = self.folder / "metadata"
        words = ["--local", self.local, "--remote", self.url, "--metadata", metadata]
        self.command("create", *words, "--mode", mode, "--force", *options)
        config = self.etc / f"{NAME}.toml"
        text = config.read_text()
        for key, value in keys.items():
            text = re.sub(rf"^{key} = .*\n", "", text, flags=re.M)
            text = text.replace("[mirror]\n", f"[mirror]\n{key} = {value}\n", 1)
        config.write_text(text)

    def start(self, *, fuse: bool = False) -> float:
        """Runs it, offered as an NBD socket or as a file; seconds until its volume could be used."""
        self.front.unlink(missing_ok=True)
        self.mount.mkdir(exist_ok=True)
        argv = [enkaku.binary(), "mirror", "run", NAME, "--config-dir", self.etc]
        argv += ["--fuse", self.mount] if fuse else ["--nbd", self.front]
        begin = time.monotonic()
        self.mirror = Peer(self.lab.exec("near", argv), self.folder / "mirror.log")
        ready = self.mount.is_mount if fuse else lambda: _accepts(self.front)
        self.mirror.wait_until(ready, "its volume cannot be used")
        return time.monotonic() - begin

    @property
    def file(self) -> Path:
        """The volume, where it is offered as a file."""
        return next(self.mount.iterdir())

    def stop(self) -> None:
        self.mirror.signal(15)
        if code := self.mirror.wait(END_S):
            raise LabError(f"the mirror ended with {code}: {self.mirror.output()[-1000:]}")

    def report(self) -> dict:
        """What `status --json` has, asked for past the command line."""
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(30)
            client.connect(str(self.etc / f"mirror-{NAME}.sock"))
            client.sendall(b'{"do":"status"}\n')
            return json.loads(client.makefile().readline())["status"]

    def leg(self) -> dict:
        return self.report()["legs"][0]

    def wait(self, what: str, ready: Callable[[dict], bool], s_max: float = IN_SYNC_S_MAX) -> dict:
        """The leg's report once it is as wanted."""
        deadline = time.monotonic() + s_max
        while not ready(leg := self.leg()):
            if time.monotonic() > deadline:
                raise LabError(f"never {what}: {leg}\n{self.mirror.output()[-1500:]}")
            time.sleep(POLL_S)
        return leg

    def wait_in_sync(self) -> dict:
        return self.wait("in sync", lambda leg: leg["state"] == "in-sync" and not leg["dirty_bytes"])

    # --- the line ---

    def cut(self) -> None:
        """Nothing arrives any more, and nobody is told."""
        self.lab.set(self.link, loss=1.0)

    def mend(self) -> None:
        self.lab.set(self.link)

    def carried(self) -> tuple[int, int]:
        """Bytes of IP packets that the line was given so far: to the leg, and back."""
        shown = enkaku.report("wan", "show", self.lab.name)
        return shown["near_to_far"]["bytes"], shown["far_to_near"]["bytes"]

    # --- the user ---

    def load(self, seconds: float, iops: int, area_bytes: int, depth: int = 256) -> Load:
        """So many random writes of 4 KiB a second, all over the first bytes of the volume."""
        self._loads += 1
        log = self.folder / f"load-{self._loads}"
        words = ["--rw=randwrite", "--bs=4k", f"--iodepth={depth}", f"--rate_iops={iops}"]
        words += ["--norandommap", f"--randseed={self._loads}", "--time_based"]
        words += [f"--runtime={seconds:g}", f"--write_lat_log={log}", "--log_unix_epoch=1"]
        return Load(self._fio(area_bytes, words), Path(f"{log}_lat.1.log"))

    def write_a_block(self) -> None:
        """One, and it is complete when this returns."""
        running = self._fio(BLOCK, ["--rw=write", "--bs=4k", "--refill_buffers", "--fsync=1"])
        if code := running.wait(END_S):
            raise LabError(f"fio ended with {code}: {running.output()[-500:]}")

    def measured(self, words: list[object], s_max: float = 300.0) -> dict:
        """What fio says of its writes: `bw_bytes`, `runtime` in ms, `clat_ns`."""
        running = self._fio(None, [*words, "--output-format=json"])
        if code := running.wait(s_max):
            raise LabError(f"fio ended with {code}: {running.output()[-500:]}")
        said = running.output()
        return json.loads(said[said.index("{") :])["jobs"][0]["write"]

    def _fio(self, size: int | None, words: list[object]) -> Peer:
        argv = [need("fio"), "--name=load", "--ioengine=nbd"]
        argv += [f"--size={size}"] if size else []
        argv += [f"--uri=nbd+unix:///?socket={self.front}", *words]
        return Peer(argv, self.folder / f"fio-{time.monotonic_ns()}.log")


@contextmanager
def site(
    link: Link, size: int, local: Path | None = None, log_bytes: int = 0
) -> Iterator[MirrorSite]:
    """A line, a target with a sparse disk, and a local disk of so many bytes: sparse unless given.

    The leg has so much room for a redo log.
    """
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name, wan.up(link, Path(name)) as lab:
        folder = Path(name)
        lab.become(link)
        local = local or _sparse(folder / "local.img", size)
        image = _sparse(folder / "far.img", size + log_bytes + TAIL_BYTES)
        where = {"address": wan.FAR, "port": PORT, "iqn": IQN}
        with enkaku.serve([image], folder, **where, within=lambda argv: lab.exec("far", argv)) as far:
            made = MirrorSite(lab, link, folder, far.peer, local)
            try:
                yield made
            finally:
                if made.mirror and made.mirror.running():
                    made.mirror.kill()
                if made.mount.is_mount():
                    run([need("fusermount3"), "-u", "-z", made.mount], check=False)


def _sparse(path: Path, size: int) -> Path:
    """Reads as zeroes. Where there is room its place is kept: blocks that are all over the file system,
    one by one in the order of random writes, take minutes to delete."""
    with path.open("wb") as file:
        file.truncate(size)
        if size <= KEPT_BYTES_MAX:
            os.posix_fallocate(file.fileno(), 0, size)
    return path


def _accepts(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return path.exists() and client.connect_ex(str(path)) == 0
