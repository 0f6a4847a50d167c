"""Progress of long work on standard error: one line that is rewritten on a terminal."""

import sys
import time


class Progress:
    """Counts steps of about equal length and says how long the rest will take."""

    def __init__(self, steps: int):
        self.steps = steps
        self.done = 0
        self.begin = time.monotonic()
        self.terminal = sys.stderr.isatty()

    def step(self, what: str) -> None:
        """Called before each step."""
        rest = ""
        if self.done:
            left_s = (time.monotonic() - self.begin) / self.done * (self.steps - self.done)
            rest = f" · about {left_s:.0f} s left"
        self.done += 1
        say(f"[{self.done}/{self.steps}] {what}{rest}", rewrite=self.terminal)

    def end(self) -> None:
        if self.terminal:
            say("", rewrite=True)


class Estimate:
    """Counts steps of known expected lengths; learns how much longer they really take."""

    def __init__(self, expected_s: list[float], already_done: int = 0):
        self._expected_s = expected_s
        self._already_done = already_done
        self._done = 0
        self._begin = time.monotonic()
        self._terminal = sys.stderr.isatty()

    def left_s(self) -> float:
        """The rest, by what the steps so far took in relation to what was expected of them."""
        expected, rest = sum(self._expected_s[: self._done]), sum(self._expected_s[self._done :])
        return rest * ((time.monotonic() - self._begin) / expected if expected else 1.0)

    def step(self, what: str) -> None:
        """Called before each step."""
        minutes, seconds = divmod(round(self.left_s()), 60)
        self._done += 1
        kept = f" (+ {self._already_done} from before)" if self._already_done else ""
        head = f"[{self._done}/{len(self._expected_s)}{kept}]"
        say(f"{head} {what} · {minutes}:{seconds:02} left", rewrite=self._terminal)

    def end(self) -> None:
        if self._terminal:
            say("", rewrite=True)


def say(line: str, rewrite: bool = False) -> None:
    """A line of progress; with `rewrite` the next one takes its place."""
    sys.stderr.write(f"\r\033[K{line}" if rewrite else f"{line}\n")
    sys.stderr.flush()
