"""`python -m enkaku_lab s3-beyond`: a checkpoint every 20 s over the network that training computes on.

Compute nodes go through steps: 1 s of computing, then an all-reduce of 64 MB that all wait for; meanwhile
8 bytes go to and fro. Every 20 s all nodes together copy 1 GB to their target nodes, over the same network:
with tgt and libiscsi, with ours, and with ours and quality of service: a mark (DSCP) at both ends, a class for
it at every line, and a limit at the target. Each beside the same checkpoint with nothing else on the network,
and the same steps without checkpoints.
"""

import argparse
import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from enkaku_lab import cluster, machine, wan
from enkaku_lab.cluster import LATE, MERGED, MESSAGES, PORT, Cluster, Line, Node, Seen
from enkaku_lab.peers import btio, disk_url, enkaku, need, tgt
from enkaku_lab.process import LabError, Peer
from enkaku_lab.progress import say
from enkaku_lab.results import Results, median
from enkaku_lab.table import GAP, fenced, render

RATE_MBIT, REDUCE_BYTES, CHECKPOINT_BYTES = 1000, 64_000_000, 1_000_000_000
"""Of scale 1."""
QUEUE_BYTES, QUEUE_BYTES_LEAST = 256 * 1024, 64 * 1024
"""What a sender with offload gives away at once must fit in at any scale."""
MPI_IO = "OMPIO"
"""Not used; the words of Open MPI name one."""
CHUNK = 1 << 20
MARK = "cs1"
ALONE = "no checkpoints"
RUN_S_MAX = 3600.0
STOCK_AT_ONCE = 8
"""Requests of qemu-img that are under way."""
HEAD = "storage|step (s)|× alone|all-reduce p99 (ms)|8 B p99 (µs)|− alone (µs)|checkpoint (MB/s)|× alone|dropped|late"
LEGEND = f"""step: one with a checkpoint under way, the median; × alone: of steps without checkpoints. all-reduce, 8 B: the
same, p99. checkpoint: all nodes' bytes by the time of the slowest, the median of those that ended; × alone: its
time as a multiple of the same with nothing else on the network. dropped: packets that found a queue full while
steps ran. late: the part of the time in which the emulator was to run and had no processor; * above {LATE:.0%}:
there the machine was the limit."""
PAGE = """# A checkpoint over the network that training computes on

Made by `python -m enkaku_lab s3-beyond --docs docs`; do not edit. {nodes} compute nodes and as many target nodes on one
star, each line {rate}, RTT to the switch {rtt}: {scale:g} of what the title of this study says, so steps are {compute:g} s and an
all-reduce of {reduce:g} MB, checkpoints {checkpoint:g} MB every {period:g} s. QoS: `--dscp {mark}` at both ends, lines with
`--classes {classes}`, and `--max-rate {limit}` at each target. TCP is the system's ({cc}). {machine}

{body}
"""


@dataclass(frozen=True)
class Policy:
    name: str
    ours: bool
    qos: bool = False


STOCK, OURS, QOS = Policy("stock", False), Policy("ours", True), Policy("ours with QoS", True, True)
POLICIES = {"stock": STOCK, "ours": OURS, "qos": QOS}


@dataclass(frozen=True)
class Study:
    scale: float
    nodes: int
    rtt: str
    policies: list[str]
    classes: str
    limit_share: float
    """Of the line, at each target."""
    compute_ms: int
    period_s: float
    seconds: int
    repeat: int

    @property
    def rate_mbit(self) -> float:
        return RATE_MBIT * self.scale

    @property
    def reduce_bytes(self) -> int:
        return int(REDUCE_BYTES * self.scale) // 8 * 8

    @property
    def part_bytes(self) -> int:
        """Of a checkpoint, at each node; whole chunks, as disks have them."""
        return max(1, round(CHECKPOINT_BYTES * self.scale / self.nodes / CHUNK)) * CHUNK

    @property
    def limit(self) -> str:
        return f"{self.rate_mbit * self.limit_share:g}mbit"

    def line(self) -> Line:
        queue = max(QUEUE_BYTES_LEAST, int(QUEUE_BYTES * self.scale))
        return Line(f"{self.rate_mbit:g}mbit", self.rtt, f"{queue}b")

    def words(self, policy: Policy | None) -> list[object]:
        """Of the lab's lines."""
        return [*self.line().words(), *(["--classes", self.classes] if policy and policy.qos else [])]


@dataclass(frozen=True)
class Ran:
    """Steps of one policy, or without checkpoints; seconds of the checkpoints beside them and before."""

    policy: str
    report: dict
    seen: Seen
    alone_s: float | None
    beside_s: list[float]
    lines: dict


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="enkaku_lab s3-beyond", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="STORAGE", help=", ".join(POLICIES))
    parser.add_argument("--quick", action="store_true", help="small, once, for some seconds")
    parser.add_argument(
        "--scale", type=float, default=0.1,
        help="of 1 Gbit/s, 64 MB and 1 GB alike; 1 needs more than two processors [default: 0.1]",
    )
    parser.add_argument("--nodes", type=int, default=2, help="that compute, and targets")
    parser.add_argument("--rtt", default=Line.rtt, help="from a node to the switch and back")
    parser.add_argument("--classes", default="weighted,rest=9,cs1=1", help="of QoS's lines")
    parser.add_argument("--limit", type=float, default=0.8, help="of the line, at QoS's targets")
    parser.add_argument("--compute-ms", type=int, default=1000)
    parser.add_argument("--seconds", type=int, help="of steps [default: 80]")
    parser.add_argument("--repeat", type=int, metavar="N", help="[default: 5]")
    parser.add_argument("--out", type=Path, default=Path("out/s3"), metavar="DIR")
    parser.add_argument("--docs", type=Path, metavar="DIR", help="write DIR/s3-beyond.md, too")
    options = parser.parse_args(arguments)
    quick = options.quick
    study = Study(
        options.scale * (0.2 if quick else 1.0), options.nodes, options.rtt, cluster.chosen(options.names, POLICIES),
        options.classes, options.limit, options.compute_ms // (5 if quick else 1),
        4.0 if quick else 20.0, options.seconds or (6 if quick else 80),
        options.repeat or (1 if quick else 5),
    )
    need_one(study)
    facts = machine.facts()
    results = Results(options.out / "s3-beyond.jsonl", {**facts, **asdict(study)})
    try:
        program = btio.build(options.out / "program").with_name("steps")
        ran = list(measure(study, program, results))
    finally:
        results.close()
    table = render(HEAD.split("|"), rows(study, ran))
    print(f"{table}\n{LEGEND}")
    if options.docs:
        page = options.docs / "s3-beyond.md"
        page.write_text(_page(study, facts, fenced(table, LEGEND)))
        print(f"Page: {page}")


def need_one(study: Study) -> None:
    """Ends the command where it cannot run."""
    if not 0.001 <= study.scale <= 10 or not 2 <= study.nodes <= 32:
        raise LabError("--scale must be from 0.001 to 10, --nodes from 2 to 32")
    cluster.need_one()
    if "stock" in study.policies:
        for program in ("tgtd", "tgtadm", "qemu-img"):
            need(program)


def measure(study: Study, program: Path, results: Results) -> Iterator[Ran]:
    """Repetitions are outermost, so that whatever changes with time does so for all."""
    # In memory: a disk of this machine must not be what limits a checkpoint.
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix=f"steps-{os.getpid()}-") as memory:
        source = Path(memory) / "checkpoint"
        with source.open("wb") as file:
            for _ in range(study.part_bytes // CHUNK):
                file.write(os.urandom(CHUNK))
        for _ in range(study.repeat):
            for name in [None, *study.policies]:
                one = _run(study, name and POLICIES[name], program, source)
                results.add({"kind": "run", **asdict(one)})
                yield one


def _run(study: Study, policy: Policy | None, program: Path, source: Path) -> Ran:
    name = policy.name if policy else ALONE
    with cluster.folder() as folder, _place(study, policy, folder, source) as place:
        checkpoints = Checkpoints(study, policy, place, source)
        alone_s = checkpoints.once() if policy else None
        before = place.seen()
        with checkpoints.again_and_again() if policy else ExitStack():
            report = _steps(study, place, program, checkpoints.flag)
        seen = place.seen().since(before)
        shown = enkaku.report("wan", "show", place.lab.name)
        lines = {way: shown[way] for way in ("near_to_far", "far_to_near")}
    step_s = report["step_beside" if policy else "step"].get("p50_us", 0.0) / 1e6
    say(f"{name}: step {step_s:.2f} s, checkpoints {[round(s, 2) for s in checkpoints.took_s]} s")
    return Ran(name, report, seen, alone_s, checkpoints.took_s, lines)


@contextmanager
def _place(study: Study, policy: Policy | None, folder: Path, source: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        lab = stack.enter_context(wan.star(2 * study.nodes, 1, study.words(policy), folder))
        place = Cluster(lab, MERGED, folder, [], [], [])
        stack.callback(place.end)
        place.computing = [Node(lab, number + 1, folder) for number in range(study.nodes)]
        for number in range(study.nodes) if policy else ():
            disk = cluster.disk(source.with_name(f"disk-{number}"), study.part_bytes)
            stack.callback(disk.unlink)
            stack.enter_context(_target(study, policy, place, number, disk))
        yield place


@contextmanager
def _target(study: Study, policy: Policy, place: Cluster, number: int, disk: Path) -> Iterator[None]:
    """The target node of a compute node."""
    node = study.nodes + number + 1
    if policy.ours:
        limited = ["--dscp", MARK, "--max-rate", study.limit] if policy.qos else []
        serving = cluster.serve(place.lab, node, disk, place.folder, limited)
    else:

        def within(argv: list[object]) -> list[object]:
            return place.lab.exec(f"node{node}", argv)

        serving = tgt.serve(
            [disk], place.folder, address="0.0.0.0", port=PORT, iqn=cluster.iqn(node), within=within
        )
    with serving:
        yield


class Checkpoints:
    """All nodes' at once; `flag` exists while there is one under way."""

    def __init__(self, study: Study, policy: Policy | None, place: Cluster, source: Path):
        self._study, self._policy, self._place, self._source = study, policy, place, source
        self._over = threading.Event()
        self._failed: Exception | None = None
        self.flag = place.folder / "checkpoint-under-way"
        self.took_s: list[float] = []
        """Of those that ended while steps ran."""

    def once(self) -> float:
        """Seconds of one, with nothing else on the network."""
        took_s = self._one()
        if took_s is None:
            raise LabError("a checkpoint did not end")
        return took_s

    @contextmanager
    def again_and_again(self) -> Iterator[None]:
        """One every period, or behind a longer one at once, until the block ends."""
        thread = threading.Thread(target=self._repeat)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()
        if self._failed:
            raise self._failed

    def _repeat(self) -> None:
        try:
            while not self._over.is_set():
                begin = time.monotonic()
                took_s = self._one()
                if took_s is not None:
                    self.took_s.append(took_s)
                self._over.wait(max(0.0, begin + self._study.period_s - time.monotonic()))
        except Exception as error:  # noqa: BLE001 - it is raised where the block ends
            self._failed = error

    def _one(self) -> float | None:
        """Seconds of the slowest node; None where steps were over before."""
        begin = time.monotonic()
        copies = []
        self.flag.touch()
        try:
            for number, node in enumerate(self._place.computing):
                log = self._place.folder / f"copy-{node.name}.log"
                copies.append(Peer(node.inside(self._copy(number)), log))
            while any(copy.running() for copy in copies):
                if self._over.wait(0.01):
                    return None
                if time.monotonic() - begin > RUN_S_MAX:
                    raise LabError("a checkpoint does not end")
            took_s = time.monotonic() - begin
            for copy in copies:
                if code := copy.wait(1.0):
                    raise LabError(f"a checkpoint ended with {code}: {copy.output()[-1000:]}")
            return took_s
        finally:
            for copy in copies:
                copy.stop()
            self.flag.unlink()

    def _copy(self, number: int) -> list[object]:
        node = self._study.nodes + number + 1
        lun = 0 if self._policy.ours else tgt.FIRST_LUN
        url = disk_url(f"{MESSAGES}.{node}:{PORT}", cluster.iqn(node), lun)
        if not self._policy.ours:
            options = ["-n", "-W", "-m", STOCK_AT_ONCE, "-t", "none", "-f", "raw", "-O", "raw"]
            return [need("qemu-img"), "convert", *options, self._source, url]
        argv = [enkaku.binary(), "copy", "--force", self._source, url]
        argv += ["--initiator-name", f"{enkaku.IQN}-{self._place.lab.name}-{number + 1}"]
        return [*argv, *(["--dscp", MARK] if self._policy.qos else [])]


def _steps(study: Study, place: Cluster, program: Path, flag: Path) -> dict:
    path = place.folder / "report.json"
    words = ["--seconds", study.seconds, "--reduce-bytes", study.reduce_bytes, "--beside", flag]
    argv = [program, *words, "--compute-ms", study.compute_ms, "--report", path]
    ran = place.mpirun(list(range(study.nodes)), 1, argv, RUN_S_MAX, MPI_IO)
    if ran.code:
        raise LabError(f"steps ended with {ran.code}: {ran.stderr[-1500:]}")
    return json.loads(path.read_text())


def rows(study: Study, ran: list[Ran]) -> list[list[str]]:
    alone = [one for one in ran if one.policy == ALONE]
    step_s = median([one.report["step"]["p50_us"] for one in alone]) / 1e6
    trip_us = median([one.report["round_trip"]["p99_us"] for one in alone])
    made = [_row(ALONE, alone, "", step_s, trip_us, study)]
    for name in study.policies:
        these = [one for one in ran if one.policy == POLICIES[name].name]
        made.append(_row(POLICIES[name].name, these, "_beside", step_s, trip_us, study))
    return made


def _row(
    name: str, these: list[Ran], which: str, alone_s: float, alone_us: float, study: Study
) -> list[str]:
    def value(what: str, percentile: str) -> float | None:
        values = [one.report[what + which].get(percentile) for one in these]
        known = [value for value in values if value is not None]
        return median(known) if known else None

    step_us, reduce_us, trip_us = value("step", "p50_us"), value("reduce", "p99_us"), value("round_trip", "p99_us")
    took = [seconds for one in these for seconds in one.beside_s]
    before = [one.alone_s for one in these if one.alone_s]
    rate = study.nodes * study.part_bytes / median(took) / 1e6 if took else None
    return [
        name,
        GAP if step_us is None else f"{step_us / 1e6:.3f}",
        GAP if step_us is None or not which else f"{step_us / 1e6 / alone_s:.3f}",
        GAP if reduce_us is None else f"{reduce_us / 1e3:.0f}",
        GAP if trip_us is None else f"{trip_us:.0f}",
        GAP if trip_us is None or not which else f"{trip_us - alone_us:.0f}",
        GAP if rate is None else f"{rate:.1f}",
        GAP if rate is None else f"{median(took) / median(before):.2f}",
        f"{median([one.seen.dropped for one in these]):.0f}",
        cluster.shown_late(max(one.seen.late for one in these)),
    ]


def _page(study: Study, facts: dict, body: str) -> str:
    line = study.line()
    return PAGE.format(
        nodes=study.nodes, rate=line.rate, rtt=line.rtt, scale=study.scale, mark=MARK,
        compute=study.compute_ms / 1e3, reduce=study.reduce_bytes / 1e6, period=study.period_s,
        checkpoint=study.nodes * study.part_bytes / 1e6, classes=study.classes, limit=study.limit,
        cc=facts["sysctl"]["net.ipv4.tcp_congestion_control"], machine=machine.summary(facts), body=body,
    )
