"""docs/guides: each block of each page is run at two hosts in namespaces, or says why not there; and
what runs them finds what is wrong."""

from pathlib import Path

import pytest
from conftest import NOT_HERE, lack
from support import guides
from support.processes import that_name

from enkaku_lab import REPOSITORY

PAGES = sorted((REPOSITORY / "docs/guides").glob("*.md"))
namespaces = pytest.mark.needs("root", "/dev/fuse", "/dev/net/tun", "unshare")


@namespaces
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_guide_does_what_it_says(page: Path, tmp_path: Path):
    guide = guides.parse(page)
    NOT_HERE[page.name] = [block.not_here for block in guide.blocks if block.not_here]
    for what in guide.needs:
        if reason := lack(what):
            pytest.skip(reason)
    done = guides.outside(page, tmp_path / "guide")
    assert not any(block.failed for block in done.blocks), guides.transcript(done)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_guide_has_something_that_runs(page: Path):
    run = [block for block in guides.parse(page).blocks if not block.not_here and not block.hidden]
    assert run, f"nothing of {page.name} is tried"


def test_the_index_and_the_readme_name_every_guide():
    for place, folder in (("docs/README.md", "guides"), ("README.md", "docs/guides")):
        text = (REPOSITORY / place).read_text()
        assert not [page.name for page in PAGES if f"({folder}/{page.name})" not in text], place


def page_of(folder: Path, text: str) -> Path:
    page = folder / "page.md"
    page.write_text(text)
    return page


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("```toml\na = 1\n```\n", "neither sh, nor printed, nor not here"),
        ("```sh\ntrue\n", "page.md:1: nothing ends this block"),
        ("<!-- guide: before there\ntrue\n-->\n", "'there' is no host"),
        ("<!-- guide: far stays\n-->\n```sh\ntrue\n```\n", "stays until"),
        ("<!-- guide: fra -->\n```sh\ntrue\n```\n", "'fra' is not known"),
        ("<!-- guide: prints -->\n```text\nx\n```\n", "nothing has run"),
        ("<!-- guide: far -->\n", "no block follows"),
    ],
)
def test_a_page_that_is_wrong_says_where(tmp_path: Path, text: str, told: str):
    with pytest.raises(guides.BadGuide, match=told):
        guides.parse(page_of(tmp_path, text))


def test_what_differs_from_run_to_run_is_no_difference():
    said = ["67108864 bytes in 3.50 s: 19.2 MB/s", "", "in sync for 12 min 34 s", "at 00b645c3, … ends"]
    output = "first\n1 bytes in 0.1 s: 3 kB/s\nin sync for 2 s\nat 783d19f6, whatever ends\n"
    assert guides.not_printed(said, output) == []
    assert guides.not_printed(said[::-1], output) == [said[2], said[0]]
    assert guides.not_printed(["second"], output) == ["second"]


@namespaces
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("```sh\ntrue\nls /srv/none\ntrue\n```\n", "ls /srv/none"),
        ("```sh\necho 5 eggs\n```\n<!-- guide: prints -->\n```text\n5 apples\n```\n", "5 apples"),
        ('<!-- guide: far stays until "never" -->\n```sh\nfalse\n```\n', "ended with code 1"),
        ("```sh\nexit 3\n```\n", "its shell has ended"),
    ],
    ids=["command", "output", "server", "shell"],
)
def test_what_fails_in_a_page_fails(tmp_path: Path, text: str, told: str):
    done = guides.outside(page_of(tmp_path, text + "```sh\ntrue\n```\n"), tmp_path / "guide")
    assert told in done.blocks[0].failed
    assert not done.blocks[-1].seconds, "it went on behind the failure"


@namespaces
def test_hosts_have_folders_of_their_own_and_leave_nothing(tmp_path: Path):
    text = (
        '<!-- guide: far stays until "kept" -->\n```sh\necho kept; exec sleep 71613\n```\n'
        "<!-- guide: before far\n"
        "echo far >/srv/file; echo far >/etc/a-guide; cp /srv/file $GUIDE/\n-->\n"
        "```sh\n[ ! -e /srv/file ]\n[ ! -e /etc/a-guide ]\ncat $GUIDE/file\n"
        "ping -c1 -q far.example\n```\n"
        "<!-- guide: prints -->\n```text\nfar\n```\n"
    )
    done = guides.outside(page_of(tmp_path, text), tmp_path / "guide")
    assert not any(block.failed for block in done.blocks), guides.transcript(done)
    assert not that_name("sleep\x0071613")
    assert not Path("/srv/file").exists() and not Path("/etc/a-guide").exists()
