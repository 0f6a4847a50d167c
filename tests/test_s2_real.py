"""S2 on real TCP: the options that the experiment needs, and every figure once at the pace of CI.

How fast it goes depends on how busy the machine is, so what is compared is what no load can change:
a read takes its storage delay and its round trips at least, and a connection has one read at a time.
"""

import json
import re
from pathlib import Path

import pytest

from enkaku_lab.ns2 import commands, engine, real, study
from enkaku_lab.ns2.engine import MIB, Run
from enkaku_lab.ns2.study import BOTH, Fact, Pace
from enkaku_lab.ns2.windows import sampled
from enkaku_lab.peers import enkaku, need
from enkaku_lab.process import LabError, run

LAB = pytest.mark.needs("root", "/dev/net/tun", "ss", "ip")
QUICK = Pace("quick", "real")
FIGURES = ["s2-fig6", "s2-fig7", *(f"s2-fig{number}" for number in range(10, 19))]


def _lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_trace_has_every_operation_and_the_number_of_connections(tmp_path: Path):
    trace = tmp_path / "trace"
    options = ["--delay", "20ms..30ms", "--delay-seed", 5]
    with enkaku.serve(["mem:16M"], tmp_path, options=options) as target:
        words = ["--rw", "read", "--bs", "1M", "--depth", 1, "--depth-per-connection"]
        words += ["--time", "2s", "--policy", "fixed:3", "--trace", trace]
        said = enkaku.report("bench", target.url(), *words)
    first, *middle, last = _lines(trace)
    assert (first["kind"], last["kind"]) == ("run", "end")
    reads = [line for line in middle if line["kind"] == "read"]
    assert len(reads) == last["operations"] == said["bytes"] / MIB
    # A sleep is never shorter than it was asked for; on loopback all the rest takes little.
    assert min(read["seconds"] for read in reads) >= 0.02
    samples = [line for line in middle if line["kind"] == "sample"]
    assert len(samples) >= 4 and samples[-1]["open"] == samples[-1]["n"] == 3
    carried = sum(
        after["bytes_per_s"] * (after["t_s"] - before["t_s"])
        for before, after in zip(samples, samples[1:], strict=False)
    )
    # What was read, but for the ends of the run and for the moments at which samples were found.
    assert carried == pytest.approx(said["bytes"], rel=0.5)
    assert said["depth_per_connection"] is True


def test_each_connection_has_a_disk_of_its_own(tmp_path: Path):
    """One after the other on one connection; side by side on four."""
    options = ["--delay", "40ms"]
    load = ["--rw", "randread", "--bs", "4k", "--depth", 4, "--time", "1200ms", "--policy"]
    with enkaku.serve(["mem:16M"], tmp_path, options=options) as target:
        one, four = (enkaku.report("bench", target.url(), *load, f"fixed:{n}") for n in (1, 4))
    # 30 reads of 40 ms fill 1.2 s; the four that are under way at its end are counted, too.
    assert one["iops"] * one["seconds"] <= 30 + 4
    # Four commands on one disk wait for each other.
    assert one["lat_us"]["p95"] >= 2.5 * 40e3
    assert four["lat_us"]["p50"] >= 40e3
    assert four["bytes"] > one["bytes"], "four disks do more than one"


def test_socket_buffers_are_those_that_were_asked_for(tmp_path: Path):
    options = ["--send-buffer", "64k", "--receive-buffer", "48k", "--congestion-control", "reno"]
    with enkaku.serve(["mem:16M"], tmp_path, options=options) as target:
        seen = []

        def look(_pid: int) -> None:
            argv = [need("ss"), "-tmnH", "state", "established", f"( sport = :{target.port} )"]
            seen.extend(re.findall(r"rb(\d+),t\d+,tb(\d+)", run(argv).stdout))

        words = ["bench", target.url(), "--time", "1s", "--policy", "fixed:2"]
        words += ["--send-buffer", "32k", "--receive-buffer", "64k", "--json"]
        done = enkaku.command(*words, while_running=look)
    # Linux counts its bookkeeping with the payload: it doubles what it is told.
    assert (str(2 * 48 * 1024), str(2 * 64 * 1024)) in seen
    mine = json.loads(done.stdout)["path"]["connections"]
    sizes = {(one["send_buffer_bytes"], one["receive_buffer_bytes"]) for one in mine}
    assert sizes == {(2 * 32 * 1024, 2 * 64 * 1024)}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["serve", "--lun", "mem:1M", "--delay", "40ms..30ms"], "the first time is the longer one"),
        (["serve", "--lun", "mem:1M", "--delay", "2min"], "more than 60 s"),
        (["serve", "--lun", "mem:1M", "--delay", "30..40"], "has no unit"),
        (["serve", "--lun", "mem:1M", "--delay-seed", "3"], "--delay"),
        (["serve", "--lun", "mem:1M", "--send-buffer", "1k"], "is not from 4k to 1G"),
        (["bench", "iscsi://h/iqn.2026-01.a:b/0", "--receive-buffer", "2G"], "is not from 4k to 1G"),
        (["bench", "iscsi://h/iqn.2026-01.a:b/0", "--measuring-time", "1s"], "is for --policy golden"),
        (["bench", "iscsi://h/iqn.2026-01.a:b/0", "--measuring-time", "0"], "no time to measure in"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(words: list[str], said: str):
    done = enkaku.command(*words, check=False, timeout_s=20)
    assert done.code == 2 and said in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_a_trace_that_cannot_be_written_is_named(tmp_path: Path):
    with enkaku.serve(["mem:1M"], tmp_path) as target:
        words = ["bench", target.url(), "--time", "1s", "--trace", "/nowhere/trace"]
        done = enkaku.command(*words, check=False)
    assert done.code == 2 and "/nowhere/trace" in done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("s2-real")


@pytest.fixture(scope="module")
def performed(folder: Path) -> study.Performed:
    """Every figure that real TCP has, measured once for all tests."""
    studies = [one for one in commands.load().values() if "real" in one.engines]
    assert [one.name for one in studies] == FIGURES
    return study.perform(studies, QUICK, folder, "real")


@LAB
def test_every_figure_is_drawn_from_real_tcp(folder: Path, performed: study.Performed):
    assert [one.name for one, _, _ in performed] == FIGURES
    for one, svg, sentence in performed:
        assert "Linux's Reno" in svg.read_text().replace("&#x27;", "'"), one.name
        assert any(c.isdigit() for c in sentence) and "nan" not in sentence, sentence
    page = (folder / "report-quick-real.md").read_text()
    assert all(f"## {name}:" in page for name in FIGURES)
    assert not list((folder / "real").glob("*.part")), "nothing half done is left"


@LAB
def test_what_was_measured_is_the_studys_network(folder: Path, performed: study.Performed):
    one = next(each for each, _, _ in performed if each.name == "s2-fig6")
    for run_, result in real.results(one.runs(QUICK), folder / "real").items():
        assert result.head["congestion_control"] == ["reno"]
        path = result.head["report"]["path"]
        assert path["connections_open"] == run_.n
        assert {each["receive_buffer_bytes"] for each in path["connections"]} == {2 * 49 * 1024}
        # A kernel may make another window of it; that of 6.18 is 64 KB, the study's.
        window = result.head["window_bytes"]
        assert 32 * 1024 <= window <= 2 * 49 * 1024
        assert min(each["min_rtt_us"] for each in path["connections"]) >= 10_000
        # Storage of 30 ms, and then 1 MiB in windows of what the buffer can be at most.
        least_s = 0.030 + 0.010 * (MIB / (2 * 49 * 1024) - 1)
        assert min(read["seconds"] for read in result.reads) >= least_s
        # One read at a time on each connection: together they cannot have taken longer than was.
        busy_s = sum(read["seconds"] for read in result.reads)
        assert busy_s <= run_.n * (max(read["t_s"] for read in result.reads) + 0.1)
        assert result.head["line"]["bytes"] >= len(result.reads) * MIB


@LAB
def test_golden_searches_and_the_windows_of_connections_are_kept(
    folder: Path, performed: study.Performed
):
    one = next(each for each, _, _ in performed if each.name == "s2-fig13")
    ((run_, result),) = real.results(one.runs(QUICK), folder / "real").items()
    assert run_.policy == "golden" and result.head["report"]["path"]["policy"] == "golden"
    wanted = {sample["n"] for sample in result.samples}
    assert {4, 8} <= wanted and max(wanted) <= real.CONNECTIONS_MAX
    windows = [each["cwnd"] for sample in result.samples for each in sample["traced"]]
    assert len(windows) > 20 and all(window > 0 for window in windows)


@LAB
def test_a_finished_run_is_not_measured_again(
    folder: Path, performed: study.Performed, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(real.wan, "up", None)
    again = study.perform([performed[0][0]], QUICK, folder, "real")
    assert again[0][2] == performed[0][2]


@LAB
@pytest.mark.needs("ns")
def test_both_engines_are_compared_where_both_have_run(folder: Path, performed: study.Performed):
    one = next(each for each, _, _ in performed if each.name == "s2-fig6")
    both = study.perform([one], QUICK, folder, "ns2")
    assert [each.name for each, _, _ in both] == ["s2-fig6", "s2-fig6"]
    _, svg, said = both[1]
    assert svg.stem == "s2-fig6-both" and "ns-2 and real TCP" in said and "| ns-2 |" in said
    assert "the time of 20 reads at N = 4" in said
    docs = folder / "docs"
    commands.main(["s2-fig6", "--quick", "--out", str(folder), "--docs", str(docs)])
    page = (docs / "engines.md").read_text()
    assert "A quick run" in page and said in page
    assert (docs / "s2-fig6-both.svg").exists() or (docs / "s2-fig6-both.png").exists()
    assert "the time of 20 reads at N = 4" in (docs / "engines.csv").read_text()
    # What ns-2 alone says has a page of its own, each figure once.
    assert (docs / "ns2.md").read_text().count("## s2-fig6:") == 1


def test_agreement_is_a_sentence_about_numbers_within_their_tolerance():
    def facts(rate: float, n: float) -> dict[str, Fact]:
        return {"the rate": Fact(rate, "Mbit/s", 0.1), "N": Fact(n, "", 0.1), "x": Fact(float("nan"), "", 1)}

    said = study.agreement({"ns2": facts(100, 40), "real": facts(109, 50)})
    assert said == (
        "ns-2 and real TCP agree on the rate (100 Mbit/s against 109 Mbit/s) "
        "and differ in N (40 against 50)."
    )
    rows = study.facts_table({"ns2": facts(100, 40), "real": facts(111, 40)}).splitlines()
    assert rows[2].endswith("| no |") and rows[3].endswith("| yes |") and rows[4].endswith("|  |")
    assert BOTH not in study.ENGINES


def test_windows_are_read_from_what_ss_says():
    text = (
        "0      512   10.77.0.2:3260 10.77.0.1:40000\n"
        "\t reno wscale:7,7 rto:212 rtt:10.1/0.2 mss:1448 cwnd:44 ssthresh:22 bytes_acked:123456 snd_wnd:64000\n"
        "0      0     [::ffff:10.77.0.2]:3260 [::ffff:10.77.0.1]:40002\n"
        "\t bbr wscale:7,7 cwnd:10\n"
    )
    first, second = sampled(text)
    assert first == {
        "peer": "10.77.0.1:40000",
        "congestion_control": "reno",
        "cwnd": 44,
        "window": 64000,
        "acked": 123456,
    }
    assert (second["congestion_control"], second["window"], second["acked"]) == ("bbr", 0, 0)


def test_what_real_tcp_cannot_do_is_said(tmp_path: Path):
    with pytest.raises(LabError, match="at most 64 connections"):
        real.results([Run(n=96)], tmp_path)
    with pytest.raises(LabError, match="does not change"):
        real.results([Run(steps="1 rate 1e8")], tmp_path)
    assert engine.stored([Run(seconds=0.25)], tmp_path) is None
