"""`enkaku mirror`: a mirror that a test makes, runs, cuts off, kills and compares with its legs."""

import json
import os
import re
import socket
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from enkaku_lab.peers import enkaku, need
from enkaku_lab.process import Completed, LabError, Peer, run

BLOCK = 4096
"""Unit of what a mirror copies."""
TAIL = 1 << 20
"""More than a leg needs behind the image for the mirror's metadata."""
SETTLED_S_MAX = 60.0
POLL_S = 0.05


class Mirror:
    """One mirror: its configuration in a folder of its own, its local file, its legs."""

    def __init__(self, folder: Path, local: Path, legs: list[str | Path], name: str = "vm1"):
        self.folder = folder
        self.local = local
        self.legs = legs
        self.name = name
        self.config_dir = folder / "mirrors"
        self.config = self.config_dir / f"{name}.toml"
        self.mount = folder / f"mnt-{name}"
        self.peer: Peer | None = None

    def command(self, what: str, *words: object, check: bool = True, **more) -> Completed:
        return enkaku.command(
            *("mirror", what, self.name, "--config-dir", self.config_dir), *words,
            check=check, **more,
        )

    def create(self, *options: object, check: bool = True, mode: str = "sync") -> Completed:
        remotes = [word for leg in self.legs for word in ("--remote", leg)]
        words = ["--local", self.local, *remotes, "--mode", mode, *options]
        return self.command("create", *words, check=check)

    def edit(self, **keys: str) -> None:
        """Sets keys of [mirror], as with an editor."""
        text = self.config.read_text()
        for key, value in keys.items():
            text = re.sub(rf"^{key} = .*\n", "", text, flags=re.M)
            text = text.replace("[mirror]\n", f"[mirror]\n{key} = {value}\n", 1)
        self.config.write_text(text)

    def argv(self, *front: object) -> list[object]:
        return [
            *(enkaku.binary(), "-v", "mirror", "run", self.name),
            *("--config-dir", self.config_dir, *front),
        ]

    def start(self, *front: object, ready: str = "listening on") -> Peer:
        """In the background, offered as the words say."""
        if self.peer is not None:
            assert not self.peer.running()
        self.peer = Peer(self.argv(*front), self.folder / f"mirror-{self.name}.log")
        try:
            self.peer.wait_for_output(ready)
        except BaseException:
            self.peer.stop()
            raise
        return self.peer

    def start_fuse(self, *more: object) -> Path:
        """As a file, whose path is returned."""
        self.mount.mkdir(exist_ok=True)
        self.start("--fuse", self.mount, *more, ready="attached as")
        return self.mount / "volume"

    def stop(self) -> int:
        """SIGTERM, and patience: what is under way is written out. Returns the exit code."""
        assert self.peer is not None
        self.peer.signal(15)
        return self.peer.wait(SETTLED_S_MAX)

    def kill(self) -> None:
        """As a power cut takes the process; its mount goes, too."""
        assert self.peer is not None
        self.peer.kill()
        self.unmount()

    def unmount(self) -> None:
        # A mount whose process is dead cannot even be asked whether it is there.
        if _is_mounted(self.mount):
            run([need("fusermount3"), "-u", "-z", self.mount], check=False)

    def clean_up(self) -> None:
        if self.peer is not None and self.peer.running():
            self.peer.stop()
        self.unmount()

    def report(self) -> dict:
        """`status --json`."""
        done = self.command("status", "--json", check=False, timeout_s=30)
        if done.code not in (0, 1) or not done.stdout.startswith("{"):
            raise LabError(f"status: {done.stdout}{done.stderr}")
        return json.loads(done.stdout)

    def leg(self, number: int = 1) -> dict:
        return self.report()["legs"][number - 1]

    def wait_for(self, what: str, ready: Callable[[dict], bool]) -> dict:
        """Waits until the report is as wanted; raises with it when it takes too long."""
        deadline = time.monotonic() + SETTLED_S_MAX
        while True:
            report = self.report()
            if ready(report):
                return report
            if time.monotonic() > deadline:
                said = self.peer.output()[-3000:] if self.peer else ""
                raise LabError(f"never {what}: {json.dumps(report, indent=1)}\n{said}")
            time.sleep(POLL_S)

    def wait_in_sync(self) -> dict:
        """All legs in sync, nothing on its way."""

        def is_settled(report: dict) -> bool:
            return all(
                leg["state"] == "in-sync" and leg["lag_bytes"] == leg["dirty_bytes"] == 0
                for leg in report["legs"]
            )

        return self.wait_for("in sync", is_settled)

    def wait_state(self, *states: str, leg: int = 1) -> dict:
        return self.wait_for(
            f"{' or '.join(states)} at leg {leg}",
            lambda report: report["legs"][leg - 1]["state"] in states,
        )

    def ask(self, request: dict) -> dict:
        """One request on the control socket, past the command line."""
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(30)
            client.connect(str(self.config_dir / f"mirror-{self.name}.sock"))
            client.sendall(json.dumps(request).encode() + b"\n")
            return json.loads(client.makefile().readline())

    def metrics(self) -> dict[str, float]:
        """Sample → value, of the address that it announced."""
        assert self.peer is not None
        url = re.search(r"metrics on (\S+)", self.peer.output())[1]
        with urllib.request.urlopen(url, timeout=10) as page:
            lines = page.read().decode().splitlines()
        assert lines[-1] == "# EOF", lines[-3:]
        samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {sample: float(value) for sample, _, value in samples}


def _is_mounted(folder: Path) -> bool:
    return any(line.split()[1] == str(folder) for line in open("/proc/mounts"))


def write(volume: Path, offset: int, data: bytes) -> None:
    """Writes and makes it stable, as a user of the volume does."""
    descriptor = os.open(volume, os.O_RDWR)
    try:
        assert os.pwrite(descriptor, data, offset) == len(data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def differences(one: Path, other: Path, length: int) -> list[int]:
    """Offsets of the blocks in which two files differ, of their first `length` bytes."""
    found = []
    with one.open("rb") as left, other.open("rb") as right:
        for offset in range(0, length, BLOCK):
            if left.read(BLOCK) != right.read(BLOCK):
                found.append(offset)
    return found


@contextmanager
def cleaned_up(mirror: Mirror) -> Iterator[Mirror]:
    try:
        yield mirror
    finally:
        mirror.clean_up()
