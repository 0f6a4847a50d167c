"""S0's story (Higa et al. 2009) as numbers of transfers: how Ta goes with RTT, how far apart bursts
are, and whether the congestion window or the send buffer is what is full while data leave.

Everything is computed from the data, the words too: where a transfer does not behave as the paper's
did, the sentence says what it did instead.
"""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

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


def ta_ms(seen: Seen) -> float | None:
    """Median over the writes of full size."""
    values = [one["ta_us"] / 1e3 for one in seen.writes()]
    return median(values) if values else None


def of_ta(seen: list[Seen]) -> str:
    """Ta against RTT, of transfers of one stack and size."""
    points = [(one.transfer.rtt_ms, ta) for one in seen if (ta := ta_ms(one)) is not None]
    line = fit(points)
    name = f"{LABELS[seen[0].transfer.stack]}, {seen[0].transfer.block_bytes // MIB} MiB"
    if line is None:
        return f"{name}: too few round trips for a line."
    grows = line.slope >= ROUND_TRIP
    what = (
        f"grows with RTT by {line.slope:.2f} ms for each ms, as if each write waited "
        f"{line.slope:.1f} round trips"
        if grows
        else f"stays flat: {line.slope:+.2f} ms for each ms of RTT, no round trip a write"
    )
    (first, ta_first), (last, ta_last) = min(points), max(points)
    return (
        f"{name}: Ta {what} (least squares: Ta = {line.intercept:.1f} ms {line.slope:+.2f} × RTT, "
        f"R² {line.r2:.3f}, {len(points)} round trips; {ta_first:.0f} ms at {first:g} ms, "
        f"{ta_last:.0f} ms at {last:g} ms)."
    )


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


def of_bursts(seen: Seen, mss: int) -> str:
    """How the data of a write leave."""
    found = bursts(seen, mss)
    if found is None:
        return f"{LABELS[seen.transfer.stack]}: no data of whole writes were captured."
    head = (
        f"{LABELS[seen.transfer.stack]}: a write leaves in {found.per_write:.1f} bursts of "
        f"{found.packets:.0f} packets ({found.packets * mss / MIB:.2f} MiB)"
    )
    if found.apart_rtt is None:
        return f"{head}: nothing within it waits for a round trip."
    return f"{head}, {found.apart_rtt:.2f} round trips from one to the next."


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


def of_hold(seen: Seen, mss: int) -> str:
    """Whether the window or the buffer holds the data back."""
    found = hold(seen, mss)
    if found is None:
        return f"{LABELS[seen.transfer.stack]}: no sample was taken while data of a write left."
    if found.window_full >= MOST:
        end = "the congestion window holds the data back"
    elif found.held >= MOST:
        end = "the send buffer holds the data back, and the congestion window is not used up"
    else:
        end = "neither the send buffer nor the congestion window holds the data back"
    return (
        f"{LABELS[seen.transfer.stack]}: while data of a write leave ({found.samples} samples, "
        f"{seen.samples_per_s():.0f} a second), the send queue is at its limit (two thirds of "
        f"{found.buffer_bytes / mss:.0f} packets of memory, where the kernel wakes no writer) for "
        f"{found.queue_full:.0%} of the time and all of it in flight for {found.held:.0%}; of the "
        f"congestion window ({found.cwnd_bytes / mss:.0f} packets in the median) at most "
        f"{found.in_flight_bytes / mss:.0f} packets are in flight, and it is full for "
        f"{found.window_full:.0%}. So {end}."
    )


def _late(seen: Seen) -> list[dict]:
    """The later half of the writes."""
    writes = seen.writes()
    return writes[len(writes) // 2 :]


def tell(seen: Iterable[Seen], mss_of) -> list[str]:
    """The whole story of all transfers that were run, a sentence each; `mss_of`: full segment."""
    groups: dict[tuple, list[Seen]] = {}
    for one in seen:
        groups.setdefault((one.transfer.stack, one.transfer.block_bytes), []).append(one)
    sentences = []
    for mine in groups.values():
        if len({one.transfer.rtt_ms for one in mine}) >= 3:
            sentences.append(of_ta(sorted(mine, key=lambda one: one.transfer.rtt_ms)))
    for of in (of_bursts, of_hold):
        for (_, size), mine in groups.items():
            far = [one for one in mine if one.transfer.rtt_ms == 20 and size == 4 * MIB]
            sentences += [of(one, mss_of(one)) for one in far if one.writes()]
    return sentences
