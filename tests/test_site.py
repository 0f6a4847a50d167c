"""`make site`: the pages of docs/README.md, all of docs/, as static files with pictures and without
dead links."""

import runpy
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from enkaku_lab import REPOSITORY
from enkaku_lab.process import run

SCRIPT = REPOSITORY / "scripts/site"
SITE = runpy.run_path(str(SCRIPT))


def named() -> list[str]:
    """Pages of the list, in order."""
    pages: list[str] = []
    for section in SITE["nav"]():
        for value in section.values():
            entries = [{"": value}] if isinstance(value, str) else value
            pages += [page for entry in entries for page in entry.values()]
    return pages


def test_the_list_has_each_page_of_docs_once():
    pages = named()
    assert len(pages) == len(set(pages))
    files = (REPOSITORY / "docs").rglob("*.md")
    there = {page.relative_to(REPOSITORY).as_posix() for page in files}
    assert there <= set(pages), f"not in docs/README.md: {sorted(there - set(pages))}"


class References(HTMLParser):
    """What a page of the site wants of other files."""

    def __init__(self) -> None:
        super().__init__()
        self.pictures: list[str] = []
        self.all: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        wanted = values.get("src" if tag in ("img", "script") else "href")
        if wanted:
            self.all.append(wanted)
            if tag == "img":
                self.pictures.append(wanted)


@pytest.fixture(scope="module")
def html() -> Path:
    made = run([SCRIPT], check=False, timeout_s=600)
    if "MkDocs cannot be installed" in made.stderr:
        pytest.skip("PyPI is out of reach, which has MkDocs (docs/site/requirements.txt)")
    assert made.code == 0, made.stderr
    return Path(made.stdout.strip()).parent


def test_the_site_has_every_page_with_its_pictures_and_nothing_from_elsewhere(html: Path):
    pages = [page for page in html.rglob("*.html") if page.name != "404.html"]
    assert len(pages) == len(named())
    pictures = 0
    for page in pages:
        references = References()
        references.feed(page.read_text())
        pictures += len(references.pictures)
        assert not [name for name in references.pictures if "://" in name], page
        for name in references.all:
            parts = urlsplit(name)
            if parts.scheme or parts.netloc or not parts.path:
                continue
            target = (page.parent / unquote(parts.path)).resolve()
            assert target.exists(), f"{page.relative_to(html)}: {name} leads nowhere"
    assert pictures > 50


def test_a_dead_link_is_told(tmp_path: Path):
    with pytest.raises(Exception, match="none.md leads nowhere"):
        SITE["joined"](Path("docs/README.md"), "none.md")
