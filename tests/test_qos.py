"""Limits of the target: counted with real clients, over commands and bytes that are known beforehand.

What is exact here is what a limit may let through at most: the clock only bounds it from the other
side, widely, since the machine may be busy. `enkaku_lab`'s experiment `s3-limits` measures how near it is.
"""

import json
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import MIB, noise, sha256
from support.daemon import NAME_A, Daemon, target
from support.processes import until

from enkaku_lab.peers import enkaku
from enkaku_lab.peers.libiscsi_session import session

pytestmark = pytest.mark.needs("iscsi-ls")
ONE = "iqn.2026-11.org.example:one"
TWO = "iqn.2026-11.org.example:two"
SYNCHRONIZE_CACHE = bytes([0x35]) + bytes(9)
DEPTH = 16
BURST_S = 0.02
"""The default burst."""


def write_one_block(lba: int = 0) -> bytes:
    return bytes([0x2A, 0]) + lba.to_bytes(4) + bytes([0, 0, 1, 0])


def limits(daemon: Daemon) -> list[dict]:
    return json.loads(daemon.ask("status", "--json").stdout).get("limits", [])


def waiting(daemon: Daemon) -> int:
    return sum(limit["waiting"] for limit in limits(daemon))


@contextmanager
def busy(daemon: Daemon, *words: object, initiator: str = ONE, seconds: int = 60):
    """A client of ours that keeps DEPTH commands under way; it is killed in the end."""
    argv = [enkaku.binary(), "bench", daemon.url(), "--depth", DEPTH, "--time", f"{seconds}s", "--force"]
    argv += ["--initiator-name", initiator, "--connections", 1, "--json", *words]
    load = subprocess.Popen([str(word) for word in argv], stdout=subprocess.PIPE, text=True)
    try:
        yield load
    finally:
        load.kill()
        load.wait()


def done(load: subprocess.Popen) -> dict:
    out, _ = load.communicate(timeout=60)
    assert load.returncode == 0
    return json.loads(out)


@pytest.mark.parametrize("cdb", [write_one_block(), SYNCHRONIZE_CACHE], ids=["write", "flush"])
def test_a_stock_client_gets_the_commands_that_it_is_allowed(cdb: bytes, daemon: Daemon):
    """One command at a time, of which a hundred a second are allowed."""
    count, allowed = 150, 100
    daemon.write(target(NAME_A, "mem:16M", more=f"anyone = true\nmax_iops = {allowed}"))
    daemon.start()
    data = bytes(512) if cdb[0] == 0x2A else b""
    with session(daemon.portal, NAME_A, ONE) as client:
        begin = time.monotonic()
        for _ in range(count):
            assert client.command(cdb, data).status == 0
        took = time.monotonic() - begin
        (limit,) = limits(daemon)
    assert count / allowed - BURST_S - 1 / allowed <= took < 20 * count / allowed
    assert limit["initiator"] == ONE and limit["max_iops"] == allowed
    # Beside what the client asked for itself: the library reads nothing at login.
    assert limit["commands"] == count and limit["bytes"] == count * len(data)
    assert limit["delayed"] > 0 and limit["waited_s"] > 0
    assert daemon.metric("enkaku_limit_commands_total", initiator=ONE) == count
    assert daemon.metric("enkaku_limit_commands_per_second", initiator=ONE) == allowed
    assert daemon.metric("enkaku_limit_waited_seconds_total", target=NAME_A) > 0


def test_bytes_are_limited_and_arrive_whole(daemon: Daemon, tmp_path: Path):
    """Writes wait before their data is asked for, reads before it is read; both come through."""
    source = noise(tmp_path / "source", 8 * MIB)
    back = tmp_path / "back"
    daemon.write(target(NAME_A, "mem:8M", more='anyone = true\nmax_rate = "64mbit"'))
    daemon.start()
    least_s = 8 * MIB * 8 / 64e6 - BURST_S - MIB * 8 / 64e6  # the last command leaves a debt
    for words in ((source, daemon.url(), "--force"), (daemon.url(), back)):
        begin = time.monotonic()
        enkaku.command("copy", *words)
        assert least_s <= time.monotonic() - begin
    assert sha256(back) == sha256(source)
    # Of the second: the first owes nothing any more, and what it did is forgotten.
    assert daemon.metric("enkaku_limit_bytes_total", target=NAME_A) >= 8 * MIB
    with session(daemon.portal, NAME_A, ONE) as client:
        for _ in range(200):
            assert client.command(SYNCHRONIZE_CACHE).status == 0, "no limit for what moves no bytes"


def test_commands_that_wait_hold_up_nothing_else(daemon: Daemon):
    """One command a second, and many that wait for it, on one connection of one session."""
    more = "anyone = true\nmax_iops = 1"
    daemon.write(target(NAME_A, "mem:16M", more=more) + '[[target.lun]]\nnumber = 1\npath = "mem:16M"\n')
    daemon.start()
    with busy(daemon, "--rw", "randread") as load:
        until(lambda: waiting(daemon) >= DEPTH - 2, 20)
        # Its target asks whether it is there, and its memory is not what others wait for.
        with session(daemon.portal, NAME_A, ONE) as same:
            begin = time.monotonic()
            assert all(same.test_unit_ready().status == 0 for _ in range(20))
            assert time.monotonic() - begin < 5
        with session(daemon.portal, NAME_A, TWO) as other:
            begin = time.monotonic()
            assert other.command(write_one_block(), bytes(512)).status == 0
            assert time.monotonic() - begin < 5, "another initiator has its own limit"
        (own,) = [one for one in daemon.sessions() if one["initiator"] == ONE]
        assert own["memory_bytes"] == 0, "what waits to be read has no memory"
        # Closing the session frees what waits, at once.
        load.kill()
        load.wait()
        until(lambda: waiting(daemon) == 0 and not daemon.sessions(), 20)


def test_a_reload_changes_limits_and_drops_nobody(daemon: Daemon):
    slow = target(NAME_A, "mem:16M", more="anyone = true\nmax_iops = 1")
    daemon.write(slow)
    daemon.start()
    with busy(daemon, "--rw", "randwrite", seconds=600):
        until(lambda: waiting(daemon) >= DEPTH - 2, 20)
        (before,) = daemon.sessions()
        daemon.write(slow.replace("max_iops = 1", 'max_iops = 50\nburst = "100ms"'))
        changed = daemon.reload()
        assert f"{NAME_A} for anyone: 50 commands/s, burst 100ms" in changed
        (limit,) = limits(daemon)
        assert (limit["max_iops"], limit["burst_s"]) == (50, 0.1)
        until(lambda: limits(daemon)[0]["commands"] > limit["commands"] + 60, 30)
        daemon.write(target(NAME_A, "mem:16M"))
        assert f"{NAME_A} for anyone: no limit" in daemon.reload()
        written = before["written_bytes"]
        until(lambda: daemon.sessions()[0]["written_bytes"] > written + 2000 * 4096, 30)
        assert limits(daemon) == []
        (after,) = daemon.sessions()
        assert after["id"] == before["id"], "the session is the one it was"
        # A limit for a session that began without one.
        daemon.write(target(NAME_A, "mem:16M") + "max_iops = 1\n")
        assert f"{NAME_A} LUN 0: 1 commands/s, burst 20ms" in daemon.reload()
        until(lambda: waiting(daemon) >= DEPTH - 2, 20)
        assert daemon.sessions()[0]["id"] == before["id"]
        assert limits(daemon)[0]["lun"] == 0


def test_a_unit_is_shared_evenly_by_initiators_that_ask_for_more(daemon: Daemon):
    """One with large commands and many of them, one with small ones and few."""
    daemon.write(target(NAME_A, "mem:64M") + 'max_rate = "80mbit"\n')
    daemon.start()
    with (
        busy(daemon, "--rw", "write", "--bs", "256k", initiator=ONE, seconds=6) as large,
        busy(daemon, "--rw", "randread", "--bs", "64k", initiator=TWO, seconds=6) as small,
    ):
        got = [done(load) for load in (large, small)]
    rates = [one["bytes_per_s"] * 8 / 1e6 for one in got]
    assert sum(rates) < 80 * 1.25, rates
    assert 0.6 < rates[0] / rates[1] < 1.6, rates


def test_a_reset_ends_what_waits(daemon: Daemon):
    daemon.write(target(NAME_A, "mem:16M") + "max_iops = 1\n")
    daemon.start()
    with busy(daemon, "--rw", "randread"):
        until(lambda: waiting(daemon) >= DEPTH - 2, 20)
        (limit,) = limits(daemon)
        with session(daemon.portal, NAME_A, TWO) as other:
            begin = time.monotonic()
            other.lun_reset()
            assert time.monotonic() - begin < 5, "its answer waits for none of them"
        # They did not go through instead.
        assert limits(daemon)[0]["commands"] <= limit["commands"] + 8


def test_serve_has_limits_too(tmp_path: Path):
    with enkaku.serve(["mem:16M"], tmp_path, options=["--max-iops", 50, "--limit-burst", "100ms"]) as serving:
        with session(serving.portal, enkaku.IQN, ONE) as client:
            begin = time.monotonic()
            for _ in range(60):
                assert client.command(write_one_block(), bytes(512)).status == 0
            assert time.monotonic() - begin >= (60 - 1) / 50 - 0.1
    bad = enkaku.command("serve", "--lun", "mem:1M", "--max-iops", "0", check=False)
    assert bad.code == 2 and "'0' is not a number from 1" in bad.stderr.replace('"', "'")


def test_mistakes_are_named(daemon: Daemon):
    daemon.write(target(NAME_A, "mem:1M", more="anyone = true\nmax_rate = 5") + 'burst = "1s"\n')
    bad = enkaku.command("target", "check", "--config", daemon.config, check=False)
    assert bad.code == 1 and "target[0].max_rate: is integer, not a string" in bad.stderr
    assert "target[0].lun[0].burst: limits nothing by itself" in bad.stderr
    daemon.write(target(NAME_A, "mem:1M", more='anyone = true\nmax_rate = "1kbit"\nmax_iops = 0'))
    bad = enkaku.command("target", "check", "--config", daemon.config, check=False)
    assert '"1kbit" is not allowed (32768bit, 4 KiB a second, and above is)' in bad.stderr
    assert "max_iops: 0 is not allowed (a number from 1" in bad.stderr
