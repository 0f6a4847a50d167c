"""The kernel's own log of a sender in the guest: where it sleeps for room in its socket, what wakes it, and what is
in the queue then. Kprobes and tracepoints of tracefs; nothing is added to the kernel.

`record` has the log as text, `read` makes events of it. Times are the guest's.
"""

import base64
import gzip
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from enkaku_lab.peers.guest import Guest
from enkaku_lab.process import LabError

TRACING = "/sys/kernel/tracing"
BUFFER_KIB = 32768
FOREVER = (1 << 63) - 1
"""MAX_SCHEDULE_TIMEOUT: without a timeout."""
TICKS_PER_S = 250.0
"""CONFIG_HZ of Debian's kernels."""
MEMBERS = ("write_seq", "snd_nxt", "snd_una", "snd_cwnd")
SEQUENCES = 1 << 32
FULL, ACKNOWLEDGED, SENT = "wait", "state", "sent"
"""At which events a queue is seen: its writer found no room; a packet came, before it counts; one leaves."""
TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Queue:
    """A socket's send queue at a moment."""

    time_s: float
    unsent_bytes: int
    in_flight_bytes: int
    cwnd_packets: int
    memory_bytes: int
    limit_bytes: int
    """`sk_sndbuf`, which the memory is compared with."""
    written: int
    """The sequence number behind all that was written."""
    event: str

    @property
    def bytes(self) -> int:
        return self.unsent_bytes + self.in_flight_bytes

    @property
    def sent(self) -> int:
        """The sequence number behind all that was sent."""
        return (self.written - self.unsent_bytes) % SEQUENCES


@dataclass(frozen=True)
class Sleep:
    """From waiting for room in the queue to having it."""

    begin: Queue
    end_s: float
    timeout_ticks: int
    stack: tuple[str, ...]
    """Of the sleeper, innermost first: `schedule_timeout+0xe1/0x170`, …"""
    waker: tuple[str, ...]

    @property
    def seconds(self) -> float:
        return self.end_s - self.begin.time_s

    @property
    def line(self) -> str:
        """Where in schedule_timeout() it sleeps."""
        return next((one for one in self.stack if one.startswith("schedule_timeout")), "")

    @property
    def by_acknowledgement(self) -> bool:
        return any(one.startswith("tcp_ack") or one.startswith("tcp_rcv_established") for one in self.waker)


@dataclass(frozen=True)
class Log:
    queues: Sequence[Queue]
    sleeps: Sequence[Sleep]


def record(guest: Guest, port: int, task: str, work: str) -> tuple[str, str]:
    """The log while `work` runs, of connections to a port, and what the work said. `task` is the sender's name,
    as a pattern of the shell."""
    order = guest.start(_script(guest, port, task, work))
    said, mark, packed = f"\n{order.wait(TIMEOUT_S)}".partition("\n--- log\n")
    if not mark:
        raise LabError(f"the kernel's log did not come: {said[-500:]}")
    try:
        return gzip.decompress(base64.b64decode(packed)).decode(), said.strip()
    except (ValueError, OSError) as error:
        raise LabError(f"the kernel's log did not come whole: {error}") from None


def _script(guest: Guest, port: int, task: str, work: str) -> str:
    offsets = dict(re.findall(r"^(\w+) (\d+)$", guest.run(f"meter offsets tcp_sock {' '.join(MEMBERS)}"), re.M))
    if absent := [name for name in MEMBERS if name not in offsets]:
        raise LabError(f"the kernel's tcp_sock has no {', '.join(absent)}")
    state = " ".join(f"{name}=+{offsets[name]}(%di):u32" for name in MEMBERS)
    state += " queued=sk->sk_wmem_queued limit=sk->sk_sndbuf"
    ours = f"dport == {port_as_read(port)}"
    dport = "dport=sk->__sk_common.skc_dport"
    return f"""
        set -e
        [ -e {TRACING}/trace ] || mount -t tracefs tracefs {TRACING}
        cd {TRACING}
        echo 0 >tracing_on; echo >trace; echo {BUFFER_KIB} >buffer_size_kb; echo mono >trace_clock
        echo 1 >options/sym-offset
        cat >kprobe_events <<'END'
p:lab/wait sk_stream_wait_memory {state} {dport}
p:lab/state tcp_rcv_established {state} {dport}
p:lab/sent ip_queue_xmit {state} {dport}
r:lab/waited sk_stream_wait_memory
p:lab/sleep schedule_timeout timeout=%di:s64
END
        echo '{ours}' >events/lab/wait/filter
        echo '{ours}' >events/lab/state/filter
        echo '{ours}' >events/lab/sent/filter
        echo 'COMM ~ "{task}"' >events/lab/sleep/filter
        switch='prev_state == 1 && prev_comm ~ "{task}"'; waking='comm ~ "{task}"'
        echo "$switch" >events/sched/sched_switch/filter
        echo "stacktrace if $switch" >events/sched/sched_switch/trigger
        echo "$waking" >events/sched/sched_waking/filter
        echo "stacktrace if $waking" >events/sched/sched_waking/trigger
        on="lab/wait lab/state lab/sent lab/waited lab/sleep sched/sched_switch sched/sched_waking"
        for event in $on; do echo 1 >events/$event/enable; done
        echo 1 >tracing_on
        {{ {work}
        }} || true
        echo 0 >tracing_on
        for event in $on; do echo 0 >events/$event/enable; done
        echo "!stacktrace if $switch" >events/sched/sched_switch/trigger
        echo "!stacktrace if $waking" >events/sched/sched_waking/trigger
        echo "--- log"
        gzip -c <trace | base64 -w 4000
        echo >trace; echo >kprobe_events
    """


def port_as_read(port: int) -> int:
    """A port as a probe shows it: the network's order, read as this machine's."""
    return int.from_bytes(port.to_bytes(2, "big"), "little")


@dataclass(frozen=True)
class Event:
    """A line of the log and the stack below it."""

    task: str
    """Name and number: `kworker/u4:1-29`."""
    time_s: float
    name: str
    words: str
    stack: tuple[str, ...]

    def number(self, key: str) -> int:
        found = re.search(rf"\b{key}=(-?\w+)", self.words)
        if not found:
            raise LabError(f"the kernel's log has no {key} in: {self.name}: {self.words}")
        return int(found[1], 0)


LINE = re.compile(r"^\s*(?P<task>.+-\d+)\s+\[\d+\]\s+\S+\s+(?P<time>[\d.]+): (?P<rest>.*)$")
OWN = ("kprobe", "aggr_pre", "0xffff", "trace_event", "event_trigger", "__traceiter", "stack_trace", "ftrace", "rethook")
"""Beginnings of frames that are the log's own."""


def events(text: str) -> Iterator[Event]:
    """In order, each with its stack, which the log has as a line of its own."""
    pending: Event | None = None
    frames: list[str] | None = None
    for line in text.splitlines():
        if frames is not None and line.startswith(" => "):
            if not line[4:].startswith(OWN):
                frames.append(line[4:].strip())
            continue
        if not (found := LINE.match(line)):
            continue
        name, _, words = found["rest"].partition(": ")
        if found["rest"].startswith("<stack trace>"):
            frames = []
            continue
        if pending:
            yield _with(pending, frames)
        pending, frames = Event(found["task"].strip(), float(found["time"]), name, words, ()), None
    if pending:
        yield _with(pending, frames)


def _with(event: Event, frames: list[str] | None) -> Event:
    return Event(event.task, event.time_s, event.name, event.words, tuple(frames or ()))


def read(text: str) -> Log:
    """The queue over time, and each sleep of whoever waited for room in it."""
    queues: list[Queue] = []
    sleeps: list[Sleep] = []
    waiting: dict[str, dict] = {}
    for event in events(text):
        if event.name in (FULL, ACKNOWLEDGED, SENT):
            queues.append(_queue(event))
        if event.name == FULL:
            waiting[event.task] = {"begin": queues[-1]}
        elif event.name == "sched_waking":
            task = re.search(r"comm=(.+?) pid=(\d+)", event.words)
            if task and (mine := waiting.get(f"{task[1]}-{task[2]}")) is not None:
                mine["waker"] = event.stack
        elif (mine := waiting.get(event.task)) is None:
            continue
        elif event.name == "sleep":
            mine["timeout"] = event.number("timeout")
        elif event.name == "sched_switch" and event.stack:
            mine["stack"] = event.stack
        elif event.name == "waited":
            del waiting[event.task]
            # One that found room before it slept is none.
            if {"timeout", "stack", "waker"} <= mine.keys():
                sleeps.append(Sleep(mine["begin"], event.time_s, mine["timeout"], mine["stack"], mine["waker"]))
    return Log(queues, sleeps)


def _queue(event: Event) -> Queue:
    write, following, oldest, cwnd = (event.number(name) for name in MEMBERS)
    return Queue(
        event.time_s,
        (write - following) % SEQUENCES,
        (following - oldest) % SEQUENCES,
        cwnd,
        event.number("queued"),
        event.number("limit"),
        write,
        event.name,
    )
