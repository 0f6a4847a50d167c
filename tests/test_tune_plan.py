"""`enkaku plan` and `enkaku tune` as programs: their numbers, what they say of bad input, and how the plan is
checked."""

import json
import subprocess
from pathlib import Path

import pytest

from enkaku_lab.peers import enkaku
from enkaku_lab.plans import check, simulator
from enkaku_lab.plans.grid import predicted
from enkaku_lab.process import LabError


def _run(*words: object, stdin: str = "") -> subprocess.CompletedProcess:
    argv = [str(word) for word in (enkaku.binary(), *words)]
    return subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=60, check=False)


def test_a_plan_names_limit_connections_buffers_and_memory():
    plan = enkaku.report("plan", "--rate", "10gbit", "--rtt", "120ms", "--loss", "1e-5")
    assert 9.3e9 < plan["limit_bytes_per_s"] * 8 < 9.5e9
    by_name = {one["name"]: one for one in plan["congestion_controls"]}
    assert list(by_name) == ["reno", "cubic", "bbr"]
    rates = [one["one_bytes_per_s"] for one in by_name.values()]
    assert rates == sorted(rates)
    # 1448 · 1.31 / (0.12 · √1e-5)
    assert by_name["reno"]["one_bytes_per_s"] == pytest.approx(4.999e6, rel=0.01)
    bbr = by_name["bbr"]
    assert bbr["limited_by"] == "send_buffer"
    assert bbr["sender_memory_bytes"] >= bbr["connections"] * bbr["wmem_wanted_bytes"]
    assert "connections" in by_name["reno"]["warnings"][0]


def test_the_number_of_connections_can_be_given():
    words = ("plan", "--rate", "1gbit", "--rtt", "50ms", "--loss", "1e-3", "--streams")
    one, four = (enkaku.report(*words, n)["congestion_controls"][0] for n in (1, 4))
    assert (one["connections"], four["connections"]) == (1, 4)
    assert four["session_bytes_per_s"] == pytest.approx(4 * one["session_bytes_per_s"], rel=1e-4)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--rate", "1gbit", "--rtt", "0ms"], "--rtt must be above zero"),
        (["--rate", "1gbit", "--rtt", "1ms", "--loss", "2"], "--loss"),
        (["--rate", "fast", "--rtt", "1ms"], "--rate"),
        (["--rate", "1gbit", "--rtt", "1ms", "--streams", "0"], "--streams"),
    ],
)
def test_a_bad_plan_is_refused_in_one_line(words: list[str], said: str):
    done = _run("plan", *words)
    assert done.returncode == 2 and said in done.stderr


def test_a_policy_answers_every_sample_and_names_a_bad_line():
    line = '{{"t_s":{},"n":4,"bytes_per_s":1e8}}\n'
    done = _run("tune", "--stdio", "--policy", "golden", stdin="".join(map(line.format, range(6))))
    answers = [json.loads(answer) for answer in done.stdout.splitlines()]
    assert [answer["n"] for answer in answers] == [4, 4, 4, 4, 4, 8]
    done = _run("tune", "--stdio", stdin=line.format(1) + "{}\n")
    assert done.returncode == 2 and "line 2" in done.stderr and "t_s: missing" in done.stderr


@pytest.mark.needs("ns")
def test_the_plan_and_the_simulator_agree_where_losses_decide(tmp_path: Path, capsys):
    check.main(["--engine", "ns2", "--quick", "--out", str(tmp_path), "--docs", str(tmp_path)])
    head, *found = map(json.loads, (tmp_path / "plan-check-ns2.jsonl").read_text().splitlines())
    assert head["machine"] and len(found) == 4
    rows, errors = check.judge(found)
    assert len(rows) == 4 and max(errors["losses of reno and cubic"]) < 0.35, errors
    page = (tmp_path / "plan-check.md").read_text()
    assert "## ns-2" in page and "Linux's TCP" not in page
    assert "median error" in capsys.readouterr().out


def test_a_cell_of_which_the_plan_warns_is_in_no_median():
    cell = {"rate": "100mbit", "rtt_ms": 20.0, "loss": 1e-3, "cc": "reno", "streams": 1}
    found = [{**cell, "measured_mbit": 20.0}, {**cell, "loss": 0.05, "measured_mbit": 1e-3}]
    rows, errors = check.judge(found)
    assert [row[-1] for row in rows] == ["", check.WARNED]
    assert len(errors["losses of reno and cubic"]) == 1


def test_what_a_simulation_would_take_too_long_for_is_left_out():
    cell = {"rate": "10gbit", "rtt_ms": 20.0, "loss": 0.0, "cc": "cubic", "streams": 16}
    assert simulator.timing(cell, predicted(cell), quick=False) is None
    slow = {**cell, "rate": "100mbit", "loss": 1e-4, "streams": 1}
    omit_s, seconds = simulator.timing(slow, predicted(slow), quick=False)
    # 72 Mbit/s are 6,200 segments, and 0.6 losses, a second.
    assert omit_s == simulator.OMIT_S_MIN and 40 < seconds < 100


def test_the_window_of_a_cell_is_that_of_the_smaller_buffer():
    cell = {"rate": "1gbit", "rtt_ms": 20.0, "loss": 0.0, "cc": "reno", "streams": 1}
    # 0.67 of 4 MiB to send, half of 6 MiB to receive.
    assert simulator.window_segments(cell) == int(0.67 * (4 << 20) / 1448)


def test_nothing_is_judged_that_was_not_measured(tmp_path: Path):
    with pytest.raises(LabError, match="nothing was measured with --engine line"):
        check.main(["--judge", "--out", str(tmp_path)])
