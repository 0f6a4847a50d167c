"""`python -m enkaku_lab.end near|far FOLDER`: what the runner has at each end of the line.

A line of JSON on standard input asks, a line on standard output answers. The far end serves the
stacks; the near end, in a mount namespace of its own, mounts, reads and closes. Both die with the
runner, and all that they started with them.
"""

import json
import shutil
import sys
import threading
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from enkaku_lab import sockets, wan
from enkaku_lab.experiment import Link, Load
from enkaku_lab.peers import need
from enkaku_lab.process import LabError, run
from enkaku_lab.stacks import GaveUp, Place
from enkaku_lab.stacks.all import STACKS

SAMPLE_S = (0.15, 0.5, 1.0)
"""When the sockets are looked at: early, because a run may be short; then rarely, because it
costs processor time that the measurement wants. The last interval repeats."""


class Watch:
    """How many connections a port has while it watches, and with which congestion control."""

    def __init__(self, port: int):
        self._port = port
        self._seen: set[str] = set()
        self._connections = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def end(self) -> tuple[list[str], int]:
        """The algorithms, and the most connections at a time."""
        self._stop.set()
        self._thread.join()
        return sorted(self._seen), self._connections

    def _sample(self) -> None:
        waits = list(SAMPLE_S)
        while not self._stop.wait(waits.pop(0) if len(waits) > 1 else waits[0]):
            algorithms, connections = sockets.algorithms_and_count(self._port)
            self._seen |= algorithms
            self._connections = max(self._connections, connections)


class End:
    """What both ends can do."""

    def __init__(self, place: Place):
        self.place = place
        self._watch: Watch | None = None

    def congestion_control(self, name: str, free: bool) -> None:
        wan.set_congestion_control(name, free)

    def watch(self, port: int) -> None:
        self._watch = Watch(port)

    def watched(self) -> tuple[list[str], int]:
        watch, self._watch = self._watch, None
        return watch.end() if watch else ([], 0)

    def close(self) -> None:
        """Ends whatever is open. May be called at any time."""


class Far(End):
    def __init__(self, place: Place):
        super().__init__(place)
        self._serving: dict[str, ExitStack] = {}

    def serve(self, name: str) -> None:
        """Starts the stack's server, or starts it again."""
        self.unserve(name)
        with ExitStack() as starting:
            starting.enter_context(STACKS[name].serve(self.place))
            self._serving[name] = starting.pop_all()

    def unserve(self, name: str) -> None:
        if name in self._serving:
            self._serving.pop(name).close()

    def close(self) -> None:
        for name in list(self._serving):
            self.unserve(name)


class Near(End):
    def __init__(self, place: Place):
        super().__init__(place)
        self._open = ExitStack()
        place.memory.mkdir(exist_ok=True)
        run([need("mount"), "-t", "tmpfs", "lab", place.memory])

    def open(self, stack: str, link: dict, load: dict) -> None:
        opened = STACKS[stack].opened(self.place, Link(**link), Load(**load))
        self._go = self._open.enter_context(opened)

    def go(self) -> dict:
        return asdict(self._go())

    def close(self) -> None:
        self._open.close()
        # A client that was killed left what it had copied.
        for left in self.place.memory.iterdir():
            shutil.rmtree(left, ignore_errors=True)


def main() -> None:
    which, folder = sys.argv[1:]
    end = {"near": Near, "far": Far}[which](Place(Path(folder)))
    try:
        for line in sys.stdin:
            print(json.dumps(_answer(end, json.loads(line))), flush=True)
    finally:
        end.close()


def _answer(end: End, asked: dict) -> dict:
    try:
        return {"answer": getattr(end, asked["do"])(**asked["with"])}
    except GaveUp as error:
        return {"gave_up": str(error)}
    except (LabError, OSError, ValueError, AssertionError) as error:
        return {"failed": f"{error}" or type(error).__name__}


if __name__ == "__main__":
    main()
