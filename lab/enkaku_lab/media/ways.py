"""Ways from a disk at home (`far`) to a browser beside the server (`near`), each with the real programs at both ends.

Each is started anew for a session of watching: nothing is connected, nothing is in a cache. Where a server connects by itself
before the click (a mount), it says how long that took.
"""

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from enkaku_lab import wan
from enkaku_lab.media import range_server, videos
from enkaku_lab.media.videos import Videos
from enkaku_lab.peers import Target, enkaku, ganesha, samba, tgt
from enkaku_lab.peers import log_path as log_at
from enkaku_lab.process import Peer, peer
from enkaku_lab.stacks.libraries import lacks

PORT, TARGET_PORT, NFS_PORT, SMB_PORT = 8080, 3270, 2049, 1445
"""In namespaces of their own."""
ORIGIN = f"http://127.0.0.1:{PORT}"
BLANK = f"{ORIGIN}/a/page/that/is/not/there"
"""A page of the server's that does nothing by itself."""
FIRST = videos.short(videos.VIEWERS - 1)
"""What is opened to mount: nobody watches it alone."""


@dataclass(frozen=True)
class Place:
    """Where everything is: the line, the videos, a folder for logs."""

    lab: wan.Lab
    videos: Videos
    folder: Path
    paths: dict[str, str]
    """Of each video on our page, by its name; they are the same in every run."""


@dataclass(frozen=True)
class Served:
    """A server that was just started."""

    paths: dict[str, str]
    connect_ms: float = 0.0
    """It took before the click; 0 where the click does it."""

    def url(self, name: str) -> str:
        return ORIGIN + self.paths[name]


@dataclass(frozen=True)
class Way:
    name: str
    label: str
    serve: Callable[[Place], Iterator[Served]]
    over_line: bool = True

    def missing(self) -> str | None:
        """Why it cannot be measured here."""
        return {"nfs": lacks("libnfs.so.13", "libnfs-utils"), "smb": lacks("libsmbclient.so.0", "smbclient")}.get(self.name)


def write_catalogue(path: Path, volume: str | Path, names: list[str]) -> Path:
    """As a person writes it."""
    text = f'[[home]]\nname = "attic"\nvolume = "{volume}"\n'
    text += "".join(f'\n[[video]]\ntitle = "{name}"\nhome = "attic"\npath = "/{name}"\n' for name in names)
    path.write_text(text)
    return path


@contextmanager
def _ours(place: Place, volume: str | Path) -> Iterator[Served]:
    """`enkaku media serve`, near, of that volume."""
    catalogue = write_catalogue(place.folder / "catalogue.toml", volume, list(place.videos.seconds))
    argv = [enkaku.binary(), "media", "serve", catalogue, "--listen", f"127.0.0.1:{PORT}"]
    with peer(place.lab.exec("near", argv), log_at(place.folder, "media", PORT)) as serving:
        serving.wait_for_output(ORIGIN)
        yield Served(place.paths)


@contextmanager
def _target(place: Place) -> Iterator[Target]:
    words = {"address": wan.FAR, "port": TARGET_PORT, "within": lambda argv: place.lab.exec("far", argv)}
    with enkaku.serve([place.videos.disk], place.folder, options=["--read-only"], **words) as target:
        yield target


@contextmanager
def _enkaku(place: Place) -> Iterator[Served]:
    with _target(place) as target, _ours(place, target.url()) as served:
        yield served


@contextmanager
def _tgt(place: Place) -> Iterator[Served]:
    words = {"address": wan.FAR, "port": TARGET_PORT, "within": lambda argv: place.lab.exec("far", argv)}
    iqn = f"{tgt.IQN}-{os.getpid()}"
    with tgt.serve([place.videos.disk], place.folder, iqn=iqn, **words) as target, _ours(place, target.url()) as served:
        yield served


@contextmanager
def _stock(place: Place) -> Iterator[Served]:
    """Where files are is told, so that libiscsi has nothing to read but what is watched."""
    words = {"address": wan.FAR, "port": TARGET_PORT, "within": lambda argv: place.lab.exec("far", argv)}
    iqn = f"{tgt.IQN}-{os.getpid()}"
    with tgt.serve([place.videos.disk], place.folder, iqn=iqn, **words) as target:
        told = {"portal": target.portal, "iqn": iqn, "lun": target.first_lun, "initiator": f"{iqn}-reader"}
        files = {name: {"bytes": size, "extents": place.videos.extents(name)} for name, size in place.videos.bytes.items()}
        with _ranges(place, "libiscsi", json.dumps({**told, "files": files})) as served:
            yield served


@contextmanager
def _local(place: Place) -> Iterator[Served]:
    with _ours(place, place.videos.disk) as served:
        yield served


@contextmanager
def _ranges(place: Place, kind: str, where: str, env: dict[str, str] | None = None) -> Iterator[Served]:
    """The range server, near; in a mount namespace of its own."""
    argv = [sys.executable, "-m", range_server.__spec__.name, kind, where, "--port", PORT]
    alone = ["unshare", "--mount", "--propagation", "private", *argv]
    with peer(place.lab.exec("near", alone), log_at(place.folder, f"ranges-{kind}", PORT), env) as serving:
        serving.wait_for_output("listening on")
        took = re.search(rf"{range_server.CONNECTED} ([\d.]+) ms", serving.output())
        yield Served({name: f"/video/{name}" for name in place.videos.seconds}, float(took[1]))


@contextmanager
def _nfs(place: Place) -> Iterator[Served]:
    state = place.folder / "ganesha"
    words = {"address": wan.FAR, "port": NFS_PORT}
    with _in_far(place, "nfs", place.videos.folder, state, **words):
        with _ranges(place, "nfs", ganesha.url(wan.FAR, NFS_PORT, FIRST)) as served:
            yield served


@contextmanager
def _smb(place: Place) -> Iterator[Served]:
    state = place.folder / "samba"
    words = {"address": wan.FAR, "port": SMB_PORT}
    # The client reads the same configuration, so that none of the machine's applies.
    env = {"SMB_CONF_PATH": str(state / "smb.conf")}
    with _in_far(place, "smb", place.videos.folder, state, **words):
        with _ranges(place, "smb", samba.url(wan.FAR, SMB_PORT, FIRST), env) as served:
            yield served


@contextmanager
def _mount(place: Place) -> Iterator[Served]:
    with _target(place) as target, _ranges(place, "mount", target.url()) as served:
        yield served


@contextmanager
def _in_far(place: Place, kind: str, folder: Path, state: Path, *, address: str, port: int) -> Iterator[Peer]:
    """A server of files at home: `far_server` starts it there and says when it is ready."""
    argv = [sys.executable, "-m", "enkaku_lab.media.far_server", kind, folder, state, address, port]
    with peer(place.lab.exec("far", argv), log_at(place.folder, f"far-{kind}", port)) as serving:
        serving.wait_for_output("ready")
        yield serving


EVERY = {
    way.name: way
    for way in (
        Way("enkaku", "enkaku media, enkaku's target", _enkaku),
        Way("tgt", "enkaku media, tgt as target", _tgt),
        Way("stock", "tgt + libiscsi, range server that is told where files are", _stock),
        Way("nfs", "NFSv4 (ganesha + libnfs), range server", _nfs),
        Way("smb", "SMB 3 (Samba + libsmbclient), range server", _smb),
        Way("mount", "attach --fuse, loop, the kernel's ext4, range server", _mount),
        Way("local", "no line: enkaku media, the disk here", _local, over_line=False),
    )
}
