"""A lab with both ends in it: it can be told to measure a cell, and survives when that fails."""

import json
import select
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from enkaku_lab import wan
from enkaku_lab.experiment import Cell, Link
from enkaku_lab.process import STOP_S_MAX, LabError, die_with_parent
from enkaku_lab.stacks import GIVE_UP_S, GaveUp, Place
from enkaku_lab.stacks.all import STACKS

ANSWER_S_MAX = 60.0
"""Starting a server, mounting, closing: whatever takes longer hangs."""


class Worker:
    """One end (`enkaku_lab.end`), asked over a pipe."""

    def __init__(self, lab: wan.Lab, end: str, folder: Path):
        # Mounts of the near end are seen by nobody else and vanish with it.
        alone = ["unshare", "--mount", "--propagation", "private"] if end == "near" else []
        argv = lab.exec(end, [*alone, sys.executable, "-m", "enkaku_lab.end", end, folder])
        self._log = (folder / "logs" / f"{end}.log").open("ab")
        self._child = subprocess.Popen(
            [str(word) for word in argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            preexec_fn=die_with_parent,
        )

    def ask(self, do: str, timeout_s: float = ANSWER_S_MAX, **words):
        """The answer; raises `GaveUp` and `LabError` as they were raised there."""
        try:
            self._child.stdin.write(json.dumps({"do": do, "with": words}) + "\n")
            self._child.stdin.flush()
        except BrokenPipeError:
            raise WorkerGone(f"{do}: the process at that end has ended") from None
        ready, _, _ = select.select([self._child.stdout], [], [], timeout_s)
        line = self._child.stdout.readline() if ready else ""
        if not line:
            self.kill()
            raise WorkerGone(f"{do}: no answer" + ("" if ready else f" in {timeout_s:.0f} s"))
        said = json.loads(line)
        if "gave_up" in said:
            raise GaveUp(said["gave_up"])
        if "failed" in said:
            raise LabError(said["failed"])
        return said["answer"]

    def kill(self) -> None:
        self._child.kill()
        self._child.wait()

    def end(self) -> None:
        """Lets it close what it has open, and makes sure of it."""
        self._child.stdin.close()
        try:
            self._child.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
        self._child.stdout.close()
        self._log.close()


class WorkerGone(LabError):
    """An end does not answer any more; it is replaced."""


class Laboratory:
    """Near, far and the line. `unserved` says which servers did not start, and why."""

    def __init__(self, lab: wan.Lab, place: Place):
        self._lab = lab
        self._place = place
        self._link: Link | None = None
        self._ends = {end: Worker(lab, end, place.folder) for end in ("far", "near")}
        self.unserved: dict[str, str] = {}

    def serve(self, stacks: Iterable[str]) -> None:
        """Starts the servers that these stacks need."""
        servers = {STACKS[name].server() for name in stacks} - {None}
        for name in sorted(servers):
            try:
                self._ends["far"].ask("serve", name=name)
            except LabError as error:
                self.unserved[name] = str(error).splitlines()[-1]

    def facts(self) -> dict:
        """What a result must be read with: the ends' TCP settings, servers that are missing."""
        return {"tcp": self._lab.tcp(), "unserved": self.unserved}

    def measure(self, cell: Cell) -> dict:
        """What was reached and which congestion control was seen.

        Mounting and logging in happen before the line begins to lose packets.
        """
        stack = STACKS[cell.stack]
        if (reason := self.unserved.get(stack.server())) is not None:
            raise LabError(f"its server did not start: {reason}")
        try:
            return self._measure(cell)
        except WorkerGone:
            self._replace("near")
            raise
        except GaveUp:
            raise
        except LabError:
            if stack.server():
                self._restart(stack.server())
            raise

    def _measure(self, cell: Cell) -> dict:
        stack, link = STACKS[cell.stack], cell.link
        self._set(link, loss=0.0)
        near, far = self._ends["near"], self._ends["far"]
        sender = near if cell.load.kind.startswith("write") else far
        near.ask("open", stack=cell.stack, link=asdict(link), load=asdict(cell.load))
        try:
            self._set(link, loss=link.loss)
            if stack.port:
                sender.ask("watch", port=stack.port)
            try:
                time_s = cell.load.ramp_s + cell.load.seconds_max + GIVE_UP_S
                reached = near.ask("go", timeout_s=2 * time_s + 10)
            finally:
                seen, connections = sender.ask("watched") if stack.port else ([], 0)
        finally:
            self._set(link, loss=0.0)
            near.ask("close")
        return {"reached": reached, "congestion_control": seen, "connections_seen": connections}

    def _set(self, link: Link, loss: float) -> None:
        before = self._link
        wanted = Link(**{**asdict(link), "loss": loss})
        if wanted == before:
            return
        if before is None or (before.cc, before.cc_free) != (link.cc, link.cc_free):
            for end in self._ends.values():
                end.ask("congestion_control", name=link.cc, free=link.cc_free)
        self._lab.set(link, loss=loss)
        self._link = wanted

    def _replace(self, end: str) -> None:
        self._ends[end].kill()
        self._ends[end] = Worker(self._lab, end, self._place.folder)

    def _restart(self, server: str) -> None:
        """Whatever broke a measurement may have broken the server too."""
        try:
            self._ends["far"].ask("serve", name=server)
        except LabError as error:
            self.unserved[server] = str(error).splitlines()[-1]

    def end(self) -> None:
        for end in ("near", "far"):
            self._ends[end].end()


@contextmanager
def laboratory(link: Link, place: Place, stacks: Iterable[str]) -> Iterator[Laboratory]:
    """A lab with the link's buffers and with the servers of these stacks."""
    with wan.up(link, place.logs) as lab:
        built = Laboratory(lab, place)
        try:
            built.serve(stacks)
            yield built
        finally:
            built.end()
