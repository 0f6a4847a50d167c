"""Measures the cells of experiments: repeats, interleaves, resumes, goes on when one fails.

Cells that need the same lab (its buffers) are measured in one; within it every repetition goes
through all links, and at each link through all stacks: A B C A B C …, so that a change of the
machine's mood meets all of them.
"""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import groupby

from enkaku_lab import OUT
from enkaku_lab.experiment import MIB, Cell, Experiment, Link, Pace
from enkaku_lab.process import LabError
from enkaku_lab.progress import Estimate
from enkaku_lab.stacks import GaveUp, Place, Stack
from enkaku_lab.store import Store

FOLDER = OUT / "lab"
OVERHEAD_S, OVERHEAD_ROUND_TRIPS = 0.6, 12
"""Mounting, login and closing of one measurement, as measured; for the estimate alone."""
LAB_S = 4.0
"""Setting up a lab and its servers."""
GUEST_LAB_S, GUEST_S, GUEST_MIB_S = 25.0, 0.7, 0.1
"""The same of a guest, a measurement in it, and a mebibyte of it, as measured."""
ATTEMPTS_MAX = 2
"""A measurement that fails is tried once more; one that gives up is not."""


@dataclass(frozen=True)
class Job:
    cell: Cell
    repetition: int

    @property
    def seconds(self) -> float:
        """The estimate."""
        if self.cell.in_guest:
            return GUEST_S + GUEST_MIB_S * self._mib
        # qemu-img bench needs a run before, to know how many commands fill the time.
        probed = self.cell.load.kind != "read-file" and self.cell.stack == "tgt-libiscsi"
        load = self.cell.load.ramp_s + self.cell.load.seconds_max * (2 if probed else 1)
        return load + OVERHEAD_S + OVERHEAD_ROUND_TRIPS * self.cell.link.rtt_ms / 1000

    @property
    def _mib(self) -> float:
        """What the line carries in the time, or all that there is: only bytes cost time in the guest."""
        load = self.cell.load
        line = self.cell.link.payload_bits_per_s / 8 * (load.seconds_max + load.ramp_s)
        return min(line, load.bytes_max) / MIB


def jobs(experiments: Iterable[Experiment], pace: Pace, repeat: int | None = None) -> list[Job]:
    """Everything that the experiments need, each cell once per repetition, in order."""
    wanted: dict[Cell, int] = {}
    for experiment in experiments:
        times = repeat or min(pace.repeat, experiment.repeat_max)
        for cell in experiment.cells(pace):
            wanted[cell] = max(times, wanted.get(cell, 0))
    found = []
    for lab in dict.fromkeys(_lab(cell) for cell in wanted):
        mine = [cell for cell in wanted if _lab(cell) == lab]
        for repetition in range(max(wanted[cell] for cell in mine)):
            for link in dict.fromkeys(cell.link for cell in mine):
                found += [
                    Job(cell, repetition)
                    for cell in mine
                    if cell.link == link and repetition < wanted[cell]
                ]
    return found


def seconds(work: Sequence[Job]) -> float:
    """How long it will take, about."""
    labs = [lab for lab, _ in groupby(work, key=lambda job: _lab(job.cell))]
    return sum(job.seconds for job in work) + sum(GUEST_LAB_S if lab == IN_GUEST else LAB_S for lab in labs)


IN_GUEST = ("guest",)


def _lab(cell: Cell) -> tuple:
    """What can be set only when a lab is made. In the guest all of it can be set at any time."""
    if cell.in_guest:
        return IN_GUEST
    return cell.link.wmem, cell.link.rmem, cell.link.window_scaling


Laboratories = Callable[[Link, Place, Iterable[str]], AbstractContextManager]


def measure(
    work: Sequence[Job],
    store: Store,
    session: str,
    stacks: dict[str, Stack],
    laboratories: Laboratories,
    place: Place,
) -> int:
    """Runs what is not finished yet; returns how many measurements failed."""
    missing = {name: reason for name, stack in stacks.items() if (reason := stack.missing())}
    todo = [job for job in work if not store.finished(job.cell, job.repetition)]
    for cell in dict.fromkeys(job.cell for job in todo if job.cell.stack in missing):
        store.unavailable(session, cell, missing[cell.stack])
    todo = [job for job in todo if job.cell.stack not in missing]
    progress = Estimate([job.seconds for job in todo], len(work) - len(todo))
    failed = 0
    for _, group in groupby(todo, key=lambda job: _lab(job.cell)):
        mine = list(group)
        names = list(dict.fromkeys(job.cell.stack for job in mine))
        with laboratories(mine[0].cell.link, place, names) as laboratory:
            store.lab(session, laboratory.facts())
            for job in mine:
                progress.step(_title(job, stacks))
                failed += not _one(job, store, session, laboratory)
    progress.end()
    return failed


def _one(job: Job, store: Store, session: str, laboratory) -> bool:
    """Measures and records; False when it failed (giving up is a result)."""
    for attempt in range(ATTEMPTS_MAX):
        try:
            measured = laboratory.measure(job.cell)
        except GaveUp as error:
            store.failed(session, job.cell, job.repetition, str(error), gave_up=True)
            return True
        except LabError as error:
            if attempt + 1 == ATTEMPTS_MAX:
                store.failed(session, job.cell, job.repetition, str(error), gave_up=False)
        else:
            store.reached(session, job.cell, job.repetition, measured)
            return True
    return False


def _title(job: Job, stacks: dict[str, Stack]) -> str:
    link, load = job.cell.link, job.cell.load
    parts = [stacks[job.cell.stack].label, load.kind, f"{load.block_bytes / 1024:g} KiB"]
    if stacks[job.cell.stack].port:
        parts += [f"RTT {link.rtt_ms:g} ms", link.cc]
        parts += [f"loss {link.loss:g}"] if link.loss else []
    return " · ".join(parts)


@contextmanager
def alone(place: Place) -> Iterator[None]:
    """Two runs in one folder would serve the same state, and each other's noise."""
    place.folder.mkdir(parents=True, exist_ok=True)
    with (place.folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LabError(f"another run is at work in {place.folder}; see --out") from None
        yield


def room(place: Place, long: bool) -> None:
    """Fails early where the disk cannot hold the files."""
    place.folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(place.folder).free
    largest, needs_gib = (place.long, 4) if long else (place.data, 2)
    if free < needs_gib << 30 and not largest.exists():
        raise LabError(f"{place.folder} has {free >> 20} MiB free; the lab needs {needs_gib} GiB")
    if os.geteuid() != 0:
        raise LabError("experiments need root: namespaces, routes and mounts (try sudo)")
