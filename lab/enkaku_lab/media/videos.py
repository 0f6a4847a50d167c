"""The videos that are watched, and the disk that they are on: made once by ffmpeg and mke2fs, without mounting.

Pictures are small (640 × 360, 25 a second, a whole one each second, as of a phone) and filled up to a constant rate (NAL HRD): a byte a second
is the same work for storage and line whatever it means, and the decoder, which has the processors of everything else here,
is not what is measured.
"""

import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from enkaku_lab.peers import need
from enkaku_lab.process import LabError, run
from enkaku_lab.progress import say

CLIP_S = 20
PICTURE = "testsrc2=size=640x360:rate=25"
SOUND = "sine=frequency=440"
H264 = ["-c:v", "libx264", "-preset", "veryfast", "-pix_fmt", "yuv420p", "-g", "25", "-keyint_min", "25", "-sc_threshold", "0"]
AAC = ["-c:a", "aac", "-b:a", "128k"]
VP9 = ["-c:v", "libvpx-vp9", "-deadline", "realtime", "-cpu-used", "8", "-row-mt", "1", "-g", "25"]
VP9 += ["-b:v", "7600k", "-minrate", "7600k", "-maxrate", "7600k", "-c:a", "libopus", "-b:a", "128k"]
NOISE = ",noise=alls=40:allf=t"
"""VP9 has no bits that only fill."""
FAST, SLOW = 69_700, 7_800
"""kbit/s of the picture: with sound and container 70 Mbit/s, and 8."""
FILM_S, SHORT_S, FAST_S = 1040, 60, 80
"""A film of 8 Mbit/s has 1 GB."""
VIEWERS = 8
END, WEBM, MKV, FASTEST = "end.mp4", "film.webm", "film.mkv", "fast.mp4"
FILM, OTHER = "film.mp4", "other.mp4"
"""Two, of which one is not watched before it is clicked on in a session that is open."""
SPARE = 64 << 20
BLOCK = 4096
"""Of the file system."""
MADE_S_MAX = 1800


def short(number: int) -> str:
    """Of a minute, one for each viewer."""
    return f"short-{number}.mp4"


@dataclass(frozen=True)
class Videos:
    """What was made."""

    folder: Path
    """With the videos themselves, for servers of files."""
    disk: Path
    """An ext4 with the same files at its root."""
    warm_up: Path
    """A moment, which is on no disk."""
    seconds: dict[str, float]
    bytes: dict[str, int]

    def extents(self, name: str) -> list[tuple[int, int, int]]:
        """Of a file on the disk: offset in it, place on the disk, length, in bytes."""
        said = run([need("debugfs"), "-R", f"dump_extents -l /{name}", self.disk]).stdout
        found = re.findall(r"^\s*\d+/ *\d+ +\d+/ *\d+ +(\d+) - +\d+ +(\d+) - +\d+ +(\d+)", said, re.MULTILINE)
        return [(int(logical) * BLOCK, int(place) * BLOCK, int(count) * BLOCK) for logical, place, count in found]


def make(place: Path, *, quick: bool = False) -> Videos:
    """What is in `place` from an earlier run is taken as it is."""
    kind = place / ("videos-quick" if quick else "videos")
    told = kind / "told.json"
    if not told.exists():
        shutil.rmtree(kind, ignore_errors=True)
        say("videos are made, once")
        _make(kind, FILM_S // 10 if quick else FILM_S)
        told.write_text(json.dumps({path.name: _length_s(path) for path in sorted((kind / "files").iterdir())}))
    seconds = json.loads(told.read_text())
    sizes = {name: (kind / "files" / name).stat().st_size for name in seconds}
    for path in (kind / "disk.img", *(kind / "files" / name for name in seconds)):
        _into_memory(path)
    return Videos(kind / "files", kind / "disk.img", kind / "warm-up.mp4", seconds, sizes)


def _make(kind: Path, film_s: int) -> None:
    files, clips = kind / "files", kind / "clips"
    for folder in (files, clips):
        folder.mkdir(parents=True)
    slow = _rate(SLOW)
    _encode(kind / "warm-up.mp4", 1, PICTURE, [*H264, *AAC])
    _encode(clips / "slow.mp4", CLIP_S, PICTURE, [*H264, *slow, *AAC])
    _encode(clips / "fast.mp4", CLIP_S, PICTURE, [*H264, *_rate(FAST), *AAC])
    _encode(clips / "slow.webm", CLIP_S, PICTURE + NOISE, VP9)
    first = ["-movflags", "+faststart"]
    for name in (FILM, OTHER):
        _repeat(clips / "slow.mp4", files / name, film_s, first)
    for name in (END, MKV):
        _repeat(clips / "slow.mp4", files / name, film_s)
    _repeat(clips / "slow.webm", files / WEBM, film_s)
    _repeat(clips / "fast.mp4", files / FASTEST, FAST_S, first)
    for number in range(VIEWERS):
        _repeat(clips / "slow.mp4", files / short(number), SHORT_S, first)
    shutil.rmtree(clips)
    size = sum(path.stat().st_size for path in files.iterdir())
    disk = kind / "disk.img"
    with disk.open("wb") as file:
        file.truncate((size + size // 20 + SPARE) // BLOCK * BLOCK)
    words = ["-q", "-F", "-t", "ext4", "-b", BLOCK, "-m", "0", "-L", "Films", "-E", "lazy_itable_init=0,lazy_journal_init=0"]
    run([need("mke2fs"), *words, "-d", files, disk], timeout_s=MADE_S_MAX)


def _rate(kbit: int) -> list[str]:
    rate = f"{kbit}k"
    return ["-b:v", rate, "-minrate", rate, "-maxrate", rate, "-bufsize", rate, "-x264-params", "nal-hrd=cbr"]


def _encode(path: Path, seconds: int, picture: str, codecs: list[str]) -> None:
    sources = []
    for source in (picture, SOUND):
        sources += ["-f", "lavfi", "-t", seconds, "-i", source]
    _ffmpeg([*sources, *codecs, path])


def _repeat(clip: Path, path: Path, seconds: int, options: list[str] = ()) -> None:
    _ffmpeg(["-stream_loop", seconds // CLIP_S - 1, "-i", clip, "-c", "copy", *options, path])


def _ffmpeg(words: list[object]) -> None:
    run([need("ffmpeg"), "-v", "error", "-nostdin", "-y", *words], timeout_s=MADE_S_MAX)


def _length_s(path: Path) -> float:
    words = ["-v", "error", "-show_entries", "format=duration", "-of", "json", path]
    return float(json.loads(run([need("ffprobe"), *words]).stdout)["format"]["duration"])


def _into_memory(path: Path) -> None:
    """The disk at home is not what is measured."""
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)
        buffer = bytearray(8 << 20)
        while file.readinto(buffer):
            pass


def need_room(place: Path, quick: bool) -> None:
    """LabError where they would not fit."""
    wanted = (2 if quick else 16) << 30
    place.mkdir(parents=True, exist_ok=True)
    if not (place / "videos").exists() and shutil.disk_usage(place).free < wanted:
        raise LabError(f"{place} has less than {wanted >> 30} GiB free; --out names another folder")
