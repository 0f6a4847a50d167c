"""Runs with a fault that lasts or comes again: one of N connections is killed every two seconds, the
line is cut for longer than it takes to give a session up. All that was written is compared.

Shorter faults and a target that is restarted are in `test_connections`, `test_attach`, `test_cache`.
"""

import re
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from conftest import MIB, empty, noise, sha256
from support.lines import FAR, LAB, beside, url_through

from enkaku_lab import wan
from enkaku_lab.experiment import Link
from enkaku_lab.peers import enkaku
from enkaku_lab.process import Peer, peer
from enkaku_lab.proxy import Proxy

CONNECTIONS = 4
SIZE = 24 * MIB
RATE = "26mbit"
"""So that a copy of SIZE takes eight seconds."""
KILL_EVERY_S = 2.0
CUT_S = 20.0
GIVEN_UP = re.compile(r"no connection to \S+ since|connection \d+ lost; recovering")
LEVELS = pytest.mark.parametrize("level", [0, 2])


@LEVELS
@pytest.mark.parametrize("way", ["there", "back"])
def test_copy_survives_one_of_its_connections_killed_every_two_seconds(
    tmp_path: Path, level: int, way: str
):
    source = noise(tmp_path / "source", SIZE)
    disk, back = noise(tmp_path / "lun0.img", SIZE, seed=2), tmp_path / "back"
    original, copied = (source, disk) if way == "there" else (disk, back)
    options = ["--connections", CONNECTIONS, "--max-rate", RATE, "--error-recovery-level", level]
    with enkaku.serve([disk], tmp_path) as target, Proxy(target.port) as proxy:

        def kill_the_oldest() -> int:
            """Every one of them has its turn. Returns how many there were."""
            live = [link for link in proxy.links[-CONNECTIONS:] if link.client_open]
            if live:
                live[0].reset()
            return len(live)

        url = url_through(proxy)
        ends = (source, url) if way == "there" else (url, back)
        with beside(kill_the_oldest, KILL_EVERY_S) as were_live:
            said = enkaku.report("copy", *ends, "--force", *options)
    assert sum(each > 0 for each in were_live) >= 3, "too few were killed to prove anything"
    assert were_live[1:].count(CONNECTIONS) > 0, "it never came back to all its connections"
    # At level 0 each kill costs the session, at level 2 one connection; a few may be tried in vain.
    most = CONNECTIONS * (1 + len(were_live)) + CONNECTIONS
    assert len(proxy.links) <= most, "it opens connections again and again"
    assert said["bytes"] == SIZE
    assert sha256(copied) == sha256(original)


@LAB
@LEVELS
def test_copies_survive_a_line_that_is_cut_for_twenty_seconds(tmp_path: Path, level: int):
    """Longer than either end waits for an answer: sessions are given up and set up again."""
    link = Link(rtt_ms=20, rate="100mbit")
    source = noise(tmp_path / "source", 2 * SIZE)
    written = empty(tmp_path / "lun0.img", 2 * SIZE)
    disk, back = noise(tmp_path / "lun1.img", 2 * SIZE, seed=2), tmp_path / "back"
    with wan.up(link, tmp_path) as lab, _far_target(lab, [written, disk], tmp_path) as serving:
        lab.set(link)

        def copy(name: str, *ends: object) -> AbstractContextManager[Peer]:
            words = ["-vv", "copy", *ends, "--error-recovery-level", level]
            words += ["--connections", CONNECTIONS]
            return peer(lab.exec("near", [enkaku.binary(), *words]), tmp_path / f"{name}.log")

        url = f"iscsi://{FAR}:3260/{enkaku.IQN}"
        with (
            copy("there", source, f"{url}/0") as there,
            copy("back", f"{url}/1", back) as here,
        ):
            there.wait_until(lambda: _stored(written) > 4 * MIB, "nothing is written")
            here.wait_until(lambda: _stored(back) > 4 * MIB, "nothing is read")
            lab.set(link, loss=1.0)
            cut_s = time.monotonic()
            for copying in (there, here):
                _wait_until_it_gives_up(copying)
            here.wait_until(lambda: time.monotonic() > cut_s + CUT_S, "the cut is over")
            assert _stored(written) < 2 * SIZE, "it was written before the line was cut"
            assert _stored(back) < 2 * SIZE, "it was read before the line was cut"
            lab.set(link)
            assert there.wait(timeout_s=60) == 0, there.output()[-3000:]
            assert here.wait(timeout_s=60) == 0, here.output()[-3000:]
        assert serving.running()
    assert sha256(written) == sha256(source)
    assert sha256(back) == sha256(disk)


def _stored(file: Path) -> int:
    """Bytes that a sparse file holds."""
    return file.stat().st_blocks * 512 if file.exists() else 0


def _wait_until_it_gives_up(copying: Peer) -> None:
    copying.wait_until(lambda: GIVEN_UP.search(copying.output()), "it never noticed the cut")


@contextmanager
def _far_target(lab: wan.Lab, luns: list[Path], logs: Path) -> Iterator[Peer]:
    words = ["serve", "--listen", "0.0.0.0:3260", "--iqn", enkaku.IQN]
    words += [word for lun in luns for word in ("--lun", lun)]
    with peer(lab.exec("far", [enkaku.binary(), *words]), logs / "far.log") as serving:
        serving.wait_for_output("listening on")
        yield serving
