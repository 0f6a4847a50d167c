"""Volumes behind iSCSI and NBD, by their URL: read and written by offset.

    with enkaku.open("iscsi://far.example/iqn.2026-11.org.example:disks/0") as volume:
        block = numpy.frombuffer(volume.pread(1 << 20, offset=0), dtype="<u4")

Threads run beside each other while they wait for a volume, and Ctrl-C ends a wait. `VolumeFile` is one as a
file with a position; `enkaku.fsspec` makes `fsspec.open("iscsi://…")` work.
"""

from typing import NamedTuple

from enkaku._enkaku import Volume, __version__, open
from enkaku._file import VolumeFile

__all__ = ["Extent", "Volume", "VolumeFile", "__version__", "open"]


class Extent(NamedTuple):
    """A run of bytes of one kind. A hole has no storage and reads as zeroes."""

    offset: int
    length: int
    hole: bool
