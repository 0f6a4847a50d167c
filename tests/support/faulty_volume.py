"""A volume in use, from the disk below the target's file to the file system at the near end, in pieces
that can be killed one by one:

    disk (Storage) ← enkaku target run ← proxy ← enkaku attach ← loop ← ext4

`enkaku attach` is a file by FUSE, an NBD export that nbdfuse makes a file of, or a gateway: a target with
which QEMU's initiator, libiscsi, has a session, of which nbdfuse makes the file.
"""

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from support.daemon import NAME_A, Daemon, target
from support.storage import BLOCK, Cut, Storage
from support.volume import check_ext4, loop_device, make_ext4, mounted, recover_ext4

from enkaku_lab.peers import enkaku, need
from enkaku_lab.process import LabError, Peer, free_port, run
from enkaku_lab.proxy import Proxy

UNTIL_S_MAX = 60.0
WAYS = ("fuse", "nbd", "gateway")


def until(condition: Callable[[], bool], what: str, more: Callable[[], str] = str) -> None:
    deadline = time.monotonic() + UNTIL_S_MAX
    while not condition():
        if time.monotonic() > deadline:
            raise LabError(f"never: {what}\n{more()}")
        time.sleep(0.02)


class FaultyVolume:
    """One disk, one daemon; `attached` as often as wanted, one after the other."""

    def __init__(self, folder: Path, size: int, way: str):
        assert way in WAYS
        self.folder, self.way = folder, way
        self.storage = Storage(folder, size)
        self.daemon = Daemon(folder)
        self.proxy = Proxy(self.daemon.port)
        self.write_cache = True
        self.cuts: list[Cut] = []
        self._near: ExitStack | None = None
        self._near_programs: list[Peer] = []
        # pytest's own folders are closed to the users that data bases run as.
        self._open_folder = Path(tempfile.mkdtemp(prefix="enkaku-"))
        self._open_folder.chmod(0o711)
        self.mount = self._open_folder / "volume"

    def __enter__(self) -> "FaultyVolume":
        self.proxy.__enter__()
        self.start_target()
        return self

    def __exit__(self, *_) -> None:
        self.storage.no_faults()
        if self._near:
            self.crash_near()
        self.daemon.peer.kill()
        self.proxy.__exit__(None, None, None)
        self.storage.close()
        # Empty by now; a mount that is left must not be emptied.
        for path in (*self._open_folder.iterdir(), self._open_folder):
            path.rmdir()

    # --- the far end ---

    def start_target(self) -> None:
        cache = f"write_cache = {str(self.write_cache).lower()}\n"
        self.daemon.write(target(NAME_A, self.storage.image) + cache)
        self.daemon.start(self.storage.env)

    def cut_power(self, seed: int) -> Cut:
        """The target dies and with it every page that was not synced; it is not started again."""
        self.daemon.peer.kill()
        self.storage.no_faults()
        self.cuts.append(self.storage.power_cut(seed))
        return self.cuts[-1]

    # --- the near end ---

    def make_file_system(self) -> None:
        with self._attached("none") as file, loop_device(file) as device:
            # The blocks of the disk below, where the file system is small, too.
            make_ext4(device, ["-b", BLOCK])

    def attach(self, cache: str) -> None:
        """Up to the mounted file system."""
        with ExitStack() as near:
            file = near.enter_context(self._attached(cache))
            device = near.enter_context(loop_device(file))
            near.enter_context(mounted(device, self.mount))
            self._near = near.pop_all()

    def detach(self) -> None:
        """In order: what is dirty is written and flushed."""
        near, self._near = self._near, None
        near.close()

    def crash_near(self) -> None:
        """The near end's machine dies: what it has not flushed is gone, and nothing is said for it."""
        near, self._near = self._near, None
        for program in self._near_programs:
            program.kill()
        # Everything above finds its device gone, and says so.
        with suppress(LabError):
            near.close()

    @contextmanager
    def _attached(self, cache: str):
        """The volume as a file, by any way."""
        folder, socket = self.folder / "attached", self.folder / "nbd.sock"
        folder.mkdir(exist_ok=True)
        near = f"127.0.0.1:{free_port()}"
        offered = {"fuse": ["--fuse", folder], "nbd": ["--nbd", socket], "gateway": ["--iscsi", near]}
        url = f"iscsi://127.0.0.1:{self.proxy.port}/{NAME_A}/0"
        self._near_programs = []
        try:
            attach = [enkaku.binary(), "attach", url, *offered[self.way], "--cache", cache]
            serving = self._start("attach", attach)
            if self.way != "fuse":
                serving.wait_for_output("listening on")
            if self.way == "gateway":
                # Not QEMU's own file: 7.2 puts zeroes over what it is given while it clears ranges.
                there = f"iscsi://{near}/{enkaku.GATEWAY_IQN}/0"
                words = ["--format=raw", "--cache=writeback", f"--socket={socket}", there]
                serving = self._start("initiator", [need("qemu-nbd"), *words])
                serving.wait_until(socket.exists, "its socket")
            if self.way != "fuse":
                words = [folder, f"nbd+unix:///?socket={socket}"]
                serving = self._start("nbdfuse", [need("nbdfuse"), *words])
            serving.wait_until(lambda: folder.is_mount() and any(folder.iterdir()), "a file")
            yield next(folder.iterdir())
        finally:
            run([need("fusermount3"), "-u", "-z", folder], check=False)
            for program in reversed(self._near_programs):
                program.stop()
            socket.unlink(missing_ok=True)

    def _start(self, name: str, argv: list[object]) -> Peer:
        self._near_programs.append(Peer(argv, self.folder / f"{name}.log"))
        return self._near_programs[-1]

    # --- afterwards ---

    @contextmanager
    def copy_of_the_disk(self):
        """A copy of the image, mounted without the product: after a recovery of the journal, which
        has to find nothing to complain of. The image stays as it is."""
        copy = self.folder / "copy.img"
        run([need("cp"), "--sparse=always", self.storage.image, copy])
        with loop_device(copy) as device:
            recover_ext4(device, self._open_folder / "copy")
            with mounted(device, self._open_folder / "copy") as folder:
                yield folder
            check_ext4(device)
        copy.unlink()

    def said(self) -> str:
        """The last words of both ends, for the failure of a test."""
        logs = (self.folder / "attach.log", self.folder / "daemon.log")
        return "\n".join(f"{log.name}:\n{log.read_text()[-3000:]}" for log in logs if log.exists())


