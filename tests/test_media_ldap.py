"""`enkaku media` with its catalogue in OpenLDAP: what is published is found with ldapsearch and plays on the
page; names that mean no good; a directory that dies and returns; passwords and certificates that are wrong."""

import os
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from support import filesystems as fs
from support.certificates import certificate
from support.media import Page, serve, wait_for

from enkaku_lab.peers import Target, enkaku, isns, need, slapd
from enkaku_lab.peers.slapd import BASE, SCHEMA, Slapd
from enkaku_lab.process import free_port, run

pytestmark = pytest.mark.needs("slapd", "ldapsearch", "mke2fs", "curl", "ffmpeg", "ffprobe")

MIB = 1 << 20
HOSTILE = "*)(uid=*),o=x\\00;\"ü\" +#"
FILE = "films/*)(cn=*,o=x\\ü+.mp4"
CHANGED_S = 1_600_000_000
"""2020-09-13T12:26:40Z."""
FAST = ("--directory-every", "1s")


@pytest.fixture(scope="session")
def films(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three videos of one second."""
    source = tmp_path_factory.mktemp("films") / "source"
    (source / "films").mkdir(parents=True)
    quiet = [need("ffmpeg"), "-v", "error", "-nostdin", "-y"]
    first = source / "films/kyoto.mp4"
    picture = ["-f", "lavfi", "-i", "testsrc2=size=160x90:rate=5:duration=1"]
    run([*quiet, *picture, "-c:v", "libx264", "-pix_fmt", "yuv420p", first])
    copy = [*quiet, "-i", first, "-c", "copy", "-metadata"]
    os.utime(first, (CHANGED_S, CHANGED_S))
    run([*copy, f"title={HOSTILE}", source / FILE])
    made = ["-metadata", "creation_time=2024-05-01T10:00:00Z"]
    run([*copy, "title=Boat", *made, source / "films/boat.mp4"])
    (source / "films/kyoto.en.srt").write_text("1\n00:00:00,100 --> 00:00:00,900\nHello\n")
    return source


@pytest.fixture
def disk(films: Path, tmp_path: Path) -> Path:
    return fs.ext(tmp_path / "disk.img", 16 * MIB, films, "-L", "attic, left")


@pytest.fixture
def target(disk: Path, tmp_path: Path) -> Iterator[Target]:
    with enkaku.serve([disk], tmp_path, options=["--read-only"]) as serving:
        yield serving


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Slapd]:
    with slapd.serve(tmp_path) as serving:
        yield serving


def publish(directory: Slapd, *words: object, code: int = 0) -> tuple[str, str]:
    """What is said of entries, and what is complained of."""
    at = ["--directory", directory.url, *directory.options]
    done = enkaku.command("media", "publish", *words, *at, check=False)
    assert done.code == code, done
    lines = done.stdout.splitlines()
    return (lines[-1].partition(" in ")[0] if lines else ""), done.stderr


def said(added: int, changed: int, removed: int, same: int) -> str:
    counts = f"added {added}, changed {changed}, removed {removed}, unchanged {same}"
    return f"directory: {counts}, refused 0,"


def titles(page: Page, query: str = "", *options: object) -> list[str]:
    videos = page.json(f"/api/videos?q={query}", *options)["videos"]
    return [video["title"] for video in videos]


def serve_from(directory: Slapd, *options: object):
    words = [*directory.options, *FAST, *options]
    return serve(directory.url, *words, logs=directory.folder)


def test_what_is_published_is_found_and_plays(
    directory: Slapd, target: Target, disk: Path, films: Path, tmp_path: Path
):
    words = [disk, "/films", "--as", target.url(), "--tag", "a,b"]
    assert publish(directory, *words)[0] == said(3, 0, 0, 0)
    before = directory.entries("(objectClass=ekVideo)", "*", "entryCSN")
    kyoto = next(entry for entry in before if entry["ekTitle"] == ["kyoto"])
    assert kyoto["ekPath"] == ["/films/kyoto.mp4"]
    assert kyoto["ekDurationMs"] == ["1000"]
    assert kyoto["ekBytes"] == [str((films / "films/kyoto.mp4").stat().st_size)]
    assert kyoto["ekRecorded"] == ["20200913122640Z"], "what the file system says"
    boat = next(entry for entry in before if entry["ekTitle"] == ["Boat"])
    assert boat["ekRecorded"] == ["20240501100000Z"], "what the file itself says"
    assert (kyoto["ekMediaType"], kyoto["ekTag"]) == (["video/mp4"], ["a,b"])
    assert kyoto["ekSubtitles"] == ['{"path":"/films/kyoto.en.srt","language":"en"}']
    assert kyoto["ekThumbnail"][0].startswith(": /9j/"), "JPEG in base64"
    volume = directory.entries("(objectClass=ekStorage)")[0]
    assert volume["dn"] == [f"cn=attic\\2C left,{BASE}"]
    assert volume["ekVolumeId"] == kyoto["ekVolumeId"]
    assert (volume["ekLun"], volume["ekPortal"]) == (["0"], [target.portal])

    with serve_from(directory, "--no-accounts") as page:
        assert len(titles(page)) == 3
        assert titles(page, "KYOTO") == ["kyoto"]
        # What means something in a filter means itself.
        assert titles(page, "*)(uid=*)") == [HOSTILE]
        assert titles(page, "*") == [HOSTILE]
        found = page.json("/api/videos?q=%2A%29%28uid")["videos"][0]
        assert page.curl(found["src"]) == (200, (films / FILE).read_bytes())
        kyoto_there = page.json("/api/videos?q=kyoto")["videos"][0]
        assert page.curl(kyoto_there["poster"])[1].startswith(b"\xff\xd8\xff")
        assert b"Hello" in page.curl(kyoto_there["subtitles"][0]["src"])[1]
        assert page.home()["name"] == "attic, left"

        assert kyoto_there["bytes"] == (films / "films/kyoto.mp4").stat().st_size
        assert kyoto_there["recorded"] == "2020-09-13T12:26:40Z"
        # The one whose file is the youngest comes first: its file does not say when it was made.
        newest = page.json("/api/videos?sort=newest")["videos"]
        assert [video["title"] for video in newest] == [HOSTILE, "Boat", "kyoto"]
        assert titles(page, "2020-09") == ["kyoto"]

        # Once more, nothing is written; then what has changed, and nothing else.
        assert publish(directory, *words)[0] == said(0, 0, 0, 3)
        assert directory.entries("(objectClass=ekVideo)", "*", "entryCSN") == before
        run([need("debugfs"), "-w", "-R", "rm /films/boat.mp4", disk])
        cn = kyoto["dn"][0]
        mine = f"dn: {cn}\nchangetype: modify\nreplace: ekTitle\nekTitle: Kyoto in Spring\n"
        directory.tool("ldapmodify", ldif=mine)
        assert publish(directory, *words)[0] == said(0, 0, 1, 2)
        wait_for(lambda: titles(page, "boat") == [], "gone from the page")
        assert titles(page, "spring") == ["Kyoto in Spring"], "a person's title stays"
        after = directory.entries("(objectClass=ekVideo)", "entryCSN", "ekTitle")
        csn = {entry["dn"][0]: entry["entryCSN"] for entry in before}
        same = [entry for entry in after if csn[entry["dn"][0]] == entry["entryCSN"]]
        assert (len(after), len(same)) == (2, 1), "the person's entry is another one, by him"
        words[-1] = "other"
        assert publish(directory, *words)[0] == said(0, 2, 0, 0)
        wait_for(lambda: len(titles(page, "other")) == 2, "found by the new word")


def test_a_folder_whose_last_video_is_gone_has_none(
    directory: Slapd, target: Target, disk: Path, tmp_path: Path
):
    words = [disk, "/films", "--as", target.url()]
    assert publish(directory, *words)[0] == said(3, 0, 0, 0)
    gone = ("films/kyoto.mp4", "films/boat.mp4", FILE)
    fs.debugfs(disk, [f'rm "/{path}"' for path in gone], tmp_path)
    assert publish(directory, *words)[0] == said(0, 0, 3, 0)
    # Of one that never had any, it is said.
    complaint = publish(directory, *words, code=1)[1]
    assert "no video there" in complaint, complaint


def test_what_was_published_without_size_and_date_gets_them(
    directory: Slapd, target: Target, disk: Path
):
    words = [disk, "/films", "--as", target.url()]
    publish(directory, *words)
    named = directory.entries("(objectClass=ekVideo)", "ekTitle")
    old = "".join(
        f"dn: {entry['dn'][0]}\nchangetype: modify\ndelete: ekBytes\n-\ndelete: ekRecorded\n\n"
        for entry in named
        if entry["ekTitle"] != ["kyoto"]
    )
    # A person knows better when it was recorded, and says so in a zone.
    mine = "".join(
        f"dn: {entry['dn'][0]}\nchangetype: modify\nreplace: ekRecorded\nekRecorded: 198707142015+0200\n\n"
        for entry in named
        if entry["ekTitle"] == ["kyoto"]
    )
    directory.tool("ldapmodify", ldif=old + mine)
    with serve_from(directory, "--no-accounts") as page:
        videos = page.json("/api/videos")["videos"]
        known = {video["title"]: (video["bytes"], video["recorded"]) for video in videos}
        assert known["Boat"] == known[HOSTILE] == (None, None)
        assert known["kyoto"][1] == "1987-07-14T18:15:00Z"
        newest = page.json("/api/videos?sort=newest")["videos"]
        assert newest[0]["title"] == "kyoto", "of the others it is not known"
    assert publish(directory, *words)[0] == said(0, 3, 0, 0)
    after = directory.entries("(objectClass=ekVideo)", "ekTitle", "ekBytes", "ekRecorded")
    assert all(entry["ekBytes"] and entry["ekRecorded"] for entry in after)
    kyoto = next(entry for entry in after if entry["ekTitle"] == ["kyoto"])
    assert kyoto["ekRecorded"] == ["19870714181500Z"]
    assert publish(directory, *words)[0] == said(0, 0, 0, 3)


def test_beside_a_file_it_has_what_the_file_has(
    directory: Slapd, target: Target, tmp_path: Path
):
    file = tmp_path / "catalogue.toml"
    words = [target.url(), "/films", "--catalogue", file, "--home", "shed"]
    assert publish(directory, *words)[0] == said(3, 0, 0, 0)
    file.write_text(file.read_text().replace('"Boat"', '"My Boat"'))
    assert publish(directory, *words)[0] == said(0, 1, 0, 2)
    assert directory.entries("(ekTitle=My Boat)")[0]["ekPath"] == ["/films/boat.mp4"]
    complaint = publish(directory, *words[:-1], "attic", code=1)[1]
    assert 'calls this volume "shed"' in complaint, complaint


def test_a_directory_that_dies_is_remembered_and_read_when_it_returns(
    directory: Slapd, target: Target, films: Path
):
    publish(directory, target.url(), "/films")
    with serve_from(directory, "--no-accounts") as page:
        directory.kill()
        log = page.peer.log
        wait_for(lambda: "what was there before stays" in log.read_text(), "told")
        assert len(titles(page)) == 3
        boat = page.json("/api/videos?q=boat")["videos"][0]
        assert page.curl(boat["src"]) == (200, (films / "films/boat.mp4").read_bytes())
        directory.restart()
        assert len(titles(page)) == 3
        # A broken entry is told of and left out; one beside it counts.
        head = "objectClass: ekVideo\nekVolumeId: {id}\nekPath: /films/{name}\n"
        volume = directory.entries("(objectClass=ekStorage)")[0]["ekVolumeId"][0]
        entry = "dn: cn={name},{base}\ncn: {name}\n" + head + "ekTitle: {title}\n\n"
        ldif = entry.format(name="good.mp4", base=BASE, id=volume, title="Good")
        ldif += entry.format(name="lost.mp4", base=BASE, id="nowhere", title="Lost")
        # A title with a NUL in it, in base64.
        ldif += entry.format(name="bad.mp4", base=BASE, id=volume, title="x").replace(
            "ekTitle: x", "ekTitle:: YQBi"
        )
        directory.tool("ldapadd", "-c", ldif=ldif, check=False)
        wait_for(lambda: titles(page, "good") == ["Good"], "found")
        assert len(titles(page)) == 4
        assert 'there is no volume "nowhere"' in log.read_text().replace("\\", "")


def account(folder: Path, state: Path, name: str, url: str, *options: str) -> None:
    secret = folder / "viewer"
    secret.write_text("correct horse\n")
    secret.chmod(0o600)
    words = ["--catalogue", url, "--state", state, "--password-file", secret, *options]
    enkaku.command("media", "user", "add", name, *words)


def test_a_video_for_some_is_for_nobody_else(directory: Slapd, target: Target, tmp_path: Path):
    publish(directory, target.url(), "/films")
    boat = directory.entries("(ekTitle=Boat)")[0]["dn"][0]
    visible = f"ekVisibleTo: uid=Anna,ou=people,{slapd.SUFFIX}"
    change = f"dn: {boat}\nchangetype: modify\nadd: ekVisibleTo\n{visible}\n"
    directory.tool("ldapmodify", ldif=change)
    with serve_from(directory, "--no-accounts") as page:
        assert len(titles(page)) == 2, "nobody is Anna here"
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    for name in ("anna", "ben"):
        account(tmp_path, state, name, directory.url, *(["--owner"] if name == "ben" else []))
    with serve_from(directory, "--state", state) as page:
        cookies = {}
        for name in ("anna", "ben"):
            jar = tmp_path / f"{name}.cookies"
            body = {"name": name, "password": "correct horse"}
            assert page.send("/api/login", body, "--cookie-jar", jar)[0] == 200
            cookies[name] = ("--cookie", jar)
        video = page.json("/api/videos?q=boat", *cookies["anna"])["videos"][0]
        assert page.curl(video["src"], *cookies["anna"])[0] == 200
        assert titles(page, "boat", *cookies["ben"]) == []
        assert len(titles(page, "", *cookies["ben"])) == 2
        for address in (video["src"], video["poster"]):
            assert page.curl(address, *cookies["ben"])[0] == 404
        share = {"video": video["id"], "time_s": 60}
        assert page.send("/api/owner/share", share, *cookies["ben"])[0] == 404
    # A later publication leaves it as it is.
    publish(directory, target.url(), "/films", "--tag", "new")
    assert directory.entries("(ekTitle=Boat)")[0]["ekVisibleTo"] == [visible.partition(": ")[2]]


def test_without_an_address_isns_names_it(directory: Slapd, target: Target, tmp_path: Path):
    with isns.ours(tmp_path) as names:
        publish(directory, target.url(), "/films", "--by-isns")
        assert "ekPortal" not in directory.entries("(objectClass=ekStorage)")[0]
        with serve_from(directory, "--no-accounts", "--isns", names.address) as page:
            assert titles(page) == [], "nobody knows where it is"
            source = "iqn.2026-11.org.example:disk"
            port = f"portal=127.0.0.1:{target.port}"
            if shutil.which("isnsadm"):
                names.isnsadm(source, "--register", f"target={target.iqn}", port)
                wait_for(lambda: len(titles(page)) == 3, "found by iSNS")


def command(directory: Slapd | None, url: str, *options: object) -> tuple[int, str]:
    words = ["media", "serve", url, "--no-accounts", "--listen", "127.0.0.1:0", *options]
    done = enkaku.command(*words, check=False)
    return done.code, done.stderr


def test_what_is_wrong_is_told(directory: Slapd, tmp_path: Path):
    wrong = tmp_path / "wrong"
    wrong.write_text("guess\n")
    wrong.chmod(0o600)
    user = ["--directory-user", slapd.USER]
    code, told = command(directory, directory.url, *user, "--directory-password-file", wrong)
    assert code == 1 and "wrong user or password" in told and slapd.USER in told, told
    assert "guess" not in told
    code, told = command(directory, directory.url.replace("videos", "films"), *directory.options)
    assert code == 1 and "the base has to be made first" in told, told
    code, told = command(directory, f"ldap://127.0.0.1:{free_port()}/{BASE}")
    assert code == 1 and "refused" in told, told
    code, told = command(directory, f"ldap://directory.example/{BASE}", *directory.options)
    assert code == 2 and "for everybody to read" in told, told
    code, told = command(directory, directory.url, *user)
    assert code == 2 and "ENKAKU_DIRECTORY_PASSWORD" in told, told
    code, told = command(directory, directory.url, "--directory-starttls")
    assert code == 1 and "StartTLS" in told, told
    done = enkaku.command("media", "serve", directory.url, check=False)
    assert done.code == 2 and "--state FOLDER" in done.stderr


@pytest.mark.needs("openssl")
def test_by_starttls_another_certificate_is_refused(tmp_path: Path, target: Target):
    ca, (other, _) = certificate(tmp_path, "own"), certificate(tmp_path, "other")
    own = ca[0]
    leaf, key = certificate(tmp_path, "leaf", ca)
    tls = [f"TLSCertificateFile {leaf}", f"TLSCertificateKeyFile {key}"]
    with slapd.serve(tmp_path, *tls) as directory:
        trust = ["--directory-starttls", "--directory-ca"]
        assert publish(directory, target.url(), "/films", *trust, own)[0] == said(3, 0, 0, 0)
        for ca in (["--directory-starttls"], [*trust, other]):
            complaint = publish(directory, target.url(), "/films", *ca, code=1)[1]
            assert "TLS: " in complaint and "certificate" in complaint, complaint
        with serve_from(directory, "--no-accounts", *trust, own) as page:
            assert len(titles(page)) == 3


def test_a_server_that_speaks_something_else_is_told_of(tmp_path: Path, target: Target):
    begin = time.monotonic()
    url = f"ldap://127.0.0.1:{target.port}/{BASE}"
    code, told = command(None, url)
    assert code == 1 and "directory 127.0.0.1" in told, told
    assert time.monotonic() - begin < 40


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """The URL of a server that says this to whatever it is asked, until it is asked no more."""

    def talk(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            # It may be gone before it has heard the answer.
            with suppress(ConnectionError):
                while connection.recv(4096):
                    connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(30)
        talking = threading.Thread(target=talk, args=[listener])
        talking.start()
        try:
            yield f"ldap://127.0.0.1:{listener.getsockname()[1]}/{BASE}"
        finally:
            talking.join()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("300c0201016907 0a0100 0400 0400", "answers something else than was asked for"),
        ("300c0201096507 0a0100 0400 0400", "answers what was not asked"),
    ],
    ids=["of another kind", "to nobody"],
)
def test_an_answer_to_something_else_is_told_of(answer: str, expected: str):
    with answering(bytes.fromhex(answer)) as url:
        code, told = command(None, url)
    assert code == 1 and expected in told, told
    assert "panicked" not in told, told


def test_the_other_form_of_the_schema_loads(tmp_path: Path):
    folder = tmp_path / "config"
    folder.mkdir()
    begin = "dn: cn=config\nobjectClass: olcGlobal\ncn: config\n\n"
    begin += "dn: cn=schema,cn=config\nobjectClass: olcSchemaConfig\ncn: schema\n\n"
    core = Path("/etc/ldap/schema/core.ldif").read_text()
    text = tmp_path / "config.ldif"
    text.write_text(begin + core + "\n" + SCHEMA.with_suffix(".ldif").read_text())
    run([need("slapadd"), "-n", "0", "-F", folder, "-l", text])
