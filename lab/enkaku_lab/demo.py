"""`make demo`: a real file travels over an emulated long-fat link to a remote volume and back.

The link has 1 Gbit/s and an RTT of 50 ms. The file is a tar of real files, at least 512 MiB; what
comes back is compared with it, and so is the far volume itself. Plain TCP (iperf3: one stream, and
as many as enkaku chose) and the stock stack (tgt + qemu-img's libiscsi) cross the same link in the
same run. The stock stack is so slow there that it gets a slice of the file; the table says so.
"""

import argparse
import hashlib
import os
import random
import shlex
import subprocess
import sys
import tarfile
from pathlib import Path

from enkaku_lab import OUT, figure, machine, table
from enkaku_lab.demo_ends import FAR_READY, Files
from enkaku_lab.peers import enkaku
from enkaku_lab.process import LabError
from enkaku_lab.progress import say
from enkaku_lab.results import read

MIB = 1 << 20
SOURCE_BYTES = 512 * MIB
SLICE_BYTES = 24 * MIB
SOURCE_TREES = [Path("/usr/share"), Path("/usr/lib")]
RATE, RTT, QUEUE_PACKETS = "1gbit", "50ms", 2000
RATE_BYTES_PER_S = 1e9 / 8
TCP_PAYLOAD_BYTES, WIRE_BYTES = 1448, 1538
"""A full packet: MTU 1500 less 20 bytes of IPv4 and 32 of TCP with timestamps; on the wire plus
38 of Ethernet. iSCSI's own headers cost less than 0.1 % more."""
LIMIT_BYTES_PER_S = RATE_BYTES_PER_S * TCP_PAYLOAD_BYTES / WIRE_BYTES
STACKS = {
    "tcp": "plain TCP (iperf3)",
    "tcp_n": "plain TCP (iperf3)",
    "stock": "tgt + libiscsi (qemu-img)",
    "enkaku": "enkaku copy",
}


def main(arguments: list[str]) -> None:
    argparse.ArgumentParser(prog="enkaku_lab demo", description=__doc__).parse_args(arguments)
    files = Files(OUT / "demo")
    files.folder.mkdir(parents=True, exist_ok=True)
    _prepare(files)
    _cross_the_link(files)
    compared = _compare(files)
    records = read(files.results)
    transfers = [record for record in records if record["kind"] == "transfer"]
    svg, png = _draw(transfers, files.folder / "demo")
    print(_table(transfers))
    print()
    print(_notes(records[0]))
    print()
    print("\n".join(compared))
    print(f"\nPicture: {png}\n         {svg}\nRaw results: {files.results}")


def _prepare(files: Files) -> None:
    """Source, slice and empty far volumes. The source is kept for the next run."""
    if not (files.source.exists() and files.source.stat().st_size >= SOURCE_BYTES):
        say(f"collecting {SOURCE_BYTES // MIB} MiB of real files into {files.source} …")
        fresh = files.source.with_suffix(".new")
        _write_tar(fresh)
        fresh.replace(files.source)
    with files.source.open("rb") as source:
        files.slice.write_bytes(source.read(SLICE_BYTES))
    for volume, like in ((files.far_volume, files.source), (files.far_slice, files.slice)):
        volume.unlink(missing_ok=True)
        volume.touch()
        os.truncate(volume, like.stat().st_size)
    for result in (files.read_back, files.slice_read_back):
        result.unlink(missing_ok=True)


def _write_tar(path: Path) -> None:
    """Real files up to the size; a machine that has too few gets one file of noise on top."""
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        for file in _real_files():
            if tar.offset >= SOURCE_BYTES:
                break
            tar.add(file, recursive=False)
    if (missing := SOURCE_BYTES - path.stat().st_size) > 0:
        noise = path.with_suffix(".noise")
        noise.write_bytes(random.Random(1).randbytes(missing))
        with tarfile.open(path, "a") as tar:
            tar.add(noise, "noise")
        noise.unlink()
    os.truncate(path, -(-path.stat().st_size // MIB) * MIB)


def _real_files():
    for tree in SOURCE_TREES:
        for folder, folders, names in os.walk(tree):
            folders.sort()
            for name in sorted(names):
                path = Path(folder, name)
                if path.is_file() and not path.is_symlink() and os.access(path, os.R_OK):
                    yield path


def _cross_the_link(files: Files) -> None:
    end = [sys.executable, "-m", "enkaku_lab.demo_ends"]
    argv = [
        *(enkaku.binary(), "wan", "run", "--rate", RATE, "--rtt", RTT, "--queue", QUEUE_PACKETS),
        *("--far", shlex.join([*end, "far", str(files.folder)]), "--far-ready", FAR_READY),
        *("--", *end, "near", files.folder),
    ]
    say(f"a link of {RATE}, RTT {RTT}, queue {QUEUE_PACKETS} packets")
    words = [str(word) for word in argv]
    # Standard output is for the table alone.
    code = subprocess.run(words, check=False, stdout=sys.stderr).returncode
    if code != 0:
        raise LabError(f"the run over the link ended with code {code}; logs are in {files.folder}")


def _compare(files: Files) -> list[str]:
    """SHA-256 of what was sent, what lies at the far end and what came back."""
    say("comparing contents …")
    verdicts = []
    for what, pair in {
        "far volume": (files.source, files.far_volume),
        "file read back by enkaku": (files.source, files.read_back),
        "slice read back by qemu-img": (files.slice, files.slice_read_back),
    }.items():
        sent, arrived = (_sha256(path) for path in pair)
        if sent != arrived:
            raise LabError(f"{what} differs from what was sent: {pair[0]}, {pair[1]}")
        size = pair[1].stat().st_size
        verdicts.append(f"identical: {what} ({size / MIB:.0f} MiB, SHA-256 {sent[:16]}…)")
    return verdicts


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


HEAD = [
    *("stack", "direction", "MB/s", "of the line", "MiB", "seconds"),
    *("connections", "congestion control"),
]


def _table(transfers: list[dict]) -> str:
    rows = [
        [
            STACKS[one["stack"]],
            one["direction"],
            f"{one['bytes'] / one['seconds'] / 1e6:.1f}",
            f"{one['bytes'] / one['seconds'] / LIMIT_BYTES_PER_S:.0%}",
            f"{one['bytes'] / MIB:.0f}",
            f"{one['seconds']:.1f}",
            str(one["connections"]),
            ", ".join(one["congestion_control"]) or "not seen",
        ]
        for one in sorted(transfers, key=lambda one: list(STACKS).index(one["stack"]))
    ]
    line = ["the line (TCP payload)", "both", f"{LIMIT_BYTES_PER_S / 1e6:.1f}", "100%"]
    return table.render(HEAD, [*rows, [*line, *[table.GAP] * 4]])


def _notes(head: dict) -> str:
    sysctl = head["sysctl"]
    return "\n".join(
        [
            f"Link: {RATE}, RTT {RTT}, DropTail queue of {QUEUE_PACKETS} packets. Seconds are from "
            "the start of a command to its end, login and",
            "final flush included; iperf3's are its own. tgt + libiscsi moved only a slice of "
            f"{SLICE_BYTES // MIB} MiB, because it is slow here.",
            "Congestion control is the sending end's, as ss reported it while data moved.",
            f"tcp_wmem {sysctl['net.ipv4.tcp_wmem']}, tcp_rmem {sysctl['net.ipv4.tcp_rmem']}.",
            machine.summary(head),
        ]
    )


def _label(one: dict) -> str:
    count = one["connections"]
    return f"{STACKS[one['stack']]}, {count} connection{'s' if count > 1 else ''}"


def _draw(transfers: list[dict], path: Path) -> tuple[Path, Path]:
    chart, axes = figure.new()
    found = [stack for stack in STACKS if any(one["stack"] == stack for one in transfers)]
    width = 0.84 / len(found)
    for index, stack in enumerate(found):
        runs = {one["direction"]: one for one in transfers if one["stack"] == stack}
        rates = [runs[way]["bytes"] / runs[way]["seconds"] / 1e6 for way in ("write", "read")]
        places = [group + (index - (len(found) - 1) / 2) * width for group in range(2)]
        bars = axes.bar(
            places, rates, width * 0.92, label=_label(runs["write"]), color=figure.COLOURS[stack]
        )
        axes.bar_label(bars, fmt="%.0f", padding=2)
    axes.axhline(LIMIT_BYTES_PER_S / 1e6, label="the line (TCP payload)", **figure.LIMIT)
    axes.set_xticks([0, 1], ["write", "read"])
    axes.set_ylabel("throughput (MB/s)")
    axes.set_ylim(0, LIMIT_BYTES_PER_S / 1e6 * 1.3)
    axes.set_title("A file over 1 Gbit/s, RTT 50 ms")
    axes.legend(loc="upper center", ncols=2, fontsize=9, frameon=False)
    return figure.save(chart, path)
