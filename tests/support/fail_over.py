"""A mirror in use, from the disk of the other site to the file system at this one, in pieces that can be
killed and cut one by one; and the other site's image as somebody there would take it over.

    local file ─ enkaku mirror run (FUSE) ← loop ← ext4
                          └ line (Proxy) → target → its disk
"""

import json
import os
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path

from support.daemon import NAME_A, Daemon, target
from support.mirror import TAIL, Mirror, differences
from support.storage import BLOCK, Storage
from support.volume import check_ext4, loop_device, make_ext4, mounted, recover_ext4

from enkaku_lab.peers import Target, enkaku, need, tgt
from enkaku_lab.process import LabError, free_port, run
from enkaku_lab.proxy import Proxy

SETTLED_S_MAX = 60.0
POLL_S = 0.005
"""A catch-up is to be met in the middle."""
REMOTE_TIMEOUT = '"5s"'
"""Longer than a cut lasts before the mirror dies where no leg is to be lost meanwhile."""


class Far(ABC):
    """The other site: a target with one disk. It can lose its power."""

    image: Path
    spare: Path
    """Where a copy of the image is put, to be served by another target of this kind."""
    lun = 0

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir()
        self.spare = folder / "copy.img"
        self.port = free_port()
        # A host has one leg at a unit at a time, and another test may be at work.
        self.name = f"{NAME_A}-{os.getpid()}"

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def kill(self) -> None:
        """At once. What it had answered for stays in the system's page cache."""

    def cut_power(self, seed: int) -> int:
        """The same, and what was not synced is lost where the disk can lose it; how many blocks."""
        self.kill()
        return 0

    @abstractmethod
    def serve(self, disk: Path) -> AbstractContextManager[Target]:
        """The spare disk at another target of this kind."""

    def close(self) -> None:
        self.kill()


class FarOurs(Far):
    """`enkaku target run` over a disk with a volatile cache."""

    def __init__(self, folder: Path, size: int):
        super().__init__(folder)
        self._storage = Storage(folder, size)
        self.image = self._storage.image
        self._daemon = Daemon(folder)
        self.port = self._daemon.port

    def start(self) -> None:
        self._daemon.write(target(self.name, self.image) + "write_cache = true\n")
        self._daemon.start(self._storage.env)

    def kill(self) -> None:
        if self._daemon.peer:
            self._daemon.peer.kill()

    def cut_power(self, seed: int) -> int:
        self.kill()
        return self._storage.power_cut(seed).dropped

    def serve(self, disk: Path) -> AbstractContextManager[Target]:
        return enkaku.serve([disk], self.folder, iqn=f"{self.name}-copy")

    def close(self) -> None:
        self.kill()
        self._storage.close()


class FarTgt(Far):
    """tgt; a file of this machine is its disk."""

    lun = tgt.FIRST_LUN

    def __init__(self, folder: Path, size: int):
        super().__init__(folder)
        self.image = folder / "disk.img"
        with self.image.open("wb") as file:
            file.truncate(size)
        self._running = ExitStack()

    def start(self) -> None:
        serving = tgt.serve([self.image], self.folder, port=self.port, iqn=self.name)
        self._running.enter_context(serving)

    def kill(self) -> None:
        self._running.close()

    def serve(self, disk: Path) -> AbstractContextManager[Target]:
        return tgt.serve([disk], self.folder, iqn=f"{self.name}-copy")


def redo_bytes(size: int) -> int:
    """Behind the image: a redo log for whatever a round may leave owed."""
    return size * 2 // 3


def disk_bytes(size: int) -> int:
    """Of the disk at the other site, for a volume of this size."""
    return size + redo_bytes(size) + TAIL


class Site:
    """This site: the mirror, its volume mounted at `mount`; and the line to the other one."""

    def __init__(self, folder: Path, size: int, far: Callable[[Path, int], Far], mode: str):
        """`far` makes the other site, with a folder of its own and a disk of so many bytes."""
        self.folder, self.size = folder, size
        self.redo_bytes = redo_bytes(size)
        self.far = far(folder / "far", disk_bytes(size))
        self.line = Proxy(self.far.port)
        local = folder / "local.img"
        with local.open("wb") as file:
            file.truncate(size)
        leg = f"iscsi://127.0.0.1:{self.line.port}/{self.far.name}/{self.far.lun}"
        self.mirror = Mirror(folder, local, [leg])
        self.mode = mode
        self._near: ExitStack | None = None
        # pytest's own folders are closed to the users that data bases run as.
        self._open_folder = Path(tempfile.mkdtemp(prefix="enkaku-"))
        self._open_folder.chmod(0o711)
        self.mount = self._open_folder / "volume"
        self.lag_s = 0.0

    def __enter__(self) -> "Site":
        self.line.__enter__()
        self.far.start()
        return self

    def __exit__(self, *_) -> None:
        if self._near:
            self.crash()
        self.mirror.clean_up()
        self.line.__exit__(None, None, None)
        self.far.close()
        # Empty by now; a mount that is left must not be emptied.
        for path in (*self._open_folder.iterdir(), self._open_folder):
            path.rmdir()

    def create(self) -> str | None:
        """The mirror and a file system on it; or why there can be no mirror of this mode."""
        made = self.mirror.create(mode=self.mode, check=False)
        if made.code != 0 and "not possible yet" in made.stderr:
            return made.stderr.strip()
        assert made.code == 0, made
        self.mirror.edit(remote_timeout=REMOTE_TIMEOUT, redo=f"{self.redo_bytes}")
        if self.mode == "async":
            self.lag_s = 2.0
            self.mirror.edit(lag='{ seconds = 2, bytes = "32M", on = "slow" }')
        with loop_device(self.mirror.start_fuse()) as device:
            # The blocks of the disk below, where the file system is small, too.
            make_ext4(device, ["-b", BLOCK])
        assert self.mirror.stop() == 0, self.mirror.peer.output()
        return None

    def open(self) -> None:
        """The mirror runs, and its volume is mounted."""
        with ExitStack() as near:
            near.callback(self._mirror_ends)
            device = near.enter_context(loop_device(self.mirror.start_fuse()))
            near.enter_context(mounted(device, self.mount))
            self._near = near.pop_all()

    def close(self) -> None:
        """In order: what is dirty is written and flushed."""
        near, self._near = self._near, None
        near.close()

    def crash(self) -> None:
        """The mirror dies, and everything above finds its device gone."""
        self.mirror.peer.kill()
        near, self._near = self._near, None
        with suppress(LabError):
            near.close()

    def _mirror_ends(self) -> None:
        if self.mirror.peer.running():
            assert self.mirror.stop() == 0, self.mirror.peer.output()
        self.mirror.unmount()

    def leg(self) -> dict:
        """The leg's part of the report, asked for past the command line: that is quicker."""
        return self.mirror.ask({"do": "status"})["status"]["legs"][0]

    def wait_for_leg(self, *states: str) -> dict:
        deadline = time.monotonic() + SETTLED_S_MAX
        while (leg := self.leg())["state"] not in states:
            if time.monotonic() > deadline:
                raise LabError(f"never {states}: {leg}\n{self.mirror.peer.output()[-2000:]}")
            time.sleep(POLL_S)
        return leg

    def compare(self) -> None:
        """Both are in order, and the mirror has ended: the leg has what the local disk has."""
        found = differences(self.mirror.local, self.far.image, self.size)
        assert not found, f"{len(found)} blocks differ, the first at {found[:5]}"

    @contextmanager
    def taken_over(self) -> Iterator[Path | None]:
        """The other site's image promoted, attached, and mounted after its journal was replayed, which
        has to leave nothing to complain of. None where it says that it is not an image of one moment.

        What is promoted is a copy, at a target of the same kind: this site goes on with its leg. The
        leg's own target is dead meanwhile, so the copy is of one moment.
        """
        copy = self.far.spare
        run([need("cp"), "--sparse=always", self.far.image, copy])
        with self.far.serve(copy) as there:
            promoted = self._promoted(there)
        if not promoted:
            yield None
            return
        # Its reservation is gone with the target: whoever comes may write.
        with self.far.serve(copy) as there:
            attached = enkaku.attach_fuse(there.url(), self.folder / "attached", self.folder)
            with attached as file, loop_device(file) as device:
                recover_ext4(device, self._open_folder / "there")
                with mounted(device, self._open_folder / "there") as mount:
                    yield mount
                check_ext4(device)

    def _promoted(self, there: Target) -> bool:
        said = enkaku.report("mirror", "inspect", there.url())
        done = enkaku.command("mirror", "promote", there.url(), "--json", check=False)
        # A batch that is being copied home is no matter: promoting does that.
        if said["consistency"]["is"] == "inconsistent-since":
            assert done.code == 1 and "--force" in done.stderr, (said, done)
            return False
        assert done.code == 0, (said, done)
        assert json.loads(done.stdout)["consistent"], done
        return True
