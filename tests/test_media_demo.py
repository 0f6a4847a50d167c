"""`enkaku media demo`: all of it on this machine, from one command."""

import hashlib
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.media import Page, wait_for

from enkaku_lab.chromium import browser
from enkaku_lab.peers import enkaku, need
from enkaku_lab.process import Peer, run

READY_S_MAX = 60
"""MEDIA.md, M13, of one command."""
SLOW = ["--rate", "50mbit", "--rtt", "60ms"]

pytestmark = pytest.mark.needs("root", "/dev/net/tun", "ffmpeg", "ffprobe", "mke2fs", "curl")


@contextmanager
def demo(folder: Path, *words: object) -> Iterator[Page]:
    """What it makes is in `folder`."""
    argv = [enkaku.binary(), "media", "demo", "--listen", "127.0.0.1:0", *words]
    peer = Peer(argv, folder / "demo.log", env={"TMPDIR": str(folder)})
    try:
        wait_for(lambda: "http://" in peer.output() or not peer.running(), "ready", READY_S_MAX)
        assert peer.running(), peer.output()
        urls = [line for line in peer.output().splitlines() if line.startswith("http")]
        yield Page(peer, urls[-1].rstrip("/"))
    finally:
        peer.stop()


def children(page: Page) -> dict[str, int]:
    """Process ids of the demo's programs, by what they do."""
    listed = run(["ps", "--ppid", page.peer.pid, "-o", "pid=,args="]).stdout.splitlines()
    roles = {"isns serve": "isns", "target run": "target", "media serve": "server"}
    named = {}
    for line in listed:
        pid, words = line.split(maxsplit=1)
        named |= {role: int(pid) for told, role in roles.items() if told in words}
    return named


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_videos_of_a_home_come_over_the_line_and_nothing_is_left(tmp_path: Path):
    film = tmp_path / "of my own.mp4"
    source = ["-f", "lavfi", "-i", "testsrc2=size=320x180:rate=15:duration=5"]
    run([need("ffmpeg"), "-v", "error", "-y", *source, "-movflags", "+faststart", film])
    with demo(tmp_path, *SLOW, film) as page:
        named = {video["title"]: video for video in page.json("/api/videos")["videos"]}
        assert set(named) == {"Camcorder", "Test picture", "of my own"}
        assert page.home()["name"] == "attic"
        _, body = page.curl(named["of my own"]["src"])
        assert hashlib.sha256(body).digest() == hashlib.sha256(film.read_bytes()).digest()
        begin = time.monotonic()
        status, body = page.curl(named["Test picture"]["src"], "--range", "0-9999999")
        took_s = time.monotonic() - begin
        assert (status, len(body)) == (206, 10_000_000)
        assert took_s > 10_000_000 * 8 / 50e6, "no faster than the line"
        running = children(page)
        assert set(running) == {"isns", "target", "server"}
        page.peer.signal(signal.SIGINT)
        wait_for(lambda: not page.peer.running(), "ended", 20)
    assert page.peer.stop() in (0, None)
    assert "warning" not in page.peer.output(), page.peer.output()
    assert not list(tmp_path.glob("enkaku-media-demo-*")) and film.exists()
    wait_for(lambda: not any(map(is_alive, running.values())), "gone", 10)


@pytest.mark.needs("chromium")
def test_a_browser_of_this_machine_plays_what_is_at_home(tmp_path: Path):
    with demo(tmp_path) as page, browser(tmp_path / "browser") as opened:
        for title in ("Test picture", "Camcorder"):
            video = page.video(title)
            with opened.page(f"{page.url}/#{video['id']}") as tab:
                plays = "video.readyState >= 3 && video.currentTime"
                wait_for(lambda tab=tab, plays=plays: (tab.evaluate(plays) or 0) > 0.5, f"{title} playing", 60)


def test_it_ends_with_what_is_a_part_of_it_and_says_which(tmp_path: Path):
    with demo(tmp_path) as page:
        os.kill(children(page)["target"], signal.SIGKILL)
        wait_for(lambda: not page.peer.running(), "ended", 20)
    assert "enkaku: the target has ended: signal: 9" in page.peer.output()
    assert not list(tmp_path.glob("enkaku-media-demo-*"))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--listen", "0.0.0.0"], "127.0.0.1 or ::1 is meant"),
        (["--rate", "0mbit"], "is not above zero"),
        (["--loss", "2"], "is above 1"),
        (["no/film.mp4"], "no/film.mp4 is not a file"),
    ],
)
def test_what_it_cannot_do_is_said_at_once(tmp_path: Path, words: list[str], told: str):
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    done = run([enkaku.binary(), "media", "demo", *words], check=False, env=env)
    assert done.code == 2 and told in done.stderr and len(done.stderr.splitlines()) < 3, done.stderr
    assert not list(tmp_path.iterdir())
