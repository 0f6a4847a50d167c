"""`python -m enkaku_lab few`: an application with few operations under way, and what the path's pace costs it.

One, two or four reads or writes at once, each waited for; every run beside one with `--pacing off`, and beside
what the round trip allows. Such an application is limited by the round trip, and has always as much under way
as it carries: no pace may be made of that, and whatever spaces its packets delays it.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

from enkaku_lab import machine, policy_run, wan
from enkaku_lab.experiment import Link
from enkaku_lab.progress import say
from enkaku_lab.results import median
from enkaku_lab.table import fenced, render, spread

RTTS_MS = [50.0]
DEPTHS = [1, 2, 4]
BLOCKS_KIB = [4, 64, 512]
END_S = 60.0
HEAD = "RTT|under way|KiB|dir|MB/s|off|share|of RTT".split("|")
LEGEND = """MB/s, off: with the path's pace and with `--pacing off`, medians. share: the one of the other, of each pair; the median,
with the least and the most where there are several runs. of RTT: what was carried, of what would be if each operation
took a round trip and the time to send it at the line's rate."""
PAGE = """# An application with few operations under way

Made by `python -m enkaku_lab few --docs docs`; do not edit. `enkaku bench` against a disk in memory over 1 Gbit/s, {seconds:g} s a
run, by turns with and without the pace. {machine}

{body}
"""


@dataclass(frozen=True)
class Load:
    link: Link
    depth: int
    block_kib: int
    kind: str

    @property
    def bound_bytes_per_s(self) -> float:
        """Each operation is answered a round trip after the last packet of it, and none waits for another."""
        block = self.block_kib << 10
        return self.depth * block / (self.link.rtt_ms / 1e3 + 8 * block / self.link.payload_bits_per_s)

    def bytes_per_s(self, seconds: float, words: list[object]) -> float:
        asked = policy_run.Asked(self.block_kib << 10, self.depth)
        words = ["--time", f"{seconds:g}s", *words]
        with policy_run.transfer(self.link, self.kind, "adaptive", words, asked) as run:
            return run.report(seconds + END_S)["bytes_per_s"]


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="enkaku_lab few", description=__doc__)
    parser.add_argument("--rtt", type=float, action="append", metavar="MS", help=f"repeatable [default: {RTTS_MS[0]:g}]")
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--docs", type=Path, metavar="DIR", help="write DIR/few.md, too")
    options = parser.parse_args(arguments)
    wan.need()
    rows = []
    for rtt_ms in options.rtt or RTTS_MS:
        loads = [Load(Link(rtt_ms), *each) for each in _loads()]
        for load in loads:
            rows.append(_row(load, options.seconds, options.repeat))
            say(" · ".join(rows[-1]))
    table = render(HEAD, rows)
    print(f"{table}\n{LEGEND}")
    if options.docs:
        page, where = options.docs / "few.md", f"{machine.summary(machine.facts())}, commit {machine.commit()}."
        page.write_text(PAGE.format(body=fenced(table, LEGEND), machine=where, seconds=options.seconds))
        print(f"Page: {page}")


def _loads() -> list[tuple[int, int, str]]:
    return [(depth, block, kind) for depth in DEPTHS for block in BLOCKS_KIB for kind in ("read", "write")]


def _row(load: Load, seconds: float, repeat: int) -> list[str]:
    pairs = [(load.bytes_per_s(seconds, []), load.bytes_per_s(seconds, ["--pacing", "off"])) for _ in range(repeat)]
    paced, free = (median([pair[side] for pair in pairs]) / 1e6 for side in (0, 1))
    shares = spread([one / other for one, other in pairs])
    where = [f"{load.link.rtt_ms:g} ms", str(load.depth), str(load.block_kib), load.kind]
    return [*where, f"{paced:.2f}", f"{free:.2f}", shares, f"{1e6 * paced / load.bound_bytes_per_s:.2f}"]
