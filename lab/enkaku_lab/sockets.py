"""Which congestion control the connections of a port really used, asked of the kernel with ss."""

import re
import subprocess
import threading
from collections.abc import Callable

from enkaku_lab.peers import need

ALGORITHMS = re.compile(r"\b(bbr|cubic|reno|dctcp|vegas|westwood|htcp|illinois|scalable)\b")
SAMPLE_S = 0.25


def algorithms(port: int) -> set[str]:
    """The algorithms of the established connections from or to this port at the moment."""
    return algorithms_and_count(port)[0]


def algorithms_and_count(port: int) -> tuple[set[str], int]:
    """The same, and how many connections there are."""
    argv = [need("ss"), *established(port)]
    return seen(subprocess.run(argv, capture_output=True, text=True, check=False).stdout)


def established(port: int) -> list[str]:
    """What ss is asked for, wherever it runs."""
    return ["-tinH", "state", "established", f"( sport = :{port} or dport = :{port} )"]


def seen(listed: str) -> tuple[set[str], int]:
    """The algorithms, and how many connections there are, in what ss then says."""
    # A connection is a line, and details in a line that is indented.
    count = sum(1 for line in listed.splitlines() if line and not line[0].isspace())
    return set(ALGORITHMS.findall(listed)), count


class Watch:
    """Samples ports in a thread, for a process that serves while another one drives.

    `changed` gets {port: algorithms seen so far} at the start and whenever there is a new one.
    """

    def __init__(self, ports: list[int], changed: Callable[[dict[int, list[str]]], None]):
        self._seen: dict[int, set[str]] = {port: set() for port in ports}
        self._changed = changed
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> "Watch":
        self._report()
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            for port, seen in self._seen.items():
                if new := algorithms(port) - seen:
                    seen |= new
                    self._report()

    def _report(self) -> None:
        self._changed({port: sorted(seen) for port, seen in self._seen.items()})
