"""The client of every file-level measurement: one process of `enkaku_lab.reader`."""

import json
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from enkaku_lab.experiment import Load
from enkaku_lab.process import LabError, die_with_parent
from enkaku_lab.reader import OPEN_S_MAX, STUCK_S
from enkaku_lab.stacks import GaveUp, Go, Reached

READY_S_MAX = 30.0
ANSWER_S_MAX = OPEN_S_MAX + STUCK_S + 4.0
"""After the time of the run: the reader ends by itself before, and compares what it copied."""
READER_ENDS_S_MAX = 1.0


@contextmanager
def reader(
    kind: str,
    where: str | Path,
    load: Load,
    *,
    original: Path | None,
    cold: bool = False,
    into: Path | None = None,
    env: dict[str, str] | None = None,
) -> Iterator[Go]:
    """A reader that is mounted and waits; what is yielded lets it read and returns its figures."""
    argv = [sys.executable, "-m", "enkaku_lab.reader", kind, where, "--block", load.block_bytes]
    argv += ["--bytes", load.bytes_max, "--seconds", load.seconds_max]
    argv += ["--original", original] if original else []
    argv += ["--cold"] if cold else []
    argv += ["--into", into] if into else []
    child = subprocess.Popen(
        [str(word) for word in argv],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
        preexec_fn=die_with_parent,
    )
    try:
        if _line(child, READY_S_MAX, "its mount") != "ready\n":
            raise LabError(f"{kind}: {child.stderr.read().strip()[-500:] or 'the reader ended'}")

        def go() -> Reached:
            child.stdin.write("go\n")
            child.stdin.flush()
            said = _line(child, load.seconds_max + ANSWER_S_MAX, "a read")
            if not said:
                raise LabError(child.stderr.read().strip()[-500:] or "the reader ended")
            return _reached(json.loads(said), load)

        yield go
    finally:
        child.kill()
        for pipe in (child.stdin, child.stdout, child.stderr):
            pipe.close()
        # One that hangs in a read of a mount ends only with that mount, which is taken down next.
        try:
            child.wait(READER_ENDS_S_MAX)
        except subprocess.TimeoutExpired:
            pass


def _reached(said: dict, load: Load) -> Reached:
    if said["bytes"] == 0:
        raise GaveUp(f"nothing arrived in {said['seconds']:.1f} s")
    return Reached(
        said["bytes"],
        said["seconds"],
        said["cpu_s"],
        verified=said["verified"],
        cut=said["cut"],
    )


def _line(child: subprocess.Popen, seconds: float, what: str) -> str:
    ready, _, _ = select.select([child.stdout], [], [], seconds)
    if not ready:
        raise GaveUp(f"{what} did not end in {seconds:.0f} s")
    return child.stdout.readline()
