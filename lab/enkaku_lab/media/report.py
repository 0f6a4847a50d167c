"""What a run of `media-start` says: tables, goals and a figure, from the records that lie beside it as CSV."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from enkaku_lab import data, figure, machine
from enkaku_lab.media import study, videos
from enkaku_lab.media.study import DIFFERENT, SAME
from enkaku_lab.media.ways import EVERY
from enkaku_lab.mirror_outage import Row, at_most
from enkaku_lab.results import median, quartiles
from enkaku_lab.table import GAP, fenced, render

NAME = "media-start"
OURS, NO_LINE = "enkaku", "local"
COLUMNS = ("way", "rtt_ms", "loss", "repetition", "video", "what", "value", "load", "late")
LOSS = 1e-4
LATE = 0.02
"""With the emulator late for more of a session, the machine was measured."""
GOALS_S = {20.0: (0.8, 0.4, 0.3), 50.0: (1.2, 0.6, 0.5), 100.0: (2.0, 1.0, 0.8)}
"""By RTT in ms: the first frame cold and warm, and the 95th percentile of seeks; set before anything was measured."""
END_ROUND_TRIPS, OF_BEST, RATIO_MAX = 2.0, 0.5, 1.2
OTHERS = ("stock", "nfs", "smb")
"""Nothing of ours is in these."""
LOOKS = {
    "enkaku": ("#009E73", "o"),
    "tgt": ("#56B4E9", "D"),
    "stock": ("#E69F00", "s"),
    "nfs": ("#CC79A7", "^"),
    "smb": ("#000000", "v"),
    "mount": ("#0072B2", "x"),
}
STARTS_HEAD = ["RTT", "loss", "way", "cold (s)", "middle half", "of it connecting", "warm (s)", "seek (s)", "p95 (s)", "index at end (s)", "n"]
WATCH_HEAD = ["loss", "way", "70 Mbit/s: stalls", "stalled (s)", "the last at (s)", "8 the same: stalls", "line / file", "8 different: stalls", "line / files", "dropped"]
FORMS_HEAD = ["RTT", "MP4 (s)", "index at end (s)", "Matroska (s)", "WebM, VP9 (s)", "seek p95: MP4 (s)", "index at end", "Matroska", "WebM"]
PANELS = [
    ("first frame, cold", videos.FILM, study.COLD),
    ("first frame, warm", videos.OTHER, study.WARM),
    ("seeks, 95th percentile", videos.OTHER, study.SEEK),
]
PAGE = """# How soon a click plays

Made by `python -m enkaku_lab media-start --docs docs`; do not edit. Chromium {browser} without a window, beside the server; between
the server and the disk's home an emulated line: 100 Mbit/s, its queue 1,000 packets, cubic, Linux's default buffers. Videos of
8 Mbit/s (H.264 and AAC in MP4 with the index first, unless said; {film:.2f} GB), on ext4. {machine}, commit {commit}; load
average {load}; the emulator was late for {late:.1%} of a session at most{late_too}.

![The first frame, cold and warm, and seeks](figures/media-start.svg)

{starts}

{goals}

{watching}

{forms}

* **enkaku**: `enkaku media serve`, and `enkaku serve` at home. **tgt**: the same server and our initiator, with tgt as the target.
* **stock**: tgt, and libiscsi in a small range server (Python; a thread for a request, one read of 128 KiB to 1 MiB after the
  other), which is told where on the volume the files are: what a file system costs is left out in its favour.
* **nfs**, **smb**: nfs-ganesha with libnfs, Samba with libsmbclient, behind the same small server. The kernel here can mount
  neither; a kernel's client reads ahead, which these do not. Files are served from a folder at home.
* **mount**: `enkaku attach --fuse --read-only`, a loop device, the kernel's ext4 (`ro,noload`), the same small server.

*cold*: from the click until a frame is shown (`requestVideoFrameCallback`), the server just started, nothing connected or cached;
with a mount, the time that it took is in it. *warm*: another video of the volume, which nobody has watched, a second after that was closed. *seek*:
to {seeks} places of that, one in each of as many parts of it, in any order, 0.3 to 1 s after each other, until a frame of there is
shown. Medians of {repeat} sessions, ways by turns; *middle half*: first to third quartile. What of it is browser and processor is
the row without a line. *70 Mbit/s*, *8*: at RTT {watch_rtt:g} ms, for {watch_s:g} s; eight who watch the same or different videos of a minute begin a
second after each other; *line / file*: bytes of IP packets towards the server, of the bytes of the videos. Pictures are small
and filled up to their rate, so that the decoder, on the same two processors as everything else, is not what is measured.
"""


@dataclass(frozen=True)
class Records:
    """Numbers by what they are of. None: it did not come in time."""

    head: Mapping[str, str]
    rows: Sequence[Mapping[str, str]]

    @classmethod
    def read(cls, path: Path) -> "Records":
        found = data.read(path)
        return cls(found.head, found.rows)

    def of(self, way: str, rtt_ms: float, loss: float, video: str, what: str) -> list[float | None]:
        wanted = (way, rtt_ms, loss, video, what)
        return [
            float(row["value"]) if row["value"] else None
            for row in self.rows
            if (row["way"], float(row["rtt_ms"]), float(row["loss"]), row["video"], row["what"]) == wanted
        ]

    def seconds(self, *key: object) -> list[float]:
        """Of milliseconds; what did not come in time took forever."""
        return [math.inf if value is None else value / 1e3 for value in self.of(*key)]

    def middle(self, *key: object) -> float | None:
        found = self.seconds(*key)
        return median(found) if found else None

    def p95(self, *key: object) -> float | None:
        return percentile(self.seconds(*key), 0.95)

    def lines(self) -> list[tuple[float, float]]:
        """RTT and loss of what was clicked on over a line."""
        found = {(float(r["rtt_ms"]), float(r["loss"])) for r in self.rows if r["way"] != NO_LINE and r["what"] == study.WARM}
        return sorted(found)

    def ways(self) -> list[str]:
        there = {row["way"] for row in self.rows}
        return [name for name in EVERY if name in there]


def percentile(values: Sequence[float], share: float) -> float | None:
    """The least of the values that so many of them are not above."""
    return sorted(values)[math.ceil(share * len(values)) - 1] if values else None


def keep(path: Path, head: Mapping[str, object], records: Sequence[Mapping[str, object]]) -> Path:
    """As CSV; times to a tenth of a millisecond."""
    return data.write(path, head, COLUMNS, [[_short(record.get(column)) for column in COLUMNS] for record in records])


def head_of(facts: Mapping[str, object], plan: study.Plan, made: videos.Videos, browser: str, taken: str) -> dict[str, object]:
    pace = plan.pace
    return {
        "figure": NAME,
        "title": "How soon a click plays",
        "machine": machine.summary(facts),
        "versions": ", ".join(f"{name} {text}" for name, text in facts["versions"].items()),
        "browser": browser,
        "commit": facts.get("commit", ""),
        "outside": ", ".join(f"{name} {text}" for name, text in facts["sysctl"].items()),
        "taken": taken,
        "stacks": "media tgt",
        "film_bytes": made.bytes[videos.FILM],
        "repeat": pace.repeat,
        "seeks": pace.seeks,
        "watch_s": pace.watch_s,
        "run": f"{pace.repeat} sessions of each, {pace.seeks} seeks in each",
    }


def _short(value: object) -> object:
    return round(value, 4) if isinstance(value, float) else value


def _seconds(value: float | None) -> str:
    if value is None:
        return GAP
    return "> 30" if math.isinf(value) else f"{value:.2f}"


def starts(records: Records) -> list[list[str]]:
    rows = []
    for rtt_ms, loss in records.lines():
        for way in records.ways():
            rows += _start_row(records, way, rtt_ms, loss)
    return rows + _start_row(records, NO_LINE, 0.0, 0.0)


def _start_row(records: Records, way: str, rtt_ms: float, loss: float) -> list[list[str]]:
    line = (way, rtt_ms, loss)
    cold = records.seconds(*line, videos.FILM, study.COLD)
    if not cold:
        return []
    low, high = quartiles(cold)
    connecting = records.middle(*line, videos.FILM, study.CONNECT)
    seeks = (*line, videos.OTHER, study.SEEK)
    return [
        [
            "no line" if way == NO_LINE else f"{rtt_ms:g} ms",
            GAP if way == NO_LINE else f"{loss:g}",
            way,
            _seconds(median(cold)),
            f"{_seconds(low)}–{_seconds(high)}",
            _seconds(connecting) if connecting else GAP,
            _seconds(records.middle(*line, videos.OTHER, study.WARM)),
            _seconds(records.middle(*seeks)),
            _seconds(records.p95(*seeks)),
            _seconds(records.middle(*line, videos.END, study.COLD)),
            str(len(cold)),
        ]
    ]


def goals(records: Records) -> list[Row]:
    rows = []
    for rtt_ms, loss in records.lines():
        rows += _goals_at(records, rtt_ms, loss)
    for loss in (0.0, LOSS):
        rows += _watch_goals(records, loss)
    return rows


def _goals_at(records: Records, rtt_ms: float, loss: float) -> list[Row]:
    if rtt_ms not in GOALS_S:
        return []
    line, rows = (OURS, rtt_ms, loss), []
    cold = records.middle(*line, videos.FILM, study.COLD)
    seek = records.p95(*line, videos.OTHER, study.SEEK)
    where = f"RTT {rtt_ms:g} ms, loss {loss:g}"
    seen = (cold, records.middle(*line, videos.OTHER, study.WARM), seek)
    names = (f"{where}: first frame, cold", "    warm", "    seek, p95")
    for name, value, limit in zip(names, seen, GOALS_S[rtt_ms], strict=True):
        if value is not None:
            rows.append(at_most(name, value, limit, "s"))
    end = records.middle(*line, videos.END, study.COLD)
    if end is not None and cold is not None:
        more = max(end - cold, 0.0) / rtt_ms * 1e3
        rows.append(at_most("    more with the index at the end", more, END_ROUND_TRIPS, "RTT"))
    if rtt_ms >= 50:
        best = [records.middle(way, rtt_ms, loss, videos.FILM, study.COLD) for way in OTHERS]
        rows += _of_best("    cold / the best of stock, nfs, smb", cold, best)
        best = [records.p95(way, rtt_ms, loss, videos.OTHER, study.SEEK) for way in OTHERS]
        rows += _of_best("    seek p95 / the best of these", seek, best)
    return rows


def _of_best(what: str, ours: float | None, others: Sequence[float | None]) -> list[Row]:
    there = [value for value in others if value is not None]
    return [at_most(what, ours / min(there), OF_BEST, "×")] if ours and there else []


def _watch_goals(records: Records, loss: float) -> list[Row]:
    line = (OURS, study.WATCH_RTT_MS, loss)
    rows = []
    for video, told in ((videos.FASTEST, "70 Mbit/s"), (SAME, "8 of 8 Mbit/s, the same"), (DIFFERENT, "8 of 8 Mbit/s, different")):
        found = records.of(*line, video, study.STALLS)
        if found:
            stalls, _ = _watched(records, line, video)
            rows.append(Row(f"RTT {study.WATCH_RTT_MS:g} ms, loss {loss:g}: stalls, {told}", stalls, "0", stalls == "0"))
    ratio = records.of(*line, SAME, study.RATIO)
    if ratio:
        rows.append(at_most("    line / file, 8 the same", median(ratio), RATIO_MAX, "×"))
    return rows


def watching(records: Records) -> list[list[str]]:
    rows = []
    for loss in (0.0, LOSS):
        for way in records.ways():
            line = (way, study.WATCH_RTT_MS, loss)
            last = [value for value in records.of(*line, videos.FASTEST, study.LAST) if value is not None]
            cells = [*_watched(records, line, videos.FASTEST), f"{max(last):.1f}" if last else GAP]
            for video in (SAME, DIFFERENT):
                ratio = records.of(*line, video, study.RATIO)
                cells += [_watched(records, line, video)[0], f"{median(ratio):.2f}" if ratio else GAP]
            dropped = [v for video in (videos.FASTEST, SAME, DIFFERENT) for v in records.of(*line, video, study.DROPPED) if v is not None]
            if any(cell != GAP for cell in cells):
                rows.append([f"{loss:g}", way, *cells, f"{max(dropped):.1%}" if dropped else GAP])
    return rows


def _watched(records: Records, line: tuple, video: str) -> tuple[str, str]:
    """How often it stalled, and for how long, all viewers and runs together."""
    found = records.of(*line, video, study.STALLS)
    if not found:
        return GAP, GAP
    if None in found:
        return "never began", GAP
    stalled = records.of(*line, video, study.STALLED)
    return f"{sum(found):.0f}", f"{sum(stalled):.1f}"


def forms(records: Records) -> list[list[str]]:
    rows = []
    for rtt_ms, loss in records.lines():
        line = (OURS, rtt_ms, loss)
        if loss or records.middle(*line, videos.MKV, study.COLD) is None:
            continue
        colds = [_seconds(records.middle(*line, video, study.COLD)) for video in (videos.FILM, videos.END, videos.MKV, videos.WEBM)]
        seeks = [_seconds(records.p95(*line, video, study.SEEK)) for video in (videos.OTHER, videos.END, videos.MKV, videos.WEBM)]
        rows.append([f"{rtt_ms:g} ms", *colds, *seeks])
    return rows


def write(docs: Path) -> Path:
    """The page and the figure, from the CSV in `docs/figures`."""
    path = docs / "figures" / NAME
    records = Records.read(path.with_suffix(".csv"))
    _, png = draw(records, path)
    png.unlink()
    written = docs / f"{NAME}.md"
    written.write_text(page(records))
    return written


def page(records: Records) -> str:
    head = records.head
    loads, lates = ([float(row[key]) for row in records.rows] for key in ("load", "late"))
    late = sum(value > LATE for value in lates) / len(lates)
    return PAGE.format(
        browser=head["browser"],
        film=int(head["film_bytes"]) / 1e9,
        machine=head["machine"],
        commit=head["commit"],
        load=f"{min(loads):.1f} to {max(loads):.1f}, {median(loads):.1f} in the median",
        late=max(lates),
        late_too=f", for more than {LATE:.0%} in {late:.0%} of the numbers" if late else "",
        starts=fenced(render(STARTS_HEAD, starts(records))),
        goals=_fenced(["what", "seen", "wanted", "held"], [row.cells() for row in goals(records)]),
        watching=_fenced(WATCH_HEAD, watching(records)),
        forms=_fenced(FORMS_HEAD, forms(records)),
        seeks=head["seeks"],
        repeat=head["repeat"],
        watch_rtt=study.WATCH_RTT_MS,
        watch_s=float(head["watch_s"]),
    )


def _fenced(head: list[str], rows: list[list[str]]) -> str:
    return fenced(render(head, rows)) if rows else "(Not measured.)"


def draw(records: Records, path: Path) -> tuple[Path, Path]:
    """The first frame cold and warm and the seeks over RTT, without loss; bars: the middle half."""
    chart, grid, legend_at = figure.panels(1, len(PANELS), (3.1, 3.0), 4, figure.Margins())
    for place, (axes, (title, video, what)) in enumerate(zip(grid, PANELS, strict=True)):
        _panel(axes, records, video, what)
        axes.plot(list(GOALS_S), [limits[place] for limits in GOALS_S.values()], label="the goal", **figure.LIMIT)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("RTT (ms)")
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    grid[0].set_ylabel("time (s)")
    handles, labels = grid[0].get_legend_handles_labels()
    chart.legend(handles, labels, loc="lower center", bbox_to_anchor=legend_at, ncol=2, fontsize=8)
    head, height = records.head, chart.get_size_inches()[1]
    chart.suptitle(f"{head['title']} (100 Mbit/s, a video of 8 Mbit/s, Chromium)", fontsize=11.5, y=1 - 0.15 / height)
    small = f"{head['machine']} · commit {head['commit']} · medians, bars: the middle half · {head['run']}"
    chart.text(0.5, 0.07 / height, small, fontsize=7, color="#444444", ha="center", va="bottom")
    return figure.save(chart, path)


def _panel(axes, records: Records, video: str, what: str) -> None:
    for way in records.ways():
        if way not in LOOKS:
            continue
        points = []
        for rtt_ms in sorted({rtt for rtt, loss in records.lines() if not loss}):
            found = [value for value in records.seconds(way, rtt_ms, 0.0, video, what) if not math.isinf(value)]
            if found:
                points.append((rtt_ms, percentile(found, 0.95) if what == study.SEEK else median(found), *quartiles(found)))
        if not points:
            continue
        colour, mark = LOOKS[way]
        xs, ys, lows, highs = zip(*points, strict=True)
        axes.plot(xs, ys, color=colour, marker=mark, label=EVERY[way].label)
        if what != study.SEEK:
            axes.vlines(xs, lows, highs, color=colour)
    local = records.seconds(NO_LINE, 0.0, 0.0, video, what)
    if local:
        floor = percentile(local, 0.95) if what == study.SEEK else median(local)
        axes.axhline(floor, color="#7F7F7F", linestyle=":", label="no line: browser, server and disk here")
