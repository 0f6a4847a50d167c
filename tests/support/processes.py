"""What runs on this machine, and waiting for it to change."""

import os
import time
from pathlib import Path


def that_name(text: str) -> list[str]:
    """Command lines of other processes that have the text in them."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if text in words:
                found.append(words)
    return found


def until(condition, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.1)
