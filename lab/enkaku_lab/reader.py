"""`python -m enkaku_lab.reader`: an application that reads a file, as those of the papers did.

open, read(block) until the end, close: one call after the other, each block compared with what was
written. It mounts (or logs in) first, says `ready` and waits for a line on standard input, so that
only open to close is timed. After `--seconds` it stops; what was read by then counts. A read that
never returns cannot stop it: another thread then reports and ends the process.

The libraries are the real ones, called through ctypes: libnfs and libsmbclient. A `file` is any
path, so a FUSE mount too. A `copy` is a command (a JSON array, to which a destination is added)
that reads by itself, as fast as it can. Its login is over when it has made the destination as
large as the volume is, so the clock starts there.
"""

import argparse
import ctypes
import json
import mmap
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from enkaku_lab.process import die_with_parent

OPEN_S_MAX = 8.0
"""So long may the open take, where it is a login too."""
STALL_S = 0.001
"""A read that takes longer waits for the network; one from the page cache takes microseconds."""
POLL_S = 0.005
CHECK_BYTES = 1 << 20
STUCK_S = 4.0
"""So long may the last read take beyond the end; the data it brings do not count then."""
Reading = Callable[[ctypes.Array, int], int]


class Broken(Exception):
    """The open or a read failed."""


class FileSource:
    """A path; nothing to mount."""

    def __init__(self, path: str, cold: bool):
        self._path = path
        if cold:
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)

    def open(self) -> None:
        self._descriptor = os.open(self._path, os.O_RDONLY)

    def read(self, buffer: ctypes.Array, count: int) -> int:
        return os.readv(self._descriptor, [memoryview(buffer)[:count]])

    def close(self) -> None:
        os.close(self._descriptor)


class Copy:
    """A command that fills a file, in any order; how much of it is there is asked of the file
    system, so that it can be stopped at any time."""

    def __init__(self, command: str):
        self._argv = json.loads(command)

    def start(self, destination: Path) -> None:
        self._file = destination
        argv = [*self._argv, str(destination)]
        self._child = subprocess.Popen(
            argv, stdout=subprocess.DEVNULL, preexec_fn=die_with_parent
        )

    @property
    def logged_in(self) -> bool:
        return self._file.exists() and self._file.stat().st_size > 0

    @property
    def bytes(self) -> int:
        status = self._file.stat()
        return min(status.st_blocks * 512, status.st_size)

    @property
    def ended(self) -> bool:
        code = self._child.poll()
        if code:
            raise Broken(f"{self._argv[0]} ended with code {code}")
        return code == 0

    def stop(self) -> None:
        self._child.kill()
        self._child.wait()


class NfsUrl(ctypes.Structure):
    _fields_ = [(name, ctypes.c_char_p) for name in ("server", "path", "file")]


class NfsSource:
    """libnfs 4's blocking calls. Its NFSv4 has no read-ahead: a call is a READ."""

    def __init__(self, url: str):
        self._lib = lib = ctypes.CDLL("libnfs.so.13")
        lib.nfs_init_context.restype = ctypes.c_void_p
        lib.nfs_parse_url_full.restype = ctypes.POINTER(NfsUrl)
        lib.nfs_get_error.restype = ctypes.c_char_p
        self._context = ctypes.c_void_p(lib.nfs_init_context())
        self._url = lib.nfs_parse_url_full(self._context, url.encode())
        if not self._url:
            raise Broken(self._error())
        self._must(lib.nfs_mount(self._context, self._url.contents.server, self._url.contents.path))
        lib.nfs_read.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p]

    def open(self) -> None:
        self._file = ctypes.c_void_p()
        file = self._url.contents.file
        opened = self._lib.nfs_open(self._context, file, os.O_RDONLY, ctypes.byref(self._file))
        self._must(opened)

    def read(self, buffer: ctypes.Array, count: int) -> int:
        return self._must(self._lib.nfs_read(self._context, self._file, count, buffer))

    def close(self) -> None:
        self._lib.nfs_close(self._context, self._file)

    def _must(self, code: int) -> int:
        if code < 0:
            raise Broken(self._error())
        return code

    def _error(self) -> str:
        return (self._lib.nfs_get_error(self._context) or b"libnfs failed").decode()


class SmbSource:
    """libsmbclient's blocking calls, as a guest."""

    only: bytes | None = None
    """The protocol, where it is not to be agreed: libsmbclient does not take it from its configuration."""

    def __init__(self, url: str):
        self._lib = lib = ctypes.CDLL("libsmbclient.so.0", use_errno=True)
        # Samba stores the callback, so it must live as long as this object.
        self._nobody = ctypes.CFUNCTYPE(None)(lambda: None)
        lib.smbc_read.restype = ctypes.c_ssize_t
        lib.smbc_read.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
        self._url = url.encode()
        self._must(lib.smbc_init(self._nobody, 0))
        if self.only:
            lib.smbc_set_context.restype = ctypes.c_void_p
            lib.smbc_set_context.argtypes = [ctypes.c_void_p]
            lib.smbc_setOptionProtocols.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p]
            if not lib.smbc_setOptionProtocols(lib.smbc_set_context(None), self.only, self.only):
                raise Broken(f"libsmbclient does not know {self.only.decode()}")
        # The first open makes the connection; later ones share it.
        self._must(lib.smbc_close(self._must(lib.smbc_open(self._url, os.O_RDONLY, 0))))
        self._first = self._must(lib.smbc_open(self._url, os.O_RDONLY, 0))

    def open(self) -> None:
        self._file = self._must(self._lib.smbc_open(self._url, os.O_RDONLY, 0))

    def read(self, buffer: ctypes.Array, count: int) -> int:
        return self._must(self._lib.smbc_read(self._file, buffer, count))

    def close(self) -> None:
        self._lib.smbc_close(self._file)

    def _must(self, code: int) -> int:
        if code < 0:
            raise Broken(f"libsmbclient: {os.strerror(ctypes.get_errno())}")
        return code


class Smb1Source(SmbSource):
    only = b"NT1"


class Original:
    """The file as it was written, to compare with."""

    def __init__(self, path: Path):
        with path.open("rb") as file:
            # A private mapping, because ctypes wants it writable; nothing is written.
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        self._begin = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self._memcmp = ctypes.CDLL(None).memcmp
        self._memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]

    def check(self, buffer: ctypes.Array, count: int, offset: int) -> None:
        """The file may be this one several times over."""
        at = offset % len(self._map)
        if at + count > len(self._map) or self._memcmp(buffer, self._begin + at, count):
            raise Broken(f"the block at {offset} is not what was written")


    def check_written(self, file: Path) -> None:
        """Compares what a sparse file has, extent by extent."""
        buffer = (ctypes.c_char * CHECK_BYTES)()
        with file.open("rb", buffering=0) as written:
            descriptor, end = written.fileno(), file.stat().st_size
            offset = 0
            while offset < end:
                try:
                    offset = os.lseek(descriptor, offset, os.SEEK_DATA)
                except OSError:
                    return
                hole = os.lseek(descriptor, offset, os.SEEK_HOLE)
                while offset < hole:
                    os.lseek(descriptor, offset, os.SEEK_SET)
                    count = os.readv(descriptor, [memoryview(buffer)[: hole - offset]])
                    self.check(buffer, count, offset)
                    offset += count


class Clock:
    """Counts bytes from its start on, and prints the result exactly once, whoever comes first."""

    def __init__(self, verified: bool, seconds_max: float):
        self._verified = verified
        self._seconds_max = seconds_max
        self._lock = threading.Lock()
        self.offset = 0
        self._start(OPEN_S_MAX)

    def start(self) -> None:
        """From here on it counts; what came before does not."""
        self._watchdog.cancel()
        self._start(self._seconds_max + STUCK_S)

    def waited(self, since: float) -> None:
        """The reader waited for what it reads now, since then: all that had come was read."""
        if time.monotonic() - since > STALL_S:
            self._all_read = (self.offset, since - self._begin)

    def cut_to_whole_cycles(self) -> None:
        """Back to the last moment at which all that had come was read. Read-ahead fetches much and
        then waits: to end in the middle would count its time without its bytes."""
        offset, seconds = self._all_read
        if offset and seconds > self._seconds_max / 2:
            self.offset, self._ended_s = offset, seconds

    def _start(self, stuck_s: float) -> None:
        self._begin = time.monotonic()
        self._all_read = (0, 0.0)
        self._ended_s: float | None = None
        self._watchdog = threading.Timer(stuck_s, self._stuck)
        self._watchdog.daemon = True
        self._watchdog.start()

    @property
    def over(self) -> bool:
        return time.monotonic() - self._begin >= self._seconds_max

    def stop(self, cut: bool = False) -> Callable[[], None]:
        """No more time and no more bytes; what is returned prints them."""
        self._lock.acquire()
        self._watchdog.cancel()
        said = {
            "bytes": self.offset,
            "seconds": self._ended_s or time.monotonic() - self._begin,
            "verified": self._verified,
            "cut": cut,
            "cpu_s": time.process_time(),
        }
        return lambda: print(json.dumps(said), flush=True)

    def report(self, cut: bool = False) -> None:
        self.stop(cut)()

    def _stuck(self) -> None:
        self.report(cut=True)
        os._exit(0)


def read_file(source, original: Original | None, block: int, total: int, seconds: float) -> None:
    """open, read … close; one line of JSON about it on standard output."""
    buffer = (ctypes.c_char * block)()
    clock = Clock(original is not None, seconds)

    def read_one() -> bool:
        since = time.monotonic()
        count = source.read(buffer, min(block, total - clock.offset))
        if original:
            original.check(buffer, count, clock.offset)
        clock.waited(since)
        clock.offset += count
        return count > 0

    clock.start()
    source.open()
    more = read_one()
    while more and clock.offset < total and not clock.over:
        more = read_one()
    if more and clock.offset < total:
        clock.cut_to_whole_cycles()
    clock.report()
    source.close()


def follow_copy(copy: Copy, original: Original, into: Path | None, seconds: float) -> None:
    """The same line about a command that copies, from its login on; then all that it wrote is
    compared."""
    with tempfile.TemporaryDirectory(dir=into) as where:
        file = Path(where) / "copied"
        clock = Clock(True, seconds)
        copy.start(file)
        while not copy.logged_in and not copy.ended:
            time.sleep(POLL_S)
        clock.start()
        while not clock.over and not copy.ended:
            time.sleep(POLL_S)
            clock.offset = copy.bytes
        clock.offset = copy.bytes
        said = clock.stop()
        copy.stop()
        original.check_written(file)
    # Who gets the line may end this process.
    said()


def main() -> None:
    parser = argparse.ArgumentParser(prog="enkaku_lab.reader", description=__doc__)
    parser.add_argument("kind", choices=["file", "nfs", "smb", "smb1", "copy"])
    parser.add_argument("where", help="path, URL, or command as JSON")
    parser.add_argument("--block", type=int, required=True, help="bytes per read call")
    parser.add_argument("--bytes", type=int, required=True, help="stop after so many")
    parser.add_argument("--seconds", type=float, required=True, help="stop after so long")
    parser.add_argument("--original", type=Path, help="compare with this file")
    parser.add_argument("--cold", action="store_true", help="drop the file's cached pages first")
    parser.add_argument("--into", type=Path, help="folder for what is copied")
    options = parser.parse_args()
    try:
        kinds = {"nfs": NfsSource, "smb": SmbSource, "smb1": Smb1Source, "copy": Copy}
        if options.kind == "file":
            source = FileSource(options.where, options.cold)
        else:
            source = kinds[options.kind](options.where)
        original = Original(options.original) if options.original else None
        print("ready", flush=True)
        sys.stdin.readline()
        if options.kind == "copy":
            return follow_copy(source, original, options.into, options.seconds)
        read_file(source, original, options.block, options.bytes, options.seconds)
    except (Broken, OSError) as error:
        sys.exit(f"reader: {error}")


if __name__ == "__main__":
    main()
