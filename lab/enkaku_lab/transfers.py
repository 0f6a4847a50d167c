"""Writes of one command at a time over an emulated line, seen by tcpdump and, at the sender's
socket, by `enkaku monitor --samples`: what S0's kernel monitor recorded.
"""

import csv
import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from statistics import median

from enkaku_lab import wan
from enkaku_lab.bottlenecks import DISK_BYTES, PORT, Case, Run, captured, target
from enkaku_lab.peers import enkaku, need
from enkaku_lab.process import LabError, peer, run

KIB, MIB = 1 << 10, 1 << 20
STOCK, HELD, OURS, SOCKET = "tgt+libiscsi", "held", "enkaku", "socket"
AUTO, WIDE = "auto", "wide"
LABELS = {
    STOCK: "tgt + libiscsi",
    HELD: "tgt as in S0 (4 MiB bursts, send buffer of 1 MiB)",
    OURS: "enkaku, one connection",
    AUTO: "enkaku",
    WIDE: "enkaku, send buffers of 4 MiB",
    SOCKET: "plain socket (iperf3)",
}
RATE, CC = "1gbit", "cubic"
WMEM, RMEM = "4k 16k 4M", "4k 128k 6M"
HELD_WMEM = "4k 16k 1M"
"""S0's kernels let about 1 MB be in flight, whatever the congestion window was."""
HELD_KEYS = {
    "InitialR2T": "No", "ImmediateData": "Yes",
    "FirstBurstLength": "4194304", "MaxBurstLength": "4194304", "MaxRecvDataSegmentLength": "262144",
}
"""S0's write is a command and 15 Data-Outs, so its PDUs have 256 KiB; tgt's own have 8 KiB. S0 had
taken the R2Ts out of the way first. libiscsi cannot offer such bursts, so enkaku's initiator
writes, one command at a time on one connection, and each write is one command (`sg_dd`)."""
HELD_OPTIONS = ("--first-burst", 4 * MIB, "--max-burst", 4 * MIB, "--one-command", "--connections", 1)
SECONDS = 2.0
SETTLED_S = {AUTO: 8.0, WIDE: 8.0}
QUICK_SECONDS, QUICK_SETTLED_S = 0.5, 1.0
"""What is found in a while, the rate of the line, is there from then on; only later writes count.
"""
STOCK_WRITES = 8
"""qemu-img counts its writes."""
ROUND_TRIPS = 40


@dataclass(frozen=True)
class Transfer:
    stack: str
    rtt_ms: float
    block_bytes: int = 4 * MIB


@dataclass(frozen=True)
class Segment:
    """A line of `enkaku monitor report --segments`."""

    time_s: float
    to_target: bool
    payload_bytes: int
    in_flight_bytes: int
    pdus: list[str]


@dataclass(frozen=True)
class Sample:
    """The sender's socket. The queue is the memory of what is not acknowledged yet or not sent,
    the buffer is its limit."""

    time_s: float
    cwnd_bytes: int
    in_flight_bytes: int
    not_sent_bytes: int
    queue_bytes: int
    buffer_bytes: int


@dataclass
class Seen:
    """A transfer. All times count from the first packet of the capture."""

    transfer: Transfer
    report: dict
    segments: list[Segment] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    settled_s: float | None = None
    """Writes before that do not count; the stack's time, unless said."""

    @property
    def connection(self) -> dict | None:
        return self.report["connections"][0] if self.report["connections"] else None

    def writes(self) -> list[dict]:
        """Ta, Tb and Tc of each block that the application wrote.

        An initiator may cut a block into several commands (a target's longest transfer is often
        1 MiB) and have them under way together; what overlaps is one write here.
        """
        begin_s = self.settled_s
        if begin_s is None:
            begin_s = SETTLED_S.get(self.transfer.stack, 0.0)
        kept = [
            command
            for connection in self.report["connections"]
            for command in connection["commands"]
            if command["at_s"] >= begin_s
        ]
        blocks: list[dict] = []
        for one in sorted(kept, key=lambda command: command["at_s"]):
            if one["kind"] != "write":
                continue
            first = one["at_s"] + one["before_us"] / 1e6
            last = first + one["ta_us"] / 1e6
            end = last + one["tb_us"] / 1e6
            if blocks and one["at_s"] < blocks[-1]["end"]:
                block = blocks[-1]
                block["bytes"] += one["bytes"]
                block["last"], block["end"] = max(block["last"], last), max(block["end"], end)
                block["first"] = min(block["first"], first)
            else:
                blocks.append(
                    {"at_s": one["at_s"], "bytes": one["bytes"], "first": first, "last": last,
                     "end": end}
                )
        for block, after in zip_longest(blocks, blocks[1:]):
            block["ta_us"] = (block["last"] - block["first"]) * 1e6
            block["tb_us"] = (block["end"] - block["last"]) * 1e6
            block["tc_us"] = (after["at_s"] - block["end"]) * 1e6 if after else None
        return [one for one in blocks if one["bytes"] == self.transfer.block_bytes]

    def samples_per_s(self) -> float:
        """How dense the samples are; 0 without any."""
        spans = [
            later.time_s - one.time_s
            for one, later in zip(self.samples, self.samples[1:], strict=False)
        ]
        return 1 / median(spans) if spans else 0.0

    def cycle(self) -> tuple[float, float]:
        """From a late write to the one after it, when slow start is over."""
        starts = self.starts()
        return starts[-2], starts[-1]

    def starts(self) -> list[float]:
        """When the writes began; at least two, or the transfer says nothing."""
        starts = sorted(one["at_s"] for one in self.writes())
        if len(starts) < 2:
            raise LabError(f"{self.transfer}: fewer than two writes were captured")
        return starts


def see(transfer: Transfer, folder: Path, quick: bool = False, fresh: bool = False) -> Seen:
    """What was seen of a transfer, which is run unless that is in the folder already."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{transfer.stack}-{transfer.rtt_ms:g}-{transfer.block_bytes // KIB}".replace("+", "-")
    capture, samples = folder / f"{name}.pcap", folder / f"{name}.samples"
    settled_s = SETTLED_S.get(transfer.stack, 0.0)
    seconds = SECONDS
    if quick:
        settled_s, seconds = min(settled_s, QUICK_SETTLED_S), QUICK_SECONDS
    done = folder / f"{name}.json"
    if done.exists() and not fresh:
        return _read(transfer, settled_s, done)
    # Slow start and the commands of a few seconds.
    seconds += ROUND_TRIPS * transfer.rtt_ms / 1000 + settled_s
    with _line(transfer, folder) as lab, ExitStack() as stack:
        lab.choose_congestion_control(CC)
        if transfer.stack == SOCKET:
            server = peer(lab.exec("far", [need("iperf3"), "-s", "-p", PORT, "--forceflush"]),
                          folder / "iperf3.log")
            stack.enter_context(server).wait_for_output("Server listening")
            load = [need("iperf3"), "-c", wan.FAR, "-p", PORT, "-t", f"{seconds:.0f}"]
        else:
            disk = folder / "disk"
            with disk.open("wb") as file:
                file.truncate(DISK_BYTES)
            held = transfer.stack == HELD
            case = Case("", "", transfer.block_bytes, 1, keys=HELD_KEYS if held else {})
            whose = STOCK if transfer.stack in (STOCK, HELD) else OURS
            one = Run(case, whose, 0, RATE, "near", 0)
            url = stack.enter_context(target(one, lab, disk, folder))
            load = _load(transfer, url, seconds)
        stack.enter_context(captured(lab, "near", capture, folder))
        watching = [enkaku.binary(), "monitor", "--port", PORT, "--json", "--samples"]
        with peer(lab.exec("near", [*watching, "--interval", "200ms"]), samples) as watch:
            watch.wait_for_output('"connections"')
            run(lab.exec("near", load), timeout_s=seconds + 90)
    _keep(capture, done)
    return _read(transfer, settled_s, done)


@contextmanager
def _line(transfer: Transfer, folder: Path) -> Iterator[wan.Lab]:
    name = f"transfer-{os.getpid()}"
    guardian = wan.guard(name)
    lab = wan.Lab(name)
    try:
        wmem = HELD_WMEM if transfer.stack == HELD else WMEM
        words = ["--rate", RATE, "--rtt", f"{transfer.rtt_ms:g}ms", "--wmem", wmem, "--rmem", RMEM]
        words += ["--sysctl", "net.ipv4.tcp_no_metrics_save=1", "--log", folder / "wan.log"]
        enkaku.command("wan", "up", name, *words, timeout_s=20)
        yield lab
    finally:
        lab.down()
        guardian.stdin.close()
        guardian.wait()


def _load(transfer: Transfer, url: str, seconds: float) -> list[object]:
    if transfer.stack != STOCK:
        argv = [enkaku.binary(), "bench", url, "--rw", "write", "--force"]
        argv += ["--bs", transfer.block_bytes]
        argv += ["--depth", 1, "--time", f"{seconds}s", "--congestion-control", CC]
        more = {AUTO: [], WIDE: ["--send-buffer", "4M"], HELD: HELD_OPTIONS}
        return [*argv, *more.get(transfer.stack, ["--connections", 1])]
    argv = [need("qemu-img"), "bench", "-f", "raw", "-t", "none", "-w", "-d", 1, "-c", STOCK_WRITES]
    return [*argv, "-s", transfer.block_bytes, "-S", transfer.block_bytes, url]


def _keep(capture: Path, done: Path) -> None:
    """What is asked of a capture, beside it; the capture itself is large. DONE appears when all is
    there."""
    words = ["monitor", "report", capture, "--port", PORT]
    report = enkaku.report(*words, "--segments", done.with_suffix(".csv"))
    # pcap (microseconds, this machine's byte order): the time of the first packet.
    head = capture.read_bytes()[24:32]
    origin = int.from_bytes(head[:4], sys.byteorder) + int.from_bytes(head[4:], sys.byteorder) / 1e6
    torn = done.with_suffix(".part")
    torn.write_text(json.dumps({"origin": origin, "report": report}))
    torn.rename(done)
    capture.unlink()


def _read(transfer: Transfer, settled_s: float, done: Path) -> Seen:
    kept = json.loads(done.read_text())
    with done.with_suffix(".csv").open() as file:
        segments = [
            Segment(
                float(row["time_s"]), row["to_target"] == "1", int(row["payload_bytes"]),
                int(row["in_flight_bytes"]), row["pdus"].split(" ") if row["pdus"] else [],
            )
            for row in csv.DictReader(file)
        ]
    samples = _samples(done.with_suffix(".samples"), kept["origin"])
    return Seen(transfer, kept["report"], segments, samples, settled_s)


def _samples(path: Path, origin: float) -> list[Sample]:
    """Of the connection whose queue was the longest, from the first packet of the capture on."""
    series: dict[str, list[dict]] = {}
    for line in path.read_text().splitlines():
        for row in json.loads(line)["connections"]:
            series.setdefault(f"{row['local']} {row['cookie']}", []).extend(row["series"])
    points = max(series.values(), key=_queue_max, default=[])
    return [
        Sample(
            one["at_unix_s"] - origin, one["cwnd_bytes"], one["in_flight_bytes"],
            one["not_sent_bytes"], one["send_memory_bytes"], one["send_buffer_bytes"],
        )
        for one in points
        if one["at_unix_s"] > origin
    ]


def _queue_max(points: list[dict]) -> int:
    return max((one["send_memory_bytes"] for one in points), default=0)
