"""The number of connections: chosen by itself, and kept working through whatever happens to it.

Connections are reset one after the other, the line is cut, the target is restarted, or grants one
connection only. Every test compares what was copied; the rate is limited where a copy would
otherwise be over before anything could happen to it.
"""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import MIB, empty, noise, sha256
from support.lines import FAR, LAB, beside, url_through

from enkaku_lab import wan
from enkaku_lab.experiment import Link
from enkaku_lab.peers import enkaku, tgt
from enkaku_lab.process import Peer, peer
from enkaku_lab.proxy import Proxy

SIZE = 48 * MIB
RATE = "100mbit"
"""So that a copy of SIZE takes four seconds."""


@pytest.mark.parametrize("level", [0, 2])
def test_copy_survives_connections_that_are_reset_again_and_again(tmp_path: Path, level: int):
    source = noise(tmp_path / "source", SIZE)
    disk = empty(tmp_path / "lun0.img", SIZE)
    options = ["--max-rate", RATE, "--error-recovery-level", level]
    with enkaku.serve([disk], tmp_path) as target, Proxy(target.port) as proxy:

        def reset_one() -> bool:
            live = [link for link in proxy.links if link.client_open]
            if live:
                max(live, key=lambda link: link.carried).reset()
            return bool(live)

        with beside(reset_one, 0.7) as done:
            said = enkaku.report("copy", source, url_through(proxy), *options)
        assert sum(done) >= 3, "too few connections were reset to prove anything"
    assert said["bytes"] == SIZE
    assert sha256(disk) == sha256(source)


def test_copy_survives_a_restarted_target_and_comes_back_to_its_connections(tmp_path: Path):
    source = noise(tmp_path / "source", SIZE)
    disk = empty(tmp_path / "lun0.img", SIZE)
    restarted = []
    with enkaku.serve([disk], tmp_path) as target:

        def restart_once(_pid: int) -> None:
            # Some of it has arrived: the copy is under way.
            if not restarted and disk.stat().st_blocks * 512 > 4 * MIB:
                restarted.append(disk.stat().st_blocks * 512)
                target.peer.kill()
                enkaku.restart(target)

        said = enkaku.report(
            *("copy", source, target.url(), "--max-rate", RATE, "--connections", 3),
            while_running=restart_once,
        )
    assert restarted and restarted[0] < SIZE
    assert sha256(disk) == sha256(source)
    assert said["connections"] == said["path"]["connections_wanted"] == 3


@pytest.mark.serial
def test_max_rate_is_kept(tmp_path: Path):
    disk = noise(tmp_path / "lun0.img", 16 * MIB)
    with enkaku.serve([disk], tmp_path) as target:
        for words in (
            ["copy", target.url(), tmp_path / "back"],
            ["copy", tmp_path / "back", target.url(), "--force"],
        ):
            said = enkaku.report(*words, "--max-rate", "100mbit")
            # A burst of 20 ms passes at once.
            assert said["bytes_per_s"] <= 1.1 * 100e6 / 8, words
    assert sha256(tmp_path / "back") == sha256(disk)


@pytest.mark.needs("tgtd")
def test_one_connection_per_session_means_several_sessions(tmp_path: Path):
    source = noise(tmp_path / "source", SIZE)
    disk = empty(tmp_path / "lun1.img", SIZE)
    with tgt.serve([disk], tmp_path, max_connections=1) as target:
        said = enkaku.report("copy", source, target.url(), "--connections", 5, "--verify")
    connections = said["path"]["connections"]
    assert said["verified"] and said["connections"] == 5
    assert len({each["session"] for each in connections}) == len(connections) == 5
    assert sha256(disk) == sha256(source)


def test_report_tells_each_connection_and_how_the_number_came_about(tmp_path: Path):
    with enkaku.serve(["mem:64M"], tmp_path) as target:
        load = ["--rw", "read", "--bs", "64k", "--time", "2s"]
        said = enkaku.report("bench", target.url(), *load, "--connections", 3)
    path = said["path"]
    assert (path["policy"], path["connections_open"], path["ceiling"]) == ("fixed", 3, None)
    assert [change["wanted"] for change in path["changes"]] == [3]
    assert "chosen by the user" in path["changes"][0]["why"]
    assert len(path["connections"]) == 3
    for each in path["connections"]:
        assert each["rtt_us"] > 0 and each["cwnd_bytes"] > 0 and each["congestion_control"]


@pytest.mark.serial
@LAB
def test_auto_opens_more_connections_where_each_is_held_up(tmp_path: Path):
    """The far end sends from small buffers over 50 ms: 64 KiB a round trip and connection."""
    link = Link(rtt_ms=50, rate="1gbit", wmem="4k 64k 128k")
    rates = {}
    with wan.up(link, tmp_path) as lab, far_target(lab, "mem:256M", tmp_path) as url:
        lab.set(link)
        for connections in (4, "auto"):
            load = ["--rw", "read", "--bs", "64k", "--depth", 256, "--time", "8s"]
            said = near(lab, "bench", url, *load, "--connections", connections)
            rates[connections] = said["bytes_per_s"]
            wanted = [change["wanted"] for change in said["path"]["changes"]]
        # Windows as small as these need so many over this round trip from the start.
        assert wanted[0] > 4 and max(wanted) >= 16, said["path"]["changes"]
        assert rates["auto"] > 1.5 * rates[4], rates


@pytest.mark.serial
@LAB
def test_a_path_is_remembered_by_the_next_process_unless_it_is_another_one(tmp_path: Path):
    link = Link(rtt_ms=20, rate="200mbit")
    kept = tmp_path / "state" / "paths"
    load = ["--rw", "read", "--bs", "1M", "--depth", 16, "--time", "4s"]

    def run(*words: object) -> dict:
        return near(lab, "bench", url, *load, *words)["path"]

    with wan.up(link, tmp_path) as lab, far_target(lab, "mem:64M", tmp_path) as url:
        lab.set(link)
        assert run("--path-memory", "off")["memory"] is None
        assert not kept.parent.exists()
        first = run("--path-memory", kept)
        assert first["memory"] is None and "last time" not in first["changes"][0]["why"]
        assert kept.stat().st_mode & 0o777 == 0o600
        head, line = kept.read_text().splitlines()
        assert head == "enkaku paths 1" and line.startswith(f"{FAR} ")
        remembered = float(line.split()[1]) / 1e6
        second = run("--path-memory", kept)
        why = second["changes"][0]["why"]
        assert f"the path carried {round(remembered, 1):g} MB/s last time" in why, second
        assert second["memory"] in ("confirmed", "given up"), second
        # The same address, and a round trip that is not that of the path which was remembered.
        lab.set(replace(link, rtt_ms=5))
        assert run("--path-memory", kept)["memory"] is None
        kept.write_text("damaged")
        assert run("--path-memory", kept)["memory"] is None
        assert kept.read_text().startswith(f"enkaku paths 1\n{FAR} ")


@LAB
def test_copy_survives_a_cut_line(tmp_path: Path):
    link = Link(rtt_ms=20, rate="200mbit")
    source = noise(tmp_path / "source", SIZE)
    disk = empty(tmp_path / "lun0.img", SIZE)
    with wan.up(link, tmp_path) as lab, far_target(lab, disk, tmp_path) as url:
        lab.set(link)
        argv = lab.exec("near", [enkaku.binary(), "copy", source, url, "--json"])
        with peer(argv, tmp_path / "copy.log") as copy:
            copy.wait_until(lambda: disk.stat().st_blocks * 512 > 4 * MIB, "nothing arrives")
            lab.set(link, loss=1.0)
            cut_at = disk.stat().st_blocks
            still_s = time.monotonic()
            copy.wait_until(lambda: time.monotonic() > still_s + 5, "five seconds pass")
            assert disk.stat().st_blocks * 512 < SIZE, "it was over before the line was cut"
            lab.set(link)
            code = copy.wait(timeout_s=60)
        assert code == 0, copy.output()
        assert disk.stat().st_blocks > cut_at
    assert sha256(disk) == sha256(source)


@contextmanager
def far_target(lab: wan.Lab, lun: str | Path, logs: Path) -> Iterator[str]:
    words = ["serve", "--listen", "0.0.0.0:3260", "--iqn", enkaku.IQN, "--lun", lun]
    serving = Peer(lab.exec("far", [enkaku.binary(), *words]), logs / "far.log")
    try:
        serving.wait_for_output("listening on")
        yield f"iscsi://{FAR}:3260/{enkaku.IQN}/0"
    finally:
        serving.stop()


def near(lab: wan.Lab, *words: object) -> dict:
    wrapped = lab.exec("near", [enkaku.binary(), *words, "--json"])
    return json.loads(enkaku.command(*wrapped[1:], timeout_s=60).stdout)


@pytest.mark.needs("root", "/dev/fuse", "fusermount3")
def test_attach_keeps_a_file_of_statistics(tmp_path: Path):
    stats = tmp_path / "stats.json"
    disk = noise(tmp_path / "lun0.img", 8 * MIB)
    with enkaku.serve([disk], tmp_path) as target:
        options = ["--stats", stats, "--connections", 2]
        with enkaku.attach_fuse(target.url(), tmp_path / "mnt", tmp_path, options) as file:
            assert sha256(file) == sha256(disk)
            first = json.loads(stats.read_text())
            deadline = time.monotonic() + 20
            while True:
                said = json.loads(stats.read_text())
                if said["time_s"] > first["time_s"] and said["path"]["connections"]:
                    break
                assert time.monotonic() < deadline, said
            assert said["connected"] and said["path"]["connections_open"] == 2
            assert said["session_starts"] == 1 and said["cache"]["misses"] > 0
    assert [name for name in os.listdir(tmp_path) if name.startswith("stats")] == []


def test_a_copy_in_the_background_is_whole_and_the_path_says_who_finds_its_rate(tmp_path: Path):
    source = noise(tmp_path / "source.img", 24 * MIB)
    disk = empty(tmp_path / "lun0.img", 24 * MIB)
    with enkaku.serve([disk], tmp_path) as target:
        said = enkaku.report("copy", source, target.url(), "--background", "--verify", "--force")
        load = ["--rw", "read", "--bs", "64k", "--time", "1s"]
        path = enkaku.report("bench", target.url(), *load, "--background")["path"]
    assert said["verified"] and sha256(disk) == sha256(source)
    assert path["policy"] == "background" and path["line_bytes_per_s"] > 0


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--policy", "best"], "fixed:N"),
        (["--policy", "fixed:65"], "at most 64"),
        (["--connections", "65"], "1 to 64"),
        (["--share", "1.5"], "at most 1"),
        (["--policy", "golden", "--path-memory", "paths"], "for --policy adaptive"),
        (["--connections", "4", "--path-memory", "paths"], "for --policy adaptive"),
        (["--background", "--policy", "golden"], "leave --policy out"),
        (["--background", "--policy", "fixed:4"], "leave --policy out"),
        (["--background", "--pacing", "off"], "cannot have --pacing off"),
        (["--background", "--path-memory", "paths"], "for --policy adaptive"),
        (["--max-rate", "1kbit"], "64kbit"),
        (["--max-rate", "1mbit", "--share", "0.5"], "cannot be used with"),
    ],
)
def test_wrong_choices_are_refused_in_one_line(words: list[str], complaint: str):
    url = "iscsi://127.0.0.1:1/iqn.2026-01.lab.enkaku:none/0"
    done = enkaku.command("bench", url, *words, check=False)
    assert done.code == 2 and len(done.stderr.splitlines()) == 1, done
    assert complaint in done.stderr
