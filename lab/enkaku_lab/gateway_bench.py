"""`python -m enkaku_lab gateway-bench`: initiators that cannot be changed, through a gateway beside them and without one.

200 Mbit/s, RTT 100 ms, cubic. `qemu-img convert`, with libiscsi as its initiator, writes a file to a far target and reads it
back: directly, and through `enkaku attach --iscsi` at its own end. A write ends with its flush at the far end. What has
arrived is compared, byte for byte. The far target is ours, and tgt.
"""

import argparse
import filecmp
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from enkaku_lab import machine, wan
from enkaku_lab.experiment import Link
from enkaku_lab.peers import Target, enkaku, need, qemu, tgt
from enkaku_lab.process import LabError, peer, run
from enkaku_lab.progress import say
from enkaku_lab.results import median, spread
from enkaku_lab.table import fenced, render

LINK = Link(100.0, rate="200mbit")
MIB = 1 << 20
PORT = 3270
NEAR_PORT = 3260
WANTED_OF_LINE, WANTED_OF_DIRECT = 0.85, 10.0
CONVERT_S_MAX = 900
CACHE = "write-back"
HEAD = ["far target", "qemu-img convert", "direct (MB/s)", "gateway (MB/s)", "of the line", "±", "to direct"]
PAGE = """# An initiator that cannot be changed, through a gateway

Made by `python -m enkaku_lab gateway-bench --docs docs`; do not edit. `qemu-img convert` (libiscsi, its own defaults, a flush at
the end), 200 Mbit/s, RTT 100 ms, cubic; through `enkaku attach --iscsi --cache {cache}` {through} MiB, directly {direct} MiB;
medians of {rounds} rounds, each verified byte for byte at the far end. {machine}

{body}

*Of the line* is what the gateway's way has of the line's {line:.1f} MB/s of payload, logins, slow start and the last flush included;
wanted: {of_line:g} of the line, {of_direct:g} times direct.
"""


@dataclass(frozen=True)
class Sizes:
    """In MiB."""

    through: int
    direct: int


class Place:
    """Two ends, a file with noise, and a far target with a disk that is as large."""

    def __init__(self, lab: wan.Lab, folder: Path, target: Target, disk: Path):
        self.lab, self.folder, self.target, self.disk = lab, folder, target, disk

    @contextmanager
    def gateway(self) -> Iterator[Target]:
        near = f"127.0.0.1:{NEAR_PORT}"
        argv = [enkaku.binary(), "attach", self.target.url(), "--iscsi", near, "--cache", CACHE]
        with peer(self.lab.exec("near", argv), self.folder / "gateway.log") as attached:
            attached.wait_for_output("listening on")
            yield Target("gateway", attached, "127.0.0.1", NEAR_PORT, enkaku.GATEWAY_IQN)

    def rates(self, target: Target, size: int) -> dict[str, float]:
        """Bytes a second of a file of so many bytes, written and read back."""
        source, back = _noise(self.folder / "source", size), self.folder / "back"
        words = ["-t", "writeback", "-n", source, target.url()]
        written = self._convert(words, size)
        with self.disk.open("rb") as there, source.open("rb") as here:
            if there.read(size) != here.read():
                raise LabError("the far disk has not what was written")
        begin = f"driver=raw,offset=0,size={size},{qemu.iscsi_options(target, of='file.')}"
        words = ["-T", "none", "--image-opts", begin, back]
        read = self._convert(words, size, raw_source=False)
        if not filecmp.cmp(source, back, shallow=False):
            raise LabError("what was read back is not what was written")
        return {"write": written, "read": read}

    def _convert(self, words: list[object], size: int, raw_source: bool = True) -> float:
        argv = [need("qemu-img"), "convert", *(["-f", "raw"] if raw_source else []), "-O", "raw", *words]
        begin = time.monotonic()
        run(self.lab.exec("near", argv), timeout_s=CONVERT_S_MAX)
        return size / (time.monotonic() - begin)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="enkaku_lab gateway-bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="short and small: draw no conclusions")
    parser.add_argument("--docs", type=Path, metavar="DIR", help="write DIR/gateway-bench.md, too")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        raise LabError("one round is the least")
    sizes = Sizes(32, 4) if options.quick else Sizes(512, 32)
    rounds = 1 if options.quick else options.rounds
    rows = [row for far in FAR for row in _rows(far, sizes, rounds)]
    table = render(HEAD, rows)
    print(table)
    if options.docs:
        page = options.docs / "gateway-bench.md"
        words = {"rounds": rounds, "through": sizes.through, "direct": sizes.direct, "cache": CACHE}
        words |= {"line": LINK.payload_bits_per_s / 8e6, "machine": machine.summary(machine.facts())}
        words |= {"of_line": WANTED_OF_LINE, "of_direct": WANTED_OF_DIRECT}
        page.write_text(PAGE.format(body=fenced(table), **words))
        print(f"Page: {page}")


def _rows(far: str, sizes: Sizes, rounds: int) -> Iterator[list[str]]:
    seen = []
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name, wan.up(LINK, Path(name)) as lab:
        lab.become(LINK)
        folder = Path(name)
        disk = folder / "far.img"
        with disk.open("wb") as file:
            file.truncate(sizes.through * MIB)
        with _serve(far, lab, disk, folder) as target:
            place = Place(lab, folder, target, disk)
            for number in range(rounds):
                direct = place.rates(target, sizes.direct * MIB)
                with place.gateway() as near:
                    through = place.rates(near, sizes.through * MIB)
                seen.append((direct, through))
                shares = {way: f"{through[way] / direct[way]:.1f}" for way in through}
                say(f"{far}, round {number + 1}: {shares} × direct")
    line = LINK.payload_bits_per_s / 8
    for way in ("write", "read"):
        direct, through = ([one[at][way] for one in seen] for at in (0, 1))
        cells = [f"{median(direct) / 1e6:.2f}", f"{median(through) / 1e6:.2f}"]
        cells += [f"{median(through) / line:.2f}", f"{spread(through):.0%}"]
        yield [far, way, *cells, f"×{median(through) / median(direct):.1f}"]


def _serve(far: str, lab: wan.Lab, disk: Path, folder: Path) -> AbstractContextManager[Target]:
    def within(argv: list[object]) -> list[object]:
        return lab.exec("far", argv)

    # A host has one session of a name at a unit at a time, and another lab may be at work.
    iqn = f"{enkaku.IQN}-{os.getpid()}"
    return FAR[far]([disk], folder, address=wan.FAR, port=PORT, iqn=iqn, within=within)


FAR = {"enkaku": enkaku.serve, "tgt": tgt.serve}


def _noise(path: Path, size: int) -> Path:
    path.write_bytes(os.urandom(size))
    return path
