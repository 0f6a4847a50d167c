"""Ours, beyond S2: 100 Gbit/s over 300 ms and up to 512 connections, simulated; the path at rest, changing,
and shared with other flows.

A packet of the model stands for 256 KiB: 100 Gbit/s have 8 million packets a second otherwise. So a loss
takes as much at once, and a window of 16 MiB has 64 packets, of which congestion avoidance gives one back
in a round trip; a real one has 180 times as many, and is back as much later.
"""

from enkaku_lab.ns2 import charts, measure, scatter
from enkaku_lab.ns2.engine import Run
from enkaku_lab.ns2.study import Pace, Results, Study

POLICIES = ("golden", "adaptive")
LINE_BITS_PER_S, RTT_S = 1e11, 0.3
SEGMENT_BYTES, PACKET_BYTES = 1460, 1500
SCALE = 262144 / SEGMENT_BYTES
"""Bytes of the path for each byte of the model."""
WINDOW_SEGMENTS = 64
"""16 MiB, as much as many systems allow a socket."""
QUEUE_PACKETS = 1430
"""A tenth of what the line has under way."""
READ_WINDOWS = 2
"""Windows that a read takes: few, because a connection that is closed finishes its read first."""
PATH = (
    f"rate {LINE_BITS_PER_S / SCALE:.0f} rtt {RTT_S} queue {QUEUE_PACKETS} scale {SCALE:.6f} "
    f"window_bytes {WINDOW_SEGMENTS * SEGMENT_BYTES} idle_restart false tell_rtt 1 "
    f"pdu_bytes {READ_WINDOWS * WINDOW_SEGMENTS * SEGMENT_BYTES} "
    f"competitor_window_bytes {QUEUE_PACKETS * SEGMENT_BYTES}"
)
CONNECTIONS_MAX = 512
COMPETITORS = 8
SECONDS, CHANGES_S = 100.0, (45.0, 70.0)
QUICK_SECONDS = 4.0
SLOW_SHARE = 0.3
STEPS = {
    "at rest": "",
    "100, 30, 100 Gbit/s": (
        f"{CHANGES_S[0]} rate {SLOW_SHARE * LINE_BITS_PER_S / SCALE:.0f} "
        f"{CHANGES_S[1]} rate {LINE_BITS_PER_S / SCALE:.0f}"
    ),
    f"{COMPETITORS} flows more from {CHANGES_S[0]:g} s on": f"{CHANGES_S[0]} competitor {COMPETITORS}",
}
LINE_GBIT = LINE_BITS_PER_S * SEGMENT_BYTES / PACKET_BYTES / 1e9


def runs(pace: Pace) -> list[Run]:
    return [_run(policy, steps, pace) for steps in STEPS.values() for policy in POLICIES]


def _run(policy: str, steps: str, pace: Pace) -> Run:
    seconds = QUICK_SECONDS if pace.quick else SECONDS
    tm = (0.5 if pace.quick else 5.0) if policy == "golden" else None
    if pace.quick and steps:
        # The same changes, early.
        time, rest = steps.split(" ", 1)
        steps = f"{2 * QUICK_SECONDS / 3:.1f} {rest.split(' ' + str(CHANGES_S[1]))[0]}"
    most = CONNECTIONS_MAX
    return Run(policy, 4, seconds, measuring_time_s=tm, path=PATH, connections_max=most, steps=steps)


def draw(all_axes: list, found: Results, pace: Pace) -> None:
    for (run, result), index in zip(found.items(), range(len(found)), strict=True):
        column, policy = divmod(index, len(POLICIES))
        rate, number = all_axes[column], all_axes[len(STEPS) + column]
        look = {**charts.style(policy + 1), "label": scatter.NAMES[run.policy]}
        charts.rate_over_time(rate, result, 10, unit=measure.MEGA / 1000, **look)
        charts.n_over_time(number, result, run.seconds, **look)
    for column, title in enumerate(STEPS):
        all_axes[column].set_title(title, fontsize=10)
        all_axes[len(STEPS) + column].set_xlabel(charts.TIME)
    all_axes[0].set_ylabel("throughput (Gbit/s)")
    all_axes[len(STEPS)].set_ylabel(charts.CONNECTIONS)
    charts.legend(all_axes[len(STEPS) + 1], columns=2)


def facts(found: Results) -> dict[str, dict[str, float]]:
    """For each policy: shares of the line in the last fifth of each run, and while it was slower, and the
    seconds until half of the line is reached; N at the end of each run."""
    told: dict[str, dict[str, float]] = {policy: {} for policy in POLICIES}
    for index, (run, result) in enumerate(found.items()):
        mine, what = told[run.policy], ("rest", "steps", "shared")[index // len(POLICIES)]
        late = measure.throughput(result, 0.8 * run.seconds) / 1000
        mine[what] = late / LINE_GBIT
        mine[f"{what} n"] = measure.last_n(result)
        if what == "rest":
            half = measure.reaches(result, 500 * LINE_GBIT)
            mine["seconds to half"] = float("inf") if half is None else half
            mine["whole"] = measure.throughput(result) / 1000 / LINE_GBIT
        if what == "steps":
            begin, end = (run.seconds * at / SECONDS for at in CHANGES_S)
            slow = measure.throughput(result, begin + (end - begin) / 5, end) / 1000
            mine["slow"] = slow / LINE_GBIT / SLOW_SHARE
    return told


def sentence(found: Results, pace: Pace) -> str:
    parts = []
    for policy, mine in facts(found).items():
        parts.append(
            f"{scatter.NAMES[policy]} has half of the line after {mine['seconds to half']:.0f} s and "
            f"{mine['rest']:.0%} of it at the end with N = {mine['rest n']:g} ({mine['whole']:.0%} over the "
            f"whole run); while the line has 30 Gbit/s, {mine['slow']:.0%} of that, and {mine['steps']:.0%} "
            f"of 100 Gbit/s after it with N = {mine['steps n']:g}; beside {COMPETITORS} flows with larger "
            f"windows {mine['shared']:.0%} of the line with N = {mine['shared n']:g}"
        )
    return f"{'. '.join(parts)}."


STUDY = Study(
    name="s2-far",
    title="100 Gbit/s over 300 ms, up to 512 connections",
    source="ours",
    paper="1 Gbit/s and 10 ms; what is beyond was future work",
    runs=runs,
    draw=draw,
    sentence=sentence,
    grid=(2, 3),
    height_in=3.2,
    engines=("ns2",),
)
