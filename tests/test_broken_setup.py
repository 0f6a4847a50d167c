"""Data that were written and not flushed, the power of the target cut, and then a network that breaks at
chosen points of what the initiator does to come back: of login, of the questions whether the unit is
ready, of the writes that are sent again, of the flush. When the flush succeeds in the end, the data are
on the disk.
"""

import os
import threading
from pathlib import Path

import pytest
from conftest import MIB, noise
from support.daemon import NAME_A, Daemon, target
from support.faulty_volume import until
from support.pdu_faults import (
    FLUSH,
    FLUSH_ANSWER,
    LOGIN_ANSWER,
    LOGIN_REQUEST,
    SENSE,
    TUR,
    TUR_ANSWER,
    WRITE,
    WRITE_ANSWER,
    Action,
    PduFaults,
    Point,
    damage,
    half_close,
    hold,
    lose,
    reset,
)
from support.pdu_proxy import PduProxy
from support.storage import Storage

from enkaku_lab.peers import enkaku

SIZE = 16 * MIB
WRITTEN = 1 * MIB
TIMES = 2
"""The same again on the next connection: the second one must not find what the first has used up."""
POINTS = (
    LOGIN_REQUEST, LOGIN_ANSWER, TUR, TUR_ANSWER, SENSE, WRITE, WRITE_ANSWER, FLUSH, FLUSH_ANSWER
)
CASES = [(point, action) for point in POINTS for action in (reset, half_close)]
CASES += [(point, damage) for point in (TUR_ANSWER, SENSE, WRITE, FLUSH_ANSWER)]
CASES += [(TUR_ANSWER, lose), (FLUSH_ANSWER, hold)]
pytestmark = pytest.mark.needs("root", "/dev/fuse", "fusermount3", "cc")


@pytest.mark.parametrize(
    "point, action", CASES, ids=[f"{point}, {action.__name__}" for point, action in CASES]
)
def test_a_flush_that_succeeds_has_all_that_was_written_before_the_power_cut(
    point: Point, action: Action, tmp_path: Path
):
    storage, daemon, faults = Storage(tmp_path, SIZE), Daemon(tmp_path), PduFaults()
    data = noise(tmp_path / "data", WRITTEN).read_bytes()
    daemon.write(target(NAME_A, storage.image))
    daemon.start(storage.env)
    try:
        with (
            PduProxy(daemon.port, faults) as proxy,
            enkaku.attach_fuse(
                f"iscsi://127.0.0.1:{proxy.port}/{NAME_A}/0", tmp_path / "fuse", tmp_path,
                ["--digest", "require", "--cache", "none"],
            ) as file,
        ):
            descriptor = os.open(file, os.O_RDWR)
            try:
                os.pwrite(descriptor, data, 0)
                assert storage.dirty() * 4096 >= WRITTEN, "it was flushed already"
                daemon.peer.kill()
                storage.power_cut(seed=len(faults.struck))
                faults.arm(*[(point, action)] * (1 if action is hold else TIMES))
                daemon.start(storage.env)
                released = threading.Thread(target=_let_go, args=(faults,))
                released.start()
                os.fsync(descriptor)
                released.join()
            finally:
                os.close(descriptor)
        assert faults.left == 0, f"struck only by {faults.struck}"
    finally:
        daemon.peer.kill()
    storage.power_cut(seed=1)
    assert storage.image.read_bytes()[:WRITTEN] == data


def _let_go(faults: PduFaults) -> None:
    """Everything that is held up goes on when it has been held up."""
    until(lambda: faults.left == 0, "every fault has struck")
    faults.let_go()
