"""S0's story (Higa et al. 2009) as numbers of transfers: how Ta goes with RTT, how far apart bursts
are, and whether the congestion window or the send buffer is what is full while data leave.

Everything is computed from the data, the words too: where a transfer does not behave as the paper's
did, its row says what it did instead.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from enkaku_lab.table import GAP
from enkaku_lab.transfers import LABELS, MIB, Sample, Seen

GAP_RTT = 0.4
"""A pause of this part of a round trip ends a burst."""
WRITABLE = 2 / 3
"""The kernel wakes a writer when a third of the send buffer is free (`sk_stream_is_writeable`)."""
USED_UP = 0.9
"""The congestion window counts as full at this part of it: the rest is rounding to segments."""
ROUND_TRIP = 0.5
"""Ta grows if a millisecond of RTT adds at least this many: a wait of a round trip adds one."""
MOST = 0.5
"""What is so for this share of the time holds the data back."""


@dataclass(frozen=True)
class Line:
    """y = slope × x + intercept, and which share of the variance that explains (0 to 1)."""

    slope: float
    intercept: float
    r2: float


def fit(points: Iterable[tuple[float, float]]) -> Line | None:
    """The least squares; None below three points or where all have one x."""
    points = list(points)
    if len(points) < 3 or len({x for x, _ in points}) < 2:
        return None
    count = len(points)
    x_mean, y_mean = sum(x for x, _ in points) / count, sum(y for _, y in points) / count
    xx = sum((x - x_mean) ** 2 for x, _ in points)
    xy = sum((x - x_mean) * (y - y_mean) for x, y in points)
    yy = sum((y - y_mean) ** 2 for _, y in points)
    slope = xy / xx
    left = sum((y - y_mean - slope * (x - x_mean)) ** 2 for x, y in points)
    return Line(slope, y_mean - slope * x_mean, 1 - left / yy if yy else 1.0)


@dataclass(frozen=True)
class Findings:
    """A table: what it is about, and why its words are what they are."""

    title: str
    head: list[str]
    rows: list[list[str]]


def median_ms(seen: Seen, key: str) -> float | None:
    """A time (`ta_us`, `tb_us`, `tc_us`) of the writes of full size, median."""
    values = [one[key] / 1e3 for one in seen.writes() if one[key] is not None]
    return median(values) if values else None


TA_HEAD = [
    "", "MiB", "Ta, ms (at RTT)", "to (at RTT)", "ms per ms of RTT", "R²", "Ta", "Tb, ms", "Tc, ms"
]


def of_ta(seen: list[Seen]) -> list[str]:
    """Ta against RTT, of transfers of one stack and size."""
    points = [
        (one.transfer.rtt_ms, ta) for one in seen if (ta := median_ms(one, "ta_us")) is not None
    ]
    line = fit(points)
    name = [LABELS[seen[0].transfer.stack], f"{seen[0].transfer.block_bytes // MIB}"]
    if line is None:
        return [*name, *[GAP] * 4, "too few round trips for a line", GAP, GAP]
    what = f"waits {line.slope:.1f} RTT" if line.slope >= ROUND_TRIP else "stays flat"
    shortest, longest = min(points), max(points)
    return [
        *name,
        f"{shortest[1]:.0f} ({shortest[0]:g})",
        f"{longest[1]:.0f} ({longest[0]:g})",
        f"{line.slope:.2f}",
        f"{line.r2:.3f}",
        what,
        _range(seen, "tb_us"),
        _range(seen, "tc_us"),
    ]


def _range(seen: list[Seen], key: str) -> str:
    values = [value for one in seen if (value := median_ms(one, key)) is not None]
    return f"{min(values):.1f} to {max(values):.1f}" if values else GAP


@dataclass(frozen=True)
class Bursts:
    per_write: float
    packets: float
    """Payload of a burst in full segments, median."""
    apart_rtt: float | None
    """From the begin of a burst to that of the next one of the same write, in round trips, median;
    None where every write is one burst."""


def bursts(seen: Seen, mss: int) -> Bursts | None:
    """Of the later half of the writes, when slow start is over; None without any."""
    gap_s = GAP_RTT * seen.transfer.rtt_ms / 1e3
    sent = [one for one in seen.segments if one.to_target and one.payload_bytes]
    times = [one.time_s for one in sent]
    counts, sizes, apart = [], [], []
    for write in _late(seen):
        starts: list[float] = []
        before = None
        low, high = bisect_left(times, write["first"]), bisect_left(times, write["last"] + 1e-6)
        for one in sent[low:high]:
            if before is None or one.time_s - before > gap_s:
                starts.append(one.time_s)
                sizes.append(0.0)
            sizes[-1] += one.payload_bytes / mss
            before = one.time_s
        counts.append(len(starts))
        apart += [later - one for one, later in zip(starts, starts[1:], strict=False)]
    if not sizes:
        return None
    rtt_s = seen.transfer.rtt_ms / 1e3
    spacing = median(apart) / rtt_s if apart and rtt_s else None
    return Bursts(sum(counts) / len(counts), median(sizes), spacing)


BURSTS_HEAD = ["", "bursts a write", "packets a burst", "MiB", "RTTs from one to the next"]


def of_bursts(seen: Seen, mss: int) -> list[str]:
    """How the data of a write leave."""
    name = LABELS[seen.transfer.stack]
    found = bursts(seen, mss)
    if found is None:
        return [name, *[GAP] * 4]
    return [
        name,
        f"{found.per_write:.1f}",
        f"{found.packets:.0f}",
        f"{found.packets * mss / MIB:.2f}",
        GAP if found.apart_rtt is None else f"{found.apart_rtt:.2f}",
    ]


@dataclass(frozen=True)
class Hold:
    """What was full in the samples taken while data of a write left. Shares of these samples."""

    samples: int
    cwnd_bytes: float
    """Median."""
    in_flight_bytes: float
    """Most."""
    queue_bytes: float
    """Memory of the send queue, most."""
    buffer_bytes: float
    """Its limit, median."""
    window_full: float
    queue_full: float
    held: float
    """The queue is full and all of it is in flight: only an acknowledgement makes room."""


def hold(seen: Seen, mss: int) -> Hold | None:
    """Of the later half of the writes; None where no sample fell into one."""
    times = [one.time_s for one in seen.samples]
    found: list[Sample] = []
    for write in _late(seen):
        low, high = bisect_left(times, write["first"]), bisect_left(times, write["last"])
        found += seen.samples[low:high]
    if not found:
        return None

    def share(condition) -> float:
        return sum(map(condition, found)) / len(found)

    def full(one: Sample) -> bool:
        return one.queue_bytes >= WRITABLE * one.buffer_bytes > 0

    return Hold(
        samples=len(found),
        cwnd_bytes=median(one.cwnd_bytes for one in found),
        in_flight_bytes=max(one.in_flight_bytes for one in found),
        queue_bytes=max(one.queue_bytes for one in found),
        buffer_bytes=median(one.buffer_bytes for one in found),
        window_full=share(lambda one: one.in_flight_bytes >= USED_UP * one.cwnd_bytes),
        queue_full=share(full),
        # A part of a segment may wait for more to fill it.
        held=share(lambda one: full(one) and one.not_sent_bytes < mss),
    )


HOLD_HEAD = [
    "",
    "samples",
    "a second",
    "queue at its limit",
    "and all in flight",
    "limit, packets",
    "window, packets",
    "most in flight",
    "window full",
    "what holds the data back",
]


def of_hold(seen: Seen, mss: int) -> list[str]:
    """Whether the window or the buffer holds the data back."""
    name = LABELS[seen.transfer.stack]
    found = hold(seen, mss)
    if found is None:
        return [name, *[GAP] * 8, "no sample while data left"]
    if found.window_full >= MOST:
        what = "congestion window"
    elif found.held >= MOST:
        what = "send buffer"
    else:
        what = "neither"
    return [
        name,
        f"{found.samples}",
        f"{seen.samples_per_s():.0f}",
        f"{found.queue_full:.0%}",
        f"{found.held:.0%}",
        f"{WRITABLE * found.buffer_bytes / mss:.0f}",
        f"{found.cwnd_bytes / mss:.0f}",
        f"{found.in_flight_bytes / mss:.0f}",
        f"{found.window_full:.0%}",
        what,
    ]


COLUMNS = ("stack", "label", "mib", "rtt_ms", "quantity", "value")
"""Of the numbers as CSV."""


class Numbers:
    """What figures and judgements are made of: a number for each quantity of each transfer."""

    def __init__(self, rows: Iterable[Sequence]):
        self.rows = [tuple(row) for row in rows]
        self._by = {
            (stack, float(mib), None if rtt == "" else float(rtt), what): float(value)
            for stack, _, mib, rtt, what, value in self.rows
        }

    def get(self, stack: str, what: str, rtt_ms: float | None = 20, mib: float = 4) -> float | None:
        """At a round trip; with None what is true of all of them."""
        return self._by.get((stack, mib, rtt_ms, what))

    def over_rtt(self, stack: str, what: str, mib: float = 4) -> dict[float, float]:
        """RTT → the number."""
        found = {
            rtt: value
            for (name, size, rtt, quantity), value in self._by.items()
            if (name, size, quantity) == (stack, mib, what) and rtt is not None
        }
        return dict(sorted(found.items()))


def numbers(seen: Iterable[Seen], mss_of: Callable[[Seen], int]) -> Numbers:
    """All that is known of these transfers."""
    rows = []
    for one in seen:
        transfer = one.transfer
        head = (transfer.stack, LABELS[transfer.stack], transfer.block_bytes / MIB, transfer.rtt_ms)
        found = _of_one(one, mss_of(one))
        rows += [(*head, what, value) for what, value in found.items() if value is not None]
    told = Numbers(rows)
    for stack, label, mib in dict.fromkeys((row[0], row[1], row[2]) for row in rows):
        if line := fit(told.over_rtt(stack, "ta_ms", mib).items()):
            # Of all round trips, so it stands at none of them.
            rows += [(stack, label, mib, "", "ta_per_rtt", line.slope), (stack, label, mib, "", "ta_r2", line.r2)]
    return Numbers(rows)


def _of_one(seen: Seen, mss: int) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    if seen.writes():
        found |= {key.removesuffix("_us") + "_ms": median_ms(seen, key) for key in ("ta_us", "tb_us", "tc_us")}
        found |= _pdus(seen)
    if leaving := bursts(seen, mss):
        found |= {
            "bursts_per_write": leaving.per_write,
            "packets_per_burst": leaving.packets,
            "burst_to_burst_rtt": leaving.apart_rtt,
        }
    if held := hold(seen, mss):
        found |= {
            "samples": held.samples,
            "queue_full_share": held.queue_full,
            "held_share": held.held,
            "limit_packets": WRITABLE * held.buffer_bytes / mss,
            "window_packets": held.cwnd_bytes / mss,
            "in_flight_max_packets": held.in_flight_bytes / mss,
            "window_full_share": held.window_full,
        }
    if seen.samples:
        queue = [one.queue_bytes / mss for one in seen.samples]
        late = queue[len(queue) // 2 :]
        found |= {
            "samples_per_s": seen.samples_per_s(),
            "queue_max_packets": max(queue),
            "queue_mean_packets": sum(queue) / len(queue),
            "queue_late_mean_packets": sum(late) / len(late),
            "not_sent_mean_packets": sum(one.not_sent_bytes for one in seen.samples) / mss / len(queue),
        }
    return found


def _pdus(seen: Seen) -> dict[str, float]:
    """PDUs of a write, mean over the writes whose every segment is there."""
    starts = sorted(one["at_s"] for one in seen.writes())
    if len(starts) < 2:
        return {}
    counts = {"SCSI_COMMAND": 0, "DATA_OUT": 0, "R2T": 0}
    for segment in seen.segments:
        if starts[0] <= segment.time_s < starts[-1]:
            for name in counts:
                counts[name] += sum(pdu.startswith(name) for pdu in segment.pdus)
    writes = len(starts) - 1
    return {f"{name.lower()}_per_write": count / writes for name, count in counts.items()}


def _late(seen: Seen) -> list[dict]:
    """The later half of the writes."""
    writes = seen.writes()
    return writes[len(writes) // 2 :]


def tell(seen: Iterable[Seen], mss_of: Callable[[Seen], int]) -> list[Findings]:
    """The whole story of all transfers that were run; `mss_of`: full segment. No empty tables."""
    groups: dict[tuple, list[Seen]] = {}
    for one in seen:
        groups.setdefault((one.transfer.stack, one.transfer.block_bytes), []).append(one)
    lines = [
        of_ta(sorted(mine, key=lambda one: one.transfer.rtt_ms))
        for mine in groups.values()
        if len({one.transfer.rtt_ms for one in mine}) >= 3
    ]
    far = [
        one
        for (_, size), mine in groups.items()
        for one in mine
        if one.transfer.rtt_ms == 20 and size == 4 * MIB and one.writes()
    ]
    found = [
        Findings(
            "Ta against RTT (medians; least squares over the round trips; flat is below "
            f"{ROUND_TRIP:g})",
            TA_HEAD,
            lines,
        ),
        Findings(
            f"How a write of 4 MiB leaves, RTT 20 ms (a pause of {GAP_RTT:g} RTT ends a burst)",
            BURSTS_HEAD,
            [of_bursts(one, mss_of(one)) for one in far],
        ),
        Findings(
            "What is full while its data leave, RTT 20 ms (the queue: two thirds of the send buffer, "
            "where the kernel wakes no writer)",
            HOLD_HEAD,
            [of_hold(one, mss_of(one)) for one in far],
        ),
    ]
    return [one for one in found if one.rows]
