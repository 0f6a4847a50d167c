"""How long a directory takes to be told of a household's videos, and a search of the page after that.

The videos are small files on an ext4; what ffprobe and ffmpeg would find in them is made up by scripts in their
place, since they are not what is measured. slapd syncs each change to its disk, as it does by default.
"""

import argparse
import http.client
import json
import os
import random
import tempfile
import time
from pathlib import Path
from urllib.parse import quote

from enkaku_lab.peers import enkaku, log_path, need, slapd
from enkaku_lab.process import Peer, run

SEARCHES = 400
WORDS = ["kyoto", "boat", "summer", "birthday", "snow", "garden", "concert", "island", "train"]
PROBE = {
    "streams": [{"codec_type": "video", "codec_name": "h264"}],
    "format": {"format_name": "mov,mp4", "duration": "61.5"},
}


def programs(folder: Path) -> None:
    """Something in place of ffprobe and ffmpeg."""
    folder.mkdir()
    picture = folder / "picture.jpg"
    picture.write_bytes(b"\xff\xd8\xff" + random.Random(1).randbytes(20_000))
    for name, words in (("ffprobe", f"echo '{json.dumps(PROBE)}'"), ("ffmpeg", f"cat {picture}")):
        (folder / name).write_text(f"#!/bin/sh\n{words}\n")
        (folder / name).chmod(0o755)


def volume(folder: Path, count: int) -> Path:
    source = folder / "source"
    source.mkdir()
    chance = random.Random(2)
    for number in range(count):
        name = " ".join(chance.sample(WORDS, 3))
        (source / f"{name} {number:05}.mp4").write_bytes(b"x" * 1000)
    disk = folder / "disk.img"
    run([need("mke2fs"), "-q", "-t", "ext4", "-d", source, disk, "64M"])
    return disk


def publish(folder: Path, disk: Path, *words: object) -> str:
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    words = ["media", "publish", disk, "/", "--catalogue", folder / "catalogue.toml", *words]
    return run([enkaku.binary(), *words], env={"PATH": path}, timeout_s=1200).stdout


def searches_ms(port: int) -> list[float]:
    chance = random.Random(3)
    connection = http.client.HTTPConnection("127.0.0.1", port)
    times = []
    for _ in range(SEARCHES):
        query = " ".join(word[: chance.randint(2, 5)] for word in chance.sample(WORDS, 2))
        begin = time.perf_counter()
        connection.request("GET", f"/api/videos?q={quote(query)}")
        answer = json.loads(connection.getresponse().read())
        times.append((time.perf_counter() - begin) * 1000)
        assert answer["videos"], query
    return sorted(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--videos", type=int, default=2000)
    parser.add_argument("--folder", type=Path, help="where it is done [default: a temporary one]")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as name, slapd.serve(Path(name)) as there:
        folder = Path(name)
        programs(folder / "bin")
        disk = volume(folder, args.videos)
        publish(folder, disk)
        at = ["--directory", there.url, *there.options]
        at += ["--as", "iscsi://192.0.2.1/iqn.2026-11.org.example:films/0"]
        first = publish(folder, disk, *at).splitlines()[-1]
        again = publish(folder, disk, *at).splitlines()[-1]
        words = ["media", "serve", there.url, *there.options, "--no-accounts"]
        begin = time.perf_counter()
        log = log_path(folder, "media", 0)
        peer = Peer([enkaku.binary(), *words, "--listen", "127.0.0.1:0"], log)
        try:
            peer.wait_for_output("http://127.0.0.1:")
            start_s = time.perf_counter() - begin
            line = next(line for line in log.read_text().splitlines() if line.startswith("http"))
            times = searches_ms(int(line.rstrip("/").rsplit(":", 1)[1]))
        finally:
            peer.stop()
        print(f"{args.videos} videos, first: {first}")
        print(f"{args.videos} videos, again: {again}")
        print(f"server has read them and listens after {start_s:.2f} s")
        print(f"search, {SEARCHES} times: p50 {times[SEARCHES // 2]:.1f} ms, "
              f"p95 {times[SEARCHES * 95 // 100]:.1f} ms")
        print(f"load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
