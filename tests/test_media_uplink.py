"""Videos of a home that nobody can call: it is behind a router that translates addresses (NAT) and
lets nobody in, and calls the media server, which is outside, 40 ms away, with curl (docs/media.md,
docs/uplink.md)."""

import hashlib
import json
import random
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support import filesystems as fs
from support.daemon import NAME_A, Daemon, target
from support.media import Page, serve, wait_for
from support.networks import Nat, behind_nat

from enkaku_lab.experiment import Link
from enkaku_lab.peers import enkaku, need
from enkaku_lab.process import Peer, run

MIB = 1 << 20
FILM = "films/one.mp4"
PORT = 3270
LINE = Link(rtt_ms=40, rate="200mbit", rmem="4k 128k 2M")
BACK_S = 5.0
"""In which time a home that was cut off is there again."""
SILENCE_S = 4.0
"""After which time of silence it is known to be off."""

pytestmark = pytest.mark.needs(
    "root", "/dev/net/tun", "unshare", "nsenter", "ip", "ss", "ping", "iptables", "mke2fs", "curl",
    "openssl",
)


class Home(Daemon):
    """A target daemon behind the router, which has no portal."""

    def __init__(self, folder: Path, nat: Nat, pin: str):
        folder.mkdir(exist_ok=True)
        super().__init__(folder)
        self.nat, self.pin, self.key = nat, pin, folder / "uplink.key"
        self.within = nat.home.exec([])

    def head(self) -> str:
        portal = re.compile(r"\[\[portal\]\].*", re.DOTALL)
        return portal.sub(
            f'[[uplink]]\nname = "films"\nserver = "{Nat.OUTSIDE}"\npin = "{self.pin}"\n'
            f'key_file = "{self.key}"\n',
            super().head(),
        )

    def own_pin(self) -> str:
        return enkaku.command("media", "uplink", "host-key", self.key).stdout.strip()

    def standing(self) -> dict:
        return json.loads(self.ask("status", "--json").stdout)["uplinks"][0]

    def calls(self) -> set[int]:
        """Its own ports of connections to the server."""
        asked = ["-H", "-t", "-n", "state", "established", "dport", "=", f":{PORT}"]
        lines = self.nat.home.run("ss", *asked).splitlines()
        return {int(line.split()[2].rsplit(":", 1)[1]) for line in lines}

    def end_call(self, port: int) -> None:
        """As a router does that forgets what it translates."""
        ends = ["sport", "=", f":{port}", "and", "dport", "=", f":{PORT}"]
        self.nat.home.run("ss", "-K", "-t", *ends)


@pytest.fixture
def content() -> bytes:
    return random.Random(27).randbytes(48 * MIB + 12_345)


@pytest.fixture
def nat(tmp_path: Path) -> Iterator[Nat]:
    with behind_nat(LINE, tmp_path) as made:
        yield made


@pytest.fixture
def catalogue(tmp_path: Path) -> Path:
    path = tmp_path / "server/catalogue.toml"
    path.parent.mkdir()
    path.write_text(
        f'[[home]]\nname = "attic"\nvolume = "iscsi://attic/{NAME_A}/0"\nuplink = "attic"\n\n'
        f'[[video]]\ntitle = "Summer"\nhome = "attic"\npath = "{FILM}"\n'
    )
    return path


def uplink(catalogue: Path, *words: object):
    return enkaku.command("media", "uplink", *words, "--catalogue", catalogue)


@pytest.fixture
def home(tmp_path: Path, nat: Nat, catalogue: Path, content: bytes) -> Iterator[Home]:
    folder = tmp_path / "home"
    fs.write(folder / "source" / FILM, content)
    disk = fs.ext(folder / "disk.img", 96 * MIB, folder / "source", "-L", "Films")
    made = Home(folder, nat, uplink(catalogue, "key").stdout.strip())
    made.write(target(NAME_A, disk, more='anyone = true\nportals = ["films"]'))
    uplink(catalogue, "add", "attic", made.own_pin())
    made.start()
    yield made
    made.peer.stop()


@contextmanager
def page(nat: Nat, catalogue: Path) -> Iterator[Page]:
    with serve(catalogue, "--uplink", Nat.OUTSIDE, within=nat.outside.exec([])) as serving:
        yield serving


def is_there(page: Page) -> bool:
    return page.home()["state"] in ("on", "ready")


def test_a_home_that_lets_nobody_in_is_played(
    nat: Nat, home: Home, catalogue: Path, content: bytes
):
    # Whoever is outside finds no way to it, and it listens to nobody.
    assert "bytes from" in nat.home.run("ping", "-c", 1, Nat.OUTSIDE)
    assert "bytes from" not in nat.outside.run("ping", "-c", 1, "-W", 1, Nat.HOME, check=False)
    listening = nat.home.run("ss", "-H", "-l", "-t", "-n").splitlines()
    assert all("127.0.0.1" in line for line in listening), listening
    with page(nat, catalogue) as serving:
        wait_for(lambda: is_there(serving), "there")
        assert home.standing()["known_as"] == "attic"
        assert uplink(catalogue, "list").stdout.split() == ["attic", home.own_pin()]
        assert home.own_pin() == pin_of(home.key), "a SHA-256 that others find, too"
        src = serving.video()["src"]
        status, body = serving.curl(src)
        assert status == 200
        assert hashlib.sha256(body).hexdigest() == hashlib.sha256(content).hexdigest()
        middle = 31 * MIB + 17
        asked = ["--range", f"{middle}-{middle + MIB - 1}"]
        assert serving.curl(src, *asked) == (206, content[middle : middle + MIB])
        connections = sum(len(session["connections"]) for session in home.sessions())
        assert connections > 1, "the initiator asks for what a path needs"
        calls = home.calls()
        assert len(calls) == connections + 1, "one of them for control"
        assert home.standing()["dialled"] >= connections
        said = home.ask("status").stdout
        assert f"uplink films to {Nat.OUTSIDE}:{PORT}: connected as attic" in said
        # One that is removed is out, and says why.
        uplink(catalogue, "remove", "attic")
        wait_for(lambda: home.standing()["known_as"] is None, "thrown out", BACK_S)
        wait_for(lambda: "does not know our key" in home.standing().get("problem", ""), "told why")
        wait_for(lambda: serving.home()["state"] == "off", "said", BACK_S)
        wait_for(lambda: not home.sessions(), "what was open has ended", BACK_S)
        assert serving.curl(src)[0] == 503


def test_a_control_connection_that_ends_is_back_and_disturbs_nobody(
    nat: Nat, home: Home, catalogue: Path, content: bytes, tmp_path: Path
):
    with page(nat, catalogue) as serving:
        # Nobody has asked for anything: there is no other connection yet.
        wait_for(lambda: home.standing()["known_as"] == "attic" and len(home.calls()) == 1, "up")
        control = home.calls().pop()
        src = serving.video()["src"]
        with playing(serving, src, tmp_path) as (curl, got):
            curl.wait_until(lambda: got.stat().st_size > MIB, "nothing is sent")
            begin = time.monotonic()
            home.end_call(control)
            wait_for(lambda: home.standing()["welcomes"] == 2, "back", BACK_S)
            wait_for(lambda: is_there(serving), "on", BACK_S - (time.monotonic() - begin))
            assert control not in home.calls()
            assert curl.wait(60) == 0
            assert got.read_bytes() == content


def test_a_line_that_is_cut_is_said_and_what_plays_goes_on(
    nat: Nat, home: Home, catalogue: Path, content: bytes, tmp_path: Path
):
    with page(nat, catalogue) as serving:
        wait_for(lambda: is_there(serving), "there")
        src = serving.video()["src"]
        with playing(serving, src, tmp_path) as (curl, got):
            curl.wait_until(lambda: got.stat().st_size > MIB, "nothing is sent")
            with nat.cut():
                wait_for(lambda: serving.home()["state"] == "off", "said", SILENCE_S + 2)
                assert serving.home()["since"].startswith("20")
            wait_for(lambda: is_there(serving), "on", BACK_S + 1)  # a request a tenth of a second
            code = curl.wait(90)
            sent = got.read_bytes()
        assert content.startswith(sent)
        if code != 0:  # as a player does, whose buffer is what it has
            status, rest = serving.curl(src, "--range", f"{len(sent)}-")
            assert status == 206
            sent += rest
        assert sent == content


@contextmanager
def playing(serving: Page, src: str, folder: Path) -> Iterator[tuple[Peer, Path]]:
    """curl at the speed of a film, and the file with what it has."""
    got = folder / "got"
    got.touch()
    words = [need("curl"), "--silent", "--show-error", "--limit-rate", "4M", "--output", got]
    curl = Peer([*serving.within, *words, serving.url + src], folder / "curl.log")
    try:
        yield curl, got
    finally:
        curl.stop()


def test_who_has_another_key_gets_nothing(nat: Nat, home: Home, catalogue: Path, content: bytes):
    with page(nat, catalogue) as serving:
        wait_for(lambda: home.standing()["known_as"] == "attic", "up")
        # The home does not take another server for its own.
        config = home.config.read_text()
        home.config.write_text(config.replace(home.pin, "ab" * 32))
        home.reload()
        wait_for(lambda: home.pin in home.standing().get("problem", ""), "told whose key it is")
        assert "is not known here" in home.standing()["problem"]
        wait_for(lambda: serving.home()["state"] == "off", "said", BACK_S)
        src = serving.video()["src"]
        status, said = serving.curl(src)
        assert status == 503 and b'"attic" is off' in said, said
        home.config.write_text(config)
        home.reload()
        wait_for(lambda: is_there(serving), "there again")
        assert serving.curl(src, "--range", "0-9") == (206, content[:10])
        # A stranger has a key, and says what a home says.
        stranger = Home(home.folder / "stranger", nat, home.pin)
        hello = home.folder / "hello"
        hello.write_bytes(bytes([0x01, 0, 2, 0, 1]))
        stranger_pin = stranger.own_pin()  # and with it the key
        words = [need("openssl"), "s_client", "-connect", f"{Nat.OUTSIDE}:{PORT}", "-quiet"]
        words += ["-tls1_3", "-alpn", "enkaku-uplink/1", *certificate(stranger)]

        def is_told_of() -> bool:
            answer = run(nat.home.exec(words), check=False, timeout_s=20, stdin=hello)
            assert "attic" not in answer.stdout and "unknown" in answer.stderr, answer
            return stranger_pin in serving.peer.output()

        # Not all that is turned away has a line of its own in the log.
        wait_for(is_told_of, "told of in the log")
        # One that says nothing is shown out.
        code = (
            f"import socket; s = socket.create_connection(('{Nat.OUTSIDE}', {PORT}), timeout=20)\n"
            "print(s.recv(100))"
        )
        assert run(nat.home.exec([sys.executable, "-c", code])).stdout.strip() == "b''"


def pin_of(key: Path) -> str:
    """Of a public key, by OpenSSL."""
    der = key.with_suffix(".der")
    run([need("openssl"), "pkey", "-in", key, "-pubout", "-outform", "DER", "-out", der])
    return hashlib.sha256(der.read_bytes()).hexdigest()


def certificate(home: Home) -> list[object]:
    """Of a key, for who speaks TLS otherwise than we do."""
    path = home.folder / "certificate.pem"
    words = ["req", "-x509", "-key", home.key, "-subj", "/CN=x", "-days", 1, "-out", path]
    run([need("openssl"), *words])
    return ["-cert", path, "-key", home.key]
