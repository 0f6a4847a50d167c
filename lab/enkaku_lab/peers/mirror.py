"""A mirror as a file: `enkaku mirror run --fuse`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from enkaku_lab.peers import enkaku, need
from enkaku_lab.process import peer, run

NAME = "lab"


@contextmanager
def mirrored(
    local: Path, leg: str, mode: str, folder: Path, logs: Path, *, paused: bool = False
) -> Iterator[Path]:
    """A new mirror of `local` at the leg, which is believed to hold the same; yields its file.

    The leg is in sync when this yields, or, with `paused`, nothing is sent to it.
    """
    etc, mount = folder / "etc", folder / "m"
    mount.mkdir(parents=True)
    which = [NAME, "--config-dir", etc]
    metadata = folder / "metadata"
    words = ["create", *which, "--local", local, "--remote", leg, "--metadata", metadata]
    enkaku.command("mirror", *words, "--mode", mode, "--skip-initial-copy", "--force")
    argv = [enkaku.binary(), "mirror", "run", *which, "--fuse", mount]
    with peer(argv, logs / "mirror.log") as running:
        running.wait_until(
            lambda: mount.is_mount() and any(mount.iterdir()), "its folder is not mounted"
        )
        try:
            if paused:
                enkaku.command("mirror", "pause", *which)
            else:
                # It ends well when every leg is in sync.
                running.wait_until(
                    lambda: not enkaku.command("mirror", "status", *which, check=False).code,
                    "its leg is not in sync",
                )
            yield next(mount.iterdir())
        finally:
            running.stop()
            if mount.is_mount():
                run([need("fusermount3"), "-u", "-z", mount])
