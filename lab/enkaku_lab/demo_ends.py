"""The two ends of the demo's link; `enkaku wan run` starts one process for each.

far:  iperf3, tgt and `enkaku serve` on the far address, until it is ended.
near: the clients, one after the other, into a file of results.
Both run inside the namespaces of the link and see nothing but each other and the file system.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from enkaku_lab import machine
from enkaku_lab.peers import disk_url, enkaku, iperf3, qemu, tgt
from enkaku_lab.process import Completed, LabError
from enkaku_lab.progress import say
from enkaku_lab.results import Results
from enkaku_lab.sockets import Watch, algorithms

FAR_READY = "far end ready"
IPERF3_PORT, TGT_PORT, ENKAKU_PORT = 5201, 3260, 3261
PLAIN_TCP_BYTES = 256 << 20
TIMEOUT_S = 120


class Files:
    """Where the demo keeps what: the same paths at both ends."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.source = folder / "source.tar"
        self.slice = folder / "slice.tar"
        self.far_volume = folder / "far-volume.img"
        self.far_slice = folder / "far-slice.img"
        self.read_back = folder / "read-back.tar"
        self.slice_read_back = folder / "slice-read-back.tar"
        self.far_sockets = folder / "far-sockets.json"
        self.results = folder / "results.jsonl"


def far(files: Files) -> None:
    """Serves until SIGTERM."""
    address = os.environ["ENKAKU_FAR"]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with ExitStack() as stack:
        logs = files.folder
        stack.enter_context(iperf3.serve(logs, address=address, port=IPERF3_PORT))
        stack.enter_context(tgt.serve([files.far_slice], logs, address=address, port=TGT_PORT))
        stack.enter_context(
            enkaku.serve([files.far_volume], logs, address=address, port=ENKAKU_PORT)
        )
        watched = [TGT_PORT, ENKAKU_PORT]
        stack.enter_context(Watch(watched, lambda seen: _replace(files.far_sockets, seen)))
        print(FAR_READY, flush=True)
        while True:
            signal.pause()


def near(files: Files) -> None:
    """Writes and reads through every stack and records what each reached."""
    results = Results(files.results, machine.facts())
    connections = 1
    try:
        for record in (*_plain_tcp("tcp", 1), *_stock(files), *_enkaku(files)):
            results.add({"kind": "transfer", **record})
            connections = record["connections"]
        if connections > 1:
            for record in _plain_tcp("tcp_n", connections):
                results.add({"kind": "transfer", **record})
    finally:
        results.close()


def _plain_tcp(stack: str, streams: int) -> Iterator[dict]:
    """Bytes from memory to memory, each way; no disk takes part."""
    for direction in ("write", "read"):
        say(f"plain TCP (iperf3, streams: {streams}): {direction} …")
        got = iperf3.transfer(
            os.environ["ENKAKU_FAR"],
            IPERF3_PORT,
            total_bytes=PLAIN_TCP_BYTES,
            from_server=direction == "read",
            streams=streams,
        )
        yield {
            "stack": stack,
            "direction": direction,
            "bytes": got.bytes,
            "seconds": got.seconds,
            "connections": streams,
            "congestion_control": [got.congestion_control],
        }


def _stock(files: Files) -> Iterator[dict]:
    """qemu-img convert, as an administrator would call it, on the slice."""
    url = disk_url(f"{os.environ['ENKAKU_FAR']}:{TGT_PORT}", tgt.IQN, tgt.FIRST_LUN)
    commands = {
        "write": lambda watch: qemu.convert(files.slice, url, while_running=watch),
        "read": lambda watch: qemu.convert(
            url, files.slice_read_back, create=True, while_running=watch
        ),
    }
    for direction, command in commands.items():
        done, seen = _watched(f"tgt + libiscsi: {direction} a slice", TGT_PORT, command)
        yield {
            "stack": "stock",
            "direction": direction,
            "bytes": files.slice.stat().st_size,
            "seconds": done.seconds,
            "connections": 1,
            "congestion_control": _sender(files, direction, TGT_PORT, seen),
        }


def _enkaku(files: Files) -> Iterator[dict]:
    """The whole file, by `enkaku copy` as a user would call it."""
    url = disk_url(f"{os.environ['ENKAKU_FAR']}:{ENKAKU_PORT}", enkaku.IQN, 0)
    for direction, ends in {
        "write": (files.source, url),
        "read": (url, files.read_back),
    }.items():
        done, seen = _watched(
            f"enkaku copy: {direction} all of it",
            ENKAKU_PORT,
            lambda watch, ends=ends: enkaku.command(
                "copy", *ends, "--force", "--json", timeout_s=TIMEOUT_S, while_running=watch
            ),
        )
        said = json.loads(done.stdout)
        yield {
            "stack": "enkaku",
            "direction": direction,
            "bytes": said["bytes"],
            "seconds": done.seconds,
            "connections": said["connections"],
            "congestion_control": _sender(files, direction, ENKAKU_PORT, seen),
        }


def _watched(
    what: str, port: int, command: Callable[[Callable[[int], None]], Completed]
) -> tuple[Completed, set[str]]:
    """Runs a client and collects the algorithms that its sockets used meanwhile."""
    seen: set[str] = set()

    def watch(_pid: int) -> None:
        seen.update(algorithms(port))

    say(f"{what} …")
    return command(watch), seen


def _sender(files: Files, direction: str, port: int, near_seen: set[str]) -> list[str]:
    """The algorithms of the end that sends the data: near when writing, far when reading."""
    if direction == "write":
        return sorted(near_seen)
    return json.loads(files.far_sockets.read_text()).get(str(port), [])


def _replace(path: Path, seen: dict) -> None:
    """Never half a file, because the other end reads it at any time."""
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(seen))
    fresh.replace(path)


if __name__ == "__main__":
    try:
        {"far": far, "near": near}[sys.argv[1]](Files(Path(sys.argv[2])))
    except LabError as error:
        sys.exit(f"{sys.argv[1]} end: {error}")
