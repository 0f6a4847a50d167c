"""S0's figures 9 to 16 with its own initiator in the guest: packets, window and the sender's queue at every event, out
of the logs of figure 17. `PICTURE` is drawn with that one."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from enkaku_lab import figure
from enkaku_lab.claims import Claim, as_head, judged, not_measured
from enkaku_lab.experiment import KIB, MIB, STRETCH
from enkaku_lab.in_guest.kernel_log import ACKNOWLEDGED, SENT, SEQUENCES, Log, Queue, Sleep
from enkaku_lab.in_guest.senders import MSS_BYTES, Picture
from enkaku_lab.results import median
from enkaku_lab.story import GAP_RTT

RTT_MS = 20
SOCKET, ISCSI = "socket", "iscsi"
CALL_BYTES = 4 * MIB
BEFORE_MS, STOP_MS, RESTART_MS = 1.0, 10.0, 20.0
"""Figure 13 is the first 10 ms of a write, figure 14 the 20 ms from where it stops; both begin a little earlier."""
WRITES_SHOWN = 3
POINTS_MAX = 600
"""Of a curve; more cannot be told apart."""
EMPTY, FULL = 0.05, 0.9
"""A queue is empty below, and full above, this share of the buffer."""
MOST = 0.9
AT_ONCE_BYTES = 64 * KIB
"""The kernel sends as much at once."""


@dataclass(frozen=True)
class Write:
    """From the first data of a call in an empty queue to those of the next one."""

    queues: Sequence[Queue]
    sleeps: Sequence[Sleep]
    base: int
    """The sequence number of its first byte."""

    @property
    def begin_s(self) -> float:
        return self.queues[0].time_s

    @property
    def end_s(self) -> float:
        return self.queues[-1].time_s

    @property
    def stop_s(self) -> float | None:
        """When the last of what is in the queue leaves, before its writer is woken for the first time; None where it is woken before."""
        if not self.sleeps:
            return None
        left = [one for one in self.queues if one.event == SENT and one.time_s < self.sleeps[0].end_s]
        # What leaves counts as sent behind the event.
        return left[-1].time_s if left and left[-1].unsent_bytes <= AT_ONCE_BYTES else None

    def bursts(self) -> list[tuple[float, int]]:
        """When each begins, and how many bytes it has."""
        gap_s = GAP_RTT * RTT_MS / 1e3 * STRETCH
        begins = [(self.begin_s, self.base)]
        for before, after in pairwise(one for one in self.queues if one.event == SENT and one.unsent_bytes):
            if after.time_s - before.time_s > gap_s:
                begins.append((after.time_s, after.sent))
        ends = [*(sent for _, sent in begins[1:]), self.queues[-1].sent]
        return [(time_s, (end - sent) % SEQUENCES) for (time_s, sent), end in zip(begins, ends, strict=True)]


def writes(log: Log) -> list[Write]:
    """All whole ones."""
    queues = log.queues
    rises = [index for index, (before, after) in enumerate(pairwise(queues), 1) if _is_empty(before) and not _is_empty(after)]
    found = []
    for first, following in pairwise(rises):
        before = queues[first - 1]
        mine, base = queues[first:following], (before.written - before.bytes) % SEQUENCES
        if (mine[-1].written - base) % SEQUENCES >= CALL_BYTES / 2:
            sleeps = [one for one in log.sleeps if mine[0].time_s <= one.begin.time_s <= mine[-1].time_s]
            found.append(Write(mine, sleeps, base))
    return found


def _is_empty(queue: Queue) -> bool:
    return queue.bytes <= EMPTY * queue.limit_bytes


def claims(logs: Mapping[str, Log]) -> list[Claim]:
    """What the paper says of figures 9 to 16."""
    every = writes(logs[ISCSI]) if ISCSI in logs else []
    stopped = [one for one in every if one.sleeps]
    return [*_bursts(every), _window(every), _stops(stopped), _restarts(stopped), _moves(every), _settles(logs.get(SOCKET))]


def _bursts(every: Sequence[Write]) -> list[Claim]:
    """Of what leaves, with a pause of `story.GAP_RTT` between."""
    found = [one.bursts() for one in every]
    count = median([len(one) for one in found]) if found else 0
    packets = median([amount / MSS_BYTES for one in found for _, amount in one]) if found else 0
    apart = [(later - sooner) / STRETCH * 1e3 / RTT_MS for one in found for (sooner, _), (later, _) in pairwise(one)]
    return [
        judged(
            "figures 9 and 10: the data of a write leave in 4 bursts of about 730 packets",
            3 <= count <= 5 and 500 <= packets <= 1000 if found else None,
            f"{count:g} of {packets:.0f} (medians of {len(found)} writes)",
        ),
        judged(
            "figures 9 and 10: bursts are one RTT apart",
            0.8 <= median(apart) <= 1.3 if apart else None,
            f"{median(apart):.2f} RTT (median)" if apart else "",
        ),
    ]


def _window(every: Sequence[Write]) -> Claim:
    late = every[len(every) // 2 :]
    queues = [queue for one in late for queue in one.queues]
    used = [queue.in_flight_bytes / (queue.cwnd_packets * MSS_BYTES) for queue in queues if queue.cwnd_packets]
    packets = median([queue.cwnd_packets for queue in queues]) if queues else 0
    most = max((queue.in_flight_bytes for queue in queues), default=0) / MSS_BYTES
    return judged(
        "figure 11: the congestion window is about 1200 packets and never used up",
        max(used) < 1 if used else None,
        f"{packets:.0f} packets in the later writes, at most {most:.0f} of them in flight ({max(used, default=0):.0%})",
    )


def _stops(stopped: Sequence[Write]) -> Claim:
    says = "figure 13: the queue grows from the WRITE on, stops growing, and sending goes on until it stops, too"
    behind = [one for one in stopped if one.sleeps[0].begin.unsent_bytes > 0]
    if len(behind) < MOST * len(stopped):
        at_once = f"in {len(stopped) - len(behind)} of {len(stopped)} writes all had left when the queue stopped growing"
        return not_measured(says, f"{at_once}: the guest has no card that is slow, the line begins behind its host")
    after = [one for one in behind if one.stop_s]
    ms = [(one.stop_s - one.sleeps[0].begin.time_s) / STRETCH * 1e3 for one in after]
    return judged(
        says,
        len(after) >= MOST * len(stopped) if stopped else None,
        f"in {len(after)} of {len(stopped)} writes" + (f"; sending goes on for {median(ms):.1f} ms (median) after the queue has stopped growing" if ms else ""),
    )


def _restarts(stopped: Sequence[Write]) -> Claim:
    grew = waited = 0
    for one in stopped:
        acknowledged = [queue for queue in one.queues if queue.event == ACKNOWLEDGED and queue.time_s >= one.sleeps[0].begin.time_s]
        last = one.queues[-1].written
        for before, after in pairwise(acknowledged):
            if before.written != last:
                waited += 1
                grew += before.written != after.written
    each = waited / sum(len(one.sleeps) for one in stopped) if stopped else 0
    return judged(
        "figure 14: each acknowledgement makes the queue grow, then data leave",
        grew >= MOST * waited if waited else None,
        f"{grew / waited:.0%} of {waited} acknowledgements do: the kernel wakes the writer when a third of the buffer is free, after {each:.0f} of them, and it fills that at once"
        if waited
        else "",
    )


def _moves(every: Sequence[Write]) -> Claim:
    share = [max(queue.bytes / queue.limit_bytes for queue in one.queues) for one in every]
    most = max((queue.bytes for one in every for queue in one.queues), default=0)
    return judged(
        "figure 15: iSCSI's queue moves between nothing and its limit (300 entries, 1 MB), in step with the bursts",
        min(share) >= FULL * (1 - EMPTY) if share else None,
        f"it empties behind each of {len(every)} writes and reaches {min(share, default=0):.0%} of its buffer at least, {most / KIB:.0f} KiB",
    )


def _settles(log: Log | None) -> Claim:
    sizes = [one.bytes / KIB for one in log.queues] if log else []
    middle = median(sizes[len(sizes) // 2 :]) if sizes else 0.0
    return judged(
        "figure 16: the socket's queue peaks only while it starts, then stays at a sixth to a quarter of that",
        max(sizes) > 2 * middle if sizes else None,
        f"it reaches {max(sizes, default=0):.0f} KiB and has {middle:.0f} KiB in the middle of its second half: Linux lets a send buffer grow and keeps it",
    )


Curve = tuple[str, str, str, Callable[[Queue], float]]
"""Label, colour, line, and the bytes that are drawn."""
BUFFER: Curve = ("the buffer (sk_sndbuf, memory)", "#777777", ":", lambda one: one.limit_bytes)
QUEUED: Curve = ("in the queue", figure.COLOURS["stock"], "-", lambda one: one.bytes)
FLIGHT: Curve = ("in flight", figure.COLOURS["tcp_n"], "-", lambda one: one.in_flight_bytes)
WINDOW: Curve = ("congestion window", "#D55E00", "--", lambda one: one.cwnd_packets * MSS_BYTES)


@dataclass(frozen=True)
class Panel:
    title: str
    log: Log
    begin_s: float
    end_s: float
    zero_s: float
    """What is 0 ms."""
    curves: Sequence[Curve] = (BUFFER, QUEUED, FLIGHT)
    marked: bool = False
    """Each acknowledgement."""

    def draw(self, ax) -> None:
        times = [one.time_s for one in self.log.queues]
        first, last = bisect_left(times, self.begin_s), bisect_right(times, self.end_s)
        queues = self.log.queues[first:last]
        # What was before holds until the first event, and the last one's until the next.
        few = self.log.queues[max(0, first - 1) : last + 1] if len(queues) < POINTS_MAX else _few(queues)
        ax.set_title(self.title, fontsize=11)
        for label, colour, style, size in self.curves:
            ax.plot([self._ms(one) for one in few], [size(one) / KIB for one in few], color=colour, linestyle=style, linewidth=1.3, label=label, drawstyle="steps-post")
        if self.marked:
            came = [self._ms(one) for one in queues if one.event == ACKNOWLEDGED]
            ax.plot(came, [0.0] * len(came), "|", color="#000000", markersize=9, label="an acknowledgement")
        ax.set_ylabel("KiB")
        ax.set_ylim(bottom=0)
        ax.set_xlim(self._at(self.begin_s), self._at(self.end_s))

    def _ms(self, one: Queue) -> float:
        return self._at(one.time_s)

    def _at(self, time_s: float) -> float:
        return (time_s - self.zero_s) / STRETCH * 1e3


def draw(logs: Mapping[str, Log], path: Path, head: Mapping[str, object]) -> None:
    """A panel for each figure that the logs have."""
    import matplotlib.pyplot as plt

    panels = _panels(logs)
    rows = max(1, len(panels))
    with plt.rc_context(figure.STYLE):
        chart, axes = plt.subplots(rows, 1, figsize=(8, 2.1 * rows + 1.0), layout="constrained", squeeze=False)
    for ax, panel in zip(axes.flat, panels, strict=False):
        panel.draw(ax)
    axes.flat[-1].set_xlabel("time (ms)")
    entries = {label: handle for ax in axes.flat for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    chart.legend(entries.values(), entries.keys(), loc="outside upper center", ncols=3, fontsize=9)
    chart.supxlabel(f"{head['guest']}, commit {head['commit']}, {head['taken'][:10]}\n{head['run']}", fontsize=7, color="#444444")
    figure.save(chart, path, numbers={**head, "figure": path.stem, **as_head(claims(logs))})


def _panels(logs: Mapping[str, Log]) -> list[Panel]:
    found = _of_writes(logs[ISCSI]) if ISCSI in logs else []
    if SOCKET in logs and logs[SOCKET].queues:
        log = logs[SOCKET]
        begin_s, end_s = log.queues[0].time_s, log.queues[-1].time_s
        found.append(Panel("figure 16: a socket, from its start on", log, begin_s, end_s, begin_s))
    return found


def _of_writes(log: Log) -> list[Panel]:
    """Of a late write that stops, if there is one, and of those before the end."""
    every = writes(log)
    if not every:
        return []
    one = next((one for one in reversed(every) if one.stop_s), every[-1])
    before_s = BEFORE_MS / 1e3 * STRETCH
    begin_s, base, shown = one.begin_s, one.base, every[-WRITES_SHOWN:]
    start_s = begin_s - before_s
    sent: Curve = ("sent", figure.COLOURS["enkaku"], "-", lambda queue: (queue.sent - base) % SEQUENCES)
    found = [
        Panel("figures 9 and 10: what has left of a write of 4 MiB", log, begin_s, one.end_s, begin_s, (sent,)),
        Panel("figure 11: congestion window", log, every[0].begin_s, every[-1].end_s, every[0].begin_s, (WINDOW, FLIGHT)),
        Panel("figure 12: one write of 4 MiB", log, start_s, one.end_s, begin_s),
    ]
    if stop_s := one.stop_s:
        end_s = max(begin_s + STOP_MS / 1e3 * STRETCH, stop_s + before_s)
        found.append(Panel("figure 13: to the first stop", log, start_s, end_s, begin_s, marked=True))
        end_s = max(stop_s + RESTART_MS / 1e3 * STRETCH, one.sleeps[0].end_s + 5 * before_s)
        found.append(Panel("figure 14: from the stop over the restart", log, stop_s - before_s, end_s, begin_s, marked=True))
    found.append(Panel("figure 15: some writes", log, shown[0].begin_s - before_s, shown[-1].end_s, shown[0].begin_s))
    return found


def _few(queues: Sequence[Queue]) -> Sequence[Queue]:
    return queues[:: max(1, -(-len(queues) // POINTS_MAX))]


PICTURE = Picture(
    name="s0-guest-queue",
    title="S0's figures 9 to 16: packets, window and the sender's queue at every event",
    paper="9, 10: the data of a write leave in 4 bursts of about 730 packets, a round trip apart; 11: a congestion window of about 1200 packets, never used up; 12: queue, packets, acknowledgements over a write of 4 MiB; 13: its first 10 ms; 14: 20 ms from the stop to the restart; 15: iSCSI's queue, 0 to 300 "
    "entries in step with the bursts; 16: a socket's, about 1300 entries while it starts, then 200 to 300",
    draw=draw,
)
