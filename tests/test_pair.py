"""Two daemons that serve one volume under one name: what initiators reserve at one holds at the other, also
when one of them is killed or sleeps; which of them is active is said, heard and told; and logins are sent on.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import MIB, noise, sha256
from support.daemon import NAME_A
from support.faulty_volume import until
from support.pair import Pair, pair_of
from support.pair_host import (
    ACTIVE,
    BUSY,
    CHECK_CONDITION,
    GOOD,
    IN_STANDBY,
    NOT_READY,
    ONE,
    PREEMPT,
    PREEMPTED,
    REGISTER,
    RESERVATION_CONFLICT,
    RESERVE,
    STANDBY,
    STATE_CHANGED,
    TWO,
    UNIT_ATTENTION,
    WRITE_EXCLUSIVE,
    become,
    keys,
    login,
    port_groups,
    read,
    ready,
    reserve_out,
    write,
)

from enkaku_lab.peers import ceph, enkaku, nbd
from enkaku_lab.peers.libiscsi_session import Outcome, session
from enkaku_lab.process import run

SIZE = 8 * MIB

pytestmark = pytest.mark.needs("nbdkit", "iscsi-inq")


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with nbd.nbdkit(tmp_path, "memory", SIZE) as server, pair_of(tmp_path, server.url) as made:
        yield made


def test_what_is_reserved_at_one_holds_at_the_other(pair: Pair):
    one, two = pair.daemons
    with login(one, ONE) as holder, login(two, TWO) as other, login(two, ONE) as second_path:
        assert write(other).status == GOOD
        assert reserve_out(holder, REGISTER, new=0x11).status == GOOD
        assert reserve_out(holder, RESERVE, key=0x11, kind=WRITE_EXCLUSIVE).status == GOOD
        # At once: whoever was told of it may rely on it.
        assert write(other).status == RESERVATION_CONFLICT
        assert read(other).status == GOOD and write(holder).status == GOOD
        assert keys(other) == [0x11]
        # The holder's other path is another nexus, until it is registered as well.
        assert write(second_path).status == RESERVATION_CONFLICT
        assert reserve_out(other, REGISTER, new=0x22).status == GOOD
        assert keys(holder) == [0x11, 0x22]
        assert reserve_out(other, PREEMPT, key=0x22, new=0x11, kind=WRITE_EXCLUSIVE).status == GOOD
        lost = Outcome(CHECK_CONDITION, UNIT_ATTENTION, PREEMPTED)
        assert holder.test_unit_ready() == lost
        assert write(holder).status == RESERVATION_CONFLICT and write(other).status == GOOD


def test_reservations_outlive_a_daemon_that_is_killed(pair: Pair):
    one, two = pair.daemons
    with login(two, TWO) as other:
        with session(one.portal, NAME_A, ONE) as holder:
            become(holder, {1, 2})
            assert reserve_out(holder, REGISTER, new=0x11).status == GOOD
            assert reserve_out(holder, RESERVE, key=0x11, kind=WRITE_EXCLUSIVE).status == GOOD
            one.peer.kill()
        assert write(other).status == RESERVATION_CONFLICT
        one.start()
        # libiscsi's new session is of another initiator port: a host with one of its own goes on.
        with login(one, TWO) as other_path, login(one, ONE) as another_port:
            assert write(other_path).status == RESERVATION_CONFLICT
            assert write(another_port).status == RESERVATION_CONFLICT
            assert read(other_path).status == GOOD and keys(another_port) == [0x11]
        assert write(other).status == RESERVATION_CONFLICT


def test_a_daemon_that_slept_lets_nobody_past_a_reservation(pair: Pair):
    one, two = pair.daemons
    with login(one, ONE) as holder, login(two, TWO) as other:
        assert reserve_out(holder, REGISTER, new=0x11).status == GOOD
        run(["kill", "-STOP", two.peer.pid])
        try:
            assert reserve_out(holder, RESERVE, key=0x11, kind=WRITE_EXCLUSIVE).status == GOOD
        finally:
            run(["kill", "-CONT", two.peer.pid])
        # It knows that it does not know, or knows it.
        assert write(other).status in (BUSY, RESERVATION_CONFLICT)
        until(lambda: write(other).status == RESERVATION_CONFLICT, "it never hears of it")


def test_what_is_shared_and_cannot_be_read_is_nobodys_guess(pair: Pair):
    one, two = pair.daemons
    with login(one, ONE) as host:
        gone = pair.shared.with_name("gone")
        pair.shared.rename(gone)
        # An empty place would be an empty state, so the folder itself has to be there.
        pair.shared.write_text("no folder")
        until(lambda: write(host).status == BUSY, "it goes on without knowing")
        until(lambda: one.page("/health")[0] != 200, "nobody says so")
        pair.shared.unlink()
        gone.rename(pair.shared)
        until(lambda: write(host).status == GOOD, "it does not come back")
        until(lambda: one.page("/health")[0] == 200, "it stays ill")


def test_which_is_active_is_said_heard_and_told(pair: Pair):
    one, two = pair.daemons
    with login(one, ONE) as at_one, login(two, ONE) as at_two:
        become(at_one, {1: ACTIVE, 2: ACTIVE})
        become(at_two, {1: ACTIVE, 2: ACTIVE})
        said = one.ask("access", "set", 2, "standby").stdout
        assert "group 2 is standby" in said
        told = lambda: at_two.test_unit_ready()  # noqa: E731
        changed = Outcome(CHECK_CONDITION, UNIT_ATTENTION, STATE_CHANGED)
        until(lambda: told() == changed, "the other daemon does not tell")
        standby = Outcome(CHECK_CONDITION, NOT_READY, IN_STANDBY)
        assert write(at_two) == standby and read(at_two) == standby
        become(at_one, {1: ACTIVE, 2: STANDBY})
        assert port_groups(at_two) == {1: ACTIVE, 2: STANDBY}
        assert pair.groups(0) == pair.groups(1) == {1: "active", 2: "standby"}
        # It outlives a restart, which the configuration says nothing about.
        two.peer.stop()
        two.start()
        assert pair.groups(1)[2] == "standby"
        two.ask("access", "set", 2, "active")
        two.ask("access", "set", 1, "standby")
    with login(two, ONE) as at_two:
        assert write(at_two).status == GOOD
    wrong = one.ask("access", "set", 3, "standby", check=False)
    assert wrong.code == 1 and "there is no group 3 (there are: 1, 2)" in wrong.stderr


def test_one_identity_at_both(pair: Pair):
    pages = []
    for daemon in pair.daemons:
        with login(daemon, ONE) as host:
            serial = host.command(bytes([0x12, 1, 0x80, 0, 255, 0]), room=255).data
            named = host.command(bytes([0x12, 1, 0x83, 0, 255, 0]), room=255).data
            pages.append((serial, named[4:16]))  # the unit's NAA is the first designator
            assert b",t,0x000%d" % (len(pages)) in named
    assert pages[0] == pages[1]


def test_logins_are_sent_on(pair: Pair, tmp_path: Path):
    """By configuration: a portal that initiators know may be the other daemon's."""
    one, two = pair.daemons
    image = noise(tmp_path / "image", SIZE)
    text = one.config.read_text()
    place = f'listen = "{one.portal}"\n'
    one.config.write_text(text.replace(place, f'{place}redirect = "{two.portal}"\n'))
    assert "new sessions are sent to" in one.reload()
    enkaku.command("copy", image, one.url(), "--force", "--verify")
    assert not one.sessions()
    with session(one.portal, NAME_A, TWO) as host:  # libiscsi goes where it is sent
        ready(host)
        assert [each["initiator"] for each in two.sessions()] == [TWO]
    one.config.write_text(text)
    assert "new sessions are admitted" in one.reload()
    with login(one, TWO):
        assert len(one.sessions()) == 1
    back = tmp_path / "back"
    enkaku.command("copy", two.url(), back)
    assert sha256(back) == sha256(image)


def test_what_cannot_be_a_pair_is_refused(pair: Pair, tmp_path: Path):
    one, _ = pair.daemons
    text = one.config.read_text()
    for old, new, why in (
        ("group = 1", "group = 0", "a number from 1 to 65535"),
        ("group = 1", "group = 3", "cannot change while the target is served"),
        (str(pair.shared), "shared", "a path that begins with /"),
        ("[[target.lun]]\nnumber = 0\n", "[[target.lun]]\nnumber = 0\nexclusive = true\n", "is not for a target with"),
        ('path = "nbd', 'path = "/x', "is not for a target with"),
    ):
        assert old in text
        one.config.write_text(text.replace(old, new))
        wrong = one.ask("reload", check=False)
        assert wrong.code == 1 and why in wrong.stderr, wrong
    one.config.write_text(text)
    one.reload()


@pytest.mark.needs(*ceph.PROGRAMS)
def test_a_pair_before_an_image_of_ceph(tmp_path: Path):
    """Without the exclusive lock, both are active; what they share is in objects of the pool."""
    with ceph.cluster(tmp_path / "ceph") as cluster:
        url = cluster.create("shared", SIZE, "--image-feature", "layering")
        with pair_of(tmp_path, url, cluster.url("pairs")) as pair:
            one, two = pair.daemons
            with login(one, ONE) as holder, login(two, TWO) as other:
                assert pair.groups(1) == {1: "active", 2: "active"}
                block = b"1" * 512
                swap = struct.pack(">BBQ3xBBB", 0x89, 0, 0, 1, 0, 0)
                assert holder.command(swap, bytes(512) + block).status == GOOD
                assert other.command(swap, block + bytes(512)).status == GOOD
                assert reserve_out(holder, REGISTER, new=0x11).status == GOOD
                held = reserve_out(holder, RESERVE, key=0x11, kind=WRITE_EXCLUSIVE)
                assert held.status == GOOD
                assert write(other).status == RESERVATION_CONFLICT
                one.peer.kill()
                assert write(other).status == RESERVATION_CONFLICT
