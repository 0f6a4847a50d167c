"""Pictures and recordings of terminals (scripts/screens): how they are drawn, and that those in the
documents are shown there."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support import terminal

from enkaku_lab import REPOSITORY

FIGURES = REPOSITORY / "docs/figures"
FILMS = sorted(FIGURES.glob("film-*.svg"))
BYTES_MAX = 1_000_000
GREEN = "\x1b[32mup\x1b[0m"
RECORDED = (
    "\x1e100.0 1 2 0\n$ \n\n"
    "\x1e100.1 1 2 0\n$ \n\n"
    f"\x1e100.5 0 0 0\n$ top\n{GREEN} <1>\n"
    f"\x1e130.5 1 3 1\n$ top\n{GREEN} <2>\n"
)


def test_a_recording_keeps_what_is_new():
    first, second, third = terminal.frames(RECORDED)
    assert (first.at_s, first.cursor, first.screen) == (0, (2, 0), "$ \n\n")
    assert (second.at_s, second.cursor) == (0.5, None)
    assert third.at_s == 30.5


def test_nothing_is_waited_for_long():
    begins, length_s = terminal.shown_at(terminal.frames(RECORDED))
    assert begins == [0, 0.5, 0.5 + terminal.IDLE_S_MAX]
    assert length_s == begins[-1] + terminal.LAST_S


def test_a_film_has_each_row_once_and_each_screen_in_turn():
    drawn = terminal.film(terminal.frames(RECORDED), "a <test>")
    picture = ElementTree.fromstring(drawn)
    assert picture.get("aria-label") == "a <test>"
    assert drawn.count(">$ top<") == 1 and drawn.count("&lt;2&gt;") == 1
    strip = picture.find(".//{*}g[@class='strip']")
    rows = [[use.get("href") for use in screen.iter("{http://www.w3.org/2000/svg}use")] for screen in strip]
    assert [len(names) for names in rows] == [1, 2, 2] and rows[1][0] == rows[2][0]
    moves = re.findall(r"([\d.]+)%\{transform:translateX", re.search(r"@keyframes play\{(.*?)\}\}", drawn)[0])
    assert len(moves) == 4 and sorted(map(float, moves)) == list(map(float, moves))
    # Who wants no motion has the last screen.
    width = int(picture.get("width"))
    assert f".strip{{transform:translateX({-2 * width}px)}}" in drawn


def test_a_cast_is_asciicast_and_writes_only_what_changes():
    head, *events = map(json.loads, terminal.cast(terminal.frames(RECORDED), 20, 3, "enkaku").splitlines())
    assert (head["version"], head["width"], head["height"]) == (2, 20, 3)
    assert [(at, kind) for at, kind, _ in events] == [(0, "o"), (0.5, "o"), (30.5, "o")]
    assert GREEN in events[1][2] and "$ top" not in events[2][2]
    assert events[2][2].endswith("\x1b[2;4H\x1b[?25h")


def test_colours_go_on_in_the_next_row():
    red = f'fill="{terminal.BASIC[1]}"'
    assert terminal.still("\x1b[31ma\nb\x1b[0m\nc", "rows").count(red) == 2
    recorded = terminal.frames("\x1e1.0 0 0 0\n\x1b[31ma\nb\x1b[0m\nc\n")
    written = json.loads(terminal.cast(recorded, 9, 3, "rows").splitlines()[1])[2]
    assert "\x1b[2;1H\x1b[0m\x1b[31mb" in written and "\x1b[3;1H\x1b[0mc" in written


def _pages() -> str:
    pages = [REPOSITORY / "README.md", *(REPOSITORY / "docs").rglob("*.md")]
    return "".join(page.read_text() for page in pages)


@pytest.mark.parametrize("film", FILMS, ids=lambda path: path.stem)
def test_a_film_of_the_documents_plays_and_is_small(film: Path):
    recorded = film.with_suffix(".cast")
    assert film.stat().st_size < BYTES_MAX and recorded.stat().st_size < BYTES_MAX
    assert "@keyframes play" in film.read_text() and ElementTree.parse(film)
    head, *events = map(json.loads, recorded.read_text().splitlines())
    assert head["version"] == 2 and len(events) > 10
    assert [event[0] for event in events] == sorted(event[0] for event in events)
    assert f"figures/{film.name})" in _pages() and f"figures/{recorded.name})" in _pages()


def test_there_are_pictures_of_what_is_looked_at():
    pages = _pages()
    for name in ("screen-monitor.svg", "screen-diagnose.svg", "screen-mirror.svg", "screen-doctor.svg", "page-doctor.png"):
        assert (FIGURES / name).exists() and f"figures/{name})" in pages, name
    assert {film.stem for film in FILMS} >= {"film-monitor", "film-diagnose", "film-mirror"}
