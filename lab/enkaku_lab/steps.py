"""`python -m enkaku_lab steps`: the path changes under a transfer, and a competitor comes and goes.

Sequential writes of 32 × 1 MiB over 1 Gbit/s, the queue 2,000 packets, Linux's default buffers and
cubic; three phases of the same length, the middle one on another path. What the line carried is read
from the emulator four times a second.
"""

import argparse
import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from enkaku_lab import OUT, figure, machine, policy_run, wan
from enkaku_lab.experiment import Link
from enkaku_lab.peers import enkaku, need
from enkaku_lab.process import LabError, Peer, peer
from enkaku_lab.progress import say
from enkaku_lab.table import GAP, fenced, render

EVERY_S, BACK_S, BACK_SHARE = 0.25, 5.0, 0.95
IP_SHARE = 1500 / 1538
"""IP packets of a line's bits, when all are full: what the emulator counts."""


@dataclass(frozen=True)
class Step:
    name: str
    what: str
    before: Link
    between: Link
    competitor: bool = False


STEPS = [
    Step("rate", "1 Gbit/s, 300 Mbit/s, 1 Gbit/s; RTT 20 ms", Link(20.0), Link(20.0, rate="300mbit")),
    Step("rtt", "RTT 10, 80, 10 ms", Link(10.0), Link(80.0)),
    Step("loss", "loss 0, 1e-3, 0; RTT 50 ms", Link(50.0), Link(50.0, loss=1e-3)),
    Step("flow", "one cubic flow more between; RTT 50 ms", Link(50.0), Link(50.0), True),
]
RATES = {"1gbit": 1e9, "300mbit": 300e6}
HEAD = "step|policy|start (s)|before|between|after|settled (s)|and back (s)|N|other flow|Jain".split("|")
LEGEND = (
    f"before, between, after: what the line carried in each phase, as a share of what it can carry, from {BACK_S:g} s\n"
    f"after the change on. start, settled, back: seconds until a second's mean is {BACK_SHARE:.0%} of that, from the\n"
    "login and from each change on.\n"
    "N: connections at the end of each phase. other flow: the competitor's share of the line while it runs; Jain's\n"
    "index of the two is 1 where each has the same, 0.5 where one has everything."
)
PAGE = """# Steps: the path changes under a transfer

Made by `python -m enkaku_lab steps --docs docs`; do not edit. Sequential writes of 32 × 1 MiB over
1 Gbit/s, the queue 2,000 packets, Linux's default buffers, cubic at both ends; the middle phase is on
another path, or beside one cubic flow more. {machine}

{body}

![What the line carried](figures/steps.svg)
"""


@dataclass
class Seen:
    """Shares of the line over time, of the whole line and of the competitor."""

    step: Step
    policy: str
    phase_s: float
    shares: list[tuple[float, float]] = field(default_factory=list)
    numbers: list[tuple[float, int]] = field(default_factory=list)
    other_bits_per_s: float = 0.0

    def mean(self, phase: int) -> float:
        """The share of the line in a phase, without the first five seconds."""
        inside = [share for _, share in self.within(phase, BACK_S)]
        return sum(inside) / max(len(inside), 1)

    def within(self, phase: int, after_s: float = 0.0) -> list[tuple[float, float]]:
        """The shares of a phase, without its first seconds."""
        begin, end = phase * self.phase_s + after_s, (phase + 1) * self.phase_s
        return [(at, share) for at, share in self.shares if begin < at <= end]

    def back_s(self, phase: int) -> float | None:
        """Seconds after the change until a second's mean is `BACK_SHARE` of what the phase comes to
        carry; None where that is not within it."""
        width, inside = round(1 / EVERY_S), self.within(phase)
        enough = BACK_SHARE * self.mean(phase)
        for index in range(len(inside) - width + 1):
            window = [share for _, share in inside[index : index + width]]
            if sum(window) / width >= enough:
                return max(inside[index][0] - EVERY_S - phase * self.phase_s, 0.0)
        return None

    def number_at(self, at_s: float) -> int:
        before = [number for changed_s, number in self.numbers if changed_s <= at_s]
        return before[-1] if before else 0


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="enkaku_lab steps", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="STEP", help=", ".join(s.name for s in STEPS))
    parser.add_argument("--policy", action="append", help="adaptive, golden, fixed:N (repeatable)")
    parser.add_argument("--phase", type=float, default=20.0, metavar="SECONDS")
    parser.add_argument("--option", action="append", default=[], help="for `enkaku bench`")
    parser.add_argument("--free", action="store_true", help="let it choose bbr")
    parser.add_argument("--out", type=Path, default=OUT / "steps")
    parser.add_argument("--docs", type=Path, metavar="DIR", help="write DIR/steps.md, too")
    options = parser.parse_args(arguments)
    known = {step.name: step for step in STEPS}
    if unknown := [name for name in options.names if name not in known]:
        raise LabError(f"no step is called {unknown[0]}; there are: {', '.join(known)}")
    if options.phase <= BACK_S:
        raise LabError(f"a phase takes more than {BACK_S:g} s: what comes before is not counted")
    wan.need()
    options.out.mkdir(parents=True, exist_ok=True)
    rows, all_seen = [], []
    for name in options.names or known:
        for policy in options.policy or ["adaptive"]:
            seen = _run(known[name], policy, options.phase, options.option, options.free)
            all_seen.append(seen)
            rows.append(_row(seen))
            say(f"{name}, {policy}: {', '.join(rows[-1][3:6])}")
    table = render(HEAD, rows)
    print(f"{table}\n{LEGEND}")
    _draw(all_seen, options.out / "steps")
    print(f"Figure: {options.out / 'steps.svg'}")
    if options.docs:
        figures = options.docs / "figures"
        figures.mkdir(parents=True, exist_ok=True)
        shutil.copy(options.out / "steps.svg", figures)
        page, where = options.docs / "steps.md", machine.summary(machine.facts())
        page.write_text(PAGE.format(body=fenced(table, LEGEND), machine=where))
        print(f"Page: {page}")


def _row(seen: Seen) -> list[str]:
    numbers = " ".join(str(seen.number_at((n + 1) * seen.phase_s)) for n in range(3))
    shares = [f"{seen.mean(n):.3f}" for n in range(3)]
    start, *back = [GAP if (s := seen.back_s(n)) is None else f"{s:.1f}" for n in range(3)]
    row = [seen.step.name, seen.policy, start, *shares, *back, numbers]
    if not seen.step.competitor:
        return [*row, GAP, GAP]
    line = RATES[seen.step.between.rate] * IP_SHARE
    other = seen.other_bits_per_s / line
    ours = max(seen.mean(1) - other, 0.0)
    jain = (ours + other) ** 2 / (2 * (ours**2 + other**2))
    return [*row, f"{other:.3f}", f"{jain:.2f}"]


def _run(step: Step, policy: str, phase_s: float, options: list[str], free: bool) -> Seen:
    seen = Seen(step, policy, phase_s)
    words = ["--time", f"{3 * phase_s:g}s", *options]
    with policy_run.transfer(replace(step.before, cc_free=free), "write", policy, words) as run:
        _watch(run.lab, step, seen, run.bench, run.logs)
        changes = run.report(60.0)["path"]["changes"]
        seen.numbers = [(change["t_s"], change["wanted"]) for change in changes]
    return seen


def _watch(lab: wan.Lab, step: Step, seen: Seen, transfer: Peer, logs: Path) -> None:
    """Changes the line twice, and notes what it carries, until the third phase ends."""
    links = [step.before, step.between, step.before]
    begin = time.monotonic()
    counted, counted_s, phase = _bytes(lab), 0.0, 0
    with nullcontext() if not step.competitor else _competitor(lab, seen, logs) as start:
        while (now_s := time.monotonic() - begin) < 3 * seen.phase_s and transfer.running():
            if int(now_s / seen.phase_s) > phase:
                phase += 1
                lab.set(links[phase])
                if phase == 1 and start:
                    start()
            time.sleep(EVERY_S)
            bytes_now, at_s = _bytes(lab), time.monotonic() - begin
            line = RATES[links[phase].rate] * IP_SHARE
            seen.shares.append((at_s, (bytes_now - counted) * 8 / (at_s - counted_s) / line))
            counted, counted_s = bytes_now, at_s


@contextmanager
def _competitor(lab: wan.Lab, seen: Seen, logs: Path) -> Iterator:
    """A server of iperf3; what is yielded starts one flow for the middle phase."""
    flows = []
    server = [need("iperf3"), "--server", "--one-off", "--port", policy_run.PORT + 1, "--forceflush"]
    client = [need("iperf3"), "--client", wan.FAR, "--port", policy_run.PORT + 1, "--json"]
    client += ["--omit", f"{BACK_S:g}", "--time", f"{seen.phase_s - BACK_S:g}"]
    with peer(lab.exec("far", server), logs / "iperf3.log") as listening:
        listening.wait_for_output("listening")
        yield lambda: flows.append(Peer(lab.exec("near", client), logs / "flow.log"))
        for flow in flows:
            flow.wait(30.0)
            end = json.loads(flow.output())["end"]
            seen.other_bits_per_s = end["sum_received"]["bits_per_second"]


def _bytes(lab: wan.Lab) -> int:
    return enkaku.report("wan", "show", lab.name)["near_to_far"]["bytes"]


def _draw(all_seen: list[Seen], path: Path) -> None:
    chart, axes, _ = figure.panels(len(all_seen), 1, (6.5, 1.4), 0, figure.Margins())
    for axis, seen in zip(axes, all_seen, strict=True):
        axis.plot(*zip(*seen.shares, strict=True), color=figure.COLOURS["enkaku"])
        for change_s in (seen.phase_s, 2 * seen.phase_s):
            axis.axvline(change_s, color="#888888", linestyle=":")
        axis.axhline(1.0, **figure.LIMIT)
        axis.set_title(f"{seen.step.what} ({seen.policy})", fontsize=9)
        axis.set_ylabel("of the line")
        axis.set_ylim(0, 1.1)
    axes[-1].set_xlabel("time (s)")
    figure.save(chart, path)
