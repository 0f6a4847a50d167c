"""One transfer of `enkaku bench` over a line of its own, under a policy for its number of connections: 32 × 1 MiB, unless said,
against a disk in memory, cubic at both ends."""

import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from enkaku_lab import wan
from enkaku_lab.experiment import Link
from enkaku_lab.peers import disk_url, enkaku
from enkaku_lab.process import Peer, peer

PORT = 3270


@dataclass(frozen=True)
class Asked:
    """What the application asks for: bytes of an operation, and how many are under way."""

    block: int = 1 << 20
    depth: int = 32


@dataclass(frozen=True)
class Running:
    lab: wan.Lab
    bench: Peer
    begun_s: float
    """`time.monotonic()` when its process was started; the target's had been before."""
    logs: Path

    def report(self, wait_s: float) -> dict:
        """What `enkaku bench` says at its end, which is waited for."""
        self.bench.wait(wait_s)
        return json.loads(self.bench.output().splitlines()[-1])


@contextmanager
def transfer(
    link: Link, rw: str, policy: str, words: list[object], asked: Asked = Asked()
) -> Iterator[Running]:
    """It has just begun; `words` are more options of `enkaku bench`."""
    with tempfile.TemporaryDirectory() as folder, wan.up(link, Path(folder)) as lab:
        lab.become(link)
        with begun(lab, Path(folder), rw, policy, words, asked) as running:
            yield running


@contextmanager
def begun(
    lab: wan.Lab,
    logs: Path,
    rw: str,
    policy: str | None,
    words: list[object],
    asked: Asked = Asked(),
    memory: Path | None = None,
) -> Iterator[Running]:
    """It has just begun, over a line that is as it should be; without a policy, in the background. Without a memory it
    begins as on a new path, whatever ran before."""
    serve = [enkaku.binary(), "serve", "--lun", "mem:1G", "--iqn", enkaku.IQN]
    serve += ["--listen", f"{wan.FAR}:{PORT}"]
    bench = [enkaku.binary(), "bench", disk_url(f"{wan.FAR}:{PORT}", enkaku.IQN, 0), "--json"]
    bench += ["--rw", rw, "--force", "--bs", asked.block, "--depth", asked.depth]
    chosen = ["--policy", policy] if policy else ["--background"]
    bench += [*chosen, "--path-memory", memory or "off", *words]
    with peer(lab.exec("far", serve), logs / "serve.log") as target:
        target.wait_for_output("listening on")
        begun_s = time.monotonic()
        with peer(lab.exec("near", bench), logs / "bench.log") as running:
            yield Running(lab, running, begun_s, logs)
