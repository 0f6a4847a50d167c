"""`enkaku media`: accounts by command, logging in with TLS, links to one video, storage that its owner
unplugs while somebody watches; with curl, and with a terminal that asks for a password."""

import json
import os
import pty
import random
import re
import shutil
import socket
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import filesystems as fs
from support.media import Page, serve, wait_for

from enkaku_lab.peers import Target, enkaku
from enkaku_lab.process import Peer, run

MIB = 1 << 20
FILM = "films/summer.mp4"
PASSWORD = "correct horse"
LOCAL_FLAGS = 3
"""Of what tcgetattr tells (termios(3))."""

pytestmark = pytest.mark.needs("mke2fs", "curl")


@pytest.fixture
def content() -> bytes:
    return random.Random(27).randbytes(40 * MIB + 12_345)


@pytest.fixture
def target(tmp_path: Path, content: bytes) -> Iterator[Target]:
    source = tmp_path / "source"
    (source / "films").mkdir(parents=True)
    (source / FILM).write_bytes(content)
    disk = fs.ext(tmp_path / "disk.img", 96 * MIB, source, "-L", "Films")
    with enkaku.serve([disk], tmp_path, options=["--read-only"]) as serving:
        yield serving


@pytest.fixture
def catalogue(target: Target, tmp_path: Path) -> Path:
    path = tmp_path / "films.toml"
    path.write_text(
        f'[[home]]\nname = "attic"\nvolume = "{target.url()}"\n\n'
        f'[[video]]\ntitle = "Summer"\nhome = "attic"\npath = "{FILM}"\n\n'
        '[[video]]\ntitle = "Gone"\nhome = "attic"\npath = "films/gone.mp4"\n'
    )
    return path


def media(*words: object, code: int = 0) -> str:
    """What is said, on the one channel or the other."""
    done = run([enkaku.binary(), "media", *words], check=False)
    assert done.code == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stderr


def add(catalogue: Path, name: str, *options: object) -> None:
    secret = catalogue.with_name("password")
    secret.write_text(f"{PASSWORD}\n")
    secret.chmod(0o600)
    media("user", "add", name, "--catalogue", catalogue, "--password-file", secret, *options)


def login(page: Page, name: str, *options: object) -> tuple[object, ...]:
    """Logs in; returns what has curl send the cookie."""
    jar = page.peer.log.with_suffix(f".{name}.cookies")
    body = {"name": name, "password": PASSWORD}
    status, said = page.send("/api/login", body, "--cookie-jar", jar, *options)
    assert status == 200, said
    return ("--cookie", jar, *options)


def typed(words: list[object], lines: list[str]) -> tuple[int, str]:
    """Exit code of a command at a terminal of its own, and all that is seen there."""
    child, terminal = pty.fork()
    if child == 0:
        os.execv(str(words[0]), [str(word) for word in words])
    seen = b""
    try:
        for line in lines:
            before = len(seen)
            while b": " not in seen[before:]:
                seen += os.read(terminal, 4096)
            # rpassword asks first, and hides then what is typed.
            wait_for(lambda: not termios.tcgetattr(terminal)[LOCAL_FLAGS] & termios.ECHO, "hidden")
            os.write(terminal, f"{line}\n".encode())
        while piece := os.read(terminal, 4096):
            seen += piece
    except OSError:
        pass  # its end, as Linux tells it
    finally:
        os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), seen.decode()


def test_accounts_by_command(catalogue: Path):
    at = ("--catalogue", catalogue)
    words = [enkaku.binary(), "media", "user", "add", "Anna", "--owner", *at]
    code, seen = typed(words, ["other words", "not the same"])
    assert code == 2, seen
    assert "nothing has changed" in seen
    code, seen = typed(words, [PASSWORD, PASSWORD])
    assert code == 0, seen
    assert PASSWORD not in seen, "it is not shown"
    add(catalogue, "ben")
    assert media("user", "list", *at).split() == ["anna", "owner", "ben", "viewer"]
    accounts = catalogue.with_suffix(".state") / "accounts.json"
    assert accounts.stat().st_mode & 0o777 == 0o600
    assert accounts.parent.stat().st_mode & 0o777 == 0o700
    assert accounts.read_text().count("$argon2id$") == 2
    assert PASSWORD not in accounts.read_text()
    assert "there is \"ben\" already" in media(
        "user", "add", "ben", *at, "--password-file", catalogue.with_name("password"), code=2
    )
    media("user", "remove", "ben", *at)
    assert "there is no \"ben\"; there are anna" in media("user", "remove", "ben", *at, code=2)
    accounts.chmod(0o644)
    assert "chmod 600" in media("serve", catalogue, code=1)


def test_a_browser_logs_in_by_tls_and_in_the_clear_is_sent_there(
    catalogue: Path, content: bytes
):
    add(catalogue, "anna", "--owner")
    state = catalogue.with_suffix(".state")
    with serve(catalogue, "--tls-self-signed") as page:
        assert page.url.startswith("https://127.0.0.1:")
        trust = ("--cacert", state / "tls.crt")
        assert page.curl("/api/videos", *trust)[0] == 401
        head = page.head("/", *trust)
        assert (head["status"], head["location"]) == ("303", "/login")
        anna = login(page, "anna", *trust)
        jar = anna[1].read_text()
        assert "__Host-session" in jar
        assert re.search(r"#HttpOnly_127\.0\.0\.1\tFALSE\t/\tTRUE\t", jar), "secure, http only"
        found = page.json("/api/videos?q=summer", *anna)["videos"][0]
        assert page.curl(found["src"], *anna) == (200, content)
        assert (state / "tls.key").stat().st_mode & 0o777 == 0o600

        # In the clear on the same port.
        clear = Page(page.peer, page.url.replace("https", "http"))
        head = clear.head("/login?x=1")
        assert head["status"] == "308"
        assert head["location"] == f"{page.url}/login?x=1"
        answer = clear.say(b"GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 400 ")
        # Who says nothing, or no TLS that ends, holds up nobody.
        with socket.create_connection(("127.0.0.1", page.port)) as half:
            half.sendall(b"\x16\x03\x01\x02\x00")
            assert page.curl("/login", *trust)[0] == 200
        printed = page.peer.log.read_text()
        if shutil.which("openssl"):
            words = ["openssl", "x509", "-in", state / "tls.crt", "-noout", "-fingerprint", "-sha256"]
            assert run(words).stdout.strip().split("=")[1] in printed
    # The session and the certificate are those of before.
    with serve(catalogue, "--tls-self-signed") as page:
        assert page.json("/api/me", *anna)["name"] == "anna"
    key = state / "tls.key"
    given = ("--tls-cert", state / "tls.crt", "--tls-key", key)
    with serve(catalogue, *given) as page:
        assert page.json("/api/me", *anna)["is_owner"] is True
    key.chmod(0o640)
    assert "mode 640" in media("serve", catalogue, *given, code=2)


def test_nobody_is_let_in_from_elsewhere_without_an_account(catalogue: Path):
    said = media("serve", catalogue, "--listen", "0.0.0.0:0", code=2)
    assert "there are no accounts" in said
    assert "--no-accounts" in said
    with serve(catalogue) as page:
        assert page.json("/api/me") == {"name": None, "is_owner": True, "accounts": False}
        add(catalogue, "anna")
        wait_for(lambda: page.curl("/api/me")[0] == 401, "asked for a name")
        anna = login(page, "anna")
        for _ in range(12):
            status, said = page.send("/api/login", {"name": "anna", "password": "guess"})
            if status == 429:
                break
        assert status == 429, said
        assert int(page.head("/api/me", *anna)["status"]) == 200, "who is in stays in"
        head = page.head(
            "/api/login",
            *("--header", "Content-Type: application/json"),
            *("--data-raw", '{"name": "anna", "password": "guess"}'),
        )
        assert 0 < int(head["retry-after"]) <= 61
        media("user", "remove", "anna", "--catalogue", catalogue)
        wait_for(lambda: page.curl("/api/me", *anna)[0] == 401, "logged out")


def test_a_link_plays_its_video_and_is_taken_back(catalogue: Path, content: bytes):
    add(catalogue, "anna", "--owner")
    at = ("--catalogue", catalogue)
    with serve(catalogue) as page:
        link = media("share", "summer", "--for", "3d", *at).strip()
        assert link.startswith(f"{page.url}/s/")
        path = link.removeprefix(page.url)
        wait_for(lambda: page.curl(path)[0] == 200, "known")
        videos = page.json(f"{path}/api/videos")["videos"]
        assert [one["title"] for one in videos] == ["Summer"]
        src = videos[0]["src"]
        assert page.curl(src) == (200, content)
        assert page.curl(src.removeprefix(path))[0] == 401
        anna = login(page, "anna")
        gone = page.json("/api/videos?q=gone", *anna)["videos"][0]["src"]
        assert page.curl(path + gone)[0] == 404, "nothing but its video"
        name, until, *_ = media("share", "--list", *at).split()
        assert until == "until"
        media("share", "--revoke", name, *at)
        wait_for(lambda: page.curl(src)[0] == 404, "taken back")
    assert "has no video" in media("share", "winter", "--for", "3d", *at, code=2)
    assert "366 days" in media("share", "summer", "--for", "400d", *at, code=2)


def test_unplugging_ends_what_is_sent_and_keeps_everybody_off(
    catalogue: Path, content: bytes, tmp_path: Path
):
    add(catalogue, "anna", "--owner")
    add(catalogue, "ben")
    with serve(catalogue) as page:
        anna, ben = login(page, "anna"), login(page, "ben")
        src = page.json("/api/videos?q=summer", *ben)["videos"][0]["src"]

        def seen() -> list[dict]:
            return page.json("/api/owner", *anna)["watching"]

        slow = ["curl", "--silent", "--limit-rate", "1M", *ben, "--output", tmp_path / "part"]
        watching = Peer([*slow, page.url + src], tmp_path / "slow.log")
        try:
            wait_for(lambda: bool(seen()), "seen")
            one = seen()[0]
            assert (one["name"], one["address"]) == ("ben", "127.0.0.1")
            assert (one["title"], one["home"]) == ("Summer", "attic")
            assert page.send("/api/owner/unplug", {"home": "attic"}, *ben)[0] == 403
            status, said = page.send("/api/owner/unplug", {"home": "attic"}, *anna)
            assert status == 200, said
            assert json.loads(said)["ended"] == 1
            # What the sockets hold still comes; then it is over, and not as if it were whole.
            wait_for(lambda: not watching.running(), "ended")
            assert 0 < (tmp_path / "part").stat().st_size < len(content)
            assert not seen()
        finally:
            watching.stop()
        status, said = page.curl(src, *ben)
        assert status == 503
        assert said.startswith(b'the owner of the storage "attic" has it, since ')
        assert page.json("/api/homes", *ben)["homes"][0]["state"] == "away"
    with serve(catalogue) as page:
        assert page.json("/api/homes", *ben)["homes"][0]["state"] == "away", "after a restart, too"
        assert page.send("/api/owner/back", {"home": "attic"}, *anna)[0] == 200
        assert page.curl(src, *ben) == (200, content)
