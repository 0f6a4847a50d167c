"""`python -m enkaku_lab tuner-cost`: what it costs that the number of connections is found, not given.

On each path a long transfer under `adaptive`, then the same with the number that it held at the end,
fixed from the start, and with fewer. 1 Gbit/s, the queue 2,000 packets, cubic, Linux's default buffers,
32 × 1 MiB; the first seconds of every run, in which windows open, are not counted.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

from enkaku_lab import machine, policy_run, wan
from enkaku_lab.experiment import Link
from enkaku_lab.process import LabError
from enkaku_lab.progress import say
from enkaku_lab.table import GAP, fenced, render

RAMP_S = 5.0
FEWER_SHARE = 0.75
HEAD = [
    *("path", "N", "adaptive (Mbit/s)", ": the same N fixed", "p99/p50", "fixed N", "ratio"),
    *("fewer", ": adaptive"),
]
LEGEND = """N: connections that adaptive held at the end, and that were then fixed from the start. p99/p50: how far
the times of commands scatter, under adaptive and with N fixed. fewer: three quarters of N, and what
they carry beside adaptive."""
PAGE = """# What it costs that the number of connections is found

Made by `python -m enkaku_lab tuner-cost --docs docs`; do not edit. Sequential transfers of 32 × 1 MiB over
1 Gbit/s, the queue 2,000 packets, Linux's default buffers, cubic at both ends, {seconds:g} s after the first
{ramp:g}. {machine}

{body}
"""


@dataclass(frozen=True)
class Seen:
    bytes_per_s: float
    scatter: float
    connections: int

    @property
    def mbit(self) -> float:
        return self.bytes_per_s * 8 / 1e6


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="enkaku_lab tuner-cost", description=__doc__)
    parser.add_argument("--rtt", type=float, action="append", metavar="MS", help="10 and 50")
    parser.add_argument("--loss", type=float, default=0.0, metavar="PROBABILITY")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--docs", type=Path, metavar="DIR", help="write DIR/tuner-cost.md, too")
    options = parser.parse_args(arguments)
    if options.seconds <= 0:
        raise LabError("a transfer takes some seconds")
    wan.need()
    rows = []
    for rtt_ms in options.rtt or [10.0, 50.0]:
        for kind in ("write", "read"):
            rows.append(_row(Link(rtt_ms, loss=options.loss), kind, options.seconds))
            say(f"{rows[-1][0]}: {rows[-1][3]} of fixed, scatter {rows[-1][6]}")
    table = render(HEAD, rows)
    print(f"{table}\n{LEGEND}")
    if options.docs:
        page, where = options.docs / "tuner-cost.md", machine.summary(machine.facts())
        words = {"body": fenced(table, LEGEND), "machine": where}
        page.write_text(PAGE.format(**words, seconds=options.seconds, ramp=RAMP_S))
        print(f"Page: {page}")


def _row(link: Link, kind: str, seconds: float) -> list[str]:
    found = _run(link, kind, seconds, "adaptive")
    fixed = _run(link, kind, seconds, f"fixed:{found.connections}")
    few = int(FEWER_SHARE * found.connections)
    fewer = _run(link, kind, seconds, f"fixed:{few}") if few else None
    scatter = found.scatter / fixed.scatter
    return [
        f"RTT {link.rtt_ms:g} ms, {kind}",
        str(found.connections),
        f"{found.mbit:.0f}",
        f"{found.bytes_per_s / fixed.bytes_per_s:.3f}",
        *(f"{number:.2f}" for number in (found.scatter, fixed.scatter, scatter)),
        str(few or GAP),
        f"{fewer.bytes_per_s / found.bytes_per_s:.3f}" if fewer else GAP,
    ]


def _run(link: Link, kind: str, seconds: float, policy: str) -> Seen:
    words = ["--ramp", f"{RAMP_S:g}s", "--time", f"{seconds:g}s"]
    with policy_run.transfer(link, kind, policy, words) as run:
        report = run.report(RAMP_S + seconds + 60.0)
    latency = report["lat_us"]
    connections = report["path"]["connections_wanted"]
    return Seen(report["bytes_per_s"], latency["p99"] / latency["p50"], connections)
