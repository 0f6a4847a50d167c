"""What a terminal has shown, drawn: a moment as a picture, a recording as one that plays.

A screen is what `tmux capture-pane -e` prints, letters with SGR sequences (ECMA-48 §8.3.117). A
recording is kept as asciicast v2, too, which `asciinema play` shows in a terminal
(https://docs.asciinema.org/manual/asciicast/v2/). No terminal is emulated here: tmux does that.
"""

import json
import re
from dataclasses import dataclass
from html import escape

CELL_X, CELL_Y, MARGIN = 8.4, 18, 14
FRONT, BACK = "#d4d4d4", "#1e1e1e"
BASIC = (
    "#1e1e1e #e06c75 #98c379 #e5c07b #61afef #c678dd #56b6c2 #d4d4d4 "
    "#7f848e #ef8891 #b5d99c #f0d399 #86c5f7 #d79ae6 #7fd1da #ffffff"
).split()
IDLE_S_MAX = 2.0
"""A recording waits no longer for what comes next."""
LAST_S = 4.0
"""How long the last screen of one stays."""
RECORD = "\x1e"
"""Begins the line before each screen of a recording (record separator)."""
SGR = re.compile(r"\x1b\[([\d;]*)m")


def colour(words: list[int]) -> str:
    """What follows 38 or 48: 5;N of 256 or 2;R;G;B. Takes it from the list."""
    if words.pop(0) == 2:
        return "#" + "".join(f"{words.pop(0):02x}" for _ in range(3))
    number = words.pop(0)
    if number < 16:
        return BASIC[number]
    if number >= 232:
        return "#" + f"{8 + 10 * (number - 232):02x}" * 3
    steps = [0, 95, 135, 175, 215, 255]
    number -= 16
    return "#" + "".join(f"{steps[number // 6**power % 6]:02x}" for power in (2, 1, 0))


class Pen:
    """How the next letter looks."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.front, self.back = FRONT, BACK
        self.bold = self.dim = self.reverse = False

    def take(self, words: list[int]) -> None:
        while words:
            word = words.pop(0)
            if word == 0:
                self.reset()
            elif word in (1, 2, 7):
                setattr(self, {1: "bold", 2: "dim", 7: "reverse"}[word], True)
            elif word == 22:
                self.bold = self.dim = False
            elif word == 27:
                self.reverse = False
            elif 30 <= word <= 37 or 90 <= word <= 97:
                self.front = BASIC[word - 30 if word < 90 else word - 82]
            elif 40 <= word <= 47 or 100 <= word <= 107:
                self.back = BASIC[word - 40 if word < 100 else word - 92]
            elif word == 38:
                self.front = colour(words)
            elif word == 48:
                self.back = colour(words)
            elif word == 39:
                self.front = FRONT
            elif word == 49:
                self.back = BACK

    def draw(self, text: str, column: int) -> list[str]:
        """In the first row."""
        front, back = (self.back, self.front) if self.reverse else (self.front, self.back)
        x, y, width = MARGIN + column * CELL_X, MARGIN, len(text) * CELL_X
        drawn = []
        if back != BACK:
            drawn.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{CELL_Y}" fill="{back}"/>')
        if text.strip():
            look = f' fill="{front}"' if front != FRONT else ""
            look += ' font-weight="bold"' if self.bold else ""
            look += ' opacity="0.65"' if self.dim else ""
            drawn.append(
                f'<text x="{x:.1f}" y="{y + 13.5}" textLength="{width:.1f}"{look}>{escape(text)}</text>'
            )
        return drawn


@dataclass(frozen=True)
class Frame:
    """A screen from one moment on."""

    at_s: float
    screen: str
    cursor: tuple[int, int] | None = None
    """Column and row, where it is seen."""


def frames(text: str) -> list[Frame]:
    """A recording: before each screen a line that begins with RECORD, with the time in seconds, 0
    or 1 for a cursor that is seen, its column and its row. Screens that show nothing new are left
    out; times begin at 0."""
    found: list[Frame] = []
    first = None
    for record in text.split(RECORD)[1:]:
        head, _, screen = record.partition("\n")
        at, is_seen, column, row = head.split()
        first = float(at) if first is None else first
        cursor = (int(column), int(row)) if is_seen == "1" else None
        if not found or (found[-1].screen, found[-1].cursor) != (screen, cursor):
            found.append(Frame(float(at) - first, screen, cursor))
    return found


def drawn_rows(screen: str) -> tuple[list[list[str]], int]:
    """What is drawn of each row, as if it were the first one, and how many columns it takes."""
    rows, pen, columns = [], Pen(), 0
    for line in screen.rstrip().split("\n"):
        drawn, column = [], 0
        for at, part in enumerate(SGR.split(line)):
            if at % 2:
                pen.take([int(word or 0) for word in part.split(";")])
            elif part:
                drawn += pen.draw(part, column)
                column += len(part)
        rows.append(drawn)
        columns = max(columns, column)
    return rows, columns


def _picture(width: float, height: float, what: str, inside: list[str]) -> str:
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}"'
        f' height="{height}" role="img" aria-label="{escape(what)}">',
        # Inherited, it does not outweigh the browser's own rule for texts.
        "<style>text{white-space:pre}</style>",
        f'<rect width="100%" height="100%" rx="8" fill="{BACK}"/>',
        f'<g font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="14" fill="{FRONT}">',
        *inside, "</g>", "</svg>", "",
    ])


def still(screen: str, what: str) -> str:
    """A terminal's content, with its colours, as a picture."""
    rows, columns = drawn_rows(screen)
    inside = []
    for row, drawn in enumerate(rows):
        if drawn:
            inside.append(f'<g transform="translate(0 {row * CELL_Y})">{"".join(drawn)}</g>')
    return _picture(2 * MARGIN + columns * CELL_X, 2 * MARGIN + len(rows) * CELL_Y, what, inside)


def film(recorded: list[Frame], what: str) -> str:
    """A recording as a picture that plays again and again, by CSS alone: screens side by side on a
    strip, and the strip moves. A row that is seen several times is drawn once. Who wants no motion
    sees the last screen."""
    screens = [drawn_rows(frame.screen) for frame in recorded]
    width = round(2 * MARGIN + max(columns for _, columns in screens) * CELL_X)
    height = 2 * MARGIN + max(len(rows) for rows, _ in screens) * CELL_Y
    names: dict[str, str] = {}
    strip = []
    for at, ((rows, _), frame) in enumerate(zip(screens, recorded)):
        used = []
        for row, drawn in enumerate(rows):
            if drawn:
                name = names.setdefault("".join(drawn), f"r{len(names)}")
                used.append(f'<use href="#{name}" y="{row * CELL_Y}"/>')
        if frame.cursor:
            x, y = MARGIN + frame.cursor[0] * CELL_X, MARGIN + frame.cursor[1] * CELL_Y
            used.append(f'<rect x="{x:.1f}" y="{y}" width="{CELL_X}" height="{CELL_Y}" opacity="0.7"/>')
        strip.append(f'<g transform="translate({at * width} 0)">{"".join(used)}</g>')
    begins, length_s = shown_at(recorded)
    moves = [
        f"{100 * begin / length_s:.3f}%{{transform:translateX({-at * width}px)}}"
        for at, begin in enumerate(begins)
    ]
    last = f"translateX({-(len(recorded) - 1) * width}px)"
    style = (
        f".strip{{transform:{last}}}@keyframes play{{{''.join(moves)}100%{{transform:{last}}}}}"
        "@keyframes time{from{transform:scaleX(0)}to{transform:scaleX(1)}}"
        "@media(prefers-reduced-motion:no-preference){"
        f".strip{{animation:play {length_s:.2f}s step-end infinite}}"
        f".time{{animation:time {length_s:.2f}s linear infinite}}}}"
    )
    inside = [f"<style>{style}</style>", "<defs>"]
    inside += [f'<g id="{name}">{drawn}</g>' for drawn, name in names.items()]
    inside += ["</defs>", '<g class="strip">', *strip, "</g>"]
    inside += [f'<rect class="time" y="{height - 3}" width="{width}" height="3" fill="{BASIC[4]}"/>']
    return _picture(width, height, what, inside)


def shown_at(recorded: list[Frame]) -> tuple[list[float], float]:
    """When each screen is shown, and how long it all takes: nothing is waited for longer than IDLE_S_MAX."""
    begins, at_s = [], 0.0
    for frame, after in zip(recorded, [*recorded[1:], None]):
        begins.append(at_s)
        at_s += LAST_S if after is None else min(after.at_s - frame.at_s, IDLE_S_MAX)
    return begins, at_s


def cast(recorded: list[Frame], columns: int, rows: int, title: str) -> str:
    """A recording as asciicast v2: only rows that change are written again."""
    head = {"version": 2, "width": columns, "height": rows, "idle_time_limit": IDLE_S_MAX, "title": title}
    lines, before = [json.dumps(head)], [None] * rows
    for frame in recorded:
        screen = (frame.screen.rstrip("\n").split("\n") + [""] * rows)[:rows]
        # Colours go on from row to row, so each is begun as the ones above it end.
        written, colours = ["\x1b[?25l"], ""
        for row, line in enumerate(screen):
            if (colours, line) != before[row]:
                written.append(f"\x1b[{row + 1};1H\x1b[0m{colours}{line}\x1b[0m\x1b[K")
                before[row] = (colours, line)
            for found in SGR.finditer(line):
                # Behind a reset, what was before it does not matter any more.
                colours = "" if found[1].split(";")[0] in ("", "0") else colours
                colours += found[0] if found[1] not in ("", "0") else ""
        if frame.cursor:
            written.append(f"\x1b[{frame.cursor[1] + 1};{frame.cursor[0] + 1}H\x1b[?25h")
        lines.append(json.dumps([round(frame.at_s, 3), "o", "".join(written)], ensure_ascii=False))
    return "\n".join(lines) + "\n"
