"""An application with few operations under way: its packets leave as they come, and only bursts are spread out."""

import re

import pytest
from conftest import MIB

from enkaku_lab import policy_run
from enkaku_lab.experiment import Link
from enkaku_lab.peers import need
from enkaku_lab.process import run

pytestmark = [pytest.mark.serial, pytest.mark.needs("root", "/dev/net/tun", "ss")]
LINK = Link(20.0)
SPREAD = re.compile(r"pacing_rate \S+/(\S+)")
"""`ss` shows a second rate where a socket was told one, which is what makes TCP space its packets."""


def spread(kind: str, asked: policy_run.Asked) -> dict[str, bool]:
    """Of each end: was a socket of it told a rate, within two seconds?"""
    told = {"near": False, "far": False}
    with policy_run.transfer(LINK, kind, "fixed:4", ["--time", "2s", "--pacing", "off"], asked) as running:
        while running.bench.running():
            for end in told:
                sockets = run(running.lab.exec(end, [need("ss"), "-tinH", "state", "established"])).stdout
                told[end] |= SPREAD.search(sockets) is not None
        assert running.report(20)["bytes_per_s"] > MIB
    return told


@pytest.mark.parametrize("kind", ["read", "write"])
def test_little_leaves_as_it_comes(kind: str):
    assert spread(kind, policy_run.Asked(64 << 10, 4)) == {"near": False, "far": False}


@pytest.mark.parametrize(("kind", "sends"), [("read", "far"), ("write", "near")])
def test_much_is_spread_out_by_the_end_that_sends_it(kind: str, sends: str):
    told = spread(kind, policy_run.Asked(MIB, 32))
    assert told == {"near": sends == "near", "far": sends == "far"}
