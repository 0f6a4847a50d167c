"""Chromium without a window, by its DevTools protocol over two pipes: no driver, no port, no library.

A page is in a context of its own: other connections, another cache, nothing on disk.
"""

import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from enkaku_lab.peers import need
from enkaku_lab.process import STOP_S_MAX, LabError, die_with_parent

HIGH_FD = 20
"""Above those that the protocol has."""
ANSWER_S_MAX = 30.0
POLL_S = 0.02
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
HEADLESS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--mute-audio", "--window-size=800,600"]
PLAYS = ["--autoplay-policy=no-user-gesture-required"]


class NotSeen(LabError):
    """The browser shows nothing, or not in time."""


class TooLate(NotSeen):
    """Nothing came in time."""


class Page:
    """A page of a browser."""

    def __init__(self, browser: "Browser", session: str):
        self._browser, self._session = browser, session

    def before_all(self, script: str) -> None:
        """It runs in this document, and in every later one before the document's own scripts."""
        self._browser.call("Page.enable", self._session)
        self._browser.call("Page.addScriptToEvaluateOnNewDocument", self._session, source=script)
        self.evaluate(script)

    def go(self, url: str) -> None:
        """To another document."""
        self._leave("Page.navigate", url=url)

    def reload(self) -> None:
        self._leave("Page.reload")

    def evaluate(self, expression: str, timeout_s: float = ANSWER_S_MAX) -> object:
        """The value of an expression; that of a promise, when it has one."""
        return self.result(self.begin(expression), timeout_s)

    def begin(self, expression: str) -> int:
        """The number under which there will be its value."""
        words = {"expression": expression, "awaitPromise": True, "returnByValue": True}
        return self._browser.send("Runtime.evaluate", self._session, **words)

    def result(self, number: int, timeout_s: float = ANSWER_S_MAX) -> object:
        """The value of what was begun."""
        said = self._browser.wait(number, timeout_s)
        if failed := said.get("exceptionDetails"):
            told = failed.get("exception", {}).get("description") or failed.get("text")
            raise LabError(f"the page's script failed: {told}")
        return said["result"].get("value")

    def _leave(self, method: str, **words) -> None:
        """Until another document is there, as a whole."""
        self.evaluate("window.wasLeft = true")
        self._browser.call(method, self._session, **words)
        deadline = time.monotonic() + ANSWER_S_MAX
        while not self._has_come():
            if time.monotonic() > deadline:
                raise TooLate(f"a page did not load: {words.get('url', method)}")
            time.sleep(POLL_S)

    def _has_come(self) -> bool:
        wanted = "document.readyState == 'complete' && document.body !== null && !window.wasLeft"
        try:
            return bool(self.evaluate(wanted))
        except TooLate:
            raise
        except LabError:
            return False  # it was asked of a document that went meanwhile


AnyPage = TypeVar("AnyPage", bound=Page)


class Browser:
    """One Chromium. `within` makes of its command one that runs elsewhere."""

    def __init__(self, folder: Path, within: Callable[[list[object]], list[object]] = list):
        folder.mkdir(parents=True, exist_ok=True)
        self._profile = folder / "profile"
        argv = [need("chromium"), *HEADLESS, *QUIET, *STEADY, *PLAYS]
        argv += [f"--user-data-dir={self._profile}", "--remote-debugging-pipe", "about:blank"]
        self._log = (folder / "chromium.log").open("wb")
        self._child, self._out, self._in = _piped(within(argv), folder, self._log)
        self._number, self._buffer = 0, b""
        self._answers: dict[int, dict] = {}
        try:
            self.call("Browser.getVersion")
        except LabError:
            self.end()
            raise

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
    def page(self, url: str, kind: type[AnyPage] = Page) -> Iterator[AnyPage]:
        """A page that has nothing in common with the others."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        try:
            # In a window of its own, so that it is in front.
            words = {"url": "about:blank", "browserContextId": context, "newWindow": True}
            target = self.call("Target.createTarget", **words)["targetId"]
            session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            page = kind(self, session)
            page.go(url)
            yield page
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
        shutil.rmtree(self._profile, ignore_errors=True)


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """One that knows nothing, and ends with the block."""
    opened = Browser(folder)
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
