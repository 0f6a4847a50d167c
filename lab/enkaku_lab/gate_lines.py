"""The lines of `path-gate`: what they carry, what is lost and what waits on them, and what goes on at their ends."""

from dataclasses import dataclass, replace

from enkaku_lab.experiment import Link


@dataclass(frozen=True)
class Line:
    """A link, and what else `enkaku wan set` is told about it."""

    name: str
    link: Link
    more: tuple[str, ...] = ()
    policed: str = ""
    """The rate that a policer lets pass, counted as the line's."""
    burst: str = ""
    """What it lets pass at once; the emulator's default where it is empty."""
    up: str = ""
    """The rate from the initiator to the target, where it is another one."""
    busy: int = 0
    """So many busy loops run beside the two ends."""
    warm: bool = False
    """What is measured of ours is the second transfer, which knows what the first has found."""

    def payload_bits_per_s(self, write: bool) -> float:
        """What passes in a direction, of TCP payload: shares are of this."""
        rate = self.policed or (write and self.up) or self.link.rate
        return replace(self.link, rate=rate).payload_bits_per_s

    @property
    def options(self) -> list[str]:
        police = ",".join(filter(None, (self.policed, self.burst)))
        rates = ["--rate", f"{self.up}:{self.link.rate}"] if self.up else []
        return [*self.more, *(["--police", police] if police else []), *rates]


def _lines() -> dict[str, Line]:
    plain = [Line(f"rtt-{rtt}", Link(float(rtt))) for rtt in (1, 10, 20, 50, 100, 200, 300)]
    queues = [Line(f"queue-{n}", Link(50.0, queue_packets=n)) for n in (250, 8000)]
    far_queues = [Line(f"queue-{n}-far", Link(200.0, queue_packets=n)) for n in (500, 8000)]
    rates = [Line("100mbit", Link(50.0, rate="100mbit")), Line("20mbit", Link(100.0, rate="20mbit"))]
    losses = [Line("loss-1e-4", Link(50.0, 1e-4)), Line("loss-1e-3", Link(50.0, 1e-3))]
    jitter = [
        Line("jitter-1ms", Link(20.0), ("--jitter", "1ms")),
        Line("jitter-5ms", Link(50.0), ("--jitter", "5ms")),
    ]
    bursts = [Line("bursts", Link(50.0), ("--burst", "1e-5,0.2"))]
    others = [Line(f"{cc}-{rtt}", Link(float(rtt), cc=cc)) for cc in ("reno", "bbr") for rtt in (20, 100)]
    policers = [
        Line("police-50", Link(50.0), policed="200mbit"),
        Line("police-50-short", Link(50.0), policed="200mbit", burst="256k"),
        Line("police-20", Link(20.0), policed="500mbit"),
    ]
    ends = [
        Line("4gbit", Link(50.0, rate="4gbit")),
        Line("up-100mbit", Link(50.0), up="100mbit"),
        Line("busy-50", Link(50.0), busy=2),
        *(Line(f"rtt-{rtt}-warm", Link(float(rtt)), warm=True) for rtt in (100, 200)),
    ]
    every = [*plain, *queues, *far_queues, *rates, *losses, *jitter, *bursts, *policers, *others, *ends]
    return {line.name: line for line in every}


LINES = _lines()
