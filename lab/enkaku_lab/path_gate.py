"""`python -m enkaku_lab path-gate`: two policies of the path and plain TCP, side by side on many lines.

Whether a new controller may take the place of an old one: on each line a transfer of 20 s from its start under
the one, under the other, and by `iperf3 -P 16`, in turn and again. Lines that neither was made on are among
them: short and long queues, jitter, losses in bursts, policers, other rates, other congestion controls. With
`--alone`, the new one beside TCP, in two thirds of the time. Rounds of all lines follow each other, so that the
runs of one line are apart; `--more` adds to them another time.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from enkaku_lab import gate_runs, machine, policy_run, wan
from enkaku_lab.gate_lines import LINES, Line
from enkaku_lab.gate_runs import Run
from enkaku_lab.peers import enkaku, iperf3
from enkaku_lab.process import LabError, peer
from enkaku_lab.progress import say
from enkaku_lab.results import utc

FIRST_S = 20.0
STEADY_FROM_S = 10.0
FIRST_DATA = 100e3
"""More bytes than connecting takes."""
MORE_S = 1.0
"""So much longer they run: what is counted ends before them."""
STREAMS = 16
END_S = 60.0
IP_SHARE = 1500 / 1448
"""What the emulator counts of a full packet, beside its payload."""
BUSY = "while True: pass"


@dataclass(frozen=True)
class Seen:
    """Shares of the line, and the connections that were wanted at the end."""

    first: float
    steady: float
    connections: int = STREAMS


@contextmanager
def place(line: Line) -> Iterator[tuple[wan.Lab, Path]]:
    """The line, set up, and a folder for logs; beside its ends whatever keeps the machine busy."""
    with tempfile.TemporaryDirectory() as folder, wan.up(line.link, Path(folder)) as lab, ExitStack() as beside:
        lab.become(line.link)
        if line.options:
            enkaku.command("wan", "set", lab.name, *line.options)
        for number in range(line.busy):
            beside.enter_context(peer([sys.executable, "-c", BUSY], Path(folder) / f"busy-{number}.log"))
        yield lab, Path(folder)


def carried(lab: wan.Lab, write: bool) -> float:
    """Bytes of TCP payload that have left the line so far, where all packets are full."""
    shown = enkaku.report("wan", "show", lab.name)["near_to_far" if write else "far_to_near"]
    return (shown["bytes"] - shown["queue_bytes"]) / IP_SHARE


def _watch(lab: wan.Lab, write: bool, begin_s: float, begin: float = 0.0) -> tuple[float, float]:
    """Bytes per second of a process that was started then, when so many had left the line: in its first 20 s, and
    in the second half of them."""
    time.sleep(max(begin_s + STEADY_FROM_S - time.monotonic(), 0.0))
    from_s, before = time.monotonic(), carried(lab, write)
    time.sleep(max(begin_s + FIRST_S - time.monotonic(), 0.0))
    until_s, after = time.monotonic(), carried(lab, write)
    return (after - begin) / (until_s - begin_s), (after - before) / (until_s - from_s)


def tcp(line: Line, write: bool) -> Seen:
    most = line.payload_bits_per_s(write) / 8
    with place(line) as (lab, logs):
        words = ["iperf3", "-s", "-1", "--forceflush", "-p", policy_run.PORT]
        with peer(lab.exec("far", words), logs / "server.log") as server:
            server.wait_for_output("Server listening")
            words = ["iperf3", "-c", wan.FAR, "-p", policy_run.PORT, "-P", STREAMS]
            words += ["-t", f"{FIRST_S + MORE_S:g}", *([] if write else ["-R"])]
            with peer(lab.exec("near", words), logs / "client.log") as client:
                client.wait_until(lambda: carried(lab, write) > FIRST_DATA, "data")
                first, steady = _watch(lab, write, time.monotonic())
    return Seen(first / most, steady / most)


def policy(line: Line, write: bool, name: str) -> Seen:
    most = line.payload_bits_per_s(write) / 8
    direction, words = "write" if write else "read", ["--time", f"{FIRST_S + MORE_S:g}s"]
    with place(line) as (lab, logs):
        memory = logs / "paths" if line.warm else None
        if memory:
            with policy_run.begun(lab, logs, direction, name, words, memory=memory) as run:
                run.report(FIRST_S + END_S)
        before = carried(lab, write)
        with policy_run.begun(lab, logs, direction, name, words, memory=memory) as run:
            first, steady = _watch(lab, write, run.begun_s, before)
            path = run.report(FIRST_S + END_S)["path"]
    return Seen(first / most, steady / most, path["connections_wanted"])


def chosen(options: argparse.Namespace, lines: dict[str, Line]) -> list[tuple[Line, bool]]:
    """Each line that was named, or all, in each direction: whether it writes."""
    if unknown := [name for name in options.names if name not in lines]:
        raise LabError(f"no line is called {unknown[0]}; there are: {', '.join(lines)}")
    if options.repeat < 1:
        raise LabError("--repeat is 1 at least")
    both = {"read": [False], "write": [True], "both": [False, True]}[options.direction]
    return [(lines[name], write) for name in options.names or lines for write in both]


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="enkaku_lab path-gate", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="LINE", help=", ".join(LINES))
    parser.add_argument("--old", default="fixed:16", metavar="POLICY")
    parser.add_argument("--new", default="adaptive", metavar="POLICY")
    parser.add_argument("--alone", action="store_true", help="without the old one")
    parser.add_argument("--direction", choices=["read", "write", "both"], default="both")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="rounds of all lines [default: %(default)s]")
    parser.add_argument("--docs", type=Path, metavar="DIR", help="write DIR/path-gate.md and .csv, too")
    parser.add_argument("--more", action="store_true", help="adds to the runs that are in DIR/path-gate.csv")
    options = parser.parse_args(arguments)
    wanted = chosen(options, LINES)
    if options.more and not options.docs:
        raise LabError("--more needs --docs: to the runs of which folder?")
    runs = gate_runs.read(options.docs / "path-gate.csv") if options.more else []
    wan.need()
    # Before the page is written, which would be a change of what was committed.
    facts = machine.facts()
    policies = [options.new] if options.alone else [options.old, options.new]
    for line, write in wanted * options.repeat:
        of_cell = list(_runs(line, write, policies, facts))
        runs += of_cell
        say(" · ".join([line.name, of_cell[0].dir, *(f"{run.way} {run.first:.2f} {run.steady:.2f}" for run in of_cell)]))
        if options.docs:
            gate_runs.put(options.docs, runs)
    print(f"{gate_runs.table(runs)}\n{gate_runs.LEGEND}")
    if options.docs:
        print(f"Page: {options.docs / 'path-gate.md'}")


def _runs(line: Line, write: bool, policies: list[str], facts: dict) -> Iterator[Run]:
    """One of each way, by turns."""
    direction, where = "write" if write else "read", machine.summary(facts)
    for way in (gate_runs.TCP, *policies):
        seen = tcp(line, write) if way == gate_runs.TCP else policy(line, write, way)
        shares = (seen.first, seen.steady, seen.connections)
        yield Run(facts["commit"], utc(), line.name, direction, way, *shares, os.getloadavg()[0], where)
