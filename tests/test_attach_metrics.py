"""`enkaku attach --metrics`: its numbers are those of what was done, `/health` says when there is no
connection, and an outage shows as a second session."""

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import MIB, empty, noise, sha256

from enkaku_lab.peers import enkaku, qemu
from enkaku_lab.process import Peer, peer

pytestmark = pytest.mark.needs("qemu-img")
SIZE = 32 * MIB


class Attached:
    def __init__(self, running: Peer, socket: Path, url: str):
        self.peer, self.url = running, url
        self.uri = f"nbd+unix:///?socket={socket}"
        self.page = re.search(r"metrics on (\S+)/metrics", running.output())[1]

    def metrics(self) -> dict[str, float]:
        """Sample without its volume → value."""
        with urllib.request.urlopen(f"{self.page}/metrics", timeout=10) as answer:
            assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
            lines = answer.read().decode().splitlines()
        assert lines[-1] == "# EOF"
        label = re.compile(r'volume="[^"]*",?')
        samples = [line for line in lines if not line.startswith("#")]
        own = [line for line in samples if line.startswith(("enkaku_volume_", "enkaku_cache_"))]
        assert own and all(f'volume="{self.url}"' in line for line in own)
        pairs = (line.rpartition(" ") for line in samples)
        return {label.sub("", sample).replace("{}", ""): float(value) for sample, _, value in pairs}

    def health(self) -> tuple[int, dict]:
        try:
            with urllib.request.urlopen(f"{self.page}/health", timeout=10) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as refused:
            return refused.code, json.load(refused)


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    return empty(tmp_path / "lun0.img", SIZE)


@pytest.fixture
def target(disk: Path, tmp_path: Path):
    with enkaku.serve([disk], tmp_path) as serving:
        yield serving


@pytest.fixture
def attached(target, tmp_path: Path) -> Iterator[Attached]:
    socket = tmp_path / "nbd.sock"
    argv = [enkaku.binary(), "attach", target.url(), "--nbd", socket, "--connections", 2]
    argv += ["--cache", "write-back", "--metrics", "127.0.0.1:0"]
    with peer(argv, tmp_path / "attach.log") as running:
        running.wait_for_output("listening on")
        yield Attached(running, socket, target.url())


def test_the_numbers_are_those_of_what_was_done(attached: Attached, disk: Path, tmp_path: Path):
    before = attached.metrics()
    assert before["enkaku_volume_size_bytes"] == SIZE and before["enkaku_volume_connected"] == 1
    assert before["enkaku_volume_session_starts_total"] == 1
    source = noise(tmp_path / "source", SIZE)
    qemu.convert(source, attached.uri)
    qemu.compare(source, attached.uri)
    assert sha256(disk) == sha256(source)
    after = attached.metrics()
    assert after['enkaku_volume_bytes_total{operation="write"}'] >= SIZE
    assert after['enkaku_volume_latency_seconds_count{operation="write"}'] > 0
    # Below the cache: what was read ahead counts, and what stood in memory does not.
    assert after['enkaku_volume_bytes_total{operation="read"}'] > 0
    attached.peer.wait_until(
        lambda: attached.metrics()["enkaku_volume_carried_bytes_total"] >= 0.5 * SIZE,
        "what the path carried is not told",
    )
    links = [name for name in after if name.startswith("enkaku_volume_link_rtt_seconds")]
    assert 1 <= len(links) <= 2 and all(0 < after[name] < 1 for name in links)
    assert min(after[f"enkaku_cache_writes_{way}_total"] for way in ("in", "out")) > 0
    assert after["enkaku_cache_dirty_bytes"] == 0
    assert after["enkaku_volume_failed_operations_total"] == 0
    assert sum(after[name] for name in after if name.startswith("enkaku_volume_limit")) == 1
    status, body = attached.health()
    assert (status, body["status"], body["failures"]) == (200, "healthy", [])


def test_an_outage_is_told_and_so_is_its_end(attached: Attached, target):
    target.peer.kill()
    attached.peer.wait_until(lambda: attached.health()[0] == 503, "the outage is not told")
    assert attached.health()[1]["failures"][0] == "no connection to the volume"
    assert attached.metrics()["enkaku_volume_connected"] == 0
    enkaku.restart(target)
    attached.peer.wait_until(lambda: attached.health()[0] == 200, "it has not come back")
    attached.peer.wait_until(
        lambda: attached.metrics()["enkaku_volume_session_starts_total"] == 2,
        "the second session is not told",
    )


def test_an_address_that_is_taken_is_said_first(target, tmp_path: Path):
    socket, taken = tmp_path / "nbd.sock", f"127.0.0.1:{target.port}"
    words = ["attach", target.url(), "--nbd", socket, "--metrics", taken]
    refused = enkaku.command(*words, check=False)
    assert refused.code == 2 and f"--metrics {taken}: " in refused.stderr
    assert "in use" in refused.stderr and not socket.exists()
