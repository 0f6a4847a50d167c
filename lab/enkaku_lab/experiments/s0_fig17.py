"""S0, figure 17: the kernel's log of two senders, plain socket and iSCSI, in the guest: where they sleep, and what
wakes them."""

from collections.abc import Mapping
from pathlib import Path

from enkaku_lab import figure
from enkaku_lab.claims import Claim, judged
from enkaku_lab.experiment import GUEST, KIB, MIB, STRETCH, Link
from enkaku_lab.experiments.s0_guest_queue import CALL_BYTES, ISCSI, PICTURE, RTT_MS, SOCKET
from enkaku_lab.in_guest.kernel_log import FOREVER, TICKS_PER_S, Log
from enkaku_lab.in_guest.senders import Sender, Senders

INSTALLED = "iscsi-installed"
SENDERS = (
    Sender(SOCKET, "plain socket", f"{GUEST}socket", "meter"),
    Sender(ISCSI, "open-iscsi, bursts of 4 MiB, buffer of 1 MiB", f"{GUEST}iscsi-1m", "kworker/u*"),
    Sender(INSTALLED, "open-iscsi, bursts of 4 MiB, buffer as installed", f"{GUEST}iscsi-bursts", "kworker/u*"),
)
SHOWN_RTTS = 8
"""Of the figure's x axis; the end of the log, when windows have grown."""
ONE_RTT = (0.7, 1.3)


def draw(logs: Mapping[str, Log], path: Path, head: Mapping[str, object]) -> None:
    """The queue's bytes over time, unsent and in flight, and below it when the sender sleeps."""
    import matplotlib.pyplot as plt

    shown = [one for one in SENDERS if one.name in logs]
    with plt.rc_context(figure.STYLE):
        chart, axes = plt.subplots(len(shown), 1, figsize=(8, 2.6 * len(shown) + 0.9), layout="constrained", squeeze=False)
    for ax, one in zip(axes.flat, shown, strict=True):
        log = logs[one.name]
        end = log.queues[-1].time_s if log.queues else 0.0
        end = log.sleeps[-1].end_s if log.sleeps else end
        begin = end - SHOWN_RTTS * RTT_MS / 1e3 * STRETCH
        mine = [queue for queue in log.queues if begin <= queue.time_s <= end]
        x = [(queue.time_s - begin) / STRETCH * 1e3 for queue in mine]
        for label, colour, style, values in (
            ("the buffer (sk_sndbuf, memory)", "#777777", ":", [queue.limit_bytes / KIB for queue in mine]),
            ("in the queue", figure.COLOURS["stock"], "-", [queue.bytes / KIB for queue in mine]),
            ("of it in flight", figure.COLOURS["tcp_n"], "-", [queue.in_flight_bytes / KIB for queue in mine]),
        ):
            ax.plot(x, values, color=colour, linestyle=style, label=label, linewidth=1.4)
        for index, sleep in enumerate(one_sleep for one_sleep in log.sleeps if one_sleep.end_s >= begin):
            spans = (max(sleep.begin.time_s, begin), sleep.end_s)
            left, right = ((time - begin) / STRETCH * 1e3 for time in spans)
            ax.axvspan(left, right, color="#bbbbbb", alpha=0.45, linewidth=0, label=None if index else "asleep in schedule_timeout()")
        ax.set_title(one.label, fontsize=11)
        ax.set_ylabel("KiB")
        ax.set_ylim(bottom=0)
    axes.flat[-1].set_xlabel("time (ms)")
    entries = {label: handle for ax in axes.flat for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    chart.legend(entries.values(), entries.keys(), loc="outside upper center", ncols=4, fontsize=9)
    small = f"{head['guest']}, commit {head['commit']}, {head['taken'][:10]}\n{head['run']}"
    chart.supxlabel(small, fontsize=7, color="#444444")
    figure.save(chart, path)


def claims(rows: Mapping[str, Mapping[str, float | str]]) -> list[Claim]:
    """Of `Senders.rows`."""
    socket, iscsi = rows.get(SOCKET), rows.get(ISCSI)
    both = socket is not None and iscsi is not None
    slept = [row for row in rows.values() if row["sleeps"]]
    ticks = f"{iscsi['timeout_ticks'] / TICKS_PER_S:g} s" if both and iscsi["sleeps"] else ""
    found = [
        judged(
            "both sleep in schedule_timeout(), at different lines, the socket without a timeout",
            socket["timeout_ticks"] >= FOREVER and iscsi["timeout_ticks"] < FOREVER and socket["line"] != iscsi["line"]
            if both and socket["sleeps"] and iscsi["sleeps"]
            else None,
            f"both in sk_stream_wait_memory(): the socket at {socket['line']}, without a timeout; iSCSI at {iscsi['line']}, with its own of {ticks}"
            if both and ticks
            else "",
        ),
        judged(
            "they are woken by the acknowledgement one round trip later",
            all(row["woken_by_ack_share"] > 0.95 for row in slept) and ONE_RTT[0] <= iscsi["longest_rtt"] <= ONE_RTT[1]
            if both and len(slept) > 1
            else None,
            "; ".join(
                f"{row['label']}: {row['woken_by_ack_share']:.0%} of {row['sleeps']:.0f} sleeps by an acknowledgement, median {row['median_rtt']:.2f} "
                f"RTT, longest {row['longest_rtt']:.2f}"
                for row in slept
            ),
        ),
        judged(
            "the socket does not suffer, because its queue still holds data to be sent",
            socket["unsent_kib"] > 4 * iscsi["unsent_kib"] if both and socket["sleeps"] and iscsi["sleeps"] else None,
            f"in the median of its sleeps the socket has {socket['unsent_kib']:.0f} KiB unsent, iSCSI {iscsi['unsent_kib']:.0f} KiB of {iscsi['queue_kib']:.0f}"
            if both and socket["sleeps"] and iscsi["sleeps"]
            else "",
        ),
        judged(
            "and the send buffer is what it waits for",
            all(row["memory_of_limit"] > 0.95 for row in slept) if slept else None,
            "; ".join(
                f"{row['label']}: {row['memory_of_limit']:.0%} of sk_sndbuf ({row['limit_kib']:.0f} KiB) taken, congestion window {row['cwnd_kib']:.0f} KiB, "
                f"{row['flight_kib']:.0f} KiB in flight"
                for row in slept
            ),
        ),
    ]
    return found


LOG = Senders(
    name="s0-fig17",
    title="Where the senders sleep: the kernel's log",
    paper="both senders sleep in schedule_timeout(), the socket at line 1415 (without a timeout), iSCSI at 1439, and are woken by the "
    "acknowledgement a round trip later; the socket does not suffer, because its queue still holds data",
    senders=SENDERS,
    link=Link(rtt_ms=RTT_MS),
    call_bytes=CALL_BYTES,
    bytes=24 * MIB,
    quick_bytes=8 * MIB,
    draw=draw,
    claims=claims,
    pictures=(PICTURE,),
)
