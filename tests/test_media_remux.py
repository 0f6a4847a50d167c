"""`enkaku media serve` puts into MP4 what browsers do not play only because of its container: real files
by ffmpeg on real file systems, what comes judged by ffprobe and ffmpeg, and played by Chromium."""

import os
import random
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support import filesystems as fs
from support.media import Page, serve, wait_for

from enkaku_lab.chromium import Page as Tab
from enkaku_lab.chromium import browser
from enkaku_lab.peers import Target, enkaku, need
from enkaku_lab.process import Peer, run

MIB = 1 << 20
SECONDS = 60
GROUP_S = 3
"""From one picture that stands for itself to the next."""
REMUXES_MAX = 8
HOSTILE = "-i $(touch pwned); `id` ü '.avi"
PARTIAL = (18, 56)
"""curl's exit codes for a body that ended early, or was cut."""

pytestmark = pytest.mark.needs("mke2fs", "curl", "ffmpeg", "ffprobe")


def ffmpeg(*words: object) -> str:
    return run([need("ffmpeg"), "-v", "error", "-nostdin", "-y", *words]).stdout


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one film in many containers."""
    folder = tmp_path_factory.mktemp("clips")
    source = ["-f", "lavfi", "-i", f"testsrc2=size=320x180:rate=15:duration={SECONDS}"]
    source += ["-f", "lavfi", "-i", f"sine=frequency=440:duration={SECONDS}"]
    codec = ["-c:v", "libx264", "-preset", "veryfast", "-pix_fmt", "yuv420p", "-g", 15 * GROUP_S]
    ffmpeg(*source, *codec, "-c:a", "aac", folder / "tele.ts")
    # AVI has no times to tell the order of pictures by.
    ffmpeg(*source, *codec, "-bf", 0, "-c:a", "libmp3lame", folder / "camera.avi")
    ffmpeg("-i", folder / "tele.ts", "-c", "copy", "-bsf:a", "aac_adtstoasc", folder / "unordered.avi")
    for name in ("as_it_is.mp4", "perhaps.mkv"):
        ffmpeg("-i", folder / "tele.ts", "-c", "copy", folder / name)
    ffmpeg("-i", folder / "camera.avi", "-t", 2, "-c:v", "mpeg4", "-c:a", "copy", folder / "old.avi")
    os.link(folder / "camera.avi", folder / HOSTILE)
    (folder / "tele.en.srt").write_text("1\n00:00:40,500 --> 00:00:59,000\nHello\n")
    # More than all that is under way between a disk and who takes nothing.
    noise = "nullsrc=size=320x180:rate=15:duration=20,noise=alls=100:allf=t"
    loud = ["-c:v", "libx264", "-preset", "ultrafast", "-qp", 4, "-pix_fmt", "yuv420p", "-g", 15]
    ffmpeg("-f", "lavfi", "-i", noise, *loud, folder / "long.ts")
    assert (folder / "long.ts").stat().st_size > 12 * MIB
    return folder


@contextmanager
def shown(
    clips: Path, folder: Path, *names: str, kind: str = "ext4", within: list[object] = ()
) -> Iterator[tuple[Page, Target]]:
    """A server, and the target with the disk that these are on."""
    source = folder / "source"
    (source / "films").mkdir(parents=True)
    for name in names:
        os.link(clips / name, source / "films" / name)
    make = fs.fat if kind == "fat" else fs.ext
    disk = make(folder / "disk.img", 96 * MIB, source)
    catalogue = folder / "catalogue.toml"
    with enkaku.serve([disk], folder) as target:
        words = ["media", "publish", target.url(), "/films", "--catalogue", catalogue, "--home", "attic"]
        enkaku.command(*words)
        with serve(catalogue, within=within) as page:
            yield page, target


def remuxed(page: Page, title: str, file: Path, second: float = 0) -> Path:
    """What is sent from that second on, as a file."""
    src = page.video(title)["remux"]["src"]
    status, body = page.curl(f"{src}?t={second}")
    assert status == 200, body
    file.write_bytes(body)
    return file


def probed(file: Path, entries: str) -> list[str]:
    words = [need("ffprobe"), "-v", "error", "-show_entries", entries, "-of", "csv=p=0", file]
    return run(words).stdout.split()


def pictures(file: Path) -> list[str]:
    """A hash of each, decoded."""
    lines = ffmpeg("-i", file, "-map", "0:v", "-vsync", "passthrough", "-f", "framemd5", "-")
    return [line.split(",")[-1].strip() for line in lines.splitlines() if not line.startswith("#")]


def first_time(file: Path) -> float:
    """Of the pictures, in the time of the video."""
    words = [need("ffprobe"), "-v", "error", "-select_streams", "v", "-show_entries"]
    words += ["packet=pts_time", "-read_intervals", "%+#1", "-of", "csv=p=0", file]
    return float(run(words).stdout.split()[0].strip(","))


def programs(page: Page) -> list[int]:
    """Process ids of what the server has started."""
    threads = Path(f"/proc/{page.peer.pid}/task").iterdir()
    return [int(pid) for thread in threads for pid in (thread / "children").read_text().split()]


@contextmanager
def taking_little(page: Page, src: str) -> Iterator[socket.socket]:
    """Whoever is sent something, and takes no more than the head."""
    with socket.create_connection(("127.0.0.1", page.port), timeout=60) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        connection.sendall(f"GET {src} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert connection.recv(15) == b"HTTP/1.1 200 OK"
        yield connection


@pytest.mark.parametrize("kind", ["ext4", "fat"])
def test_what_comes_is_what_is_in_the_file(kind: str, clips: Path, tmp_path: Path):
    with shown(clips, tmp_path, "tele.ts", "camera.avi", kind=kind) as (page, _):
        for title, name, sound in [("tele", "tele.ts", "aac"), ("camera", "camera.avi", "mp3")]:
            video = page.video(title)
            assert video["remux"]["is_only_way"] is True
            src = video["remux"]["src"]
            codecs = page.head(src)["content-type"]
            assert codecs.startswith('video/mp4; codecs="avc1.')
            assert codecs.endswith({"aac": ',mp4a.40.2"', "mp3": ',mp4a.6B"'}[sound])
            whole = remuxed(page, title, tmp_path / "whole.mp4")
            assert sorted(probed(whole, "stream=codec_name")) == sorted(["h264", sound])
            assert abs(float(probed(whole, "format=duration")[0]) - SECONDS) < 0.5
            expected = pictures(clips / name)
            assert len(expected) == 15 * SECONDS
            assert pictures(whole) == expected
            begin = time.monotonic()
            rest = remuxed(page, title, tmp_path / "rest.mp4", 40.5)
            assert time.monotonic() - begin < 10
            second = first_time(rest)
            assert 40.5 - GROUP_S - 2 <= second <= 40.5, "the file's own times"
            got = pictures(rest)
            assert got == expected[-len(got) :]
            assert abs(len(got) / 15 - (SECONDS - second)) < 0.3
        wait_for(lambda: not programs(page), "ended")


def test_what_plays_as_it_is_and_what_does_not_at_all_is_left_alone(clips: Path, tmp_path: Path):
    names = ["as_it_is.mp4", "perhaps.mkv", "old.avi", "unordered.avi", HOSTILE]
    with shown(clips, tmp_path, *names) as (page, _):
        for title in ("as_it_is", "old"):
            video = page.video(title)
            assert video["remux"] is None
            assert page.curl(f"/remux/{video['id']}/video.mp4")[0] == 404
        src = page.video("perhaps")["remux"]["src"]
        assert page.video("perhaps")["remux"]["is_only_way"] is False
        assert pictures(remuxed(page, "perhaps", tmp_path / "film.mp4")) == pictures(clips / "tele.ts")
        assert page.head(src, "--head")["status"] == "200"
        for query in ("t=-1", "t=x", "t=1e300", "t=NaN", "u=1"):
            assert page.curl(f"{src}?{query}")[0] == 400, query
        assert page.curl("/remux/0000000000000000/video.mp4")[0] == 404
        status, said = page.curl(page.video("unordered")["remux"]["src"])
        assert (status, said) == (501, b"the file does not tell the order of its pictures\n")
        hostile = remuxed(page, "touch", tmp_path / "hostile.mp4")
        assert len(pictures(hostile)) == 15 * SECONDS
        assert not list(tmp_path.rglob("pwned")) and not Path("pwned").exists()


def through(proxy: str) -> int:
    """Status of what a program that is no child of the server is answered at a child's address."""
    words = [need("curl"), "--silent", "--max-time", 20, "--range", "0-9", "--output", "/dev/null"]
    words += ["--write-out", "%{http_code}", "--proxy", proxy, "http://video/video.bin"]
    return int(run(words, check=False).stdout)


def test_a_program_ends_with_whoever_watches_and_reads_nothing_more(clips: Path, tmp_path: Path):
    with shown(clips, tmp_path, "long.ts") as (page, target):
        src = page.video()["remux"]["src"]
        with taking_little(page, src):
            (program,) = programs(page)
            words = Path(f"/proc/{program}/cmdline").read_bytes()
            assert b"films" not in words and b"long" not in words
            limits = Path(f"/proc/{program}/limits").read_text()
            assert "Max file size             0" in limits
            io = Path(f"/proc/{target.peer.pid}/io")
            pairs = Path(f"/proc/{program}/environ").read_bytes().decode().rstrip("\0").split("\0")
            environment = dict(pair.split("=", 1) for pair in pairs)
            assert sorted(environment) == ["PATH", "http_proxy"]
            secret = environment["http_proxy"].removeprefix("http://").split("@")[0]
            assert secret.encode() not in words
            assert through(environment["http_proxy"]) == 206
            assert through(environment["http_proxy"].replace(secret, "ffmpeg:guess")) == 407
            assert through(environment["http_proxy"].replace(f"{secret}@", "")) == 407
        assert secret not in page.peer.output()
        wait_for(lambda: not programs(page), "ended", 5)
        assert through(environment["http_proxy"]) == 0, "nothing is there any more"
        seen = io.read_text()

        def is_still() -> bool:
            nonlocal seen
            before, seen = seen, io.read_text()
            return before.split("syscr")[0] == seen.split("syscr")[0]

        wait_for(is_still, "quiet", 5)
        assert page.curl(src)[0] == 200, "for the next"


def test_no_more_than_so_many_at_once(clips: Path, tmp_path: Path):
    with shown(clips, tmp_path, "long.ts") as (page, _):
        src = page.video()["remux"]["src"]
        watching = [taking_little(page, src) for _ in range(REMUXES_MAX)]
        for one in watching:
            one.__enter__()
        try:
            assert len(programs(page)) == REMUXES_MAX
            head = page.head(src)
            assert head["status"] == "429" and int(head["retry-after"]) >= 1
            assert page.curl(page.video()["src"], "--range", "0-9")[0] == 206, "files are sent"
        finally:
            for one in watching:
                one.__exit__(None, None, None)
        wait_for(lambda: page.curl(src)[0] == 200, "sent again")


def test_no_program_outlives_its_server(clips: Path, tmp_path: Path):
    with shown(clips, tmp_path, "long.ts") as (page, _):
        with taking_little(page, page.video()["remux"]["src"]):
            (program,) = programs(page)
            page.peer.kill()
            wait_for(lambda: not Path(f"/proc/{program}/fd").exists(), "ended", 5)


def test_rights_are_those_of_the_file(clips: Path, tmp_path: Path):
    with shown(clips, tmp_path, "tele.ts", "camera.avi") as (page, _):
        catalogue = tmp_path / "catalogue.toml"
        tele, camera = (page.video(title)["remux"]["src"] for title in ("tele", "camera"))
        password = tmp_path / "password"
        password.write_text("correct horse\n")
        password.chmod(0o600)
        words = ["--catalogue", catalogue, "--password-file", password]
        enkaku.command("media", "user", "add", "anna", "--owner", *words)
        wait_for(lambda: page.curl(tele)[0] == 401, "asked for a name")
        link = enkaku.command("media", "share", "tele", "--for", "1h", *words[:2]).stdout.strip()
        path = link.removeprefix(page.url)
        wait_for(lambda: page.curl(path)[0] == 200, "known")
        (video,) = page.json(f"{path}/api/videos")["videos"]
        assert video["remux"]["src"] == path + tele
        assert page.curl(path + tele)[0] == 200
        assert page.curl(path + camera)[0] == 404, "nothing but its video"
        jar = tmp_path / "jar"
        body = {"name": "anna", "password": "correct horse"}
        assert page.send("/api/login", body, "--cookie-jar", jar)[0] == 200
        assert page.curl(camera, "--cookie", jar)[0] == 200


def slow(page: Page, src: str, folder: Path) -> Peer:
    """curl, which takes its time."""
    file = folder / "stream"
    file.unlink(missing_ok=True)
    words = [need("curl"), "--silent", "--limit-rate", "1M", "--output", file, page.url + src]
    peer = Peer(words, folder / "curl.log")
    peer.wait_until(lambda: file.exists() and file.stat().st_size > 0, "nothing is sent")
    return peer


@pytest.mark.needs("root", "/dev/fuse", "fusermount3")
def test_it_ends_when_the_owner_writes_or_unplugs(clips: Path, tmp_path: Path):
    with shown(clips, tmp_path, "long.ts") as (page, target):
        src = page.video()["remux"]["src"]
        watching = slow(page, src, tmp_path)
        try:
            with enkaku.attach_fuse(target.url(), tmp_path / "owner", tmp_path, ["--owner"]):
                assert watching.wait(30) in PARTIAL
                wait_for(lambda: not programs(page), "ended", 5)
                status, said = page.curl(src)
                assert status == 503 and b"is being edited" in said, said
        finally:
            watching.stop()
        wait_for(lambda: page.curl(src)[0] == 200, "sent again")
        watching = slow(page, src, tmp_path)
        try:
            assert page.json("/api/owner")["watching"][0]["bytes"] > 0
            assert page.send("/api/owner/unplug", {"home": "attic"})[0] == 200
            assert watching.wait(30) in PARTIAL
        finally:
            watching.stop()


def test_what_is_damaged_is_told(clips: Path, tmp_path: Path):
    with shown(clips, tmp_path, "tele.ts") as (page, target):
        src = page.video()["remux"]["src"]
        target.peer.kill()
        wait_for(lambda: page.curl(src)[0] == 503, "off", 30)
        enkaku.restart(target)
        wait_for(lambda: page.curl(src)[0] == 200, "back")
    catalogue = tmp_path / "catalogue.toml"
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "tele.ts").write_bytes(random.Random(1).randbytes(MIB))
    (tmp_path / "other").mkdir()
    os.rename(broken, tmp_path / "other/films")
    disk = fs.ext(tmp_path / "other.img", 16 * MIB, tmp_path / "other")
    text = catalogue.read_text().replace(target.url(), str(disk))
    catalogue.write_text(text)
    with serve(catalogue) as page:
        status, said = page.curl(src)
        assert status == 500 and said.startswith(b"ffmpeg cannot put it"), said
        log = page.peer.output()
        assert "cannot be remuxed" in log and "127.0.0.1:" not in log.split("cannot be remuxed")[1]


def test_a_program_that_is_missing_is_named(clips: Path, tmp_path: Path):
    (tmp_path / "bin").mkdir()
    within = [need("env"), f"PATH={tmp_path / 'bin'}"]
    with shown(clips, tmp_path, "tele.ts", within=within) as (page, _):
        page.within = []
        video = page.video()
        status, said = page.curl(video["remux"]["src"])
        assert status == 501 and said.startswith(b"ffmpeg is not installed at the server"), said
        assert page.curl(video["src"], "--range", "0-9")[0] == 206


@contextmanager
def playing(page: Page, folder: Path, title: str) -> Iterator[Tab]:
    """A browser on which a video has begun."""
    with browser(folder) as opened, opened.page(f"{page.url}/#{page.video(title)['id']}") as tab:
        wait_for(lambda: is_at(tab, 0.5), "playing", 60)
        yield tab


def is_at(tab: Tab, second: float) -> bool:
    """It plays there, or at most ten seconds later."""
    now = tab.evaluate("video.readyState >= 3 && !video.seeking && video.currentTime")
    return bool(now) and second <= float(now) < second + 10


@pytest.mark.needs("chromium")
def test_a_browser_plays_it_seeks_and_leaves_alone_what_it_can_play(clips: Path, tmp_path: Path):
    with shown(clips, tmp_path, "tele.ts", "perhaps.mkv", "tele.en.srt") as (page, _):
        with playing(page, tmp_path, "tele") as tab:
            assert str(tab.evaluate("video.currentSrc")).startswith("blob:")
            assert abs(float(tab.evaluate("video.duration")) - SECONDS) < 1
            # Far beyond what it has fetched, and back again.
            for second in (50, 5):
                tab.evaluate(f"video.currentTime = {second}")
                wait_for(lambda second=second: is_at(tab, second + 0.3), f"at {second}", 30)
                assert not tab.evaluate("at('trouble').textContent")
            tab.evaluate("video.currentTime = 41")
            cue = "video.textTracks[0].activeCues?.[0]?.text"
            wait_for(lambda: tab.evaluate(cue) == "Hello", "subtitled", 30)
            assert len(programs(page)) <= 1, "one for who watches, wherever he has been"
            tab.evaluate("close()")
            wait_for(lambda: not programs(page), "ended", 10)
            mkv = page.video("perhaps")
            tab.evaluate(f"open('{mkv['id']}'); 1")
            wait_for(lambda: is_at(tab, 0.5), "playing", 60)
            assert str(tab.evaluate("video.currentSrc")).endswith(mkv["src"])


ASKS = """
{
  const real = window.fetch;
  window.seconds = [];
  window.fetch = (...words) => {
    const url = new URL(words[0], location);
    if (url.pathname.startsWith("/remux/")) seconds.push(Number(url.searchParams.get("t")));
    return real(...words);
  };
}
"""
"""Notes the seconds that a page asks for videos from."""
PAUSE = """
new Promise((done) => {
  video.addEventListener("pause", () => setTimeout(() => done(video.currentTime)), { once: true });
  video.pause();
})
"""
"""Where it is, when all that has to do with that has been done."""


@pytest.mark.needs("chromium")
def test_it_goes_on_where_one_has_stopped(clips: Path, tmp_path: Path):
    with shown(clips, tmp_path, "tele.ts") as (page, _), playing(page, tmp_path, "tele") as tab:
        id = page.video()["id"]
        tab.before_all(ASKS)
        tab.evaluate("video.currentTime = 22")
        wait_for(lambda: is_at(tab, 23), "at 23", 30)
        stopped = float(tab.evaluate(PAUSE))
        # At once, and when the page has been left and opened anew.
        for leave in (True, False):
            if leave:
                tab.evaluate("close()")
                wait_for(lambda: not programs(page), "ended", 10)
                bar = "grid.querySelector('progress')"
                shown_at = float(tab.evaluate(f"{bar}.hidden ? 0 : {bar}.value"))
                assert abs(shown_at - stopped / SECONDS) < 0.02
            kept = float(tab.evaluate(f"memory.get('{id}')"))
            assert abs(kept - stopped) < 0.1
            if leave:
                tab.evaluate(f"seconds.length = 0, open('{id}'), 1")
            else:
                tab.reload()
            wait_for(lambda kept=kept: is_at(tab, kept + 0.5), f"after {kept}", 60)
            stopped = float(tab.evaluate(PAUSE))
            assert stopped < kept + 5, "on from there, and not from elsewhere"
            assert tab.evaluate("at('trouble').textContent") == ""
            assert tab.evaluate("seconds") == [pytest.approx(kept, abs=0.01)]
        # Whoever has seen it to its end begins anew.
        tab.evaluate(f"video.currentTime = {SECONDS - 1.5}, video.play()")
        wait_for(lambda: tab.evaluate("video.ended"), "at its end", 30)
        assert tab.evaluate(f"memory.get('{id}')") == 0
        tab.evaluate(f"close(), open('{id}'), 1")
        wait_for(lambda: is_at(tab, 0.3), "at the beginning", 30)
