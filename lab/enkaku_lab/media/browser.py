"""Chromium without a window, by its DevTools protocol over two pipes: no driver, no port, no library.

A viewer is a page in a context of its own: other connections, another cache, nothing on disk. Every page first plays a
moment of a video that it has in memory, since the first of a process also loads its decoders.
"""

import base64
import fcntl
import json
import os
import select
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from enkaku_lab.peers import need
from enkaku_lab.process import STOP_S_MAX, LabError, die_with_parent

HIGH_FD = 20
"""Above those that the protocol has."""
ANSWER_S_MAX = 30.0
QUIET = [
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-sync",
    "--disable-extensions",
]
"""Nothing but what is asked of it."""
STEADY = [
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
]
"""Several viewers at a time are all in front."""
PLAY = """
(url) => new Promise((done) => {
  document.querySelectorAll('video').forEach((old) => { old.removeAttribute('src'); old.load(); old.remove(); });
  const video = window.video = document.createElement('video');
  const said = {}, begin = performance.now();
  const end = (key) => {
    said[key] ??= performance.now() - begin;
    if (said.frame_ms !== undefined && said.plays_ms !== undefined) done(said);
  };
  video.addEventListener('loadedmetadata', () => { said.index_ms = performance.now() - begin; }, {once: true});
  video.addEventListener('playing', () => end('plays_ms'), {once: true});
  video.addEventListener('error', () => done({error: video.error.message || String(video.error.code)}));
  video.requestVideoFrameCallback(() => end('frame_ms'));
  video.src = url;
  document.body.append(video);
  video.play().catch(() => {});
})
"""
SEEK = """
(to) => new Promise((done) => {
  const video = window.video, begin = performance.now();
  const look = (now, frame) => {
    if (Math.abs(frame.mediaTime - to) < 1) done({frame_ms: performance.now() - begin});
    else video.requestVideoFrameCallback(look);
  };
  video.requestVideoFrameCallback(look);
  video.currentTime = to;
})
"""
WATCH = """
(seconds) => new Promise((done) => {
  const video = window.video, begin = performance.now(), from = video.currentTime;
  const said = {stalls: 0, stalled_ms: 0};
  const before = video.getVideoPlaybackQuality();
  let since = null, over = false;
  const stalled = () => {
    if (!over && !video.ended) { said.stalls += 1; since = performance.now(); said.last_s = (since - begin) / 1000; }
  };
  const goes = () => { if (since !== null) { said.stalled_ms += performance.now() - since; since = null; } };
  const end = () => {
    if (over) return;
    over = true;
    goes();
    const after = video.getVideoPlaybackQuality();
    said.took_s = (performance.now() - begin) / 1000;
    said.played_s = video.currentTime - from;
    said.dropped = after.droppedVideoFrames - before.droppedVideoFrames;
    said.frames = after.totalVideoFrames - before.totalVideoFrames;
    done(said);
  };
  video.addEventListener('waiting', stalled);
  video.addEventListener('playing', goes);
  video.addEventListener('ended', end, {once: true});
  video.addEventListener('error', () => { said.error = video.error.message || 'error'; end(); });
  setTimeout(end, seconds * 1000);
})
"""
STOP = "() => { window.video.removeAttribute('src'); window.video.load(); window.video.remove(); }"


class Browser:
    """One Chromium. `within` makes of its command one that runs elsewhere."""

    def __init__(self, folder: Path, within: Callable[[list[object]], list[object]], warm_up: Path):
        folder.mkdir(parents=True, exist_ok=True)
        self._warm_up = "data:video/mp4;base64," + base64.b64encode(warm_up.read_bytes()).decode()
        argv = [need("chromium"), "--headless=new", "--no-sandbox", "--disable-gpu", *QUIET, *STEADY, "--mute-audio"]
        argv += ["--autoplay-policy=no-user-gesture-required", "--window-size=800,600"]
        argv += [f"--user-data-dir={folder / 'profile'}", "--remote-debugging-pipe", "about:blank"]
        self._log = (folder / "chromium.log").open("wb")
        self._child, self._out, self._in = _piped(within(argv), folder, self._log)
        self._number, self._buffer = 0, b""
        self._answers: dict[int, dict] = {}
        self.call("Browser.getVersion")

    def call(self, method: str, session: str | None = None, timeout_s: float = ANSWER_S_MAX, **words) -> dict:
        return self.wait(self.send(method, session, **words), timeout_s)

    def send(self, method: str, session: str | None = None, **words) -> int:
        """The number under which it will be answered."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": words}
        if session:
            message["sessionId"] = session
        left = json.dumps(message).encode() + b"\0"
        try:
            while left:
                left = left[os.write(self._out, left) :]
        except BrokenPipeError:
            raise LabError("chromium has ended") from None
        return self._number

    def wait(self, number: int, timeout_s: float = ANSWER_S_MAX) -> dict:
        deadline = time.monotonic() + timeout_s
        while number not in self._answers:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TooLate(f"chromium did not answer within {timeout_s:.0f} s")
            if not select.select([self._in], [], [], left_s)[0]:
                continue
            if not (piece := os.read(self._in, 1 << 20)):
                raise LabError("chromium has ended")
            *whole, self._buffer = (self._buffer + piece).split(b"\0")
            for message in map(json.loads, whole):
                if "id" in message:
                    self._answers[message["id"]] = message
        answer = self._answers.pop(number)
        if "error" in answer:
            raise LabError(f"chromium: {answer['error'].get('message')}")
        return answer["result"]

    @contextmanager
    def viewer(self, url: str) -> Iterator["Viewer"]:
        """A page of that server, which has played a moment of a video before."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        try:
            # In a window of its own, so that it is in front.
            words = {"url": "about:blank", "browserContextId": context, "newWindow": True}
            target = self.call("Target.createTarget", **words)["targetId"]
            session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            viewer = Viewer(self, session)
            viewer.go(url)
            viewer.play(self._warm_up)
            viewer.stop()
            yield viewer
        finally:
            self.call("Target.disposeBrowserContext", browserContextId=context)

    def end(self) -> None:
        for descriptor in (self._out, self._in):
            os.close(descriptor)
        # It ends when its pipe does.
        try:
            self._child.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._log.close()


class NotSeen(LabError):
    """The browser shows nothing, or not in time."""


class TooLate(NotSeen):
    """Nothing came in time."""


class Viewer:
    """A page. Whatever fails or takes longer than it is given raises `NotSeen`; times are in milliseconds, from the page's
    clock."""

    def __init__(self, browser: Browser, session: str):
        self._browser, self._session = browser, session

    def go(self, url: str) -> None:
        self._browser.call("Page.navigate", self._session, url=url)
        deadline = time.monotonic() + ANSWER_S_MAX
        wanted = "document.readyState == 'complete' && document.body !== null && location.href != 'about:blank'"
        while not self._evaluate(self._ask(wanted), ANSWER_S_MAX):
            if time.monotonic() > deadline:
                raise TooLate(f"{url} did not load")
            time.sleep(0.02)

    def play(self, url: str, timeout_s: float = ANSWER_S_MAX) -> dict:
        """A click: `index_ms` until the video's index is read, `frame_ms` until the first frame is shown, `plays_ms`."""
        return self.result(self.begin(PLAY, url), timeout_s)

    def seek(self, to_s: float, timeout_s: float = ANSWER_S_MAX) -> float:
        """Milliseconds until a frame of there is shown."""
        return self.result(self.begin(SEEK, to_s), timeout_s)["frame_ms"]

    def begin_watching(self, seconds: float) -> int:
        return self.begin(WATCH, seconds)

    def stop(self) -> None:
        self.result(self.begin(STOP), ANSWER_S_MAX)

    def begin(self, function: str, *words: object) -> int:
        return self._ask(f"({function.strip()})({', '.join(map(json.dumps, words))})")

    def result(self, number: int, timeout_s: float) -> dict:
        """What was begun says."""
        said = self._evaluate(number, timeout_s)
        if isinstance(said, dict) and "error" in said:
            raise NotSeen(f"the browser does not play it: {said['error']}")
        return said

    def _ask(self, expression: str) -> int:
        words = {"expression": expression, "awaitPromise": True, "returnByValue": True}
        return self._browser.send("Runtime.evaluate", self._session, **words)

    def _evaluate(self, number: int, timeout_s: float):
        said = self._browser.wait(number, timeout_s)
        if "exceptionDetails" in said:
            raise LabError(f"the page's script failed: {said['exceptionDetails'].get('text')}")
        return said["result"].get("value")


@contextmanager
def browser(folder: Path, within: Callable[[list[object]], list[object]], warm_up: Path) -> Iterator[Browser]:
    opened = Browser(folder, within, warm_up)
    try:
        yield opened
    finally:
        opened.end()


def _piped(argv: list[object], folder: Path, log) -> tuple[subprocess.Popen, int, int]:
    """The child reads descriptor 3 and writes 4; ours are returned, to write and to read."""
    reads, ours_out = map(_high, os.pipe())
    ours_in, writes = map(_high, os.pipe())
    # Taken, so that Popen's own pipe is none of these.
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(2)]

    def before() -> None:
        die_with_parent()
        os.dup2(reads, 3)
        os.dup2(writes, 4)

    child = subprocess.Popen(
        [str(word) for word in argv], stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=(3, 4),
        env={**os.environ, "HOME": str(folder)}, preexec_fn=before,
    )
    for descriptor in (*held, reads, writes):
        os.close(descriptor)
    return child, ours_out, ours_in


def _high(descriptor: int) -> int:
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, HIGH_FD)
    os.close(descriptor)
    return moved
