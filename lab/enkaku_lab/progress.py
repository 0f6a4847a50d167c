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


def say(line: str, rewrite: bool = False) -> None:
    """A line of progress; with `rewrite` the next one takes its place."""
    sys.stderr.write(f"\r\033[K{line}" if rewrite else f"{line}\n")
    sys.stderr.flush()
