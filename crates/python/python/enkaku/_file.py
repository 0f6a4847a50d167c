"""A volume as a file with a position, for whoever wants one: `io.BufferedReader(VolumeFile(volume))`."""

import io
import os
from typing import TYPE_CHECKING

from enkaku._enkaku import Volume

if TYPE_CHECKING:
    from typing_extensions import Buffer


class VolumeFile(io.RawIOBase):
    """A raw file over a volume. It has the volume's size and keeps it; closing it closes the volume."""

    def __init__(self, volume: Volume):
        super().__init__()
        self.volume = volume
        self._position = 0

    @property
    def name(self) -> str:
        return self.volume.url

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return not self.volume.read_only

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        starts = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.volume.size}
        if whence not in starts:
            raise ValueError(f"whence {whence}: os.SEEK_SET, SEEK_CUR or SEEK_END is allowed")
        position = starts[whence] + offset
        if position < 0:
            raise ValueError(f"{self.name}: position {position} is before the beginning")
        self._position = position
        return position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: "Buffer") -> int:
        count = self.volume.preadinto(buffer, self._position)
        self._position += count
        return count

    def readall(self) -> bytes:
        # A volume of terabytes is not meant to be in memory: whoever wants it asks for a length.
        raise io.UnsupportedOperation(
            f"{self.name}: read() without a length would read {self.volume.size} bytes; give one"
        )

    def write(self, data: "Buffer") -> int:
        if not self.writable():
            raise io.UnsupportedOperation(f'{self.name}: is open with mode "r"')
        count = self.volume.pwrite(data, self._position)
        self._position += count
        return count

    def flush(self) -> None:
        if not self.closed and self.writable() and not self.volume.closed:
            self.volume.flush()

    def close(self) -> None:
        if not self.closed:
            try:
                super().close()
            finally:
                self.volume.close()
