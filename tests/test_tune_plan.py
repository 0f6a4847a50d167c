"""`enkaku plan` and `enkaku tune` as programs: their numbers, and what they say of bad input."""

import json
import subprocess

import pytest

from enkaku_lab.peers import enkaku


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
