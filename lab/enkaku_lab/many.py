"""`python -m enkaku_lab many`: many connections under an application that pauses.

Mixed random I/O of 4 to 128 KiB, sixteen at once, a flush after each two hundred writes (fio over
`attach --nbd --cache write-back`), over 400 Mbit/s with RTT 20 ms, with and without losses; each run
beside one with `--pacing off`. Then one long run in which the target is restarted again and again,
and a clean exit after which everything that was written must be there.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from signal import SIGINT

from enkaku_lab import machine, wan
from enkaku_lab.experiment import Link
from enkaku_lab.peers import disk_url, enkaku, need
from enkaku_lab.process import LabError, Peer, peer
from enkaku_lab.progress import say
from enkaku_lab.table import fenced, render

PORT = 3270
CONNECTIONS = ["16", "32", "64", "auto"]
LOSSES = [0.0, 1e-4]
RATE, RTT_MS = "400mbit", 20.0
SHARE_MIN, WAIT_MAX = 0.8, 1.5
"""Of what is carried with `--pacing off`, and of its longest wait."""
RESTART_S, DOWN_S = 30.0, 2.0
END_S = 120.0
LOAD = ["--rw=randrw", "--rwmixread=30", "--bssplit=4k/50:16k/30:128k/20", "--size=512M"]
LOAD += ["--iodepth=16", "--fsync=200", "--time_based"]
LEFT = ["--rw=write", "--bs=64k", "--offset=512M", "--size=64M", "--iodepth=16", "--verify=crc32c"]
"""What is not flushed when the disk is detached."""
SILENT, SESSIONS = "no sign of life", "back after"
HEAD = "connections|loss|MB/s|off|share|longest wait|off|×|kept".split("|")
PAGE = """# Many connections under an application that pauses

Made by `python -m enkaku_lab many --docs docs`; do not edit. Mixed random I/O of 4 to 128 KiB, 16 at
once, a flush after each 200 writes, `attach --nbd --cache write-back`, over {rate} with RTT {rtt:g}
ms; {seconds:g} s a run, {repeat} of each kind, by turns with and without the pacer. {machine}

{body}

{restarts}
"""
LEGEND = (
    "MB/s, longest wait: with the pacer, the median of the runs; off: without (`--pacing off`).\n"
    "share, ×: of each pair, the least share and the largest ratio. kept: pairs with a share of at\n"
    f"least {SHARE_MIN:g} and a wait of at most {WAIT_MAX:g} times that without."
)


@dataclass(frozen=True)
class Ran:
    bytes_per_s: float
    wait_s: float


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="enkaku_lab many", description=__doc__)
    parser.add_argument("--connections", action="append", metavar="N", help="or auto; repeatable")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--restarts", type=float, default=600.0, metavar="SECONDS", help="0: none")
    parser.add_argument("--quick", action="store_true", help="one short run of each, one restart")
    parser.add_argument("--docs", type=Path, metavar="DIR", help="write DIR/many.md, too")
    options = parser.parse_args(arguments)
    if options.quick:
        options.repeat, options.seconds = 1, min(options.seconds, 8.0)
        options.restarts = min(options.restarts, RESTART_S + 10.0)
    wan.need()
    rows, failed = [], False
    for connections in options.connections or CONNECTIONS:
        for loss in LOSSES:
            pairs = [_pair(connections, loss, options.seconds, n) for n in range(options.repeat)]
            rows.append(_row(connections, loss, pairs))
            failed |= not rows[-1][-1].startswith(f"{len(pairs)} ")
    table = render(HEAD, rows)
    print(f"{table}\n{LEGEND}")
    restarts = _restarts(options.restarts) if options.restarts else ""
    print(restarts)
    if options.docs:
        words = {"body": fenced(table, LEGEND), "machine": machine.summary(machine.facts())}
        words |= {"rate": RATE, "rtt": RTT_MS, "seconds": options.seconds, "repeat": options.repeat}
        page = options.docs / "many.md"
        page.write_text(PAGE.format(**words, restarts=restarts))
        print(f"Page: {page}")
    if failed and not options.quick:
        raise LabError("the pacer costs more than it may")


def _pair(connections: str, loss: float, seconds: float, number: int) -> tuple[Ran, Ran]:
    """With the pacer and without. Who comes first changes, so that a slower machine favours nobody."""
    ran = {}
    for pacing in ("auto", "off") if number % 2 == 0 else ("off", "auto"):
        with _attached(loss, ["--connections", connections, "--pacing", pacing]) as disk:
            ran[pacing] = disk.load(seconds)
    with_pacer, without = ran["auto"], ran["off"]
    say(
        f"{connections} connections, loss {loss:g}: {with_pacer.bytes_per_s / 1e6:.1f} of "
        f"{without.bytes_per_s / 1e6:.1f} MB/s, {with_pacer.wait_s:.2f} and {without.wait_s:.2f} s"
    )
    return with_pacer, without


def _row(connections: str, loss: float, pairs: list[tuple[Ran, Ran]]) -> list[str]:
    shares = [paced.bytes_per_s / free.bytes_per_s for paced, free in pairs]
    waits = [paced.wait_s / free.wait_s for paced, free in pairs]
    kept = sum(s >= SHARE_MIN and w <= WAIT_MAX for s, w in zip(shares, waits, strict=True))
    rates = [statistics.median(one[side].bytes_per_s / 1e6 for one in pairs) for side in (0, 1)]
    longest = [statistics.median(one[side].wait_s for one in pairs) for side in (0, 1)]
    cells = [connections, f"{loss:g}", *(f"{rate:.1f}" for rate in rates), f"{min(shares):.2f}"]
    cells += [*(f"{wait_s:.2f} s" for wait_s in longest), f"{max(waits):.2f}"]
    return [*cells, f"{kept} of {len(pairs)}"]


@dataclass
class Disk:
    """A volume over the line, attached as an NBD export."""

    lab: wan.Lab
    target: Peer
    attached: Peer
    socket: Path
    logs: Path

    def fio(self, name: str, words: list[object]) -> Peer:
        argv = [need("fio"), f"--name={name}", "--ioengine=nbd", "--output-format=json"]
        argv += [f"--uri=nbd+unix:///?socket={self.socket}", *words]
        return Peer(argv, self.logs / f"{name}.log")

    def load(self, seconds: float) -> Ran:
        running = self.fio("load", [*LOAD, f"--runtime={seconds:g}"])
        if code := running.wait(seconds + END_S):
            raise LabError(f"fio ended with {code}: {running.output()[-500:]}")
        return _ran(running.output())

    def detach(self) -> int:
        self.attached.signal(SIGINT)
        return self.attached.wait(END_S)


def _ran(output: str) -> Ran:
    job = json.loads(output[output.index("{") :])["jobs"][0]
    kinds = [job[kind] for kind in ("read", "write")]
    waits_ns = [kind["clat_ns"]["max"] for kind in kinds]
    waits_ns.append(job["sync"]["lat_ns"]["max"])
    return Ran(sum(kind["bw_bytes"] for kind in kinds), max(waits_ns) / 1e9)


@contextmanager
def _attached(loss: float, words: list[object]) -> Iterator[Disk]:
    link = Link(RTT_MS, loss=loss, rate=RATE)
    with tempfile.TemporaryDirectory() as folder, wan.up(link, Path(folder)) as lab:
        logs = Path(folder)
        lab.set(link)
        image = logs / "volume.img"
        with image.open("wb") as file:
            file.truncate(1 << 30)
        serve = [enkaku.binary(), "serve", "--lun", image, "--iqn", enkaku.IQN]
        serve += ["--listen", f"{wan.FAR}:{PORT}"]
        with peer(lab.exec("far", serve), logs / "serve.log") as target:
            target.wait_for_output("listening on")
            with _attach(lab, target, logs, words) as disk:
                yield disk


@contextmanager
def _attach(lab: wan.Lab, target: Peer, logs: Path, words: list[object]) -> Iterator[Disk]:
    socket = logs / "disk.sock"
    url = disk_url(f"{wan.FAR}:{PORT}", enkaku.IQN, 0)
    argv = [enkaku.binary(), "attach", "-v", "--nbd", socket, "--cache", "write-back", *words, url]
    with peer(lab.exec("near", argv), logs / "attach.log") as attached:
        attached.wait_until(socket.exists, "an NBD socket")
        yield Disk(lab, target, attached, socket, logs)


def _restarts(seconds: float) -> str:
    """The target is killed and started again every half minute; then a clean exit, and a look."""
    words = ["--connections", "64"]
    with _attached(LOSSES[1], words) as disk:
        begin, restarts = time.monotonic(), 0
        running = disk.fio("load", [*LOAD, f"--runtime={seconds:g}"])
        while running.running():
            time.sleep(0.2)
            if time.monotonic() - begin > (restarts + 1) * RESTART_S < seconds:
                restarts += 1
                disk.target.kill()
                time.sleep(DOWN_S)
                disk.target.restart()
        if code := running.wait(END_S):
            raise LabError(f"fio ended with {code}: {running.output()[-500:]}")
        left = disk.fio("left", [*LEFT, "--do_verify=0"])
        if code := left.wait(END_S):
            raise LabError(f"fio ended with {code}: {left.output()[-500:]}")
        log, began = disk.attached.output(), time.monotonic()
        if code := disk.detach():
            raise LabError(f"a clean exit ended with {code}: {disk.attached.output()[-500:]}")
        took_s = time.monotonic() - began
        disk.socket.unlink(missing_ok=True)
        with _attach(disk.lab, disk.target, disk.logs, words) as again:
            check = again.fio("check", [*LEFT, "--verify_only=1", "--verify_fatal=1"])
            if code := check.wait(END_S):
                raise LabError(f"what was written is not there: {check.output()[-500:]}")
    silent = log.count(SILENT)
    if silent:
        raise LabError(f"{silent} sessions were ended for silence")
    return (
        f"Over {seconds:g} s with 64 connections, loss {LOSSES[1]:g} and {restarts} restarts of the "
        f"target (killed, {DOWN_S:g} s away): {silent} sessions ended for silence, "
        f"{log.count(SESSIONS)} set up again; a clean exit took {took_s:.1f} s, and all of what was "
        "not flushed before it was there after it."
    )
