"""`enkaku media`: videos on an ext4 that mke2fs has made, behind our target, found by ffprobe and
fetched by curl, byte by byte; storage that goes away and comes back; guests that mean no good."""

import hashlib
import os
import random
import re
import shutil
import socket
import time
import tomllib
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest
from support import filesystems as fs
from support.media import serve, wait_for

from enkaku_lab.chromium import browser
from enkaku_lab.peers import Target, enkaku, need
from enkaku_lab.process import run

MIB = 1 << 20
FILM = "films/Ein Film ü.mp4"
CHANGED_S = 1_750_000_000
"""2025-06-15T15:06:40Z."""
SRT = "1\n00:00:00,500 --> 00:00:02,000\nHello & <b>you</b>\n"
with_ffmpeg = pytest.mark.needs("mke2fs", "curl", "ffmpeg", "ffprobe")

pytestmark = pytest.mark.needs("mke2fs", "curl")


@pytest.fixture
def content() -> bytes:
    return random.Random(27).randbytes(40 * MIB + 12_345)


@pytest.fixture
def target(tmp_path: Path, content: bytes) -> Iterator[Target]:
    source = tmp_path / "source"
    (source / "films").mkdir(parents=True)
    (source / FILM).write_bytes(content)
    (source / "films/words.srt").write_text(SRT)
    (source / "link.mp4").symlink_to(FILM)
    disk = fs.ext(tmp_path / "disk.img", 96 * MIB, source, "-L", "Films")
    with enkaku.serve([disk], tmp_path, options=["--read-only"]) as serving:
        yield serving


@pytest.fixture
def catalogue(target: Target, tmp_path: Path) -> Path:
    """As a person writes it."""
    path = tmp_path / "catalogue.toml"
    path.write_text(
        f'[[home]]\nname = "attic"\nvolume = "{target.url()}"\n\n'
        f'[[video]]\ntitle = "Summer"\nhome = "attic"\npath = "{FILM}"\n'
        'subtitles = [{ path = "films/words.srt", language = "en" }]\n\n'
        '[[video]]\ntitle = "Gone"\nhome = "attic"\npath = "films/gone.mp4"\n\n'
        '[[video]]\ntitle = "Link"\nhome = "attic"\npath = "link.mp4"\n'
    )
    return path


def test_ranges_are_what_is_in_the_file(catalogue: Path, content: bytes):
    size = len(content)
    with serve(catalogue) as page:
        src = page.video("summer")["src"]
        assert page.curl(src) == (200, content)
        head = page.head(src, "--head")
        assert head["content-length"] == str(size)
        assert head["content-type"] == "video/mp4"
        tag = head["etag"]
        for asked, begin, end in [
            ("0-0", 0, 1),
            (f"{20 * MIB - 7}-{21 * MIB}", 20 * MIB - 7, 21 * MIB + 1),
            (f"{size - 100}-", size - 100, size),
            ("-70001", size - 70_001, size),
        ]:
            status, body = page.curl(src, "--range", asked, "--header", f"If-Range: {tag}")
            assert (status, len(body)) == (206, end - begin), asked
            assert hashlib.sha256(body).digest() == hashlib.sha256(content[begin:end]).digest()
        status, body = page.curl(src, "--range", "0-9,100000-100009,-10")
        assert status == 206
        assert body.count(b"\r\nContent-Range: bytes ") == 3
        for begin in (0, 100_000, size - 10):
            assert b"\r\n\r\n" + content[begin : begin + 10] + b"\r\n--" in body
        assert page.curl(src, "--range", "0-9", "--header", 'If-Range: "other"') == (200, content)
        assert page.head(src, "--range", f"{size}-")["content-range"] == f"bytes */{size}"
        assert page.curl(src, "--header", f"If-None-Match: {tag}")[0] == 304
        status, words = page.curl(page.video("summer")["subtitles"][0]["src"])
        assert status == 200
        assert words.decode().startswith("WEBVTT\n\n1\n00:00:00.500 --> 00:00:02.000\nHello")
        # A link is not followed, wherever it leads; what is gone is not there.
        for title in ("gone", "link"):
            assert page.curl(page.video(title)["src"])[0] == 404, title
        assert page.home()["state"] == "on"


def test_storage_that_is_off_is_named_and_plays_on_when_it_is_back(
    catalogue: Path, target: Target, content: bytes
):
    with serve(catalogue) as page:
        src = page.video("summer")["src"]
        assert page.curl(src, "--range", "0-9") == (206, content[:10])
        target.peer.kill()
        wait_for(lambda: page.home()["state"] == "off", "said to be off", 5)
        wait_for(lambda: page.curl(src, "--range", "9000000-9000009")[0] == 503, "refused")
        head = page.head(src)
        assert head["status"] == "503" and int(head["retry-after"]) >= 1
        begin = time.monotonic()
        status, said = page.curl(src)
        assert status == 503 and b'the storage "attic" is off, since 20' in said, said
        assert str(target.port).encode() not in said
        assert time.monotonic() - begin < 5, "what is known to be off is not waited for"
        enkaku.restart(target)
        wait_for(lambda: page.home()["state"] in ("on", "ready"), "back")
        assert page.curl(src) == (200, content)


def test_an_idle_volume_is_logged_out_of(catalogue: Path, content: bytes):
    with serve(catalogue, "--idle", "100ms") as page:
        src = page.video("summer")["src"]
        for _ in range(2):
            assert page.curl(src, "--range", "0-9") == (206, content[:10])
            wait_for(lambda: page.home()["state"] == "ready", "let go")


def test_whoever_takes_nothing_holds_up_nobody_but_himself(catalogue: Path, content: bytes):
    with serve(catalogue, "--streams", "2") as page:
        src = page.video("summer")["src"]
        request = f"GET {src} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        with socket.create_connection(("127.0.0.1", page.port)) as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            slow.sendall(request)
            assert slow.recv(15) == b"HTTP/1.1 200 OK"
            assert page.curl(src) == (200, content)
            with socket.create_connection(("127.0.0.1", page.port)) as second:
                second.sendall(request)
                assert second.recv(15) == b"HTTP/1.1 200 OK"
                # Both places are taken: a third waits for one, is sent away, and comes back.
                status, said = page.curl(src)
                assert status == 503 and b"too many are watching" in said
        wait_for(lambda: page.curl(src, "--range", "0-9")[0] == 206, "served again")


def read_bytes(target: Target) -> int:
    """Bytes that the target has read of its files."""
    text = Path(f"/proc/{target.peer.pid}/io").read_text()
    return int(text.split("rchar:")[1].split()[0])


def test_eight_who_watch_the_same_get_it_over_the_line_once(
    catalogue: Path, content: bytes, target: Target, tmp_path: Path
):
    with serve(catalogue) as page:
        url = page.url + page.video("summer")["src"]
        before = read_bytes(target)
        copies = [tmp_path / f"copy-{number}" for number in range(8)]
        words = [word for copy in copies for word in ("--output", copy, url)]
        run([need("curl"), "--silent", "--fail", "--parallel", "--parallel-immediate", *words])
        for copy in copies:
            assert copy.read_bytes() == content
        assert read_bytes(target) - before <= 1.2 * len(content)


def test_enemies_get_nothing(catalogue: Path, tmp_path: Path):
    (tmp_path / "secret").write_text("secret")
    with serve(catalogue) as page:
        src = page.video("summer")["src"]
        for path in [
            "/secret",
            "/../secret",
            "/poster/..%2fsecret",
            "/poster/%2e%2e/secret",
            f"{src}/../../../secret",
            "/video/%00/x",
            "/catalogue.toml",
        ]:
            status, said = page.curl(path)
            assert status == 404 and b"secret" not in said, path
        many = ",".join("0-0" for _ in range(10_000))
        assert page.head(src, "--header", f"Range: bytes={many}")["status"] == "431"
        many = ",".join("0-0" for _ in range(100))
        assert page.head(src, "--header", f"Range: bytes={many}")["status"] == "416"
        stranger = b"GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n"
        assert page.say(stranger).startswith(b"HTTP/1.1 421 ")
        begin = time.monotonic()
        half = [socket.create_connection(("127.0.0.1", page.port)) for _ in range(40)]
        for connection in half:
            connection.sendall(b"GET / HTTP/1.1\r\nHo")
        assert page.curl("/")[0] == 200, "they hold up nobody"
        for connection in half:
            connection.settimeout(60)
            while connection.recv(4096):
                pass
            connection.close()
        assert time.monotonic() - begin < 60


@pytest.fixture
def films(tmp_path: Path) -> Path:
    """A disk with real videos; `source` beside it has what is on it."""
    source = tmp_path / "source"
    (source / "films/deep").mkdir(parents=True)
    sound = ["-f", "lavfi", "-i", "sine=frequency=440:duration=12"]
    picture = ["-f", "lavfi", "-i", "testsrc2=size=320x180:rate=15:duration=12"]
    quiet = [need("ffmpeg"), "-v", "error", "-nostdin", "-y"]
    title = ["-metadata", "title=Küche <b>1</b>"]
    codecs = ["-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p", "-c:a", "aac"]
    # The index of an MP4 is at its end unless it is asked for at the start.
    title += ["-metadata", "creation_time=2024-05-01T10:00:00Z"]
    run([*quiet, *picture, *sound, *codecs, *title, source / "films/a_kitchen.mp4"])
    run([*quiet, *picture, *codecs[:6], source / "films/deep/silent.mkv"])
    os.utime(source / "films/deep/silent.mkv", (CHANGED_S, CHANGED_S))
    (source / "films/a_kitchen.en.srt").write_text(SRT)
    (source / "films/broken.mp4").write_bytes(random.Random(1).randbytes(5000))
    playlist = "#EXTM3U\n#EXT-X-TARGETDURATION:5\n#EXTINF:5,\nhttp://127.0.0.1:9/x.ts\n"
    (source / "films/list.mp4").write_text(playlist)
    (source / "films/notes.txt").write_text("no video")
    return fs.ext(tmp_path / "disk.img", 64 * MIB, source, "-L", "Films")


def published(*words: object, code: int = 0) -> tuple[str, str]:
    done = enkaku.command("media", "publish", *words, check=False)
    assert done.code == code, done
    return done.stdout.strip(), done.stderr


@with_ffmpeg
def test_what_is_published_is_found_and_plays(films: Path, tmp_path: Path):
    catalogue = tmp_path / "videos" / "catalogue.toml"
    catalogue.parent.mkdir()
    with enkaku.serve([films], tmp_path, options=["--read-only"]) as target:
        words = [target.url(), "/films", "--catalogue", catalogue, "--tag", "home"]
        said, complaints = published(*words, code=1)
        assert said == "published 2, unchanged 0, left out 2"
        for name in ("broken.mp4", "list.mp4"):
            assert f"/films/{name}: left out: ffprobe: " in complaints, complaints
        text = catalogue.read_text()
        made = tomllib.loads(text)
        assert made["home"] == [{"name": "Films", "volume": target.url()}]
        kitchen, silent = sorted(made["video"], key=lambda one: one["path"])
        assert kitchen["title"] == "Küche <b>1</b>"
        assert (kitchen["video_codec"], kitchen["audio_codec"]) == ("h264", "aac")
        assert abs(kitchen["duration_s"] - 12) < 0.5
        assert kitchen["subtitles"] == [{"path": "/films/a_kitchen.en.srt", "language": "en"}]
        assert (silent["title"], silent["container"]) == ("silent", "matroska")
        file = (tmp_path / "source/films/deep/silent.mkv").stat()
        assert silent["bytes"] == file.st_size
        assert silent["recorded"] == datetime.fromtimestamp(CHANGED_S, timezone.utc)
        assert kitchen["recorded"] == datetime.fromisoformat("2024-05-01T10:00:00+00:00")
        # Once more, nothing is other than it was; a person's words stay.
        before = catalogue.stat()
        assert published(*words, code=1)[0] == "published 0, unchanged 2, left out 2"
        assert (catalogue.stat().st_ino, catalogue.read_text()) == (before.st_ino, text)
        mine = text.replace('"silent"', '"My Own Title" # mine')
        catalogue.write_text(mine)
        (catalogue.parent / silent["poster"]).unlink()
        assert published(*words, code=1)[0] == "published 1, unchanged 1, left out 2"
        assert catalogue.read_text() == mine
        # A catalogue from before there were sizes and dates is served, and gets them.
        catalogue.write_text(re.sub(r"(?m)^(bytes|recorded) = .*\n", "", mine))
        with serve(catalogue) as page:
            one = page.video("kitchen home")
            assert (one["bytes"], one["recorded"]) == (None, None)
        assert published(*words, code=1)[0] == "published 2, unchanged 0, left out 2"
        assert tomllib.loads(catalogue.read_text()) == tomllib.loads(mine)
        with serve(catalogue) as page:
            one = page.video("kitchen home")
            assert one["bytes"] == kitchen["bytes"]
            assert one["title"] == "Küche <b>1</b>"
            status, picture = page.curl(one["poster"])
            assert status == 200 and picture.startswith(b"\xff\xd8\xff")
            expected = (tmp_path / "source/films/a_kitchen.mp4").read_bytes()
            assert page.curl(one["src"]) == (200, expected)


@with_ffmpeg
def test_one_file_of_an_image_is_published(films: Path, tmp_path: Path):
    catalogue = tmp_path / "catalogue.toml"
    words = [films, "films/deep/silent.mkv", "--catalogue", catalogue, "--home", "shed"]
    assert published(*words)[0] == "published 1, unchanged 0, left out 0"
    with serve(catalogue) as page:
        one = page.video()
        assert (one["home"], one["title"]) == ("shed", "silent")
        expected = (tmp_path / "source/films/deep/silent.mkv").read_bytes()
        assert page.curl(one["src"]) == (200, expected)
    other = fs.ext(tmp_path / "other.img", 8 * MIB, tmp_path / "source/films/deep")
    words = [other, "/", "--catalogue", catalogue, "--home", "shed"]
    assert "give this one another name (--home)" in published(*words, code=1)[1]


def test_a_program_that_is_missing_is_named_with_its_package(target: Target, tmp_path: Path):
    folder = tmp_path / "bin"
    folder.mkdir()
    words = [enkaku.binary(), "media", "publish", target.url(), FILM]
    done = run(
        [*words, "--catalogue", tmp_path / "catalogue.toml"],
        check=False,
        env={"PATH": str(folder)},
    )
    assert done.code == 1
    expected = "ffprobe is not installed; in Debian, it is in the package ffmpeg"
    assert done.stderr.strip() == f"enkaku: {expected}"
    assert not (tmp_path / "catalogue.toml").exists()


@pytest.mark.needs("ffmpeg", "ffprobe", "chromium")
def test_a_browser_plays_it(films: Path, tmp_path: Path):
    """Chromium, without a hand on it: the address of a video opens and begins it. Where it has got
    to is asked for by what it has fetched: the page's own script has to have run for that."""
    catalogue = tmp_path / "catalogue.toml"
    published(films, "films/a_kitchen.mp4", "--catalogue", catalogue)
    with serve(catalogue) as page:
        video = page.video()
        url = f"http://127.0.0.1:{page.port}/#{video['id']}"
        words = [need("chromium"), "--headless=new", "--no-sandbox", "--disable-gpu"]
        words += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=8000"]
        words += ["--autoplay-policy=no-user-gesture-required", "--window-size=390,844"]
        done = run([*words, "--dump-dom", url], timeout_s=120, env={"HOME": str(tmp_path)})
        shutil.rmtree(tmp_path / "profile", ignore_errors=True)
        assert "Küche &lt;b&gt;1&lt;/b&gt;" in done.stdout, "it is text, not markup"
        assert f'src="{video["src"]}"' in done.stdout
        assert "cannot play" not in done.stdout


@pytest.mark.needs("ffmpeg", "ffprobe", "chromium")
def test_a_page_tells_sizes_and_dates_and_shows_the_newest_first(films: Path, tmp_path: Path):
    catalogue = tmp_path / "catalogue.toml"
    published(films, "/films", "--catalogue", catalogue, code=1)
    text = catalogue.read_text()
    text = re.sub(r'(?s)(title = "silent".*?\nbytes = )\d+', r"\g<1>1_549_900_000", text)
    catalogue.write_text(text)
    with serve(catalogue) as page, browser(tmp_path) as opened, opened.page(page.url) as tab:
        script = "[...document.querySelectorAll('#grid .name')].map((one) => one.textContent)"

        def shows(*titles: str) -> bool:
            return tab.evaluate(script) == list(titles)

        wait_for(lambda: shows("Küche <b>1</b>", "silent"), "by title", 60)
        tab.evaluate("sort.value = 'newest'; sort.dispatchEvent(new Event('change')); 1")
        wait_for(lambda: shows("silent", "Küche <b>1</b>"), "the newest first")
        about = "document.querySelector('#grid .where').textContent"
        assert "2025" in str(tab.evaluate(about))
        tab.evaluate("open(grid.firstElementChild.dataset.id); 1")
        wait_for(lambda: "1.5 GB" in str(tab.evaluate("at('about').textContent")), "told")
        said = tab.evaluate("[0, 999, 1000, 999_499, 999_500, 9_949_999, 5e15].map(size).join()")
        assert said == "0 bytes,999 bytes,1.0 kB,999 kB,1.0 MB,9.9 MB,5000 TB"
