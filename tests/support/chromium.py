"""Chromium without a hand on it: what a page does, asked over the browser's own debugging pipe."""

import fcntl
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from enkaku_lab.peers import need
from enkaku_lab.process import die_with_parent

ANSWER_S_MAX = 60.0
"""How long the browser may take to answer, its start included."""
READS, WRITES = 3, 4
"""Descriptors that `--remote-debugging-pipe` means; messages end with a zero byte."""
FREE_FROM = 10
OPTIONS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--autoplay-policy=no-user-gesture-required",
    "--remote-debugging-pipe",
]


class Tab:
    """A tab of a running browser."""

    def __init__(self, to_browser: int, from_browser: int):
        self.to_browser, self.from_browser = to_browser, from_browser
        os.set_blocking(from_browser, False)
        self.count, self.session, self.rest = 0, None, b""

    def open(self, url: str) -> None:
        target = self.ask("Target.createTarget", url=url)["targetId"]
        attached = self.ask("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]

    def evaluate(self, expression: str) -> object:
        """The value of an expression on the page."""
        done = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def ask(self, method: str, **parameters: object) -> dict:
        self.count += 1
        message = {"id": self.count, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to_browser, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + ANSWER_S_MAX
        while True:
            answer = self.next(end)
            if answer.get("id") == self.count:
                assert "result" in answer, answer
                return answer["result"]

    def next(self, end: float) -> dict:
        while b"\0" not in self.rest:
            assert time.monotonic() < end, "the browser does not answer"
            try:
                piece = os.read(self.from_browser, 1 << 20)
            except BlockingIOError:
                time.sleep(0.01)
                continue
            assert piece, "the browser has ended"
            self.rest += piece
        message, _, self.rest = self.rest.partition(b"\0")
        return json.loads(message)


@contextmanager
def browser(folder: Path) -> Iterator[Tab]:
    """A browser that knows nothing, and ends with the block."""
    profile = folder / "profile"
    reads, to_browser = os.pipe()
    from_browser, writes = os.pipe()

    def begin() -> None:
        die_with_parent()
        # Elsewhere first: one of them may be where the other belongs.
        high = [fcntl.fcntl(end, fcntl.F_DUPFD, FREE_FROM) for end in (reads, writes)]
        os.dup2(high[0], READS)
        os.dup2(high[1], WRITES)

    words = [need("chromium"), *OPTIONS, f"--user-data-dir={profile}", "about:blank"]
    with (folder / "chromium.log").open("wb") as log:
        child = subprocess.Popen(
            [str(word) for word in words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "HOME": str(folder)},
            close_fds=False,
            preexec_fn=begin,
        )
    os.close(reads)
    os.close(writes)
    try:
        yield Tab(to_browser, from_browser)
    finally:
        os.close(to_browser)  # which it takes for the end
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        os.close(from_browser)
        shutil.rmtree(profile, ignore_errors=True)
