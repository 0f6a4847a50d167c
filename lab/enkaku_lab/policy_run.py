"""One transfer of `enkaku bench` over a line of its own, under a policy of the tuner."""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from enkaku_lab import wan
from enkaku_lab.experiment import Link
from enkaku_lab.peers import disk_url, enkaku
from enkaku_lab.process import LabError, Peer, peer

PORT = 3270


@dataclass(frozen=True)
class Running:
    lab: wan.Lab
    bench: Peer
    logs: Path


@contextmanager
def transfer(link: Link, words: list[object], free: bool) -> Iterator[Running]:
    """`enkaku bench` with these words has just begun against a disk in memory at the far end; cubic
    at both ends, which a socket may change if it is free to."""
    if reason := wan.available():
        raise LabError(f"no emulated line can be made here: {reason}")
    with tempfile.TemporaryDirectory() as folder, wan.up(link, Path(folder)) as lab:
        logs = Path(folder)
        for end in ("near", "far"):
            code = "from enkaku_lab.wan import set_congestion_control as choose; "
            code += f"choose('cubic', {free})"
            with peer(lab.exec(end, [sys.executable, "-c", code]), logs / f"cc-{end}.log") as set_cc:
                if set_cc.wait(20.0):
                    raise LabError(f"congestion control at the {end} end: {set_cc.output()}")
        lab.set(link)
        serve = [enkaku.binary(), "serve", "--lun", "mem:1G", "--iqn", enkaku.IQN]
        serve += ["--listen", f"{wan.FAR}:{PORT}"]
        bench = [enkaku.binary(), "bench", disk_url(f"{wan.FAR}:{PORT}", enkaku.IQN, 0), *words]
        with peer(lab.exec("far", serve), logs / "serve.log") as target:
            target.wait_for_output("listening on")
            with peer(lab.exec("near", [*bench, "--json"]), logs / "bench.log") as running:
                yield Running(lab, running, logs)
