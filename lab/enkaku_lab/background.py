"""`python -m enkaku_lab background`: what a transfer with --background leaves to a flow of TCP, and what it
takes where nobody else is there.

On each line one flow of cubic alone; then a transfer, beside which the same flow runs for the middle third of
its time. What both carry is read from the emulator, and the flow's part is what iperf3 says.
"""

import argparse
import json
import time
from dataclasses import dataclass, field
from pathlib import Path

from enkaku_lab import machine, policy_run, wan
from enkaku_lab.experiment import Link
from enkaku_lab.gate_lines import Line
from enkaku_lab.path_gate import carried, chosen, place
from enkaku_lab.peers import need
from enkaku_lab.process import LabError, Peer, peer
from enkaku_lab.progress import say
from enkaku_lab.results import median
from enkaku_lab.table import GAP, fenced, render, spread

EVERY_S = 0.25
YIELDS_S = 3.0
"""What comes before is not counted: in this time it is to have given way."""
FILLS_S = 10.0
"""What comes before is not counted of the transfer alone."""
BACK_SHARE = 0.9
END_S = 60.0
HEAD = ["line", "dir", "flow alone", "beside us", "kept", "ours alone", "beside it", "back (s)", "N"]
LEGEND = f"""Shares of what the line carries of TCP payload; medians, with the least and the most where there are several
runs. flow alone, beside us: one flow of cubic, from {YIELDS_S:g} s after its start on. kept: the second as a share of the
first. ours alone: the transfer before the flow comes, from {FILLS_S:g} s on. beside it: the transfer, from {YIELDS_S:g} s after the
flow came on. back: seconds after the flow has gone until a second's mean is {BACK_SHARE:.0%} of ours alone. N: connections."""
PAGE = """# In the background

Made by `python -m enkaku_lab background --docs docs`; do not edit. `enkaku bench --background`, 32 × 1 MiB, a disk
in memory, Linux's default buffers. {machine}

{body}
"""


def _lines() -> dict[str, Line]:
    lines = [Line(f"rtt-{rtt}", Link(float(rtt))) for rtt in (1, 10, 50, 200)]
    lines += [Line(f"queue-{n}", Link(10.0, queue_packets=n)) for n in (250, 8000)]
    lines += [Line(f"queue-{n}-50", Link(50.0, queue_packets=n)) for n in (250, 8000)]
    lines += [Line("jitter-1ms", Link(20.0), ("--jitter", "1ms"))]
    return {line.name: line for line in lines}


LINES = _lines()


@dataclass
class Seen:
    """Shares of the line: what it carried at times since the begin, and the flow's, alone and beside us."""

    phase_s: float
    flow_alone: float = 0.0
    flow_beside: float = 0.0
    shares: list[tuple[float, float]] = field(default_factory=list)
    connections: int = 0

    def mean(self, from_s: float, to_s: float) -> float:
        inside = [share for at, share in self.shares if from_s < at <= to_s]
        return sum(inside) / max(len(inside), 1)

    @property
    def alone(self) -> float:
        return self.mean(FILLS_S, self.phase_s)

    @property
    def beside(self) -> float:
        return max(self.mean(self.phase_s + YIELDS_S, 2 * self.phase_s) - self.flow_beside, 0.0)

    @property
    def kept(self) -> float:
        return self.flow_beside / self.flow_alone

    @property
    def back_s(self) -> float | None:
        """None where it is not back before the end."""
        gone_s = 2 * self.phase_s
        ends = [at for at, _ in self.shares if at >= gone_s + 1.0]
        enough = BACK_SHARE * self.alone
        back = [at - gone_s for at in ends if self.mean(at - 1.0, at) >= enough]
        return back[0] if back else None


class Flow:
    """One flow, with the line's congestion control, for a time; its first seconds are not counted."""

    def __init__(self, lab: wan.Lab, logs: Path, write: bool, seconds: float):
        self._lab, self._logs = lab, logs
        port = policy_run.PORT + 1
        self._server = [need("iperf3"), "--server", "--one-off", "--port", port, "--forceflush"]
        self._client = [need("iperf3"), "--client", wan.FAR, "--port", port, "--json"]
        self._client += [] if write else ["--reverse"]
        self._client += ["--omit", f"{YIELDS_S:g}", "--time", f"{seconds - YIELDS_S:g}"]
        self._running: Peer | None = None

    def listen(self):
        """The server, until it is closed."""
        return peer(self._lab.exec("far", self._server), self._logs / "server.log")

    def start(self) -> None:
        self._running = Peer(self._lab.exec("near", self._client), self._logs / "flow.log")

    def bits_per_s(self) -> float:
        """What it carried, once it has ended."""
        self._running.wait(END_S)
        said = json.loads(self._running.output())
        if error := said.get("error"):
            raise LabError(f"iperf3: {error}")
        return said["end"]["sum_received"]["bits_per_second"]


def _alone(line: Line, write: bool, phase_s: float) -> float:
    with place(line) as (lab, logs):
        flow = Flow(lab, logs, write, phase_s)
        with flow.listen() as server:
            server.wait_for_output("listening")
            flow.start()
            time.sleep(phase_s)
            return flow.bits_per_s() / line.payload_bits_per_s(write)


def measure(line: Line, write: bool, phase_s: float) -> Seen:
    """The flow alone, then the transfer with the flow beside it for its middle third."""
    seen = Seen(phase_s, flow_alone=_alone(line, write, phase_s))
    most = line.payload_bits_per_s(write) / 8
    words = ["--time", f"{3 * phase_s:g}s"]
    with place(line) as (lab, logs):
        flow = Flow(lab, logs, write, phase_s)
        direction = "write" if write else "read"
        with flow.listen() as server, policy_run.begun(lab, logs, direction, None, words) as run:
            server.wait_for_output("listening")
            begin_s, counted, counted_s, started = time.monotonic(), carried(lab, write), 0.0, False
            while (now_s := time.monotonic() - begin_s) < 3 * phase_s and run.bench.running():
                if now_s >= phase_s and not started:
                    flow.start()
                    started = True
                time.sleep(EVERY_S)
                bytes_now, at_s = carried(lab, write), time.monotonic() - begin_s
                seen.shares.append((at_s, (bytes_now - counted) / (at_s - counted_s) / most))
                counted, counted_s = bytes_now, at_s
            if not started:
                raise LabError(f"{line.name}: the transfer ended before the flow could begin")
            seen.flow_beside = flow.bits_per_s() / line.payload_bits_per_s(write)
            seen.connections = run.report(END_S)["path"]["connections_wanted"]
    return seen


def row(line: Line, write: bool, seen: list[Seen]) -> list[str]:
    backs = [one.back_s for one in seen]
    numbers = sorted({one.connections for one in seen})
    return [
        *(line.name, "write" if write else "read"),
        *(
            spread([getattr(one, name) for one in seen])
            for name in ("flow_alone", "flow_beside", "kept", "alone", "beside")
        ),
        GAP if None in backs else f"{median(backs):.1f}",
        "–".join(map(str, dict.fromkeys([numbers[0], numbers[-1]]))),
    ]


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="enkaku_lab background", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="LINE", help=", ".join(LINES))
    parser.add_argument("--direction", choices=["read", "write", "both"], default="both")
    parser.add_argument("--phase", type=float, default=30.0, metavar="SECONDS")
    parser.add_argument("--repeat", type=int, default=1, metavar="N")
    parser.add_argument("--docs", type=Path, metavar="DIR", help="write DIR/background.md, too")
    options = parser.parse_args(arguments)
    wanted = chosen(options, LINES)
    if options.phase <= FILLS_S:
        raise LabError(f"a phase takes more than {FILLS_S:g} s: what comes before is not counted")
    wan.need()
    rows = []
    for line, write in wanted:
        seen = [measure(line, write, options.phase) for _ in range(options.repeat)]
        rows.append(row(line, write, seen))
        say(" · ".join(rows[-1]))
    table = render(HEAD, rows)
    print(f"{table}\n{LEGEND}")
    if options.docs:
        page, where = options.docs / "background.md", machine.summary(machine.facts())
        page.write_text(PAGE.format(body=fenced(table, LEGEND), machine=where))
        print(f"Page: {page}")
