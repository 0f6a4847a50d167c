"""Chromium plays, seeks and watches, and tells what is seen meanwhile.

Every page first plays a moment of a video that it has in memory, since the first of a process also loads its decoders.
"""

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from enkaku_lab import chromium
from enkaku_lab.chromium import ANSWER_S_MAX, NotSeen

PLAY = """
(url) => new Promise((done) => {
  document.querySelectorAll('video').forEach((old) => { old.removeAttribute('src'); old.load(); old.remove(); });
  const video = window.video = document.createElement('video');
  const said = {}, begin = performance.now();
  const tell = (key) => { said[key] ??= performance.now() - begin; };
  const end = (key) => {
    tell('index_ms');  // A frame shows that the index is read, and may be shown before the event that says so.
    tell(key);
    if (said.frame_ms !== undefined && said.plays_ms !== undefined) done(said);
  };
  video.addEventListener('loadedmetadata', () => tell('index_ms'), {once: true});
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


class Viewer(chromium.Page):
    """A page. Whatever fails or takes longer than it is given raises `NotSeen`; times are in milliseconds, from the page's
    clock."""

    def play(self, url: str, timeout_s: float = ANSWER_S_MAX) -> dict:
        """A click: `index_ms` until the video's index is read, `frame_ms` until the first frame is shown, `plays_ms`."""
        return self.result(self._begin(PLAY, url), timeout_s)

    def seek(self, to_s: float, timeout_s: float = ANSWER_S_MAX) -> float:
        """Milliseconds until a frame of there is shown."""
        return self.result(self._begin(SEEK, to_s), timeout_s)["frame_ms"]

    def begin_watching(self, seconds: float) -> int:
        return self._begin(WATCH, seconds)

    def stop(self) -> None:
        self.result(self._begin(STOP))

    def result(self, number: int, timeout_s: float = ANSWER_S_MAX) -> dict:
        """What was begun says."""
        said = super().result(number, timeout_s)
        if isinstance(said, dict) and "error" in said:
            raise NotSeen(f"the browser does not play it: {said['error']}")
        return said

    def _begin(self, function: str, *words: object) -> int:
        return self.begin(f"({function.strip()})({', '.join(map(json.dumps, words))})")


class Browser(chromium.Browser):
    """One Chromium, and the moment of a video that is played first."""

    def __init__(self, folder: Path, within: Callable[[list[object]], list[object]], warm_up: Path):
        self._warm_up = "data:video/mp4;base64," + base64.b64encode(warm_up.read_bytes()).decode()
        super().__init__(folder, within)

    @contextmanager
    def viewer(self, url: str) -> Iterator[Viewer]:
        """A page of that server, which has played a moment of a video before."""
        with self.page(url, Viewer) as viewer:
            viewer.play(self._warm_up)
            viewer.stop()
            yield viewer


@contextmanager
def browser(folder: Path, within: Callable[[list[object]], list[object]], warm_up: Path) -> Iterator[Browser]:
    opened = Browser(folder, within, warm_up)
    try:
        yield opened
    finally:
        opened.end()
