"""`python -m enkaku_lab.ns2.windows PORT SECONDS`: TCP's windows of the connections of a port.

Runs at the end that sends, until it is ended. A line of JSON every so many seconds: Unix time, and of
each connection its peer, congestion control, congestion window in segments, the peer's window in bytes
(0: not told) and bytes acknowledged.
"""

import json
import re
import subprocess
import sys
import time

from enkaku_lab.peers import need
from enkaku_lab.sockets import ALGORITHMS

CWND = re.compile(r"\bcwnd:(\d+)")
WINDOW = re.compile(r"\bsnd_wnd:(\d+)")
ACKED = re.compile(r"\bbytes_acked:(\d+)")


def sampled(text: str) -> list[dict]:
    """What `ss -tinH` says: a line for each connection, and one that is indented with details."""
    found = []
    for line in text.splitlines():
        if line and not line[0].isspace():
            found.append({"peer": line.split()[3]})
        elif found:
            found[-1].update(_details(line))
    return [one for one in found if "cwnd" in one]


def _details(line: str) -> dict:
    searched = (ALGORITHMS, CWND, WINDOW, ACKED)
    algorithm, cwnd, window, acked = (what.search(line) for what in searched)
    if not cwnd:
        return {}
    return {
        "congestion_control": algorithm[1] if algorithm else "",
        "cwnd": int(cwnd[1]),
        "window": int(window[1]) if window else 0,
        "acked": int(acked[1]) if acked else 0,
    }


def watch(port: int, interval_s: float) -> None:
    argv = [need("ss"), "-tinH", "state", "established", f"( sport = :{port} )"]
    due = time.monotonic()
    while True:
        now = time.time()
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        print(json.dumps({"time_s": now, "connections": sampled(done.stdout)}), flush=True)
        # On a busy machine a sample is skipped, not caught up on.
        due = max(due + interval_s, time.monotonic())
        time.sleep(due - time.monotonic() if due > time.monotonic() else 0)


if __name__ == "__main__":
    watch(int(sys.argv[1]), float(sys.argv[2]))
