"""What a number was measured on: machine, kernel, TCP settings, versions of every program."""

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

from enkaku_lab.peers import enkaku
from enkaku_lab.results import utc

SYSCTLS = (
    "net.ipv4.tcp_congestion_control",
    "net.ipv4.tcp_wmem",
    "net.ipv4.tcp_rmem",
    "net.core.wmem_max",
    "net.core.rmem_max",
)
PACKAGES = (
    *("tgt", "libiscsi-bin", "qemu-utils", "qemu-system-common", "iperf3", "fio"),
    *("nfs-ganesha", "libnfs13", "samba", "libsmbclient"),
)


def facts() -> dict:
    """One object for the head of a file of results."""
    return {
        "kind": "machine",
        "taken": utc(),
        "kernel": platform.release(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "sysctl": {name: sysctl(name) for name in SYSCTLS},
        "commit": commit(),
        "versions": {"enkaku": _output([str(enkaku.binary()), "-V"]).removeprefix("enkaku "), **_packages()},
    }


def summary(found: dict) -> str:
    """The facts that belong under a table, in one line."""
    gib = found["memory_bytes"] / 2**30
    return (
        f"{found['processor']}, {found['cores']} cores, {gib:.0f} GiB, "
        f"Linux {found['kernel']}, {found['taken'][:10]}"
    )


def commit() -> str:
    """Of the repository that the lab runs from, with + where something in it is changed; empty
    without one."""
    here = ["git", "-C", str(Path(__file__).parent)]
    found = _output([*here, "rev-parse", "--short", "HEAD"]) if shutil.which("git") else ""
    changed = found and _output([*here, "status", "--porcelain", "--untracked-files=no"])
    return f"{found}+" if changed else found


def sysctl(name: str) -> str:
    """The value in this network namespace, or `absent`."""
    path = Path("/proc/sys") / name.replace(".", "/")
    return " ".join(path.read_text().split()) if path.exists() else "absent"


def _processor() -> str:
    match = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return match[1] if match else platform.machine()


def _packages() -> dict[str, str]:
    if not shutil.which("dpkg-query"):
        return {}
    listed = _output(["dpkg-query", "-W", "-f", "${Package} ${Version}\n", *PACKAGES])
    return dict(line.split(" ", 1) for line in listed.splitlines() if " " in line)


def _output(argv: list[str]) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip()
