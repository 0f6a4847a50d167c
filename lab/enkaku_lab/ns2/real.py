"""The runs of S2 on real kernels' TCP: `enkaku serve` and `enkaku bench` across the emulated line.

The same parameters as in `session.tcl`: 1 Gbit/s, RTT 10 ms, DropTail queue of 500 packets, windows
of 64 KB, a disk per connection that takes 30 to 40 ms for a read, one read at a time on each
connection, but for `adaptive` (`DEMAND`). Reno stands in for Tahoe, which Linux does not have. A run
takes the time that it says, one after the other, on a machine that should have nothing else to do;
its file has the lines that the model writes, so that figures need not know the engine.
"""

import json
import os
import statistics
import sys
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from enkaku_lab import machine, wan
from enkaku_lab.experiment import Link
from enkaku_lab.ns2.engine import MIB, Result, Run, read, title
from enkaku_lab.peers import disk_url, enkaku
from enkaku_lab.process import LabError, Peer, peer, run
from enkaku_lab.progress import Estimate

LINK = Link(rtt_ms=10.0, queue_packets=500)
CONGESTION_CONTROL = "reno"
DELAY = "30ms..40ms"
SEND_BUFFER = "64k"
RECEIVE_BUFFER = "49k"
"""Of 64 KiB Linux 6.18 makes a window of 84 KiB: it doubles SO_RCVBUF and counts two thirds of that as
payload. The study's 64 KB are the window itself (44 segments), so this one is chosen for its window,
and what the sender saw of it is kept with each run."""
VOLUME_BYTES = 192 * MIB
"""Read from the start to the end and again; a multiple of both PDU lengths."""
PORT = 3260
CONNECTIONS_MAX = 64
"""What enkaku's initiator opens at most."""
WINDOWS_EVERY_S, CHECK_EVERY_S = 0.1, 1.0
"""How often the sender's sockets are asked: for figures of windows, and else to know which congestion
control they used."""
DEMAND = 32
"""Reads that `adaptive` has to carry at a time, on however many connections: as many as fill the line
when each has a connection of its own. It counts what the user asks for: with a read for each
connection, as the study has it, four carry all that there is, and one more would bring nothing."""
OVERHEAD_S = 1.5
FORMAT = 1
"""Counts up when the meaning of a result changes, so that older ones are not taken for new ones."""


def results(
    runs: list[Run], folder: Path, jobs: int | None = None, fresh: bool = False
) -> dict[Run, Result]:
    """All of them, measuring what has no file yet (`fresh`: everything). Always one at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = _paths(runs, folder)
    for path in paths.values() if fresh else ():
        path.unlink(missing_ok=True)
    todo = [one for one, path in paths.items() if not path.exists()]
    for one in todo:
        if reason := _impossible(one):
            raise LabError(f"{title(one)}: {reason}")
    if todo:
        _measure(todo, paths, folder)
    return {one: read(one, path) for one, path in paths.items()}


def stored(runs: list[Run], folder: Path) -> dict[Run, Result] | None:
    """All of them, if none has to be measured."""
    paths = _paths(runs, folder)
    if not all(path.exists() for path in paths.values()):
        return None
    return {one: read(one, path) for one, path in paths.items()}


def _paths(runs: list[Run], folder: Path) -> dict[Run, Path]:
    # What was measured stays measured when the binary changes: the file says which one it was.
    return {one: folder / f"{FORMAT}-{_name(one)}.jsonl" for one in dict.fromkeys(runs)}


def _name(one: Run) -> str:
    tm = f"-tm{one.measuring_time_s:g}" if one.measuring_time_s else ""
    traced = "-windows" if one.trace else ""
    demand = f"-of{DEMAND}" if one.policy == "adaptive" else ""
    return f"{one.policy}{one.n}{demand}{tm}-{one.pdu_mib}m-{one.seconds:g}s-seed{one.seed}{traced}"


def _impossible(one: Run) -> str | None:
    if one.n > CONNECTIONS_MAX:
        return f"enkaku opens at most {CONNECTIONS_MAX} connections"
    return "the emulated line does not change in these runs" if one.steps else None


def _measure(todo: list[Run], paths: dict[Run, Path], folder: Path) -> None:
    if os.geteuid() != 0:
        raise LabError("the emulated line needs root: namespaces and routes (try sudo)")
    progress = Estimate([one.seconds + OVERHEAD_S for one in todo])
    with wan.up(LINK, folder) as lab:
        lab.set(LINK)
        for one in todo:
            progress.step(f"real TCP: {title(one)}")
            _execute(one, lab, folder, paths[one])
    progress.end()


def _execute(one: Run, lab: wan.Lab, folder: Path, path: Path) -> None:
    """The file appears under its name only when the run is complete."""
    trace = folder / f"trace.{os.getpid()}"
    torn = path.with_suffix(f".{os.getpid()}.part")
    before = _line(lab)
    load = os.getloadavg()[0]
    try:
        with _served(one, lab, folder), _watched(one, lab, folder) as windows:
            done = run(lab.exec("near", _bench(one, trace)), timeout_s=one.seconds + 60)
        head = {
            "kind": "run",
            **asdict(one),
            "engine": "real",
            "load_average": [load, os.getloadavg()[0]],
            "line": {name: value - before[name] for name, value in _line(lab).items()},
            "report": json.loads(done.stdout),
            "machine": machine.facts(),
        }
        _write(torn, head, _lines(trace), _lines(windows))
        torn.rename(path)
    finally:
        trace.unlink(missing_ok=True)
        torn.unlink(missing_ok=True)


def _line(lab: wan.Lab) -> dict[str, int]:
    """What the line towards the reader has carried and dropped so far."""
    counted = enkaku.report("wan", "show", lab.name)["far_to_near"]
    return {name: counted[name] for name in ("segments", "bytes", "dropped_queue")}


@contextmanager
def _served(one: Run, lab: wan.Lab, folder: Path) -> Iterator[Peer]:
    words = [enkaku.binary(), "serve", "--listen", f"{wan.FAR}:{PORT}", "--iqn", enkaku.IQN]
    words += ["--lun", f"mem:{VOLUME_BYTES}", "--delay", DELAY, "--delay-seed", one.seed]
    words += ["--congestion-control", CONGESTION_CONTROL, "--send-buffer", SEND_BUFFER]
    with peer(lab.exec("far", words), folder / "serve.log") as serving:
        serving.wait_for_output("listening on")
        yield serving


@contextmanager
def _watched(one: Run, lab: wan.Lab, folder: Path) -> Iterator[Path]:
    log = folder / "windows.log"
    every_s = WINDOWS_EVERY_S if one.trace else CHECK_EVERY_S
    words = [sys.executable, "-m", "enkaku_lab.ns2.windows", PORT, every_s]
    with peer(lab.exec("far", words), log) as watching:
        watching.wait_for_output("time_s")
        yield log


def _bench(one: Run, trace: Path) -> list[object]:
    words = [enkaku.binary(), "bench", disk_url(f"{wan.FAR}:{PORT}", enkaku.IQN, 0), "--rw", "read"]
    demand = [DEMAND] if one.policy == "adaptive" else [1, "--depth-per-connection"]
    words += ["--pacing", "off", "--bs", one.pdu_mib * MIB, "--depth", *demand]
    words += ["--time", f"{one.seconds}s", "--policy", one.policy, "--connections", one.n]
    if one.measuring_time_s:
        words += ["--measuring-time", f"{one.measuring_time_s}s"]
    words += ["--congestion-control", CONGESTION_CONTROL, "--receive-buffer", RECEIVE_BUFFER]
    return [*words, "--trace", trace, "--json"]


def _lines(path: Path) -> list[dict]:
    """A line that was being written when its program was ended is passed over."""
    text = path.read_text()
    whole = text[: text.rfind("\n") + 1]
    return [json.loads(line) for line in whole.splitlines()]


def _write(path: Path, head: dict, trace: list[dict], windows: list[dict]) -> None:
    """The lines of `bench --trace`, with what the sockets of the other end said beside them."""
    begin = next(line["time_s"] for line in trace if line["kind"] == "run")
    if trace[-1]["kind"] != "end":
        raise LabError("the trace of enkaku bench has no end")
    # The last of several words counts: one that is just accepted still has the system's default.
    connections = [one for line in windows for one in line["connections"]]
    words: dict[str, list[str]] = {}
    for one in connections:
        words.setdefault(one["peer"], []).append(one["congestion_control"])
    used = {of_one[-1] for of_one in words.values() if len(of_one) > 1}
    if used != {CONGESTION_CONTROL}:
        raise LabError(f"the target's sockets used {sorted(used)}, not {CONGESTION_CONTROL}")
    seen = [one["window"] for one in connections if one["window"]]
    head |= {"congestion_control": sorted(used), "window_bytes": statistics.median(seen)}
    looks = _by_connection(windows, begin, head["trace"])
    with path.open("w") as out:
        print(json.dumps(head), file=out)
        for line in trace[1:]:
            if line["kind"] == "sample":
                line = {**line, "reads": line["operations"], "traced": _beside(looks, line["t_s"])}
            print(json.dumps(line), file=out)


def _by_connection(
    windows: list[dict], begin: float, wanted: list[int]
) -> list[tuple[float, list[dict]]]:
    """Time and, of each wanted connection, its window and what it carried since the look before.
    Connections are numbered in the order in which they were first seen."""
    numbers: dict[str, int] = {}
    acked: dict[str, int] = {}
    looks, last_s = [], 0.0
    for line in windows:
        each = []
        for one in line["connections"]:
            number = numbers.setdefault(one["peer"], len(numbers))
            bytes_since = one["acked"] - acked.get(one["peer"], 0)
            acked[one["peer"]] = one["acked"]
            if number in wanted and last_s:
                rate = bytes_since / (line["time_s"] - last_s)
                each.append({"id": number, "cwnd": one["cwnd"], "bytes_per_s": rate})
        last_s = line["time_s"]
        looks.append((line["time_s"] - begin, each))
    return looks


def _beside(looks: list[tuple[float, list[dict]]], t_s: float) -> list[dict]:
    """The look that is nearest in time."""
    at = bisect_left(looks, t_s, key=lambda look: look[0])
    near = looks[max(0, at - 1) : at + 1]
    return min(near, key=lambda look: abs(look[0] - t_s))[1] if near else []
