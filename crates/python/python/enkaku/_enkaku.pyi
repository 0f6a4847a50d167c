from types import TracebackType
from typing import Literal, TypedDict

from typing_extensions import Buffer as _Buffer

from enkaku import Extent

__version__: str

class Connection(TypedDict):
    id: int
    bytes_per_s: float
    rtt_s: float
    min_rtt_s: float | None
    cwnd_bytes: int
    retransmits: int
    congestion_control: str
    commands: int
    limit: str

class Path(TypedDict):
    policy: str
    phase: str
    why: str
    connections_wanted: int
    connections_open: int
    bytes_per_s: float
    carried_bytes: float
    line_bytes_per_s: float | None
    limit: str
    connections: list[Connection]

class Volume:
    @property
    def url(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def block_size(self) -> int: ...
    @property
    def read_only(self) -> bool: ...
    @property
    def closed(self) -> bool: ...
    def pread(self, length: int, offset: int) -> bytes: ...
    def preadinto(self, buffer: _Buffer, offset: int) -> int: ...
    def pwrite(self, data: _Buffer, offset: int, *, fua: bool = False) -> int: ...
    def flush(self) -> None: ...
    def discard(self, length: int, offset: int) -> None: ...
    def zero(self, length: int, offset: int) -> None: ...
    def extents(self, offset: int = 0, length: int | None = None) -> list[Extent]: ...
    def path(self) -> Path | None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Volume: ...
    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None: ...

def open(
    url: str,
    mode: Literal["r", "r+"] = "r",
    *,
    password: str | None = None,
    connections: int | None = None,
    cache: Literal["none", "read", "write-back"] = "read",
    timeout: float = 120.0,
    initiator_name: str | None = None,
) -> Volume: ...
