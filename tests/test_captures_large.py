"""Captures that are larger than memory ought to be: read from a pipe, in constant memory.

`make test` analyses 300 MB. More, here 5 GB (a minute or two, no disk):

    ENKAKU_CAPTURE_GB=5 .venv/bin/python -m pytest -s tests/test_captures_large.py
"""

import fcntl
import json
import os
import subprocess
from pathlib import Path

from enkaku_lab.peers import enkaku
from enkaku_lab.process import die_with_parent
from support.iscsi_traffic import Traffic

GB = 1_000_000_000
SIZES_GB = (0.03, float(os.environ.get("ENKAKU_CAPTURE_GB") or 0.3))
PEAK_KIB_MAX = 64 << 10
"""Whatever the size. A build without optimisation takes little more."""
PIPE_BYTES = 1 << 20
CHUNKS_BETWEEN_LOOKS = 200


def _peak_kib(pid: int) -> int:
    """VmHWM; 0 when the process has ended. `ru_maxrss` would count what this process had before
    it became another program."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    peak = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return int(peak[0].split()[1]) if peak else 0


def _analysed(traffic: Traffic) -> tuple[dict, int]:
    """The report on the capture, and the most memory that making it took, KiB."""
    argv = [enkaku.binary(), "monitor", "report", "-", "--port", "3260", "--json"]
    peak = 0
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=die_with_parent
    ) as child:
        try:
            fcntl.fcntl(child.stdin, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
            for number, chunk in enumerate(traffic.chunks()):
                child.stdin.write(chunk)
                if number % CHUNKS_BETWEEN_LOOKS == 0:
                    peak = max(peak, _peak_kib(child.pid))
            child.stdin.close()
            # The report is longer than a pipe holds: when its first byte is here it has been made,
            # and the process waits for us to read the rest.
            first = child.stdout.read(1)
            peak = max(peak, _peak_kib(child.pid))
            report = json.loads(first + child.stdout.read())
        finally:
            if child.poll() is None:
                child.kill()
    return report, peak


def test_memory_does_not_grow_with_the_capture_and_no_command_is_missed():
    peaks = []
    for size in SIZES_GB:
        traffic = Traffic(int(size * GB))
        report, peak = _analysed(traffic)
        peaks.append(peak)
        print(f"{size:g} GB: {traffic.packets} packets, peak {peak / 1024:.1f} MiB")
        capture, connections = report["capture"], report["connections"]
        assert capture["packets"] == capture["segments"] == traffic.packets
        assert capture["stopped"] is None and report["waits_cut"] == 0
        assert len(connections) + report["connections_skipped"] == traffic.connections
        found = {
            kind: sum(one[kind]["commands"] for one in connections if one[kind])
            for kind in ("writes", "reads")
        }
        assert found == {"writes": traffic.writes, "reads": traffic.reads}
        for direction in ("pdus_to_target", "pdus_to_initiator"):
            assert sum(one[direction]["lost_sync"] for one in connections) == 0
        assert sum(one["to_target"]["retransmissions"] for one in connections) > 0
    assert max(peaks) < PEAK_KIB_MAX, peaks


def test_diagnose_reads_a_capture_from_a_pipe():
    traffic = Traffic(5_000_000, sides=1)
    capture = b"".join(traffic.chunks())
    argv = [enkaku.binary(), "diagnose", "--pcap", "-", "--port", "3260", "--json"]
    done = subprocess.run(argv, input=capture, capture_output=True, check=True, timeout=60)
    verdict = json.loads(done.stdout)
    # One command at a time, and a round trip for its R2T and for its response.
    assert verdict["source"] == "capture" and verdict["cause"] in ("r2t", "queue_depth"), verdict
    assert verdict["seconds"] > 0 and done.stderr == b""
