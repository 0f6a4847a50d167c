"""The limit: our own program that only moves the bytes of block I/O between two processes, without protocol
and disk (crates/wanlab/examples/limit.rs). It starts its other end itself and measures both.
"""

import json
import os
from pathlib import Path

from enkaku_lab.peers import Measurement, Workload, enkaku
from enkaku_lab.process import LabError, run


def program() -> Path:
    """Beside the binary that is measured, of the same build."""
    path = enkaku.binary().parent / "examples/limit"
    if not os.access(path, os.X_OK):
        raise LabError(f"{path} does not exist; `make bench` builds it")
    return path


def move(
    workload: Workload, seconds: float, *, spin: bool, connections: int = 1
) -> tuple[Measurement, dict]:
    """What it reached, and the figures that a measurement of a client does not have."""
    words = ["--rw", "write" if workload.write else "read", "--bs", workload.block_bytes]
    words += ["--depth", workload.depth, "--connections", connections, "--time", seconds]
    words += ["--spin"] if spin else []
    said = json.loads(run([program(), *words], timeout_s=seconds + 60).stdout)
    reached = Measurement(
        said["bytes"], said["seconds"], said["client_cpu_s"], said["lat_us"], connections
    )
    more = {"server_cpu_s": said["target_cpu_s"], "slowest_to_mean": said["slowest_to_mean"]}
    return reached, more
