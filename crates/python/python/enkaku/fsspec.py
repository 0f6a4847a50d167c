"""Volumes for fsspec: `fsspec.open("iscsi://host/target-iqn/lun")`, and so for pandas, xarray, pyarrow.

A volume is one file without a folder. It is opened with mode "rb", or "r+b" to write in place; it can be neither
made nor removed. Options of `enkaku.open` are options here: `fsspec.open(url, password=…, connections=8)`.
"""

from typing import Any

from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

import enkaku

SCHEMES = ("iscsi", "nbd", "nbd+unix")


class EnkakuFileSystem(AbstractFileSystem):
    protocol = SCHEMES
    root_marker = ""
    cachable = False
    """Passwords are among the options: none of them is to be kept in a table of file systems."""

    def __init__(self, **options: Any):
        names = ("password", "connections", "cache", "timeout", "initiator_name")
        self._options = {name: options.pop(name) for name in names if name in options}
        super().__init__(**options)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        """A URL is the name: without its scheme it would not say what it is."""
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        return str(path)

    @classmethod
    def _parent(cls, path: str) -> str:
        return ""

    def info(self, path: str, **_more: Any) -> dict[str, Any]:
        with enkaku.open(path, **self._options) as volume:
            return {"name": path, "size": volume.size, "type": "file"}

    def ls(self, path: str, detail: bool = True, **_more: Any) -> list[Any]:
        return [self.info(path)] if detail else [path]

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if mode not in ("rb", "r+b"):
            raise ValueError(f'{path}: mode {mode!r}: "rb" or "r+b" is allowed')
        volume = enkaku.open(path, "r" if mode == "rb" else "r+", **self._options)
        if mode == "r+b":
            return enkaku.VolumeFile(volume)
        known = ("block_size", "cache_type", "cache_options")
        try:
            kept = {name: options[name] for name in known if options.get(name) is not None}
            return EnkakuFile(self, path, volume, **kept)
        except BaseException:
            volume.close()
            raise

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **_more: Any
    ) -> bytes:
        with enkaku.open(path, **self._options) as volume:
            first, last, _ = slice(start, end).indices(volume.size)
            return volume.pread(max(last - first, 0), first)


class EnkakuFile(AbstractBufferedFile):
    """A volume that is read, with fsspec's caches above it."""

    def __init__(self, fs: EnkakuFileSystem, path: str, volume: enkaku.Volume, **options: Any):
        self.volume = volume
        # It reads ahead by itself, further than fsspec's block.
        options.setdefault("cache_type", "none")
        super().__init__(fs, path, mode="rb", size=volume.size, **options)

    def _fetch_range(self, start: int, end: int) -> bytes:
        return self.volume.pread(end - start, start)

    def close(self) -> None:
        if not self.closed:
            try:
                super().close()
            finally:
                self.volume.close()
