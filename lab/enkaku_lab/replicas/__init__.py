"""Ways to keep a disk at another site, over one line and under one load: ours and others'.

Each one keeps a volume of VOLUME_BYTES. At the near end a program writes to it; the far end's image is a file of
this machine, which begins with the volume's first byte.
"""

import os
from abc import ABC, abstractmethod
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from enkaku_lab import wan
from enkaku_lab.experiment import Link
from enkaku_lab.peers import enkaku

MIB = 1 << 20
BLOCKS = 1 << 14
"""Of 4 KiB: what is written to, 64 MiB."""
VOLUME_BYTES = 128 * MIB
PORT = 3270
IQN = f"{enkaku.IQN}-{os.getpid()}"
"""A host has one leg at a unit at a time, and another lab may be at work."""
GONE_S_MAX = 60.0
"""Until a cut line is noticed, and until one that is back is used."""


@dataclass(frozen=True)
class Place:
    lab: wan.Lab
    link: Link
    folder: Path

    def cut(self) -> None:
        """Nothing arrives any more, and nobody is told."""
        self.lab.set(self.link, loss=1.0)

    def mend(self) -> None:
        self.lab.set(self.link)


class Writing(ABC):
    """A program at the near end that writes numbers (stamped.py)."""

    @abstractmethod
    def newest(self) -> int:
        """The last number that was told to be stable."""

    @abstractmethod
    def running(self) -> bool: ...

    @abstractmethod
    def wait(self, s_max: float) -> None:
        """Until it has written all; raises where it was refused."""

    @abstractmethod
    def stop(self) -> None: ...


@dataclass
class Replica(ABC):
    """One way. Made in sync, with nothing on it."""

    place: Place
    closing: ExitStack = field(default_factory=ExitStack)
    name = ""
    what = ""
    """What is where, for the table."""

    @classmethod
    def missing(cls) -> str | None:
        """Why it cannot run on this machine, or None."""
        return None

    @abstractmethod
    def open(self) -> None: ...

    @abstractmethod
    def write(self, first: int, count: int, pause_us: int) -> Writing:
        """Numbers from `first` on; `count` 0 never ends."""

    @abstractmethod
    def fill(self, noise: Path) -> float:
        """Writes this file over the second half of the volume, in order; seconds until its user is
        told that it is stable."""

    @abstractmethod
    def in_sync(self) -> bool: ...

    @abstractmethod
    def gone(self) -> bool:
        """It has noticed that the other site cannot be reached."""

    def recover(self) -> None:
        """The line is back: what an operator, or his script, does then."""

    @abstractmethod
    def image(self) -> Path: ...

    @abstractmethod
    def admits(self, copy: Path) -> bool:
        """The other site says of the image, which was copied while nothing changed, that it is not one to
        be used."""

    def take_over(self, copy: Path) -> None:
        """What the other site has to do before the image of the disk is used there."""

    def __enter__(self) -> "Replica":
        try:
            self.open()
        except BaseException:
            self.closing.close()
            raise
        return self

    def __exit__(self, *_) -> None:
        self.closing.close()
