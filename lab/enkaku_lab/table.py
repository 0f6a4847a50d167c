"""Text tables: numbers right, words left, one rule under the head."""

from collections.abc import Sequence

from enkaku_lab.results import median

GAP = "–"
"""A value that does not exist, because the client does not report it."""


def render(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A column is aligned right when its first value looks like a number. `rows` are not empty."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    right = [_numeric([row[column] for row in rows]) for column in range(len(head))]

    def line(row: Sequence[str]) -> str:
        cells = zip(row, widths, right, strict=True)
        return "  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in cells).rstrip()

    return "\n".join([line(head), "  ".join("─" * width for width in widths), *map(line, rows)])


def fenced(*texts: str) -> str:
    """For a page in Markdown: as they are, one below the other."""
    return "\n\n".join(f"```\n{text}\n```" for text in texts)


def spread(values: Sequence[float]) -> str:
    """The median, with the least and the most where there are several."""
    text = f"{median(values):.2f}"
    return text if len(values) == 1 else f"{text} ({min(values):.2f}–{max(values):.2f})"


def _numeric(values: Sequence[str]) -> bool:
    first = next((value for value in values if value not in (GAP, "")), "")
    return first[:1].isdigit() or first[:1] == "×"
