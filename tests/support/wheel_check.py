"""What a user of the Python package does, run by an interpreter in which the wheel is installed: it has nothing of
this repository. Arguments: URL of a volume of 64 MiB, FILE with its content. Ends with the line `fine`. A line
`stop` or `go on` asks for the target to be stopped, or not; a line of input says that it is."""

import errno
import io
import multiprocessing
import signal
import sys
import threading
import time

import enkaku

URL, FILE = sys.argv[1:3]
CONTENT = open(FILE, "rb").read()
MIB = 1 << 20


def refuses(kind, words, call, *arguments, **options):
    try:
        call(*arguments, **options)
    except kind as error:
        assert words in str(error), (words, str(error))
        return error
    raise AssertionError(f"{call} does not raise {kind}")


def reads() -> None:
    with enkaku.open(URL) as volume:
        assert volume.size == len(CONTENT) and volume.read_only and volume.block_size >= 512
        assert volume.url == URL and repr(volume) == f"<enkaku.Volume {URL} (r), {volume.size} bytes>"
        assert volume.pread(4096, 0) == CONTENT[:4096]
        assert volume.pread(length=MIB + 3, offset=4097) == CONTENT[4097 : 4097 + MIB + 3]
        # As of a file: less at the end, nothing behind it.
        assert volume.pread(100, volume.size - 10) == CONTENT[-10:]
        assert volume.pread(1, volume.size) == b"" == volume.pread(1, 1 << 60)
        whole = bytearray(len(CONTENT))
        assert volume.preadinto(whole, 0) == len(CONTENT) and whole == CONTENT
        assert volume.preadinto(memoryview(whole)[:512], len(CONTENT) - 5) == 5
        extents = volume.extents()
        assert isinstance(extents[0], enkaku.Extent) and extents[0].offset == 0
        assert sum(extent.length for extent in extents) == volume.size
        assert volume.extents(4096, 8192)[0].offset == 4096 and volume.extents(0, 0) == []
        path = volume.path()
        assert path["connections_open"] >= 1 and {"why", "limit"} <= path.keys()
        deadline = time.monotonic() + 30
        while not (links := volume.path()["connections"]) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert 0 < links[0]["rtt_s"] < 5 and links[0]["commands"] >= 0
    assert volume.closed
    volume.close()
    refuses(ValueError, "is closed", volume.pread, 1, 0)


def numpy_arrays() -> None:
    import numpy

    with enkaku.open(URL) as volume:
        array = numpy.frombuffer(volume.pread(MIB, offset=MIB), dtype="<u4")
        assert (array == numpy.frombuffer(CONTENT[MIB : 2 * MIB], dtype="<u4")).all()
        into = numpy.zeros((256, 512), dtype="<u8")
        assert volume.preadinto(into, 0) == into.nbytes == MIB
        assert into.tobytes() == CONTENT[:MIB]
        refuses(ValueError, "gaps", volume.preadinto, into[:, ::2], 0)
        into.flags.writeable = False
        refuses(ValueError, "may not be written", volume.preadinto, into, 0)


def writes() -> None:
    with enkaku.open(URL, "r+", connections=2, cache="none") as volume:
        assert not volume.read_only
        assert volume.pwrite(b"x" * 700, 1000) == 700 and volume.pwrite(b"", 0) == 0
        assert volume.pread(2048, 0) == CONTENT[:1000] + b"x" * 700 + CONTENT[1700:2048]
        volume.pwrite(memoryview(CONTENT)[:4096], 0, fua=True)
        volume.zero(8192, 4096)
        assert volume.pread(8192, 4096) == bytes(8192)
        volume.discard(4096, 4096)
        volume.flush()
        volume.pwrite(CONTENT[4096:12288], 4096)
        volume.flush()
        refuses(ValueError, "outside the device", volume.pwrite, b"y" * 512, volume.size)
    with enkaku.open(URL) as volume:
        assert volume.pread(MIB, 0) == CONTENT[:MIB]
        error = refuses(OSError, "read-only", volume.pwrite, b"y" * 512, 0)
        assert error.errno == errno.EROFS and f"{URL}: write of 512 bytes at 0" in str(error)


def mistakes() -> None:
    host = URL.split("/")[2]
    refuses(ValueError, "iscsi://", enkaku.open, "/dev/sda")
    refuses(ValueError, "port", enkaku.open, URL.replace(host, "127.0.0.1:99999"))
    refuses(ValueError, '"r" or "r+" is allowed', enkaku.open, URL, "w")
    refuses(ValueError, '"none", "read" or "write-back"', enkaku.open, URL, cache="all")
    refuses(ValueError, 'needs mode "r+"', enkaku.open, URL, cache="write-back")
    refuses(ValueError, "1 to 64", enkaku.open, URL, connections=65)
    refuses(ValueError, "0 to 86400 s", enkaku.open, URL, timeout=-1)
    refuses(ValueError, "names no user", enkaku.open, URL, password="x")
    refuses(ValueError, "initiator_name", enkaku.open, URL, initiator_name="no name")
    refuses(TypeError, "", enkaku.open, URL, "r", "x")
    hidden = refuses(ValueError, "", enkaku.open, f"iscsi://me%secret@{host}/no-target/0")
    assert "secret" not in str(hidden), hidden
    refuses(ConnectionRefusedError, "cannot connect", enkaku.open, URL.replace(host, "127.0.0.1:1"))
    refuses(PermissionError, "login", enkaku.open, URL.replace("iqn.", "iqn.1999-01.no:"))
    with enkaku.open(URL) as volume:
        refuses(OverflowError, "", volume.pread, -1, 0)


def threads() -> None:
    """The interpreter is let go: other threads count while one waits for a silent target."""
    counted, stop = 0, threading.Event()

    def count() -> None:
        nonlocal counted
        while not stop.is_set():
            counted += 1
            time.sleep(0.001)

    with enkaku.open(URL, cache="none") as volume:
        counting = threading.Thread(target=count)
        counting.start()
        wrong = []

        def read(first: int) -> None:
            for at in range(first * MIB, len(CONTENT), 8 * MIB):
                if volume.pread(MIB, at) != CONTENT[at : at + MIB]:
                    wrong.append(at)

        readers = [threading.Thread(target=read, args=(first,)) for first in range(8)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        stop.set()
        counting.join()
        assert not wrong and counted > 0


def child(volume, told) -> None:
    try:
        volume.pread(1, 0)
        told.put("it was read")
    except RuntimeError as error:
        told.put(str(error))
    with enkaku.open(URL) as own:
        told.put(own.pread(512, 0) == CONTENT[:512])


def forks() -> None:
    context = multiprocessing.get_context("fork")
    told = context.Queue()
    with enkaku.open(URL) as volume:
        process = context.Process(target=child, args=(volume, told))
        process.start()
        assert "was forked; open it here" in told.get(timeout=60)
        assert told.get(timeout=60) is True
        process.join(60)
        assert volume.pread(512, 0) == CONTENT[:512]


def files() -> None:
    with io.BufferedReader(enkaku.VolumeFile(enkaku.open(URL))) as file:
        assert file.seek(-5, 2) == len(CONTENT) - 5 and file.read(10) == CONTENT[-5:]
        file.seek(3)
        assert file.read(5000) == CONTENT[3:5003] and file.tell() == 5003
    volume = enkaku.open(URL, "r+")
    with io.BufferedRandom(enkaku.VolumeFile(volume)) as file:
        file.seek(100)
        file.write(CONTENT[100:5000])
        file.flush()
    assert volume.closed


def fsspec_files() -> None:
    import fsspec

    with fsspec.open(URL, "rb") as file:
        file.seek(1000)
        assert file.read(5000) == CONTENT[1000:6000]
    with fsspec.open(URL, "r+b") as file:
        file.seek(4096)
        file.write(CONTENT[4096:8192])
    system, path = fsspec.core.url_to_fs(URL, connections=2)
    assert system.info(path)["size"] == len(CONTENT) and system.cat_file(path, 10, 20) == CONTENT[10:20]
    refuses(ValueError, '"rb" or "r+b"', system.open, path, "wb")


def interrupted() -> None:
    """Ctrl-C ends a wait for a target that does not answer: the one who called has stopped it."""
    # Whoever was started in the background of a shell ignores it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    volume = enkaku.open(URL, cache="none")
    print("stop", flush=True)
    sys.stdin.readline()
    timer = threading.Timer(1.0, lambda: signal.raise_signal(signal.SIGINT))
    begin = time.monotonic()
    timer.start()
    refuses(KeyboardInterrupt, "", volume.pread, 512, 0)
    assert time.monotonic() - begin < 10
    print("go on", flush=True)
    sys.stdin.readline()
    assert volume.pread(512, 0) == CONTENT[:512]
    volume.close()


for check in (reads, numpy_arrays, writes, mistakes, threads, forks, files, fsspec_files, interrupted):
    check()
    print(f"{check.__name__} done", flush=True)
print("fine")
