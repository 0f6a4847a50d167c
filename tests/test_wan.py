"""`enkaku wan run`: two commands at the ends of an emulated long-fat link."""

import json
import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from enkaku_lab.peers import enkaku, need
from enkaku_lab.process import run

pytestmark = [pytest.mark.serial, pytest.mark.needs("root", "/dev/net/tun", "iperf3")]
LINK = ["wan", "run", "--rate", "200mbit", "--rtt", "20ms", "--queue", 500]
IPERF3_SERVER = ["--far", "iperf3 --server --forceflush", "--far-ready", "Server listening"]
TCP_PAYLOAD = 1448 / 1538
"""A full packet's payload over its bytes on Ethernet."""


LISTENER = [
    "--far",
    f"{sys.executable} -u -m http.server 5201",
    "--far-ready",
    "Serving HTTP",
]
"""Accepts any number of connections that say nothing, which iperf3 gives up on."""


def test_near_command_reaches_the_far_one_at_the_rate_of_the_line(tmp_path: Path):
    result = tmp_path / "iperf3.json"
    client = f"{need('iperf3')} --client $ENKAKU_FAR --time 4 --omit 1 --json >{result}"
    enkaku.command(*LINK, *IPERF3_SERVER, "--", "sh", "-c", client)
    received = json.loads(result.read_text())["end"]["sum_received"]["bits_per_second"]
    assert 0.85 * TCP_PAYLOAD <= received / 200e6 <= 1.01 * TCP_PAYLOAD


CONNECT = """
import os, socket, sys, time
def seconds():
    begin = time.monotonic()
    socket.create_connection((os.environ["ENKAKU_FAR"], 5201)).close()
    return time.monotonic() - begin
open(sys.argv[1], "w").write(str(min(seconds() for _ in range(10))))
"""


def test_connecting_takes_a_round_trip(tmp_path: Path):
    best = tmp_path / "best"
    enkaku.command(*LINK, *LISTENER, "--", sys.executable, "-c", CONNECT, best)
    assert 0.020 <= float(best.read_text()) <= 0.025


def test_exit_code_and_addresses_are_handed_on():
    script = 'test -n "$ENKAKU_NEAR" && test -n "$ENKAKU_FAR" && exit 7'
    done = enkaku.command(*LINK, "--", "sh", "-c", script, check=False)
    assert done.code == 7, done


def test_nothing_is_left_behind(tmp_path: Path):
    before = (_namespaces(), _links())
    far = f"sh -c 'echo $$ >{tmp_path}/far.pid; echo ready; exec sleep 60'"
    enkaku.command(*LINK, "--far", far, "--far-ready", "ready", "--", "true")
    assert (_namespaces(), _links()) == before
    far_pid = int((tmp_path / "far.pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(far_pid, 0)


README = Path(__file__).parent.parent / "README.md"
EXAMPLE = re.compile(r"enkaku (wan run --rate .*?ENKAKU_FAR)'", re.DOTALL)
"""The example of a run with iperf3, up to the address that its client is told."""


@pytest.mark.parametrize("place", ["README", "help"])
def test_the_example_works_as_it_is_written(place: str):
    help_text = enkaku.command("wan", "run", "--help").stdout
    [example] = EXAMPLE.findall(README.read_text() if place == "README" else help_text)
    one_line = " ".join(example.replace("\\\n", " ").split())
    words = shlex.split(f"{one_line} -t 1'")  # one second will do
    done = enkaku.command(*words)
    assert "receiver" in done.stdout, done


def _namespaces() -> str:
    return run([need("ip"), "netns", "list"]).stdout


def _links() -> list[str]:
    return sorted(os.listdir("/sys/class/net"))
