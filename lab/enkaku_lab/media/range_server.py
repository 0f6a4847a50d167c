"""`python -m enkaku_lab.media.range_server KIND WHERE`: files of a folder that is elsewhere, by HTTP ranges.

The server that somebody writes who has a mount: a thread for a request, one read after the other, 128 KiB at first and 1 MiB at
most. Kinds are `nfs` and `smb`, through libnfs and libsmbclient, since the kernel here can mount neither; `mount`, a
volume that `enkaku attach --fuse` has made a file of, on a loop device, mounted by the kernel, read-only; and `libiscsi`, a
volume whose files' places it is told. It connects (mounts) first, says how long that took, and listens then.
"""

import argparse
import ctypes
import json
import mimetypes
import os
import re
import signal
import struct
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from enkaku_lab.peers import enkaku, libiscsi_session
from enkaku_lab.process import LabError, run
from enkaku_lab.reader import Broken, NfsSource, SmbSource

FIRST_BYTES, READ_BYTES_MAX = 128 << 10, 1 << 20
BLOCK = 512
READ_10 = 0x28
CONNECTED = "connected after"


class Nfs(NfsSource):
    """Blocking calls of libnfs, one at a time: a context of it is for one thread."""

    def __init__(self, where: str):
        super().__init__(where)
        self._lock = threading.Lock()
        lib, pointer = self._lib, ctypes.c_void_p
        lib.nfs_pread.argtypes = [pointer, pointer, ctypes.c_uint64, ctypes.c_uint64, pointer]
        lib.nfs_lseek.argtypes = [pointer, pointer, ctypes.c_int64, ctypes.c_int, pointer]

    def open_file(self, name: str) -> tuple[object, int]:
        with self._lock:
            file, size = ctypes.c_void_p(), ctypes.c_uint64()
            self._must(self._lib.nfs_open(self._context, f"/{name}".encode(), os.O_RDONLY, ctypes.byref(file)))
            self._must(self._lib.nfs_lseek(self._context, file, 0, os.SEEK_END, ctypes.byref(size)))
            return file, size.value

    def read_at(self, file: object, offset: int, count: int) -> bytes:
        buffer = ctypes.create_string_buffer(count)
        with self._lock:
            got = self._must(self._lib.nfs_pread(self._context, file, offset, count, buffer))
        return buffer.raw[:got]


class Smb(SmbSource):
    """The same with libsmbclient."""

    def __init__(self, where: str):
        super().__init__(where)
        self._folder = where.rpartition("/")[0]
        self._lock = threading.Lock()
        self._lib.smbc_lseek.restype = ctypes.c_longlong
        self._lib.smbc_lseek.argtypes = [ctypes.c_int, ctypes.c_longlong, ctypes.c_int]

    def open_file(self, name: str) -> tuple[object, int]:
        with self._lock:
            file = self._must(self._lib.smbc_open(f"{self._folder}/{name}".encode(), os.O_RDONLY, 0))
            return file, self._must(self._lib.smbc_lseek(file, 0, os.SEEK_END))

    def read_at(self, file: object, offset: int, count: int) -> bytes:
        buffer = ctypes.create_string_buffer(count)
        with self._lock:
            self._must(self._lib.smbc_lseek(file, offset, os.SEEK_SET))
            got = self._must(self._lib.smbc_read(file, buffer, count))
        return buffer.raw[:got]


class Folder:
    """Files of a folder of this machine."""

    def __init__(self, where: str):
        self._folder = Path(where)
        self._open: list[int] = []

    def open_file(self, name: str) -> tuple[object, int]:
        file = os.open(self._folder / name, os.O_RDONLY)
        self._open.append(file)
        return file, os.fstat(file).st_size

    def read_at(self, file: object, offset: int, count: int) -> bytes:
        return os.pread(file, count, offset)

    def close(self) -> None:
        while self._open:
            os.close(self._open.pop())


class Libiscsi:
    """Blocking reads of a volume. `where` is JSON: portal, iqn, lun, initiator, and of each file its size and its extents
    (offset in the file, on the volume, length, in bytes): what a file system would have to be asked for."""

    def __init__(self, where: str, close: ExitStack):
        told = json.loads(where)
        self._files = told["files"]
        words = (told["portal"], told["iqn"], told["initiator"], told["lun"])
        self._session = close.enter_context(libiscsi_session.session(*words))
        self._lock = threading.Lock()

    def open_file(self, name: str) -> tuple[object, int]:
        return self._files[name]["extents"], self._files[name]["bytes"]

    def read_at(self, file: object, offset: int, count: int) -> bytes:
        begin, place, length = next(one for one in file if one[0] <= offset < one[0] + one[2])
        count = min(count, begin + length - offset)
        first, skip = divmod(place + offset - begin, BLOCK)
        blocks = -(-(skip + count) // BLOCK)
        cdb = struct.pack(">BBIBHB", READ_10, 0, first, 0, blocks, 0)
        with self._lock:
            done = self._session.command(cdb, room=blocks * BLOCK)
        if done.status:
            raise LabError(f"libiscsi: a read ended with status {done.status}")
        return done.data[skip : skip + count]


def mounted(volume: str, close: ExitStack) -> Folder:
    """What the kernel sees of a volume; in a mount namespace of its own, where it vanishes with this process."""
    scratch = Path(close.enter_context(tempfile.TemporaryDirectory()))
    (scratch / "files").mkdir()
    attached = enkaku.attach_fuse(volume, scratch / "volume", scratch, ["--read-only"])
    device = close.enter_context(attached)
    run(["mount", "-t", "ext4", "-o", "ro,noload,loop", device, scratch / "files"])
    # Lazily: a read for somebody who has gone may still be under way.
    close.callback(run, ["umount", "--lazy", scratch / "files"], check=False)
    folder = Folder(str(scratch / "files"))
    close.callback(folder.close)
    return folder


LASTING = {"mount": mounted, "libiscsi": Libiscsi}
"""What is to be left again."""


class Files:
    """What was opened once stays open."""

    def __init__(self, source: Nfs | Smb | Libiscsi | Folder):
        self.source = source
        self._open: dict[str, tuple[object, int]] = {}
        self._lock = threading.Lock()

    def get(self, name: str) -> tuple[object, int]:
        if "/" in name:
            raise KeyError(name)
        with self._lock:
            if name not in self._open:
                self._open[name] = self.source.open_file(name)
            return self._open[name]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    files: Files

    def do_GET(self) -> None:
        name = self.path.removeprefix("/video/")
        try:
            file, size = self.files.get(name)
        except (Broken, OSError, KeyError):
            self._say(404, "text/html", b"<!doctype html><title>nothing</title>")
            return
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "bytes=0-"))
        begin = int(asked[1]) if asked else 0
        end = min(int(asked[2]) + 1, size) if asked and asked[2] else size
        if begin >= size:
            self._say(416, "text/plain", b"")
            return
        self.send_response(206 if "Range" in self.headers else 200)
        self.send_header("Content-Type", mimetypes.guess_type(name)[0] or "application/octet-stream")
        self.send_header("Content-Length", str(end - begin))
        self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{size}")
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", f'"{name}-{size}"')
        self.end_headers()
        self._send(file, begin, end)

    def _send(self, file: object, begin: int, end: int) -> None:
        count = FIRST_BYTES
        try:
            while begin < end:
                piece = self.files.source.read_at(file, begin, min(count, end - begin))
                if not piece:
                    break
                self.wfile.write(piece)
                begin, count = begin + len(piece), min(2 * count, READ_BYTES_MAX)
        except (BrokenPipeError, ConnectionResetError):
            # Whoever seeks goes away in the middle.
            self.close_connection = True

    def _say(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *who: object) -> None:
        """A browser resets connections that it does not need any more."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(*who)


def main() -> None:
    parser = argparse.ArgumentParser(prog="enkaku_lab.media.range_server", description=__doc__)
    parser.add_argument("kind", choices=["nfs", "smb", "mount", "libiscsi", "folder"])
    parser.add_argument("where", help="URL of a file of the folder, of a volume, JSON, or a path")
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    mimetypes.add_type("video/x-matroska", ".mkv")
    with ExitStack() as close:
        begin = time.monotonic()
        if options.kind in LASTING:
            source = LASTING[options.kind](options.where, close)
        else:
            source = {"nfs": Nfs, "smb": Smb, "folder": Folder}[options.kind](options.where)
        print(f"{CONNECTED} {1e3 * (time.monotonic() - begin):.1f} ms", flush=True)
        Handler.files = Files(source)
        server = Server(("127.0.0.1", options.port), Handler)
        print("listening on", options.port, flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
