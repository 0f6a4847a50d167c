"""`enkaku media serve` as tests meet it: with curl, or byte by byte."""

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from enkaku_lab.peers import enkaku, log_path, need
from enkaku_lab.process import Peer, run


def wait_for(what: Callable[[], bool], told: str, seconds: float = 40.0) -> None:
    begin = time.monotonic()
    while not what():
        assert time.monotonic() - begin < seconds, f"not {told} within {seconds:.0f} s"
        time.sleep(0.1)


class Page:
    """A running `enkaku media serve`."""

    def __init__(self, peer: Peer, url: str, within: list[object] = ()):
        self.peer, self.url, self.within = peer, url, within
        self.port = int(url.rsplit(":", 1)[1])

    def curl(self, path: str, *options: object) -> tuple[int, bytes]:
        """Status and body."""
        body = self.peer.log.with_suffix(".body")
        body.unlink(missing_ok=True)
        url = self.url + path
        words = [*self.within, need("curl"), "--silent", "--max-time", 60, "--path-as-is"]
        words += ["--output", body]
        done = run([*words, "--write-out", "%{http_code}", *options, url], check=False)
        return int(done.stdout or 0), body.read_bytes() if body.exists() else b""

    def head(self, path: str, *options: object) -> dict[str, str]:
        """Fields, and `status`."""
        url = self.url + path
        words = [*self.within, need("curl"), "--silent", "--max-time", 60, "--output", "/dev/null"]
        lines = run([*words, "--dump-header", "-", *options, url]).stdout.splitlines()
        fields = (line.split(": ", 1) for line in lines[1:] if ": " in line)
        return {"status": lines[0].split()[1], **{key.lower(): value for key, value in fields}}

    def send(self, path: str, body: dict, *options: object) -> tuple[int, str]:
        """What a script of the page sends: status and what is said."""
        kind = ["--header", "Content-Type: application/json", "--data-raw", json.dumps(body)]
        status, said = self.curl(path, *kind, *options)
        return status, said.decode()

    def json(self, path: str, *options: object) -> dict:
        status, body = self.curl(path, *options)
        assert status == 200, body
        return json.loads(body)

    def video(self, query: str = "") -> dict:
        videos = self.json(f"/api/videos?q={quote(query)}")["videos"]
        assert len(videos) == 1, videos
        return videos[0]

    def home(self) -> dict:
        return self.json("/api/homes")["homes"][0]

    def say(self, text: bytes, seconds: float = 40.0) -> bytes:
        """All that is answered to these bytes, until the server closes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=seconds) as connection:
            connection.sendall(text)
            answer = b""
            while piece := connection.recv(65536):
                answer += piece
            return answer


@contextmanager
def serve(
    catalogue: Path | str,
    *options: object,
    within: list[object] = (),
    logs: Path | None = None,
) -> Iterator[Page]:
    """`within` are words before all programs, as of a network that they are in. `logs` is a folder,
    for a catalogue that is in none."""
    log = log_path(logs or Path(catalogue).parent, "media", 0)
    words = [enkaku.binary(), "media", "serve", catalogue, "--listen", "127.0.0.1:0", *options]
    peer = Peer([*within, *words], log)
    try:
        peer.wait_for_output("://127.0.0.1:")
        lines = log.read_text().splitlines()
        urls = [line.rstrip("/") for line in lines if line.startswith("http")]
        yield Page(peer, urls[-1], [*within])
    finally:
        peer.stop()
