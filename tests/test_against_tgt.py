"""Our initiator against tgt, the stock target: discovery, identity, copies, benchmarks."""

import json
from pathlib import Path

import pytest
from conftest import MIB, empty, noise, sha256

from enkaku_lab.peers import Target, Workload, enkaku, tgt
from enkaku_lab.process import CommandFailed

pytestmark = pytest.mark.needs("tgtd", "root")
SIZE = 64 * MIB
CONNECTIONS_MAX = 4


@pytest.fixture
def target(tmp_path: Path):
    disk = empty(tmp_path / "lun.img", SIZE)
    with tgt.serve([disk], tmp_path, max_connections=CONNECTIONS_MAX) as serving:
        yield serving


def test_discover_lists_the_target(target: Target):
    listed = enkaku.command("discover", target.portal).stdout
    assert target.iqn in listed and target.portal in listed


def test_info_tells_the_capacity(target: Target):
    assert str(SIZE) in json.dumps(enkaku.report("info", target.url()))


@pytest.mark.parametrize("connections", [1, CONNECTIONS_MAX])
def test_copy_to_tgt_and_back(target: Target, tmp_path: Path, connections: int):
    source = noise(tmp_path / "source", SIZE, seed=connections)
    options = ["--connections", connections, "--verify"]
    there = enkaku.report("copy", source, target.url(), *options)
    assert (there["bytes"], there["connections"], there["verified"]) == (SIZE, connections, True)
    back = enkaku.report("copy", target.url(), tmp_path / "back", "--connections", connections)
    assert (back["bytes"], back["connections"]) == (SIZE, connections)
    assert sha256(tmp_path / "back") == sha256(source)
    assert sha256(tmp_path / "lun.img") == sha256(source)


@pytest.mark.parametrize("connections", [1, CONNECTIONS_MAX])
@pytest.mark.parametrize("rw", ["read", "write", "randread", "randwrite"])
def test_bench_reports_what_it_did(target: Target, rw: str, connections: int):
    load = Workload(rw.endswith("write"), rw.startswith("rand"), 4096, 16)
    got = enkaku.bench(target.url(), load, seconds=0.5, connections=connections)
    assert got.bytes > 0 and got.seconds >= 0.4
    assert 0 < got.lat_us["p50"] <= got.lat_us["p99"] <= got.lat_us["max"]


def test_chap_login(tmp_path: Path):
    credentials = ("operator", "correct-horse-77")
    disk = empty(tmp_path / "lun.img", SIZE)
    with tgt.serve([disk], tmp_path, credentials=credentials) as target:
        enkaku.command("info", target.url(credentials=credentials))
        with pytest.raises(CommandFailed) as refused:
            enkaku.command("info", target.url(credentials=("operator", "wrong-password-1")))
        assert "wrong-password-1" not in refused.value.stderr
