"""The lab itself: its runner with a stack that is made up, and every real stack for a moment.

What the runner must do is shown without a network: order, resuming, what happens to failures, the
report. What the adapters must do is shown with the real programs: what is read is what was written.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import MIB, empty, noise, sha256
from support.processes import that_name, until

from enkaku_lab import commands, curves, docs, experiments, process, report, runner, wan
from enkaku_lab.experiment import (
    FILE_BYTES,
    FULL,
    KIB,
    QUICK,
    Axis,
    Cell,
    Experiment,
    Link,
    Load,
    PaperPoint,
    Series,
)
from enkaku_lab.laboratory import laboratory
from enkaku_lab.peers import disk_url, enkaku, qemu, tgt
from enkaku_lab.process import LabError, free_port
from enkaku_lab.results import quartiles
from enkaku_lab.stacks import GaveUp, Place
from enkaku_lab.stacks.all import STACKS
from enkaku_lab.store import Store

MODULE = [sys.executable, "-m", "enkaku_lab"]
FACTS = {
    "taken": "2026-01-02T03:04:05Z",
    "processor": "abacus",
    "cores": 2,
    "memory_bytes": 1 << 34,
    "kernel": "6.0",
    "sysctl": {},
    "versions": {},
}


def _sentence(found: curves.Curves) -> str:
    return f"fast has {found.get('fast').at(10)} at 10 ms"


FAKE = Experiment(
    name="fake-fig1",
    title="Nothing <against> RTT",
    source="Nobody 1999, figure 1",
    paper="nothing at all",
    x=Axis("RTT (ms)", "rtt_ms", [0, 10, 100], [0, 10], "zero-log"),
    series=[
        Series("tcp", "fast"),
        Series("enkaku", "middling"),
        Series("nfs", "slow", line="--"),
    ],
    points=[PaperPoint("paper", 10, 40, 50)],
    sentence=_sentence,
)


class Imaginary:
    """A laboratory that answers at once: 8 Mbit/s × the position of the stack's name, a bit more
    in each later repetition; it remembers what it was asked."""

    def __init__(self, broken: dict[str, Exception] | None = None):
        self.asked: list[Cell] = []
        self.broken = broken or {}

    @contextmanager
    def __call__(self, link, place, stacks):
        yield self

    def facts(self) -> dict:
        return {"tcp": {}}

    def measure(self, cell: Cell) -> dict:
        self.asked.append(cell)
        if error := self.broken.get(cell.stack):
            raise error
        rate = MIB * (1 + list(STACKS).index(cell.stack)) + 1000 * len(self.asked)
        reached = {"bytes": rate, "seconds": 1.0, "connections": 1, "verified": True}
        return {"reached": reached, "congestion_control": ["cubic"]}


def _run(store: Store, lab: Imaginary, tmp_path: Path, repeat: int = 1, **stacks) -> int:
    work = runner.jobs([FAKE], FULL, repeat)
    known = {name: Present() for name in STACKS} | stacks
    return runner.measure(work, store, store.begin(FACTS), known, lab, Place(tmp_path))


class Present:
    """What the runner wants to know of a stack."""

    label = "present"
    port = None

    def __init__(self, missing: str | None = None):
        self._missing = missing

    def missing(self) -> str | None:
        return self._missing


def test_stacks_are_interleaved_at_each_link_and_repetitions_are_outermost():
    work = runner.jobs([FAKE], FULL, repeat=2)
    one_round = ["tcp", "enkaku", "nfs"] * 3
    assert [job.cell.stack for job in work] == one_round * 2
    assert [job.repetition for job in work] == [0] * 9 + [1] * 9
    rtts = [job.cell.link.rtt_ms for job in work[:9]]
    assert rtts == [0, 0, 0, 10, 10, 10, 100, 100, 100]


def test_a_cell_that_two_experiments_need_is_measured_once():
    again = replace(FAKE, name="fake-fig2", x=replace(FAKE.x, values=[10, 20]))
    cells = [job.cell for job in runner.jobs([FAKE, again], FULL, repeat=1)]
    assert len(cells) == len(set(cells)) == 9 + 3


def test_a_whole_number_and_its_float_are_one_cell(tmp_path: Path):
    whole, real = (Cell("tcp", Link(rtt_ms=number), Load()) for number in (20, 20.0))
    assert whole == real and whole.key == real.key
    assert whole.key != Cell("tcp", Link(rtt_ms=20.5), Load()).key
    path = tmp_path / "results.jsonl"
    store = Store(path)
    store.failed(store.begin(FACTS), whole, 0, "nothing arrived", gave_up=True)
    assert Store(path).finished(real, 0)


def test_the_default_repetitions_are_those_of_pace_and_experiment():
    assert len(runner.jobs([FAKE], FULL)) == 9 * FULL.repeat
    assert len(runner.jobs([replace(FAKE, repeat_max=1)], FULL)) == 9
    assert len(runner.jobs([FAKE], QUICK)) == 6 * QUICK.repeat


def test_resuming_repeats_nothing_and_a_torn_line_costs_one_measurement(tmp_path: Path):
    path, first = tmp_path / "results.jsonl", Imaginary()
    assert _run(Store(path), first, tmp_path, repeat=2) == 0
    assert len(first.asked) == 18
    again = Imaginary()
    _run(Store(path), again, tmp_path, repeat=2)
    assert again.asked == []
    # A killed run leaves half a line.
    lines = path.read_text().splitlines(keepends=True)
    last = max(n for n, line in enumerate(lines) if '"measurement"' in line)
    path.write_text("".join(lines[:last]) + lines[last][:40])
    torn = Imaginary()
    _run(Store(path), torn, tmp_path, repeat=2)
    assert torn.asked == [first.asked[-1]]
    whole = Store(path)
    assert all(len(whole.of(cell)) == 2 for cell in FAKE.cells(FULL))


def test_more_repetitions_measure_only_the_new_ones(tmp_path: Path):
    path = tmp_path / "results.jsonl"
    _run(Store(path), Imaginary(), tmp_path, repeat=1)
    more = Imaginary()
    _run(Store(path), more, tmp_path, repeat=3)
    assert len(more.asked) == 18


def test_forgotten_cells_are_measured_again(tmp_path: Path):
    path = tmp_path / "results.jsonl"
    _run(Store(path), Imaginary(), tmp_path)
    before = path.read_text()
    Store(path).forget({cell.key for cell in FAKE.cells(FULL)})
    fresh = Imaginary()
    _run(Store(path), fresh, tmp_path)
    assert len(fresh.asked) == 9
    assert path.read_text().startswith(before), "raw results are never removed"


def test_one_stack_that_fails_stops_no_other(tmp_path: Path):
    path = tmp_path / "results.jsonl"
    broken = Imaginary({"nfs": LabError("the server ended with code 1")})
    assert _run(Store(path), broken, tmp_path) == 3
    found = curves.collect(FAKE, FULL, Store(path))
    assert len(found.get("fast").measured) == len(found.get("middling").measured) == 3
    assert found.get("slow").measured == []
    assert found.get("slow").points[0].why == "the server ended with code 1"
    # What failed is tried again by the next run; what is finished is not.
    mended = Imaginary()
    assert _run(Store(path), mended, tmp_path) == 0
    assert {cell.stack for cell in mended.asked} == {"nfs"}


def test_giving_up_is_a_result_and_not_tried_again(tmp_path: Path):
    path = tmp_path / "results.jsonl"
    assert _run(Store(path), Imaginary({"nfs": GaveUp("nothing arrived")}), tmp_path) == 0
    again = Imaginary()
    _run(Store(path), again, tmp_path)
    assert again.asked == []


def test_a_stack_that_cannot_run_says_so_in_figure_and_table(tmp_path: Path):
    store = Store(tmp_path / "results.jsonl")
    lab = Imaginary()
    _run(store, lab, tmp_path, nfs=Present("ganesha.nfsd is not installed (packages.txt)"))
    assert {cell.stack for cell in lab.asked} == {"tcp", "enkaku"}
    page = report.write([FAKE], FULL, store, tmp_path / "report")
    assert page.read_text().count("ganesha.nfsd is not installed (packages.txt)") >= 3
    assert "ganesha.nfsd is not" in (tmp_path / "report/figures/fake-fig1.svg").read_text()


def test_every_adapter_names_what_it_lacks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("enkaku_lab.stacks.shutil.which", lambda *_, **__: None)
    for stack in STACKS.values():
        if stack.programs:
            assert stack.programs[0] in stack.missing()
    monkeypatch.undo()
    monkeypatch.setattr("enkaku_lab.stacks.libraries.ctypes.CDLL", _no_library)
    for name in ("nfs", "smb", "smb1"):
        assert re.search(r"is not installed \(", STACKS[name].missing())


def _no_library(_name: str):
    raise OSError


def test_statistics_are_median_and_quartiles(tmp_path: Path):
    assert quartiles([5.0]) == (5.0, 5.0)
    assert quartiles([1.0, 2.0, 3.0, 4.0, 5.0]) == (2.0, 4.0)
    store = Store(tmp_path / "results.jsonl")
    session = store.begin(FACTS)
    cell = FAKE.cells(FULL)[0]
    for repetition, megabit in enumerate((1, 9, 2)):
        reached = {"bytes": megabit * 125_000, "seconds": 1.0, "connections": 1, "verified": True}
        measured = {"reached": reached, "congestion_control": ["bbr"]}
        store.reached(session, cell, repetition, measured)
    point = curves.collect(FAKE, FULL, store).curves[0].points[0]
    assert (point.mbit, point.low, point.high, point.runs) == (2.0, 1.5, 5.5, 3)
    assert point.congestion_control == ("bbr",)


def test_a_congestion_control_that_was_not_asked_for_is_told(tmp_path: Path):
    store = Store(tmp_path / "results.jsonl")
    _run(store, Imaginary(), tmp_path)
    right = report.congestion_control(curves.collect(FAKE, FULL, store))
    assert "at 9 of 9 points" in right and "NOT" not in right
    wrong = replace(FAKE, link=Link(cc="bbr"))
    session = store.begin(FACTS)
    for cell in wrong.cells(FULL):
        reached = {"bytes": 10**6, "seconds": 1.0, "connections": 1, "verified": True}
        store.reached(session, cell, 0, {"reached": reached, "congestion_control": ["cubic"]})
    told = report.congestion_control(curves.collect(wrong, FULL, store))
    assert "NOT at: fast at 0: cubic instead of bbr" in told


@pytest.mark.parametrize("power", [-1.0, 0.0, -0.5])
def test_the_slope_is_the_exponent(power: float):
    points = [curves.Point(x, 100 * x**power, runs=1) for x in (1, 2, 10, 50)]
    curve = curves.Curve(FAKE.series[0], "", points)
    assert curve.slope(from_x=1) == pytest.approx(power)
    assert curves.Curve(FAKE.series[0], "", points[:1]).slope(from_x=1) is None


def test_the_limit_is_the_payload_rate_of_the_line():
    assert Link(rate="1gbit").payload_bits_per_s == pytest.approx(941.48e6, rel=1e-4)
    assert Link(rate="100mbit").payload_bits_per_s == pytest.approx(94.148e6, rel=1e-4)


def test_the_report_is_complete_and_needs_nothing_else(tmp_path: Path):
    store = Store(tmp_path / "results.jsonl")
    _run(store, Imaginary(), tmp_path, repeat=3)
    page = report.write([FAKE], FULL, store, tmp_path / "report")
    text = page.read_text()
    found = curves.collect(FAKE, FULL, store)
    assert f"fast has {found.get('fast').at(10)} at 10 ms" in text
    assert "Nothing &lt;against&gt; RTT" in text and "<against>" not in text
    assert "Nobody 1999, figure 1" in text and "abacus" in text
    assert "the line (TCP payload)" in text
    assert not re.search(r'(src|href)="(?!#)', text), "refers to another file"
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids)), "two figures share an id"
    for suffix in ("svg", "png"):
        assert (tmp_path / f"report/figures/fake-fig1.{suffix}").stat().st_size > 5000
    for curve in found.curves:
        for point in curve.points:
            assert f"{point.mbit:.1f} [" in text or f"{point.mbit:.0f} [" in text


def test_what_is_committed_is_small_and_says_machine_and_time(tmp_path: Path):
    store = Store(tmp_path / "results.jsonl")
    _run(store, Imaginary(), tmp_path)
    page = docs.write([FAKE], FULL, store, docs.Made((), tmp_path / "docs"))
    assert "`python -m enkaku_lab run all`" in page.read_text()
    page = docs.write([FAKE], FULL, store, docs.Made(("fake-fig1",), tmp_path / "docs"))
    assert "`python -m enkaku_lab run fake-fig1`" in page.read_text()
    assert "`python -m enkaku_lab report --docs docs/docs fake-fig1`" in page.read_text()
    table, figure = sorted((tmp_path / "docs/figures").iterdir())
    assert table.name == "fake-fig1.csv" and "](figures/fake-fig1.csv)" in page.read_text()
    assert figure.stat().st_size <= 100 << 10
    assert f"](figures/{figure.name})" in page.read_text()
    assert "fast has " in page.read_text() and "abacus" in page.read_text()
    assert "abacus" in figure.read_text()
    assert re.search(r"20\d\d-\d\d-\d\d \d\d:\d\d", figure.read_text())


EVERY = list(experiments.load().values())


@pytest.mark.parametrize("experiment", EVERY, ids=lambda one: one.name)
def test_an_experiment_is_well_formed_and_survives_without_results(
    experiment: Experiment, tmp_path: Path
):
    for pace in (QUICK, FULL):
        assert experiment.cells(pace)
        for cell in experiment.cells(pace):
            assert cell.load.kind in STACKS[cell.stack].kinds, cell
        empty = curves.collect(experiment, pace, Store(tmp_path / "none.jsonl"))
        assert report.sentence(empty) == "Nothing was measured yet."
    labels = [series.label for series in experiment.series]
    assert len(labels) == len(set(labels))


@pytest.mark.parametrize("experiment", EVERY, ids=lambda one: one.name)
def test_the_sentence_is_computed_from_the_data(experiment: Experiment, tmp_path: Path):
    """Other numbers, other sentence; and a stack that is missing breaks none of them."""

    def said(seed: int, without: str | None) -> str:
        store = Store(tmp_path / f"{seed}-{without}.jsonl")
        session = store.begin(FACTS)
        for number, cell in enumerate(experiment.cells(FULL)):
            if cell.stack == without:
                continue
            rate = 1000 * (1 + (seed * 7919 * (number + 3)) % 99991)
            reached = {"bytes": rate, "seconds": 1.0, "connections": 1, "verified": False}
            store.reached(session, cell, 0, {"reached": reached, "congestion_control": []})
        return report.sentence(curves.collect(experiment, FULL, store))

    assert said(1, None) != said(2, None)
    for stack in {series.stack for series in experiment.series}:
        assert said(1, stack)


OURS = ["s5-long", "s5-loss", "s5-one", "s5-rtt"]


def test_the_papers_experiments_are_all_there():
    wanted = ["s0-fig4", "s0-guest", "s0-guest-cc", *(f"s1-fig{n}" for n in (2, 3, 5, 6, 7, 8, 9, 10, 11))]
    wanted += [f"s1-guest-{what}" for what in ("block", "loss", "rtt", "window")]
    wanted += ["s1-mirror", "s1-mirror-rtt", "s1-window", "s4-fig3"]
    assert [one.name for one in EVERY] == [*wanted, *OURS, "limits"]
    limits = {(c.link.loss, c.load.connections) for c in experiments.load()["limits"].cells(FULL)}
    assert len(limits) == 4 * 6


@pytest.mark.parametrize("study", ["mirror-outage", "mirror-lag", "mirror-peers", "media-start", "path-gate", "background", "s3-btio", "s3-mixed"])
def test_studies_are_commands_and_name_their_parts(study: str):
    assert "usage: enkaku_lab" in _lab(study, "--help").stdout
    unknown = _lab(study, "nothing")
    assert unknown.returncode == 1 and re.search(r"is called nothing; there are: \w", unknown.stderr)
    assert "Traceback" not in unknown.stderr


def _lab(*words: object, **more) -> subprocess.CompletedProcess:
    return subprocess.run(
        [*MODULE, *map(str, words)], capture_output=True, text=True, check=False, **more
    )


def test_wrong_words_get_one_clear_line(tmp_path: Path):
    unknown = _lab("run", "s9-fig9", "--out", tmp_path)
    assert unknown.returncode == 1
    assert "no experiment is called s9-fig9; there are: s0-fig4" in unknown.stderr
    none = _lab("report", "--out", tmp_path)
    assert none.returncode == 1 and "results.jsonl does not exist" in none.stderr
    assert _lab("run", "limits", "--repeat", "0").returncode == 2
    for done in (unknown, none):
        assert "Traceback" not in done.stderr


def test_two_runs_do_not_share_a_folder(tmp_path: Path):
    with runner.alone(Place(tmp_path)):
        second = _lab("run", "s1-fig2", "--quick", "--out", tmp_path)
    assert second.returncode == 1 and "another run is at work" in second.stderr
    with runner.alone(Place(tmp_path)):
        pass


def test_list_names_everything_with_its_time():
    listed = _lab("list").stdout
    for experiment in EVERY:
        assert re.search(rf"^{experiment.name} +\d+ +\d+\.\d ", listed, re.MULTILINE)
    assert re.search(r"^all +\d+ +\d+\.\d ", listed, re.MULTILINE)


needs_a_lab = pytest.mark.needs("root", "/dev/net/tun", "unshare", "ip")
READ_BYTES = 2 * MIB


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Small files, so that a moment reads them whole."""
    made = Place(tmp_path)
    made.prepare(READ_BYTES)
    return made


def _measure(place: Place, stack: str, link: Link, load: Load) -> dict:
    if reason := STACKS[stack].missing():
        pytest.skip(reason)
    with laboratory(link, place, [stack]) as lab:
        assert lab.unserved == {}
        return lab.measure(Cell(stack, link, load))


@needs_a_lab
@pytest.mark.parametrize("stack", ["enkaku", "tgt-libiscsi", "nfs", "smb", "smb1"])
def test_what_is_read_is_what_was_written(place: Place, stack: str):
    load = Load(block_bytes=48 * KIB, bytes_max=READ_BYTES, seconds_max=20)
    reached = _measure(place, stack, Link(rtt_ms=2), load)
    assert reached["reached"]["bytes"] == READ_BYTES
    assert reached["reached"]["verified"]


@needs_a_lab
def test_what_is_copied_is_what_was_written(place: Place):
    link = Link(rtt_ms=20, rate="100mbit")
    load = Load("read", block_bytes=64 * KIB, depth=2, connections=1, seconds_max=20)
    reached = _measure(place, "enkaku-pipelined", link, load)["reached"]
    assert reached["bytes"] == READ_BYTES and reached["verified"]


@pytest.mark.parametrize("kind", ["file", "copy"])
def test_one_wrong_byte_is_noticed(place: Place, kind: str):
    """The comparison can fail: the reader is given another original than what it reads."""
    other = place.folder / "other.bin"
    content = bytearray(place.data.read_bytes())
    content[MIB + 77] ^= 1
    other.write_bytes(content)
    words = ["--block", 4096, "--bytes", READ_BYTES, "--seconds", 5, "--original", other]
    where = json.dumps(["cp", str(place.data)]) if kind == "copy" else str(place.data)
    done = subprocess.run(
        [*(sys.executable, "-m", "enkaku_lab.reader", kind, where), *map(str, words)],
        input="go\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "is not what was written" in done.stderr


@needs_a_lab
@pytest.mark.parametrize("client", ["enkaku", "libiscsi"])
def test_what_is_written_arrives(client: str, tmp_path: Path):
    """The servers of the write experiments keep what their clients write."""
    source = noise(tmp_path / "source", 8 * MIB, seed=3)
    made = Place(tmp_path, far="127.0.0.1")
    made.prepare(8 * MIB)
    stack = type(STACKS["enkaku" if client == "enkaku" else "tgt-libiscsi"])()
    stack.port = free_port()
    if reason := stack.missing():
        pytest.skip(reason)
    with stack.serve(made):
        if client == "enkaku":
            enkaku.command("copy", source, stack.url(made, 1), "--force")
        else:
            url = disk_url(f"127.0.0.1:{stack.port}", tgt.IQN, tgt.FIRST_LUN + 1)
            qemu.convert(source, url)
    assert sha256(made.scratch) == sha256(source)


@needs_a_lab
@pytest.mark.needs("iperf3", "ss")
@pytest.mark.parametrize("algorithm", ["cubic", "reno"])
def test_congestion_control_is_set_and_seen(place: Place, algorithm: str):
    link = Link(rtt_ms=5, cc=algorithm)
    load = Load(kind="write", connections=3, depth=8, seconds_max=1.0)
    found = _measure(place, "enkaku-pipelined", link, load)
    assert found["congestion_control"] == [algorithm]
    assert found["connections_seen"] == 3


@needs_a_lab
@pytest.mark.needs("iperf3")
def test_a_link_on_which_nothing_arrives_is_a_finding(place: Place):
    link, load = Link(rtt_ms=1, loss=1.0), Load(block_bytes=4 * KIB, seconds_max=0.5)
    if reason := STACKS["nfs"].missing():
        pytest.skip(reason)
    with laboratory(link, place, ["nfs", "tcp"]) as lab:
        with pytest.raises(GaveUp):
            lab.measure(Cell("nfs", link, load))
        # And the lab goes on.
        clean = replace(link, loss=0.0)
        assert lab.measure(Cell("nfs", clean, load))["reached"]["bytes"] > 0


def _left_behind(pid: int, folder: Path) -> list[str]:
    """What the run with this process id could have left: its lab, mounts, copies, processes."""
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or "/run") / "enkaku"
    labs = [str(path) for path in runtime.glob(f"wan-lab-{pid}.sock")]
    mounted = Path("/proc/mounts").read_text().splitlines()
    mounts = [line for line in mounted if str(folder) in line]
    copies = [str(path) for path in (folder / "memory").glob("*")]
    return labs + mounts + copies + that_name(str(folder))


@needs_a_lab
@pytest.mark.needs("iperf3")
def test_a_tiny_run_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The real thing: one experiment of one point, measured, resumed, reported."""
    tiny = replace(
        experiments.load()["s1-fig3"],
        name="tiny",
        x=replace(experiments.load()["s1-fig3"].x, quick=[64 * KIB]),
    )
    monkeypatch.setattr(experiments, "load", lambda: {"tiny": tiny})
    monkeypatch.setattr(commands, "load", lambda: {"tiny": tiny})
    monkeypatch.setattr("enkaku_lab.stacks.FILE_BYTES", 16 * MIB)
    monkeypatch.setattr(Place.prepare, "__defaults__", (64 * MIB,))
    commands.main_run(["tiny", "--quick", "--out", str(tmp_path)])
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    measured = [line for line in lines if "reached" in line]
    assert {line["cell"]["stack"] for line in measured} >= {"enkaku", "enkaku-pipelined"}
    assert all(line["reached"]["bytes"] > 0 for line in measured)
    ours = [line for line in measured if line["cell"]["stack"] == "enkaku"]
    assert all(line["reached"]["verified"] for line in ours)
    assert all(line["congestion_control"] == ["cubic"] for line in ours)
    (lab,) = [line for line in lines if line["kind"] == "lab"]
    assert lab["tcp"]["far"]["tcp_wmem"] == "4096 16384 4194304"
    assert lines[0]["kernel"] and lines[0]["sysctl"] and lines[0]["versions"]["enkaku"]
    page = (tmp_path / "report-quick/index.html").read_text()
    assert "whatever the block size" in page
    commands.main_run(["tiny", "--quick", "--out", str(tmp_path)])
    again = (tmp_path / "results.jsonl").read_text().splitlines()
    assert sum('"reached"' in line for line in again) == len(measured)
    assert _left_behind(os.getpid(), tmp_path) == []


@needs_a_lab
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_run_leaves_nothing_and_loses_nothing(tmp_path: Path, how: signal.Signals):
    results = tmp_path / "results.jsonl"
    made = Place(tmp_path)
    made.served.mkdir()
    for path in (made.data, made.scratch, made.local):
        # Holes are content enough here.
        empty(path, FILE_BYTES)
    argv = [*MODULE, "run", "s1-fig5", "--quick", "--out", str(tmp_path)]
    with (tmp_path / "log").open("w") as log:
        child = subprocess.Popen(argv, stdout=log, stderr=log, start_new_session=True)
    try:
        until(lambda: _measurements(results) >= 2, 120)
        assert len(_left_behind(child.pid, tmp_path)) > 3, "the run is seen while it runs"
        os.kill(child.pid, how)
        child.wait(120)  # with an interrupt, peers are stopped one after the other
    finally:
        child.kill()
        child.wait()
    finished = _measurements(results)
    until(lambda: _left_behind(child.pid, tmp_path) == [], 20)
    assert _measurements(results) == finished >= 2


def _measurements(path: Path) -> int:
    return path.read_text().count('"reached"') if path.exists() else 0


@needs_a_lab
def test_a_lab_goes_when_its_owner_is_killed(tmp_path: Path):
    script = (
        "import sys; from pathlib import Path; from enkaku_lab import wan; "
        "from enkaku_lab.experiment import Link\n"
        f"with wan.up(Link(), Path({str(tmp_path)!r})) as lab: print(lab.name, flush=True); "
        "sys.stdin.read()"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    name = owner.stdout.readline().strip()
    assert name == f"lab-{owner.pid}" and _left_behind(owner.pid, tmp_path)
    owner.kill()
    owner.wait()
    until(lambda: _left_behind(owner.pid, tmp_path) == [], 20)


def test_why_there_is_no_lab_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    refusing = tmp_path / "enkaku"
    refusing.write_text("#!/bin/sh\necho 'enkaku: /dev/net/tun cannot be opened' >&2\nexit 1\n")
    refusing.chmod(0o755)
    monkeypatch.setenv("ENKAKU_BIN", str(refusing))
    assert wan.available() == "/dev/net/tun cannot be opened"


def test_a_free_port_is_none_that_the_kernel_gives_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    port = free_port()
    assert process.PORT_LEAST <= port < int(process.PORTS_GIVEN.read_text().split()[0])
    given = tmp_path / "given"
    monkeypatch.setattr(process, "PORT_LEAST", port)
    monkeypatch.setattr(process, "PORTS_GIVEN", given)
    given.write_text(f"{port + 1}\t60999\n")
    assert free_port() == port
    with socket.create_server(("127.0.0.1", port)), pytest.raises(LabError, match=f"from {port} to {port + 1} is free"):
        free_port()
    given.write_text("1024\t65535\n")
    assert free_port() > 0  # nothing is below
