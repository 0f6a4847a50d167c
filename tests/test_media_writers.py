"""`enkaku media` beside an owner who writes to the same disk: what the target counts of it, as libiscsi
asks and sg_logs reads it; tools and mounts that change files while curl is sent them; reservations."""

import os
import random
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import noise
from support import filesystems as fs
from support.media import Page, serve, wait_for
from support.volume import loop_device, mounted, never_left_hanging

from enkaku_lab.peers import Target, enkaku, need
from enkaku_lab.peers.libiscsi_session import Session, session
from enkaku_lab.process import Peer, run

MIB = 1 << 20
FILM, OTHER = "films/one.mp4", "films/two.mp4"
LOG_SENSE = bytes([0x4D, 0, 0x40 | 0x19, 0, 0, 0, 0, 0, 0xFF, 0])
WRITE_10 = bytes([0x2A, 0, 0, 0, 0, 8, 0, 0, 4, 0])
UNMAP = bytes([0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0])
CURL_PARTIAL = 18  # its exit code for a body that ended early

with_curl = pytest.mark.needs("mke2fs", "curl", "debugfs")
with_mount = pytest.mark.needs(
    "root", "/dev/fuse", "/dev/loop-control", "mke2fs", "curl", "losetup", "mount", "fusermount3"
)


def counted(host: Session, tmp_path: Path) -> dict[str, int]:
    """The page as sg_logs reads it."""
    answer = host.command(LOG_SENSE, room=255)
    assert answer.status == 0, answer
    page = tmp_path / "page"
    page.write_bytes(answer.data)
    words = [need("sg_logs"), f"--in={page}", "--raw", "--pdt=0"]
    said = run(words).stdout
    numbers = dict(re.findall(r"^ *([a-z][a-z ]*[a-z]) = (\d+)$", said, re.MULTILINE))
    assert "number of write commands" in numbers, said
    return {name: int(number) for name, number in numbers.items()}


@pytest.mark.needs("sg_logs")
def test_a_target_counts_writes_for_whoever_asks(tmp_path: Path):
    with enkaku.serve(["mem:64M"], tmp_path) as target:
        with session(target.portal, target.iqn, "iqn.2026-11.org.example:reader") as reader:
            pages = reader.command(bytes([0x4D, 0, 0x40, 0, 0, 0, 0, 0, 0xFF, 0]), room=255).data
            assert 0x19 in pages[4:]
            before = counted(reader, tmp_path)
            assert before["number of write commands"] == 0
            with session(target.portal, target.iqn, "iqn.2026-11.org.example:writer") as writer:
                for _ in range(3):
                    assert writer.command(WRITE_10, bytes(4 * 512)).status == 0
                list_ = bytes([0, 22, 0, 16, 0, 0, 0, 0, *bytes(11), 8, *bytes(4)])
                assert writer.command(UNMAP, list_).status == 0
            after = counted(reader, tmp_path)
            assert after["number of write commands"] == 4
            assert after["number of logical blocks received"] == 12
            spent = "write command processing intervals"
            assert after[spent] >= before[spent] + 4
            assert counted(reader, tmp_path) == after, "what only looks moves nothing"
        target.peer.kill()
        enkaku.restart(target)
        with session(target.portal, target.iqn, "iqn.2026-11.org.example:reader") as reader:
            assert counted(reader, tmp_path)["number of write commands"] == 0, "since power on"


@pytest.fixture
def films(tmp_path: Path) -> dict[str, bytes]:
    return {FILM: random.Random(1).randbytes(24 * MIB), OTHER: random.Random(2).randbytes(MIB)}


@pytest.fixture
def target(tmp_path: Path, films: dict[str, bytes]) -> Iterator[Target]:
    source = tmp_path / "source"
    for path, content in films.items():
        fs.write(source / path, content)
    disk = fs.ext(tmp_path / "disk.img", 96 * MIB, source, "-L", "Films")
    with enkaku.serve([disk], tmp_path) as serving:
        yield serving


@pytest.fixture
def page(target: Target, tmp_path: Path) -> Iterator[Page]:
    catalogue = tmp_path / "catalogue.toml"
    names = {"one": FILM, "two": OTHER, "three": "films/three.mp4"}
    videos = (
        f'[[video]]\ntitle = "{title}"\nhome = "attic"\npath = "{path}"\n\n'
        for title, path in names.items()
    )
    home = f'[[home]]\nname = "attic"\nvolume = "{target.url()}"\n\n'
    catalogue.write_text(home + "".join(videos))
    with serve(catalogue) as serving:
        yield serving


class Stream:
    """curl, which takes its time; what it has by now."""

    def __init__(self, page: Page, src: str, folder: Path, rate: str):
        self.file = folder / "stream"
        words = [need("curl"), "--silent", "--show-error", "--limit-rate", rate]
        words += ["--output", self.file, page.url + src]
        self.peer = Peer(words, folder / "curl.log")
        self.peer.wait_until(lambda: self.size() > 0, "nothing is sent")

    def size(self) -> int:
        return self.file.stat().st_size if self.file.exists() else 0


@contextmanager
def stream(page: Page, src: str, folder: Path, rate: str = "2M") -> Iterator[Stream]:
    streaming = Stream(page, src, folder, rate)
    try:
        yield streaming
    finally:
        streaming.peer.stop()


@contextmanager
def owned(target: Target, tmp_path: Path, *options: object) -> Iterator[Path]:
    """The volume as a file, as its owner has it."""
    with enkaku.attach_fuse(target.url(), tmp_path / "owner", tmp_path, [*options]) as volume:
        with never_left_hanging(volume):
            yield volume


@pytest.mark.needs("root", "/dev/fuse", "fusermount3")
@with_curl
def test_a_stream_goes_on_beside_other_files_and_ends_with_its_own(
    page: Page, target: Target, films: dict[str, bytes], tmp_path: Path
):
    other = noise(tmp_path / "other", MIB)
    src = page.video("one")["src"]
    with owned(target, tmp_path) as volume, stream(page, src, tmp_path) as streaming:
        fs.debugfs(volume, ["cd films", f"write {other} three.mp4"], tmp_path)
        begin = streaming.size()
        streaming.peer.wait_until(lambda: streaming.size() > begin + 4 * MIB, "it does not go on")
        assert page.curl(page.video("three")["src"]) == (200, other.read_bytes())
        # The file goes, and its blocks become another's.
        third = noise(tmp_path / "third", 24 * MIB, seed=9)
        fs.debugfs(volume, ["cd films", "rm one.mp4", f"write {third} four.mp4"], tmp_path)
        assert streaming.peer.wait(60) == CURL_PARTIAL
        sent = streaming.file.read_bytes()
        assert len(sent) < len(films[FILM]) and sent == films[FILM][: len(sent)]
    wait_for(lambda: page.curl(src)[0] == 404, "gone")


@pytest.mark.needs("root", "/dev/fuse", "fusermount3")
@with_curl
def test_an_owner_who_says_that_he_writes_has_the_disk_to_himself(
    page: Page, target: Target, films: dict[str, bytes], tmp_path: Path
):
    src, small = page.video("one")["src"], page.video("two")["src"]
    with stream(page, src, tmp_path) as streaming:
        with owned(target, tmp_path, "--owner") as volume:
            assert streaming.peer.wait(30) == CURL_PARTIAL
            sent = streaming.file.read_bytes()
            assert sent == films[FILM][: len(sent)]
            status, said = page.curl(small)
            assert status == 503 and b'the storage "attic" is being edited, since 20' in said, said
            assert page.home()["state"] == "edited"
            again = tmp_path / "again"
            words = ["attach", target.url(), "--nbd", tmp_path / "socket", "--owner"]
            refused = enkaku.command(*words, "--isid", "another", check=False)
            assert refused.code == 1
            assert "somebody else has it reserved" in refused.stderr
            writer = session(target.portal, target.iqn, "iqn.2026-11.org.example:other")
            with writer as other:
                conflict = 0x18
                assert other.command(WRITE_10, bytes(4 * 512)).status == conflict
            noise(again, MIB, seed=4)
            fs.debugfs(volume, ["cd films", "rm two.mp4", f"write {again} two.mp4"], tmp_path)
        wait_for(lambda: page.curl(small)[0] == 200, "sent again")
        assert page.curl(small) == (200, again.read_bytes())
        assert page.home()["state"] == "on"
    with session(target.portal, target.iqn, "iqn.2026-11.org.example:other") as other:
        assert other.command(bytes([0x5E, 1, 0, 0, 0, 0, 0, 0, 24, 0]), room=24).data[4:8] == bytes(4)


@dataclass(frozen=True)
class Sent:
    title: str
    status: int
    code: int
    content: bytes


class Watcher(threading.Thread):
    """Asks for both films again and again, and keeps what it is sent."""

    def __init__(self, page: Page, films: dict[str, str], folder: Path):
        super().__init__()
        self.page, self.films, self.folder = page, films, folder
        self.over = threading.Event()
        self.sent: list[Sent] = []

    def disturbed(self) -> bool:
        """Somebody who asked was sent away, or was not sent all."""
        return any(sent.status == 503 or sent.code == CURL_PARTIAL for sent in self.sent)

    def run(self) -> None:
        count = 0
        while not self.over.is_set():
            for title, src in self.films.items():
                body = self.folder / f"body-{count}"
                count += 1
                words = [need("curl"), "--silent", "--max-time", 30, "--limit-rate", "12M"]
                words += ["--output", body, "--write-out", "%{http_code}", self.page.url + src]
                curl = run(words, check=False)
                content = body.read_bytes() if body.exists() else b""
                body.unlink(missing_ok=True)
                self.sent.append(Sent(title, int(curl.stdout or 0), curl.code, content))
            self.over.wait(0.2)


@contextmanager
def watched(page: Page, titles: list[str], folder: Path) -> Iterator[Watcher]:
    watcher = Watcher(page, {title: page.video(title)["src"] for title in titles}, folder)
    watcher.start()
    try:
        yield watcher
    finally:
        watcher.over.set()
        watcher.join(60)


def write_through(file: Path, content: bytes) -> float:
    """Seconds until it is at the target."""
    begin = time.monotonic()
    with file.open("wb") as opened:
        opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())
    return time.monotonic() - begin


@with_mount
@pytest.mark.serial
@pytest.mark.parametrize("options", [[], ["--owner"]], ids=["watch", "managed"])
def test_no_byte_is_torn_while_the_kernel_writes(
    options: list[str], page: Page, target: Target, films: dict[str, bytes], tmp_path: Path
):
    """Files are deleted and made again in their blocks, by ext4 itself, mounted beside the readers."""
    versions = {"one": [films[FILM]], "two": [films[OTHER]]}
    waited = []
    with watched(page, list(versions), tmp_path) as watcher:
        wait_for(lambda: len(watcher.sent) >= 2, "sent before anybody writes")
        with (
            owned(target, tmp_path, "--cache", "none", *options) as volume,
            loop_device(volume) as device,
            mounted(device, tmp_path / "mnt") as folder,
        ):
            for number in range(40):
                if number >= 6 and watcher.disturbed():
                    break
                for name, path in (("one", FILM), ("two", OTHER)):
                    content = random.Random(f"{number} {name}").randbytes((4 + number % 6) * MIB)
                    versions[name].append(content)
                    (folder / path).unlink(missing_ok=True)
                    (folder / path).write_bytes(content)
                run([need("sync"), "--file-system", folder])
                waited.append(write_through(folder / "note", random.randbytes(64 << 10)))
                time.sleep(0.5)  # a pause of the owner's, in which something is sent
        # Unmounted: what is there now is sent, whole.
        for name, path in (("one", FILM), ("two", OTHER)):
            src = watcher.films[name]
            wait_for(lambda src=src: page.curl(src)[0] == 200, f"{path} is sent again", 60)
            assert page.curl(src) == (200, versions[name][-1])
    assert max(waited) < 1, "an owner's write waited"
    judge(watcher, versions)


@with_mount
def test_blocks_that_are_not_said_to_be_written_yet_are_not_sent_as_zeroes(
    page: Page, target: Target, tmp_path: Path
):
    """Content is on the disk, and that it is there comes with the next commit of the journal: for
    whoever reads the disk, the file is zeroes until then."""
    content = noise(tmp_path / "content", 4 * MIB)
    src = page.video("three")["src"]
    assert page.curl(src)[0] == 404
    with (
        owned(target, tmp_path, "--cache", "none") as volume,
        loop_device(volume) as device,
        mounted(device, tmp_path / "mnt", "-o", "commit=300") as folder,
    ):
        film = folder / "films/three.mp4"
        run([need("fallocate"), "--length", 4 * MIB, film])
        run([need("sync"), film])
        run([need("dd"), f"if={content}", f"of={film}", "bs=1M", "oflag=direct", "conv=notrunc"])
        status, said = page.curl(src)
        assert status == 503 and b"is being edited" in said, (status, len(said), set(said))
        run([need("sync"), film])
        wait_for(lambda: page.curl(src)[0] == 200, "it is said to be written")
        assert page.curl(src) == (200, content.read_bytes())


def judge(watcher: Watcher, versions: dict[str, list[bytes]]) -> None:
    """What was sent is the beginning of one version, and somebody was in the way."""
    for sent in watcher.sent:
        assert sent.status in (200, 404, 503), (sent.title, sent.status)
        if sent.status == 200:
            begins = (version[: len(sent.content)] for version in versions[sent.title])
            said = f"{sent.title}: {len(sent.content)} bytes that were never there"
            assert sent.content in begins, said
    assert watcher.disturbed(), "the owner was in nobody's way"
