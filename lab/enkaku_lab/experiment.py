"""What an experiment is: links, loads, stacks and a plot. It measures nothing and draws nothing.

An experiment is one file in `experiments/` that builds an `Experiment`. Its points are cells: a
stack, on a link, under a load. Two experiments that ask for the same cell share its measurements.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

from enkaku_lab.claims import Claim

KIB, MIB = 1 << 10, 1 << 20
FILE_BYTES = 512 * MIB
"""The file of S1 and S4. A run that would take hours ends after some seconds instead."""
LONG = 4
"""A longer one has it so many times."""
TCP_PAYLOAD_BYTES, WIRE_BYTES = 1448, 1538
"""A full packet: MTU 1500 less 20 bytes of IPv4 and 32 of TCP with timestamps; on the wire plus
38 of Ethernet (header, FCS, preamble, gap)."""
RAMP_S = 1.0
GUEST = "guest-"
"""How the names of stacks begin whose both ends are in the guest (enkaku_lab.in_guest)."""
STRETCH = 20
"""So much slower and longer is the line there, and so much shorter what is said of its times: 1 Gbit/s and 20 ms,
S0's path, are 50 Mbit/s and 400 ms in the guest: 2.5 MB on their way in both."""
RATES = {
    **{"20mbit": 20e6, "100mbit": 100e6, "200mbit": 200e6, "500mbit": 500e6},
    **{"1gbit": 1e9, "4gbit": 4e9, "10gbit": 10e9},
}


@dataclass(frozen=True)
class Link:
    """The emulated line and what the kernel does at its ends. `delay` is half of the RTT."""

    rtt_ms: float = 0.0
    loss: float = 0.0
    rate: str = "1gbit"
    queue_packets: int = 2000
    cc: str = "cubic"
    """TCP congestion control of both ends, set by route and checked with ss."""
    cc_free: bool = False
    """It is the system's default only: a program may choose another one (setsockopt)."""
    wmem: str = "4k 16k 4M"
    rmem: str = "4k 128k 6M"
    window_scaling: bool = True
    """RFC 7323; without it, as in 2004, no window is above 65,535 bytes."""

    @property
    def payload_bits_per_s(self) -> float:
        """What the line carries of TCP payload: the limit in every figure."""
        return RATES[self.rate] * TCP_PAYLOAD_BYTES / WIRE_BYTES


@dataclass(frozen=True)
class Load:
    """What the client does, from the first byte to the last; logins and mounts come before.

    read-file: open, read(block) …, close; write-file: write(block) … and fsync. read, write:
    commands of a block each, `depth` of them under way (for plain TCP: one direction).
    """

    kind: Literal["read-file", "write-file", "read", "write"] = "read-file"
    block_bytes: int = 64 * KIB
    depth: int = 1
    connections: int | Literal["auto"] = "auto"
    bytes_max: int = FILE_BYTES
    seconds_max: float = 2.0
    one_command: bool = False
    """A block is one SCSI command, also where shorter ones would be faster."""
    ramp_s: float = 0.0
    """Time before the clock starts, for what is asked about the steady state."""


@dataclass(frozen=True)
class Cell:
    """One point: what is measured, however often."""

    stack: str
    link: Link
    load: Load

    @property
    def in_guest(self) -> bool:
        return self.stack.startswith(GUEST)

    @property
    def key(self) -> str:
        """The same for the same cell in every run and every experiment."""
        # 20 and 20.0 are one cell, so they are written alike.
        numbers = asdict(self, dict_factory=_with_floats)
        text = json.dumps(numbers, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _with_floats(fields: list[tuple[str, object]]) -> dict:
    floats = ("rtt_ms", "loss", "seconds_max", "ramp_s")
    return {name: float(value) if name in floats else value for name, value in fields}


@dataclass(frozen=True)
class Pace:
    """How long one measurement takes. Round trips count, because slow start takes some."""

    name: str
    seconds: float
    round_trips: float
    repeat: int
    ramp: float = 1.0
    """How much of the time before the clock starts is kept."""
    more_max: float = float("inf")
    """At most so many times longer are an experiment's longer runs (`seconds_more`)."""

    def seconds_max(self, link: Link) -> float:
        return round(self.seconds + self.round_trips * link.rtt_ms / 1000, 3)

    def seconds_of(self, more: float) -> float:
        """Beside the round trips, where an experiment asks for `more` of them."""
        return self.seconds * (1 + min(more, self.more_max))


FULL = Pace("full", 1.0, 16, 3)
QUICK = Pace("quick", 0.4, 10, 1, 0.25, 2.0)


@dataclass(frozen=True)
class Axis:
    """The parameter on the x axis: a field of Link or Load."""

    label: str
    field: str
    values: Sequence[float]
    quick: Sequence[float]
    scale: Literal["linear", "log", "zero-log"] = "log"
    """zero-log is log with one place more at the left for 0."""
    factor: float = 1.0
    """Shown is the field's value times this."""


@dataclass(frozen=True)
class Series:
    """One curve: a stack, and what differs from the experiment's link and load."""

    stack: str
    label: str
    link: dict = field(default_factory=dict)
    load: dict = field(default_factory=dict)
    panels: Sequence[str] | None = None
    """The panels in which it is drawn; all, unless said."""
    line: str = "-"
    marker: str | None = None
    colour: str | None = None
    flat: bool = False
    """Does not depend on x (a level to compare with): measured once, drawn as a line."""


@dataclass(frozen=True)
class PaperPoint:
    """A value that the paper gives: at x, from low to high Mbit/s (x = None: everywhere)."""

    what: str
    x: float | None
    low: float
    high: float


@dataclass(frozen=True)
class Experiment:
    name: str
    title: str
    source: str
    """Paper and figure, or what it is for."""
    paper: str
    """What the paper's figure shows, in one line."""
    x: Axis
    series: Sequence[Series]
    sentence: Callable[["object"], str]
    """Compares with the paper; computed from a `curves.Curves`."""
    claims: Callable[["object"], list[Claim]] = lambda _curves: []
    """What the paper says of its figure, judged."""
    shrunk: str = ""
    """What is smaller or shorter than in the paper."""
    link: Link = Link()
    load: Load = Load()
    panels: dict[str, dict] = field(default_factory=lambda: {"": {}})
    """Title → what differs in the link or the load. More than one: drawn side by side."""
    points: Sequence[PaperPoint] = ()
    log_y: bool = True
    note: str = ""
    """What was scaled, and what else a reader must know to believe the figure."""
    repeat_max: int = 99
    seconds_more: float = 0.0
    """Longer runs, in multiples of the pace's, where the line is so slow that little is read."""
    ramp_round_trips: float | None = None
    """The steady state is asked about: so many round trips, and `ramp_s`, are not counted."""
    ramp_s: float = RAMP_S

    def cells(self, pace: Pace) -> list[Cell]:
        """Every cell, in the order x, panel, stack: what is interleaved lies side by side."""
        found = {}
        for x in self.values(pace):
            for panel in self.panels:
                for series in self.series:
                    if series.panels is None or panel in series.panels:
                        found.setdefault(self.cell(pace, panel, series, x), None)
        return list(found)

    def values(self, pace: Pace) -> Sequence[float]:
        return self.x.quick if pace is QUICK else self.x.values

    def cell(self, pace: Pace, panel: str, series: Series, x: float) -> Cell:
        here = self.panels[panel]
        theirs = {name: value for name, value in here.items() if not hasattr(self.link, name)}
        link = self.link_of(panel, series)
        load = replace(self.load, **{**theirs, **series.load})
        if series.flat:
            pass
        elif hasattr(link, self.x.field):
            link = replace(link, **{self.x.field: x})
        else:
            load = replace(load, **{self.x.field: int(x)})
        if series.stack == "local":
            link = Link()
        seconds = pace.seconds_max(link) - pace.seconds + pace.seconds_of(self.seconds_more)
        load = replace(load, seconds_max=round(seconds, 3), ramp_s=self._ramp_s(link, pace))
        return Cell(series.stack, link, load)

    def link_of(self, panel: str, series: Series) -> Link:
        """Of a curve, but for what the x axis changes."""
        here = self.panels[panel].items()
        ours = {name: value for name, value in here if hasattr(self.link, name)}
        return replace(self.link, **{**ours, **series.link})

    def _ramp_s(self, link: Link, pace: Pace) -> float:
        if self.ramp_round_trips is None:
            return 0.0
        whole = self.ramp_s + self.ramp_round_trips * link.rtt_ms / 1000
        return round(pace.ramp * whole, 3)
