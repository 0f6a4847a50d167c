"""A pair whose daemons keep what they share in etcd: three members over TLS, of which one may be lost; users."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import MIB
from support.certificates import certificate
from support.faulty_volume import until
from support.pair import pair_of
from support.pair_host import (
    BUSY,
    GOOD,
    ONE,
    REGISTER,
    RESERVATION_CONFLICT,
    RESERVE,
    TWO,
    WRITE_EXCLUSIVE,
    keys,
    login,
    reserve_out,
    write,
)

from enkaku_lab.peers import etcd, nbd
from enkaku_lab.peers.libiscsi_session import Session

PREFIX = "site/enkaku"
REFUSED = "closed|reset|BadCertificate|CertificateRequired"
"""Of whom a member wants a certificate: its alert may come after the first request was sent."""

pytestmark = pytest.mark.needs("nbdkit", "openssl", *etcd.PROGRAMS)


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[str]:
    with nbd.nbdkit(tmp_path, "memory", 8 * MIB) as server:
        yield server.url


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> etcd.Certificates:
    """One for the members and for us."""
    folder = tmp_path_factory.mktemp("tls")
    authority = certificate(folder, "authority")
    return etcd.Certificates(authority[0], *certificate(folder, "member", authority))


def hold(host: Session, key: int = 0x11) -> None:
    assert reserve_out(host, REGISTER, new=key).status == GOOD
    assert reserve_out(host, RESERVE, key=key, kind=WRITE_EXCLUSIVE).status == GOOD


def test_a_member_may_be_lost_and_a_majority_is_waited_for(
    tmp_path: Path, volume: str, certificates: etcd.Certificates
):
    with (
        etcd.cluster(tmp_path / "etcd", tls=certificates) as cluster,
        pair_of(tmp_path, volume, cluster.url(PREFIX)) as pair,
    ):
        one, two = pair.daemons
        with login(one, ONE) as holder, login(two, TWO) as other:
            hold(holder)
            assert write(other).status == RESERVATION_CONFLICT and write(holder).status == GOOD
            lost = cluster.leader()
            cluster.members[lost].kill()
            # What is not known is not answered; what is answered was right.
            until(lambda: _right(write(other).status) == RESERVATION_CONFLICT, "nobody leads")
            until(lambda: write(holder).status == GOOD, "the holder is kept waiting")
            until(lambda: reserve_out(other, REGISTER, new=0x22).status == GOOD, "nothing changes")
            until(lambda: sorted(keys(holder)) == [0x11, 0x22], "the other does not hear of it")
            more = (lost + 1) % 3
            cluster.members[more].kill()
            until(lambda: write(holder).status == BUSY, "it goes on without knowing")
            until(lambda: one.page("/health")[0] != 200, "nobody says so")
            cluster.members[more].restart()
            cluster.members[lost].restart()
            until(lambda: write(holder).status == GOOD, "it does not come back")
            until(lambda: _right(write(other).status) == RESERVATION_CONFLICT, "it was forgotten")
            until(lambda: one.page("/health")[0] == 200, "it stays ill")


def _right(status: int) -> int:
    assert status in (BUSY, RESERVATION_CONFLICT)
    return status


def test_what_is_gone_is_no_empty_state(
    tmp_path: Path, volume: str, certificates: etcd.Certificates
):
    with (
        etcd.cluster(tmp_path / "etcd", count=1, tls=certificates) as cluster,
        pair_of(tmp_path, volume, cluster.url(PREFIX)) as pair,
    ):
        one, two = pair.daemons
        with login(one, ONE) as holder, login(two, TWO) as other:
            hold(holder)
            assert write(other).status == RESERVATION_CONFLICT
            cluster.ctl("del", "--prefix", f"{PREFIX}/")
            until(lambda: write(holder).status == BUSY, "what was deleted is taken for nothing")
            until(lambda: _right(write(other).status) == BUSY, "what was deleted is forgotten")
            assert "was there, and now 0 is" in one.peer.output()


@pytest.fixture
def guarded(
    tmp_path: Path, certificates: etcd.Certificates
) -> Iterator[tuple[etcd.Cluster, Path]]:
    """A member with users, of whom ours may do what we need and no more; and its password's file."""
    password = tmp_path / "password"
    password.write_text("first words\n")
    password.chmod(0o600)
    with etcd.cluster(tmp_path / "etcd", count=1, tls=certificates) as cluster:
        cluster.ctl("user", "add", "root:rooted")
        cluster.ctl("user", "grant-role", "root", "root")
        cluster.ctl("role", "add", "pairs")
        cluster.ctl("role", "grant-permission", "pairs", "--prefix=true", "readwrite", f"{PREFIX}/")
        cluster.ctl("user", "add", "enkaku:first words")
        cluster.ctl("user", "grant-role", "enkaku", "pairs")
        cluster.ctl("auth", "enable")
        yield cluster, password


def test_users_and_their_tokens(
    tmp_path: Path, volume: str, guarded: tuple[etcd.Cluster, Path]
):
    cluster, password = guarded
    url = cluster.url(PREFIX, user="enkaku", password_file=password)
    with pair_of(tmp_path, volume, url) as pair:
        one, two = pair.daemons
        with login(one, ONE) as holder, login(two, TWO) as other:
            hold(holder)
            # A member that was started anew knows no token any more.
            cluster.members[0].kill()
            cluster.members[0].restart()
            until(lambda: write(holder).status == GOOD, "it does not log in again")
            until(lambda: _right(write(other).status) == RESERVATION_CONFLICT, "it was forgotten")
            # Whoever changes the users makes tokens old.
            cluster.ctl("--user", "root:rooted", "role", "add", "others")
            until(lambda: reserve_out(other, REGISTER, new=0x22).status == GOOD, "nothing changes")
        log = one.peer.output() + two.peer.output()
        assert "first words" not in log


@pytest.mark.parametrize(
    "words, prefix, why",
    [
        ("other words", PREFIX, "authentication failed, invalid user ID or password"),
        ("first words", "another", "permission denied"),
        ("", PREFIX, "is empty"),
    ],
)
def test_who_is_refused_is_told_why(
    tmp_path: Path, volume: str, guarded: tuple[etcd.Cluster, Path], words: str, prefix: str, why: str
):
    cluster, password = guarded
    password.write_text(f"{words}\n")
    url = cluster.url(prefix, user="enkaku", password_file=password)
    with pytest.raises(Exception, match=why) as refused, pair_of(tmp_path, volume, url):
        pass
    assert words == "" or words not in str(refused.value)


def test_nobody_there_and_strangers_are_told(
    tmp_path: Path, volume: str, certificates: etcd.Certificates
):
    with etcd.cluster(tmp_path / "etcd", count=1, tls=certificates) as cluster:
        port = cluster.clients[0]
        for number, (place, why) in enumerate(
            (
                (f"etcd://127.0.0.1:1/{PREFIX}", "Connection refused"),
                (f"etcd://127.0.0.1:{port}/{PREFIX}?ca={certificates.ca}", REFUSED),
                (f"etcd://127.0.0.1:{port}/{PREFIX}?ca=/nowhere.pem", "/nowhere.pem: No such file"),
                (f"etcd://127.0.0.1:{port}/{PREFIX}?colour=red", "is no parameter"),
            )
        ):
            folder = tmp_path / str(number)
            folder.mkdir()
            with pytest.raises(Exception, match=why), pair_of(folder, volume, place):
                pass
