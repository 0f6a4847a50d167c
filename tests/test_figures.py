"""What is committed of the lab: every figure has its numbers beside it, says what was measured, and
a page says what these numbers say."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from enkaku_lab import (
    REPOSITORY,
    claims,
    commands,
    data,
    demo,
    docs,
    experiments,
    findings,
    packets,
    plot,
    report,
    review,
    runner,
    s3_figures,
    stale,
    story,
)
from enkaku_lab.curves import collect
from enkaku_lab.experiment import QUICK, RATES, Experiment, Link
from enkaku_lab.experiments import common, s1_fig5, s2_fig7, s4_fig3
from enkaku_lab.in_guest import senders
from enkaku_lab.ns2 import commands as s2
from enkaku_lab.ns2 import scatter, study
from enkaku_lab.process import LabError
from enkaku_lab.stacks import Place
from enkaku_lab.stacks.all import STACKS
from enkaku_lab.store import Store

DOCS = REPOSITORY / "docs"
PAGES = [page for page in ("lab", "long-fat", "mirror", "guest") if (DOCS / page / "README.md").exists()]
KNOWN = experiments.load()
CURVES = [path for page in PAGES for path in sorted((DOCS / page / "figures").glob("*.csv"))]


def _experiment(path: Path) -> Experiment:
    return KNOWN[path.stem]


@pytest.mark.parametrize("path", CURVES, ids=lambda path: path.stem)
def test_a_figure_says_machine_date_commit_and_the_length_of_a_run(path: Path):
    head = data.read(path).head
    assert head["figure"] == path.stem and "core" in head["machine"]
    assert re.match(r"20\d\d-\d\d-\d\d", head["taken"]) and re.match(r"[0-9a-f]{7}", head["commit"])
    assert "round trips" in head["run"] and head.get("shrunk", "of") != ""
    figure = path.with_suffix(".svg").read_text()
    for word in (head["taken"][:10], f"commit {head['commit'].split()[0]}", "a run: at most"):
        assert word in figure, word


@pytest.mark.parametrize("page", PAGES)
def test_a_page_says_what_the_numbers_beside_its_figures_say(page: str, tmp_path: Path):
    committed = (DOCS / page / "README.md").read_text()
    copy = tmp_path / page / "figures"
    copy.mkdir(parents=True)
    for path in (DOCS / page / "figures").glob("*.csv"):
        (copy / path.name).write_bytes(path.read_bytes())
    again = docs.again(list(KNOWN.values()), tmp_path / page).read_text()
    # Whether a figure is old depends on the history, which a shallow clone does not have.
    told = [line for line in again.splitlines() if not line.startswith("**Older than")]
    for line in told:
        assert line in committed, (
            f"docs/{page}/README.md is to be written again: report --again docs/{page}"
        )


@pytest.mark.parametrize("path", CURVES, ids=lambda path: path.stem)
def test_numbers_survive_being_read_and_drawn_again(path: Path, tmp_path: Path):
    curves = data.read_curves(path, _experiment(path))
    plot.draw(curves, tmp_path / path.stem)
    before, after = data.read(path), data.read(tmp_path / path.name)
    assert after.head == before.head
    assert [row for row in after.rows if row["why"] != data.NOT_YET] == before.rows


@pytest.mark.parametrize("name", [name for name in KNOWN if "-fig" in name])
def test_what_the_paper_says_is_judged_with_numbers(name: str):
    (path,) = [path for path in CURVES if path.stem == name]
    curves = data.read_curves(path, KNOWN[name])
    found = KNOWN[name].claims(curves)
    assert found and all(one.says and re.search(r"\d", one.found) for one in found)
    assert {one.verdict for one in found} <= {
        claims.CONFIRMED,
        claims.NOT_CONFIRMED,
        claims.NOT_MEASURED,
    }


def test_a_file_that_is_none_of_ours_is_named(tmp_path: Path):
    path = tmp_path / "s1-fig5.csv"
    path.write_text("x,mbit\n1,2\n")
    with pytest.raises(LabError, match="s1-fig5.csv: no head"):
        data.read(path)
    data.write(path, {"figure": "s1-fig6"}, data.COLUMNS, [[""] * len(data.COLUMNS)])
    with pytest.raises(LabError, match="of s1-fig6, not of s1-fig5"):
        data.read_curves(path, s1_fig5.EXPERIMENT)


def test_two_points_tell_one_request_and_what_it_takes_beside_the_round_trip():
    # The paper's own: 101 to 104 Mbit/s at 2.8 ms, about 40 at 16 ms.
    paper = common.one_request([(2.8, 102.5), (16, 40)])
    assert paper.request_kib == pytest.approx(105.7, abs=0.5)
    assert paper.more_ms == pytest.approx(5.65, abs=0.05)
    assert paper.mbit(16) == pytest.approx(40) and paper.mbit(2.8) == pytest.approx(102.5)
    assert common.one_request([(2.8, 100), (16, 100)]) is None
    assert common.one_request([(2.8, 100)]) is None


def test_windows_that_were_wider_than_the_papers_judge_nothing_about_them(tmp_path: Path):
    path = tmp_path / "s4-fig3.csv"
    text = (DOCS / "lab/figures/s4-fig3.csv").read_text()
    for held, wider in [("64 KB", "84 KB"), ("128 KB", "171 KB")]:
        text = text.replace(f"receive window {held}", f"receive window {wider}")
    path.write_text(text)
    large, small, smb = s4_fig3.EXPERIMENT.claims(data.read_curves(path, s4_fig3.EXPERIMENT))
    assert large.verdict == small.verdict == claims.NOT_MEASURED
    assert smb.verdict == claims.CONFIRMED


def _git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=lab", "-c", "user.email=lab@example.org"]
    done = subprocess.run(
        ["git", "-C", str(folder), *identity, *words], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_a_figure_is_old_when_what_its_stacks_run_has_changed(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setattr(stale, "REPOSITORY", tmp_path)
    _git(tmp_path, "init", "-q")
    source = tmp_path / "crates/iscsi/src/lib.rs"
    source.parent.mkdir(parents=True)
    source.write_text("1")
    _git(tmp_path, "add", ".")
    _git(tmp_path, "commit", "-qm", "iscsi: one")
    first = _git(tmp_path, "rev-parse", "--short", "HEAD")
    assert stale.words(first, {"enkaku"}) == ""
    source.write_text("2")
    _git(tmp_path, "commit", "-qam", "iscsi: two")
    assert "Older than the code" in stale.words(f"{first}+", {"enkaku-pipelined"})
    assert stale.words(first, {"tcp"}) == stale.words(first, {"ns2"}) == ""
    # Nothing is known of it: nothing is said on the page, and the list says why.
    assert stale.words("", {"enkaku"}) == stale.words("0000000", {"enkaku"}) == ""
    row = [[*("", "a", "enkaku", 0, 1, 1, 1, 1, 1, "", "", "")]]
    for name, commit in (("old", first), ("lost", "")):
        data.write(
            tmp_path / f"docs/{name}.csv", {"figure": name, "commit": commit}, data.COLUMNS, row
        )
    stale.main(["--docs", str(tmp_path / "docs")])
    listed = capsys.readouterr().out
    assert re.search(r"old .*1 .*iscsi: two", listed) and re.search(r"lost .*was not kept", listed)


DRAWN = sorted((DOCS / "tuner").glob("s2-*.csv"))


@pytest.mark.parametrize("path", DRAWN, ids=lambda path: path.stem)
def test_a_figure_of_a_simulation_says_its_runs_commit_and_what_the_paper_says(path: Path):
    head = data.read(path).head
    assert head["runs"] and re.match(r"[0-9a-f]{7,40}([+ ]|$)", head["commit"]), head.get("commit")
    judged = claims.of_head(head)
    # The paper says nothing of our own; and each engine is judged by itself, not both together.
    assert judged or head["paper"] == "ours" or path.stem.endswith("-both"), path
    # The page has the same words.
    page = (DOCS / "tuner/ns2.md").read_text()
    if f"## {path.stem}:" in page:
        assert all(str(one) in page for one in judged)


def test_the_packets_page_says_what_its_numbers_say(tmp_path: Path):
    folder = tmp_path / "packets"
    shutil.copytree(DOCS / "packets", folder)
    packets.again(list(packets.load().values()), folder)
    assert (folder / "README.md").read_text() == (DOCS / "packets/README.md").read_text()


def test_the_page_of_the_kernels_log_says_what_its_numbers_say(tmp_path: Path):
    folder = DOCS / "guest"
    for path in folder.glob("s0-*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    senders.again(list(senders.load().values()), tmp_path)
    assert (tmp_path / senders.PAGE).read_text() == (folder / senders.PAGE).read_text()


def test_the_page_of_findings_is_what_the_numbers_say():
    assert findings.page(DOCS) == (DOCS / "findings.md").read_text(), (
        "python -m enkaku_lab findings"
    )
    rows = [line for line in findings.page(DOCS).splitlines() if re.match(r"\| .*\*\*", line)]
    assert 30 <= len(rows) <= 70
    links = re.findall(r"\]\(([^)]+)\)", findings.page(DOCS))
    assert all((DOCS / link).exists() for link in links), links


@pytest.mark.parametrize("name", packets.load())
def test_what_the_paper_says_of_packets_is_judged(name: str):
    trace = packets.load()[name]
    for numbers in (story.Numbers([]), findings.Committed(DOCS).numbers):
        found = trace.claims(numbers)
        assert found and all(one.says for one in found)
        # Without numbers nothing is confirmed.
        assert numbers.rows or {one.verdict for one in found} == {claims.NOT_MEASURED}


QUOTED = [
    (
        "docs/tuner.md",
        r"rises by (\d+) Mbit/s per connection",
        "s2-fig7",
        lambda rows: _at(rows, 1, 1) / 1,
        0.02,
    ),
    (
        "docs/tuner.md",
        r"lies within 2 % of (\d+) Mbit/s from N = 32",
        "s2-fig7",
        lambda rows: max(_ys(rows, 1)),
        0.005,
    ),
    (
        "docs/tuner.md",
        r"with Tm = 5 s N = (\d+) to 90",
        "s2-fig11",
        lambda rows: min(_ys(rows, 2, 3)),
        0,
    ),
    (
        "docs/tuner.md",
        r"with Tm = 5 s N = 36 to (\d+)",
        "s2-fig11",
        lambda rows: max(_ys(rows, 2, 3)),
        0,
    ),
    (
        "docs/tuner.md",
        r"with Tm = 1 s 37 to (\d+)",
        "s2-fig11",
        lambda rows: max(_ys(rows, 2, 1)),
        0,
    ),
]
"""Numbers that guides quote: where, which, and what the CSV has of them."""


REAL_QUOTED = [
    (
        r"\((\d+) and \d+ Mbit/s per connection",
        "throughput of one connection below the plateau",
        "ns2",
    ),
    (
        r"\(\d+ and (\d+) Mbit/s per connection",
        "throughput of one connection below the plateau",
        "real",
    ),
    (r"95 % of the plateau from N = (\d+) and", "the fewest N with 95 % of the plateau", "ns2"),
    (
        r"95 % of the plateau from N = \d+ and (\d+) on",
        "the fewest N with 95 % of the plateau",
        "real",
    ),
    (r"and the plateau is (\d+) %", "the plateau as part of the line", "real"),
    (r"at N = 64 ns-2 keeps (\d+) %", "what is left of the plateau at N = 64", "ns2"),
    (
        r"keeps \d+ % of the plateau, real TCP (\d+) %",
        "what is left of the plateau at N = 64",
        "real",
    ),
    (r"N = (\d+) for Tm of 5 s", "the median N at the end, Tm = 5 s", "real"),
    (r"N = \d+ for Tm of 5 s, ([\d.]+) for 1 s", "the median N at the end, Tm = 1 s", "real"),
]


@pytest.mark.parametrize(("words", "fact", "engine"), REAL_QUOTED, ids=lambda one: str(one)[:40])
def test_numbers_of_both_engines_in_the_guide_are_those_that_are_kept(words, fact, engine):
    (quoted,) = re.findall(words, (DOCS / "tuner.md").read_text())
    (row,) = [row for row in data.read(DOCS / "tuner/engines.csv").rows if row["fact"] == fact]
    assert float(quoted) == pytest.approx(float(row[engine]), abs=0.5)


def test_the_page_of_both_engines_has_the_numbers_that_are_kept():
    page = (DOCS / "tuner/engines.md").read_text()
    for row in data.read(DOCS / "tuner/engines.csv").rows:
        for engine in ("ns2", "real"):
            shown = study.Fact(float(row[engine]), row["unit"], 0) if row[engine] else "–"
            assert f"{shown} |" in page, (row["figure"], row["fact"], shown)


def _ys(rows: list[dict], axes: int, series: int = 1) -> list[float]:
    return [
        float(row["y"]) for row in rows if (row["axes"], row["series"]) == (str(axes), str(series))
    ]


def _at(rows: list[dict], axes: int, x: float) -> float:
    return next(
        float(row["y"]) for row in rows if row["axes"] == str(axes) and float(row["x"]) == x
    )


@pytest.mark.parametrize(
    ("page", "words", "figure", "value", "off"), QUOTED, ids=lambda one: str(one)[:40]
)
def test_numbers_that_guides_quote_are_those_of_the_figures(page, words, figure, value, off):
    (quoted,) = re.findall(words, (REPOSITORY / page).read_text())
    told = value(data.read(DOCS / "tuner" / f"{figure}.csv").rows)
    assert float(quoted) == pytest.approx(told, rel=off or 1e-9, abs=0.5)


RATE = re.compile(r"(?<![\w.])(\d[\d.]*) (Mbit/s|Gbit/s|MB/s)")
MBIT = {"Mbit/s": 1, "Gbit/s": 1000, "MB/s": 8}
LINE = re.compile(r"^<!-- guide: line .*--rate (\w+)", re.MULTILINE)


@pytest.mark.parametrize("path", [REPOSITORY / "README.md", *sorted((DOCS / "guides").glob("*.md"))], ids=lambda path: path.stem)
def test_a_rate_that_readme_or_a_guide_quotes_is_its_lines(path: Path):
    """What is measured stands in tables and blocks, which other tests compare; sentences say what the
    line is, and what it carries."""
    text = path.read_text()
    line = (LINE.findall(text) or [demo.RATE])[0]
    allowed = [RATES[rate] / 1e6 for rate in (line, demo.RATE)] + [Link(rate=line).payload_bits_per_s / 1e6]
    for number, unit in RATE.findall(re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)):
        quoted = float(number) * MBIT[unit]
        assert any(quoted == pytest.approx(one, rel=0.005) for one in allowed), f"{number} {unit}: where is it from?"


STACKS_OF_README = {
    "plain TCP (iperf3)": ("plain TCP, 1 connection", "plain TCP, 8 connections"),
    "tgt + libiscsi": ("tgt + libiscsi, defaults", "tgt + libiscsi, depth 32", "tgt + libiscsi"),
    "enkaku copy": ("enkaku, auto", "enkaku, 8 × 4 MiB under way"),
}
"""A row of README's table, and the curves of the lab that have the same stack."""


def _at_50_ms(labels: tuple[str, ...]) -> list[float]:
    rows = [row for name in ("lab/figures/s0-fig4.csv", "long-fat/figures/s5-rtt.csv", "lab/figures/s1-fig5.csv") for row in data.read(DOCS / name).rows]
    return [float(row["mbit"]) for row in rows if row["series"] in labels and float(row["x"]) in (40, 50) and row["mbit"]]


def test_the_numbers_of_readme_are_those_of_its_figure_and_no_other_figure_contradicts_them():
    found = re.findall(r"^\| \**([^|*]+?)\**(?: \(`[^|]*)? \| (\d*) ?\| \**([\d.]+)\** \| \**([\d.]+)\** \|$", (REPOSITORY / "README.md").read_text(), re.MULTILINE)
    assert [name for name, *_ in found] == ["the line (TCP payload)", *["plain TCP (iperf3)"] * 2, "tgt + libiscsi", "enkaku copy"]
    drawn = re.findall(r">(\d+)</text>", (DOCS / "figures/demo.svg").read_text())
    assert {found[0][2], found[0][3]} == {f"{demo.LIMIT_BYTES_PER_S / 1e6:.1f}"}
    for name, connections, *rates in found[1:]:
        assert all(f"{float(rate):.0f}" in drawn for rate in rates), (name, drawn)
        others = _at_50_ms(STACKS_OF_README[name])
        # These count a whole file, slow start and login; the figures a steady state or a second.
        assert others and all(min(others) / 2 < float(rate) * 8 < max(others) * 1.1 for rate in rates), (name, connections, rates, others)


def test_the_page_of_the_papers_figures_is_what_is_committed():
    assert review.page(DOCS) == (DOCS / review.PAGE).read_text(), "python -m enkaku_lab review"
    assert sum(one.figures for one in review.EVERY) == 41
    assert {one.name for one in review.EVERY if not one.name.startswith("s3-")} == {name for name in review.every() if "-fig" in name}
    assert sum(one.figures for one in review.EVERY if one.study) == 9 and {one.study for one in review.EVERY} - {""} == set(commands.S3)
    links = re.findall(r"\]\(([^)]+)\)", review.page(DOCS))
    assert all((DOCS / link).exists() for link in links), links
    # Judged is whatever is there.
    rows = [line for line in review.page(DOCS).splitlines() if line.startswith("| [")]
    assert rows and all(re.search(r"\d (yes|no|open) \|$", line) for line in rows)


def test_without_numbers_the_page_of_the_papers_figures_says_so(tmp_path: Path):
    assert review.ours(tmp_path, "s0-fig17") is None
    shown = review.EVERY[-1]
    assert review.row(shown, None).startswith("| s4-fig3 | Throughput") and review.row(shown, None).endswith("| – |")
    found = review.Ours("x", "a", "1 s", ["Not measured yet: b"], [claims.judged("s", True, "1"), claims.not_measured("s", "1")])
    assert review.row(shown, found).endswith(f"{shown.differs}. Not measured yet: b | 1 yes, 1 open |")


def test_what_pip_installs_has_every_file_of_the_lab():
    with (REPOSITORY / "lab/pyproject.toml").open("rb") as file:
        setuptools = tomllib.load(file)["tool"]["setuptools"]
    lab = REPOSITORY / "lab/enkaku_lab"
    packages = {path.parent.relative_to(lab.parent).as_posix().replace("/", ".") for path in lab.rglob("__init__.py")}
    assert packages == set(setuptools["packages"])
    carried = {path for name, patterns in setuptools["package-data"].items() for pattern in patterns for path in (lab.parent / name.replace(".", "/")).glob(pattern)}
    others = {path for path in lab.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert others == carried


def test_the_notebook_draws_a_figure_from_a_csv(tmp_path: Path):
    book = json.loads((REPOSITORY / "lab/figure.ipynb").read_text())
    assert book["nbformat"] == 4 and not any(cell.get("outputs") for cell in book["cells"])
    code = ["".join(cell["source"]) for cell in book["cells"] if cell["cell_type"] == "code"]
    script = "\n".join([*code, "print(len(plt.gca().lines))"])
    env = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "MPLBACKEND": "agg", "PYTHONPATH": "."}
    done = subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY / "lab", env=env, capture_output=True, text=True, check=True)
    request, lines = done.stdout.splitlines()
    # As on the page of findings.
    (told,) = re.findall(r"one request of (\d+ KiB) per RTT", findings.Committed(DOCS).claim("s1-fig5", 2).found)
    assert told in request and int(lines) > 5


@pytest.mark.parametrize("path", ["lab/figures/s1-fig7.csv", "tuner/s2-fig7.csv"])
def test_a_figure_can_be_drawn_without_the_lab(path: str, tmp_path: Path):
    argv = [
        sys.executable,
        REPOSITORY / "lab/draw_csv.py",
        DOCS / path,
        "-o",
        tmp_path / "figure.png",
    ]
    subprocess.run(argv, check=True, env={"HOME": str(tmp_path), "PATH": os.environ["PATH"]})
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    wrong = subprocess.run(
        [*argv[:2], DOCS / "packets/s0-numbers.csv"], capture_output=True, text=True
    )
    assert wrong.returncode == 1 and "neither curves" in wrong.stderr


def test_the_first_false_peak_is_found_and_the_best_is_none():
    assert s2_fig7.false_peaks({1: 10, 2: 100, 3: 80, 4: 95, 5: 60}) == [4]
    assert s2_fig7.false_peaks({1: 10, 2: 50, 3: 40, 4: 100, 5: 99}) == []
    assert s2_fig7.false_peaks({1: 10, 2: 100, 3: 97, 4: 99, 5: 98}) == []


def test_read_times_are_two_groups_only_where_few_lie_between():
    one = [1 + 0.001 * (index % 100) for index in range(2000)]
    two = [*one, *(time + 1 for time in one[:1000])]
    assert scatter.groups(one) is None and scatter.groups(one[:50]) is None
    assert 1.1 < scatter.groups(two) < 2.0


@pytest.mark.needs("ns")
def test_one_command_runs_each_kind_of_experiment(tmp_path: Path, monkeypatch, capsys):
    with pytest.raises(LabError, match="called s9-fig9; there are: s0-fig4.* s0-fig8.* s2-fig6"):
        commands.main_run(["s2-fig6", "s9-fig9", "--out", str(tmp_path)])
    done = []
    monkeypatch.setattr(
        commands, "_run", lambda chosen, *_: done.append([one.name for one in chosen])
    )
    drawn = tmp_path / "README.md"
    monkeypatch.setattr(
        packets, "perform", lambda chosen, *_: done.append([one.name for one in chosen]) or drawn
    )
    commands.main_run(["s0-fig9", "s2-fig6", "limits", "--quick", "--out", str(tmp_path)])
    assert done == [["limits"], ["s0-fig9"]]
    assert (tmp_path / "s2/figures-quick/s2-fig6.csv").exists()
    assert "report-quick-ns2.md" in capsys.readouterr().out
    # All is what `list` counts, too.
    done.clear()
    monkeypatch.setattr(
        commands, "_run_s2", lambda chosen, *_: done.append([one.name for one in chosen])
    )
    monkeypatch.setattr(
        senders, "perform", lambda chosen, *_: done.append([one.name for one in chosen]) or drawn
    )
    monkeypatch.setattr(commands, "_run_s3", lambda name, *_: done.append([name]))
    commands.main_run(["all", "--out", str(tmp_path)])
    assert done == [list(KNOWN), list(packets.load()), list(senders.load()), list(s2.load()), *([name] for name in commands.S3)]
    assert len([name for names in done for name in names if "-fig" in name]) == 32
    done.clear()
    commands.main_run(["all", "--quick", "--out", str(tmp_path)])
    assert len(done) == 4


@pytest.mark.parametrize("lacks", ["", "needs root"])
def test_a_study_on_a_cluster_is_run_once(lacks: str, tmp_path: Path, monkeypatch, capsys):
    ran = []

    class Study:
        @staticmethod
        def main(words: list[str]) -> None:
            ran.append(words)
            (Path(words[words.index("--docs") + 1]) / "s3-btio.md").write_text("page")

    monkeypatch.setattr(commands, "S3", {"s3-btio": Study})
    monkeypatch.setattr(commands.cluster, "missing", lambda: lacks)
    for more in ([], [], ["--fresh"]):
        commands.main_run(["s3-btio", "--quick", *more, "--out", str(tmp_path)])
    assert len(ran) == (0 if lacks else 2) and all("--quick" in words for words in ran)
    told = capsys.readouterr()
    assert ("skipped: needs root" in told.err) if lacks else told.out.count("s3/quick/s3-btio.md") == 3


def _runs(**by_shape: float) -> dict[tuple[str, str], list[float]]:
    """Run times of each subtype: a local disk's, and multiples of it."""
    more = {"simple": 3.0, "fortran": 2.0, "epio": 1.5}
    return {(subtype, shape): [factor * (1 if shape == "local" else times), factor] for subtype, times in more.items() for shape, factor in by_shape.items()}


def test_figures_of_the_cluster_are_drawn_and_judged(tmp_path: Path):
    head = s3_figures.head_of({"commit": "1234567", "taken": "2026-01-02"}, "2 cores", "class W")
    took = _runs(local=10.0, separate=10.0, merged=10.2)
    path = tmp_path / "s3-btio"
    merging, slower = s3_figures.btio(path, head, took, took, 0.0)
    assert merging.verdict == slower.verdict == claims.CONFIRMED and "simple 1.02" in merging.found
    assert claims.of_head(data.read(path.with_suffix(".csv")).head) == [merging, slower]
    assert s3_figures.of_btio(_runs(local=10.0, separate=10.0, merged=20.0), 0.0)[0].verdict == claims.NOT_CONFIRMED
    # Where the line had no processor, the machine was measured.
    late = s3_figures.of_btio(took, 0.5)
    assert all(one.verdict == claims.NOT_MEASURED and "late in 50%" in one.found for one in late)
    assert all(one.verdict == claims.NOT_MEASURED for one in s3_figures.of_btio({("full", "local"): [1.0]}, 0.0))

    def turns(times: float) -> s3_figures.Turns:
        return s3_figures.Turns({0: [2.0], 1: [2.0], 5: [5.0 * times]}, 0.1, 10)

    both = {"separate": turns(1.0), "merged": turns(1.1)}
    assert s3_figures.mixed(tmp_path / "none", head, both, {}, 0.0)[2].verdict == claims.NOT_MEASURED
    overlap, same, beside = s3_figures.mixed(tmp_path / "s3-mixed", head, both, both, 0.0)
    assert overlap.verdict == claims.CONFIRMED and "merged: off by +10%" in overlap.found
    assert same.verdict == claims.NOT_CONFIRMED and "k = 5 1.10" in same.found
    assert beside.verdict == claims.CONFIRMED
    (tmp_path / "docs").mkdir()
    words = [s3_figures.keep(tmp_path / name, tmp_path / "docs") for name in ("s3-btio", "s3-mixed")]
    assert all((tmp_path / "docs" / link).exists() for text in words for link in re.findall(r"\(([^)]+)\)", text))
    assert findings.Committed(tmp_path / "docs").cluster("s3-mixed") == [overlap, same, beside]
    assert review.ours(tmp_path / "docs", "s3-fig13", "s3-btio").judged == [merging, slower]


def test_a_quick_run_of_all_takes_less_than_a_quarter_of_an_hour(capsys):
    commands.main_list(["--quick"])
    minutes = [
        float(found)
        for found in re.findall(
            r"^(?:all|\d+ of S).*?  +\d+ +([\d.]+) ", capsys.readouterr().out, re.M
        )
    ]
    assert len(minutes) == 4 and sum(minutes) < 15


def test_some_figures_go_among_those_that_are_committed(tmp_path: Path, capsys):
    folder = tmp_path / "lab/figures"
    folder.mkdir(parents=True)
    (folder / "s1-fig3.csv").write_bytes((DOCS / "lab/figures/s1-fig3.csv").read_bytes())
    store = _measured([KNOWN["s1-window"], KNOWN["s1-fig2"]], tmp_path)
    commands.main_report(["--quick", "--into", str(folder.parent), "--out", str(store.path.parent), "s1-window"])
    page = (folder.parent / "README.md").read_text()
    assert re.findall(r"^## ([\w-]+):", page, re.MULTILINE) == ["s1-fig3", "s1-window"]
    assert "2026-01-02" not in data.read(folder / "s1-fig3.csv").head["taken"]
    with pytest.raises(LabError, match="--docs DIR or --into DIR"):
        commands.main_report(["--quick", "--out", str(store.path.parent), "s1-window"])


class _Instant:
    """A laboratory that answers at once."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def facts(self) -> dict:
        return {}

    def measure(self, cell) -> dict:
        megabytes = 1 + 100 / (1 + cell.link.rtt_ms) / (1 + 1000 * cell.link.loss)
        reached = {"bytes": int(megabytes * 1e6), "seconds": 1.0, "connections": 1, "verified": True}
        return {"reached": reached, "congestion_control": ["cubic"], "connections_seen": 1}


class _There:
    label, port = "there", None

    def missing(self) -> None:
        return None


def _measured(experiments: list[Experiment], folder: Path) -> Store:
    """Results of a quick run of these."""
    store = Store(folder / "results.jsonl")
    facts = {"taken": "2026-01-02T03:04:05Z", "processor": "abacus", "cores": 2, "memory_bytes": 1 << 34}
    session = store.begin({**facts, "kernel": "6.0", "sysctl": {}, "versions": {}})
    there = {name: _There() for name in STACKS}
    runner.measure(runner.jobs(experiments, QUICK), store, session, there, lambda *_: _Instant(), Place(folder))
    return store


def test_every_experiment_can_be_reported_after_a_quick_run(tmp_path: Path):
    """What `run all --quick` does after its measurements, but for drawing: sentences, judgements, CSVs."""
    every = list(KNOWN.values())
    store = _measured(every, tmp_path)
    for one in every:
        curves = collect(one, QUICK, store)
        assert curves.complete and report.sentence(curves), one.name
        assert all(claim.says and claim.found for claim in report.claims(curves)), one.name
        assert {series.stack for series in one.series} <= plot.STYLES.keys() & STACKS.keys()
        again = data.read_curves(data.write_curves(curves, tmp_path / f"{one.name}.csv"), one)
        assert [str(claim) for claim in report.claims(again)] == [str(claim) for claim in report.claims(curves)]
