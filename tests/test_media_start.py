"""`media-start`: its page is what its records say; its small server answers ranges; its browser plays and seeks."""

import random
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from enkaku_lab import REPOSITORY, data
from enkaku_lab.media import browser, report, study, videos
from enkaku_lab.media.ways import EVERY
from enkaku_lab.peers import need
from enkaku_lab.process import LabError, free_port, peer, run

DOCS = REPOSITORY / "docs"
CSV = DOCS / "figures" / f"{report.NAME}.csv"
HEAD = {
    **{"figure": report.NAME, "title": "How soon a click plays", "machine": "abacus, 2 cores", "commit": "1234567"},
    **{"browser": "156", "film_bytes": 1 << 30, "seeks": 20, "repeat": 3, "watch_s": 60, "run": "3 sessions of each"},
}


def record(way: str, rtt_ms: float, video: str, what: str, value: float | None, repetition: int = 0) -> dict:
    line = {"way": way, "rtt_ms": rtt_ms, "loss": 0.0, "repetition": repetition}
    return {**line, "video": video, "what": what, "value": value, "load": 1.0, "late": 0.001}


def seen(slower: float) -> Iterator[dict]:
    """Ours takes eight round trips, others so many times that."""
    for number, way in enumerate(EVERY):
        factor = 1.0 if way in (report.OURS, report.NO_LINE) else slower
        for rtt_ms in (20.0, 50.0, 100.0) if EVERY[way].over_line else (0.0,):
            for repetition in range(3):
                cold_ms = 8 * rtt_ms * factor + 10 * repetition + number
                yield record(way, rtt_ms, videos.FILM, study.COLD, cold_ms, repetition)
                yield record(way, rtt_ms, videos.FILM, study.CONNECT, 0.0, repetition)
                yield record(way, rtt_ms, videos.OTHER, study.WARM, cold_ms / 2, repetition)
                yield record(way, rtt_ms, videos.END, study.COLD, cold_ms + rtt_ms, repetition)
                for seek in range(20):
                    yield record(way, rtt_ms, videos.OTHER, study.SEEK, cold_ms / 3 + seek, repetition)
    for stalls in range(2):
        yield record("nfs", study.WATCH_RTT_MS, videos.FASTEST, study.STALLS, stalls)
        yield record("nfs", study.WATCH_RTT_MS, videos.FASTEST, study.STALLED, 1.5 * stalls)
    yield record(report.OURS, study.WATCH_RTT_MS, study.SAME, study.STALLS, 0)
    yield record(report.OURS, study.WATCH_RTT_MS, study.SAME, study.RATIO, 1.07)
    yield record("smb", study.WATCH_RTT_MS, videos.FASTEST, study.STALLS, None)


def test_a_page_is_written_from_its_records_again_and_again(tmp_path: Path):
    report.keep(tmp_path / "figures" / f"{report.NAME}.csv", HEAD, list(seen(3.0)))
    page = report.write(tmp_path)
    text = page.read_text()
    assert text == report.write(tmp_path).read_text()
    for row in (r"50 ms +0 +enkaku +0\.4", r"no line +– +local", r"0 +nfs +1 +1\.5", r"smb +never began"):
        assert re.search(row, text), (row, text)
    assert (tmp_path / "figures" / f"{report.NAME}.svg").stat().st_size > 10_000
    records = report.Records.read(tmp_path / "figures" / f"{report.NAME}.csv")
    held = {row.what.strip(): row.held for row in report.goals(records)}
    assert held["RTT 50 ms, loss 0: first frame, cold"] and held["cold / the best of stock, nfs, smb"]
    assert held["more with the index at the end"] and held["line / file, 8 the same"]
    assert held[f"RTT {study.WATCH_RTT_MS:g} ms, loss 0: stalls, 8 of 8 Mbit/s, the same"]


def test_a_goal_that_is_missed_is_said(tmp_path: Path):
    late = [record(report.OURS, 20.0, videos.OTHER, study.SEEK, None)]
    path = report.keep(tmp_path / "some.csv", HEAD, [*seen(1.1), *late * 20])
    rows = {row.what.strip(): row for row in report.goals(report.Records.read(path))}
    assert rows["cold / the best of stock, nfs, smb"].held is False
    # What did not come in time counts among those that came late.
    records = report.Records.read(path)
    assert report.starts(records)[0][8] == "> 30"


def test_percentiles_are_values_that_were_seen():
    assert report.percentile([3.0, 1.0, 2.0], 0.95) == 3.0
    assert report.percentile(list(range(1, 101)), 0.95) == 95
    assert report.percentile([], 0.95) is None


@pytest.mark.skipif(not CSV.exists(), reason="nothing is committed of it")
def test_the_committed_page_says_what_its_records_say():
    head = data.read(CSV).head
    assert head["figure"] == report.NAME and "core" in head["machine"] and head["commit"]
    assert (DOCS / f"{report.NAME}.md").read_text() == report.page(report.Records.read(CSV)), (
        "python -m enkaku_lab media-start --again docs"
    )


@contextmanager
def serving(folder: Path, logs: Path) -> Iterator[str]:
    port = free_port()
    argv = [sys.executable, "-m", "enkaku_lab.media.range_server", "folder", folder, "--port", port]
    with peer(argv, logs / "ranges.log") as server:
        server.wait_for_output("listening on")
        yield f"http://127.0.0.1:{port}"


def asked(url: str, ranges: str | None = None) -> tuple[int, str, bytes]:
    request = urllib.request.Request(url, headers={"Range": ranges} if ranges else {})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return answer.status, answer.headers.get("Content-Range", ""), answer.read()


def test_the_small_server_answers_ranges(tmp_path: Path):
    content = random.Random(5).randbytes(3_000_001)
    (tmp_path / "a.mp4").write_bytes(content)
    with serving(tmp_path, tmp_path) as url:
        assert asked(f"{url}/video/a.mp4")[2] == content
        status, told, got = asked(f"{url}/video/a.mp4", "bytes=1000000-")
        assert (status, told) == (206, "bytes 1000000-3000000/3000001") and got == content[1_000_000:]
        assert asked(f"{url}/video/a.mp4", "bytes=7-9")[2] == content[7:10]
        for path, status in (("/other/a", 404), ("/video/../a", 404)):
            with pytest.raises(urllib.error.HTTPError) as refused:
                asked(url + path)
            assert refused.value.code == status


# Keeps a page's own thread busy for thirty milliseconds at a time, four seconds long.
BUSY = """() => {
  const until = performance.now() + 4000;
  const burn = () => {
    const end = performance.now() + 30;
    while (performance.now() < end);
    if (end < until) setTimeout(burn, 0);
  };
  burn();
}"""


@pytest.mark.needs("ffmpeg", "chromium")
def test_a_browser_plays_seeks_and_watches(tmp_path: Path):
    words = [need("ffmpeg"), "-v", "error", "-nostdin", "-f", "lavfi", "-i", "testsrc2=size=160x90:rate=10:duration=40"]
    words += ["-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p", "-g", "10"]
    run([*words, tmp_path / "a.mp4"])
    (tmp_path / "broken.mp4").write_bytes(bytes(5000))
    with serving(tmp_path, tmp_path) as url, browser.browser(tmp_path / "browser", list, tmp_path / "a.mp4") as opened:
        with opened.viewer(f"{url}/nothing") as first, opened.viewer(f"{url}/nothing") as second:
            for viewer in (first, second):
                said = viewer.play(f"{url}/video/a.mp4")
                assert 0 < said["index_ms"] <= said["frame_ms"]
            # A busy page shows the first frame before it is told that the index is read.
            first.begin(f"({BUSY})()")
            for _ in range(3):
                said = first.play(f"{url}/video/a.mp4")
                assert 0 < said["index_ms"] <= said["frame_ms"]
            assert first.seek(31.5) > 0
            said = second.result(second.begin_watching(2.0), 20)
            assert said["played_s"] == pytest.approx(2.0, abs=0.7) and said["frames"] > 5
            with pytest.raises(LabError, match="the browser does not play it"):
                first.play(f"{url}/video/broken.mp4")
