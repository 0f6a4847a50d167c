"""What others do with this machine's processors while something is measured: programs that are not the lab's,
and, in a virtual machine, its host. Kernel threads are left out, as they work for those who are measured, too.
"""

import os
import time
from pathlib import Path

from enkaku_lab.process import CLOCK_TICKS_PER_S

STEAL = 8
"""Position of stolen time in the first line of /proc/stat (proc_stat(5))."""
KTHREADD = 2


class Foreign:
    """Counts from its creation on."""

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._ticks = _ticks()

    def share(self) -> float:
        """Of all processors together, since then: 0.5 is one of two."""
        whole = (time.monotonic() - self._begin) * CLOCK_TICKS_PER_S * (os.cpu_count() or 1)
        return max(_ticks() - self._ticks, 0) / whole


def _ticks() -> int:
    parents, used = {}, {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended; what it used is its parent's now
        parents[int(folder.name)] = int(fields[1])
        # Its own time, user and system, and that of children it has waited for.
        used[int(folder.name)] = sum(map(int, fields[11:15]))
    stolen = int(Path("/proc/stat").read_text().split(maxsplit=STEAL + 1)[STEAL])
    others = used.keys() - descendants(parents, {os.getpid(), KTHREADD})
    return stolen + sum(used[pid] for pid in others)


def descendants(parents: dict[int, int], roots: set[int]) -> set[int]:
    """The roots, their children, the children's children, and so on."""
    family = set(roots)
    while found := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= found
    return family
