"""One adapter per stack: server and client of one way to reach data, both the real programs.

An adapter has two halves that run in different namespaces: `serve` at the far end, once for a lab,
and `opened` at the near end, once for a measurement. What a machine lacks, an adapter says
(`missing`); the others go on without it.
"""

import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from enkaku_lab.experiment import FILE_BYTES, LONG, Link, Load
from enkaku_lab.process import LabError

GIVE_UP_S = 10.0
"""So much longer than its time may a client take to end; then nothing was measured."""
WARM_BYTES = 4 << 20
SBIN = "/usr/sbin:/sbin:/usr/local/sbin"


class GaveUp(LabError):
    """The client reached no result in its time: that is a finding, not a fault."""


@dataclass(frozen=True)
class Place:
    """What both ends share: the file system. The addresses are those of the link."""

    folder: Path
    near: str = "10.77.0.1"
    far: str = "10.77.0.2"

    @property
    def data(self) -> Path:
        """What is read. It is only ever written before anything starts."""
        return self.served / "data.bin"

    @property
    def long(self) -> Path:
        """`data` `LONG` times over, for runs in which slow start hardly counts; there only if one of
        them was asked for."""
        return self.served / "long.bin"

    @property
    def scratch(self) -> Path:
        """What is written over."""
        return self.served / "scratch.bin"

    @property
    def local(self) -> Path:
        """What is read without a network. Not `data`, because its pages are dropped from the cache
        and the servers' must stay there."""
        return self.folder / "local.bin"

    @property
    def served(self) -> Path:
        return self.folder / "served"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def memory(self) -> Path:
        """A file system in memory that only the near end sees, for mounts and copies. It vanishes
        with the last process there."""
        return self.folder / "memory"

    def prepare(self, size: int = FILE_BYTES, *, long: bool = False) -> None:
        """The files, unless they are there. Noise, so that nothing can be left out or packed."""
        self.served.mkdir(parents=True, exist_ok=True)
        self.logs.mkdir(parents=True, exist_ok=True)
        for path in (self.data, self.scratch, self.local):
            if _warmed(path, size):
                continue
            # It has the old data, if any.
            self.long.unlink(missing_ok=True)
            with open("/dev/urandom", "rb") as noise, _anew(path) as file:
                for _ in range(size >> 20):
                    file.write(noise.read(1 << 20))
        if long and not _warmed(self.long, LONG * size):
            with _anew(self.long) as file:
                for _ in range(LONG):
                    with self.data.open("rb") as data:
                        shutil.copyfileobj(data, file, WARM_BYTES)


def _warmed(path: Path, size: int) -> bool:
    """Whether it is there, whole. It has been read once then."""
    if not path.exists() or path.stat().st_size != size:
        return False
    _warm(path)
    return True


@contextmanager
def _anew(path: Path) -> Iterator[BinaryIO]:
    """What is written to it takes the file's place when all of it is there."""
    fresh = path.with_suffix(".new")
    with fresh.open("wb") as file:
        yield file
    fresh.replace(path)


def _warm(path: Path) -> None:
    """Reads a file once: what is compared is networks, not whose server met a cold disk."""
    with path.open("rb", buffering=0) as file:
        while file.read(WARM_BYTES):
            pass


@dataclass(frozen=True)
class Reached:
    """What a client reached. `verified`: every byte was compared with what was written."""

    bytes: int
    seconds: float
    client_cpu_s: float
    connections: int = 1
    verified: bool = False
    cut: bool = False
    """It was stuck at the end and had to be stopped."""


Go = Callable[[], Reached]


class Stack(ABC):
    """`name` is what experiments call it, `label` what figures call it."""

    name: str
    label: str
    programs: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    """The kinds of load that it can do."""
    port: int | None = None
    """Whose connections carry the data; None where there is no network."""

    def missing(self) -> str | None:
        """Why it cannot run on this machine, or None."""
        for program in self.programs:
            if not (shutil.which(program) or shutil.which(program, path=SBIN)):
                return f"{program} is not installed (packages.txt)"
        return None

    def server(self) -> str | None:
        """The name of the stack whose server it uses; None where it needs none."""
        return self.name

    @contextmanager
    def serve(self, place: Place) -> Iterator[None]:
        """The server, at the far end."""
        yield

    @abstractmethod
    def opened(self, place: Place, link: Link, load: Load):
        """A context: mounted and logged in, at the near end. Yields what starts the clock."""
