"""A named lab of `enkaku wan up` for the length of a `with` block, and longer by no means.

The emulator is a process of its own that outlives whoever asked for it. So a guardian holds one
end of a pipe: when the other end closes, however its owner ended, it takes the lab down, and all
that runs in it goes too.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from enkaku_lab.experiment import Link
from enkaku_lab.peers import enkaku
from enkaku_lab.process import CommandFailed, LabError, run

UP_S_MAX = 20.0

NEAR, FAR = "10.77.0.1", "10.77.0.2"
"""Where the ends are, as seen from both (`enkaku wan` gives every lab the same)."""


class Lab:
    """Two ends, `near` and `far`, and the line between them."""

    def __init__(self, name: str):
        self.name = name

    def exec(self, end: str, argv: list[object]) -> list[object]:
        """The command that runs a command at an end. It keeps its process id."""
        return [enkaku.binary(), "wan", "exec", self.name, end, "--", *argv]

    def set(self, link: Link, *, loss: float | None = None) -> None:
        """The line as the link says; `loss` instead of the link's while something is prepared."""
        words = ["--rate", link.rate, "--rtt", f"{link.rtt_ms:g}ms"]
        words += ["--loss", repr(link.loss if loss is None else loss)]
        enkaku.command("wan", "set", self.name, *words, "--queue", link.queue_packets)

    def become(self, link: Link) -> None:
        """The line as the link says, and the congestion control that the ends' programs find there.
        """
        self.choose_congestion_control(link.cc, link.cc_free)
        self.set(link)

    def choose_congestion_control(self, name: str, free: bool = False) -> None:
        """At both ends, as `set_congestion_control` does at one."""
        code = f"from enkaku_lab import wan; wan.set_congestion_control({name!r}, {free})"
        for end in ("near", "far"):
            run(self.exec(end, [sys.executable, "-c", code]))

    def tcp(self) -> dict:
        """Sysctls of both ends, as read back inside."""
        return enkaku.report("wan", "show", self.name)["tcp"]

    def down(self) -> None:
        enkaku.command("wan", "down", self.name, check=False)


@contextmanager
def up(link: Link, logs: Path) -> Iterator[Lab]:
    """A lab with the link's buffers; the rest of the link can be `set` later."""
    words = ["--rate", link.rate, "--rtt", "0ms", "--wmem", link.wmem, "--rmem", link.rmem]
    if not link.window_scaling:
        words += ["--sysctl", "net.ipv4.tcp_window_scaling=0"]
    with _named(f"lab-{os.getpid()}", words, logs) as lab:
        yield lab


@contextmanager
def star(nodes: int, networks: int, line: list[object], logs: Path) -> Iterator[Lab]:
    """Nodes around a switch, or two; the ends are called node1, node2, … `line` is of every node.
    """
    words = ["--star", nodes, "--networks", networks, *line]
    with _named(f"star-{os.getpid()}", words, logs) as lab:
        yield lab


@contextmanager
def _named(name: str, words: list[object], logs: Path) -> Iterator[Lab]:
    lab = Lab(name)
    guardian = guard(lab.name)
    try:
        # What one connection learnt of the path must not help the next one.
        words = [*words, "--sysctl", "net.ipv4.tcp_no_metrics_save=1"]
        enkaku.command("wan", "up", lab.name, *words, "--log", logs / "wan.log", timeout_s=UP_S_MAX)
        yield lab
    finally:
        lab.down()
        guardian.stdin.close()
        guardian.wait()


def guard(name: str) -> subprocess.Popen:
    """In a session of its own, so that Ctrl-C at a terminal does not end it first."""
    argv = [sys.executable, "-m", "enkaku_lab.wan", str(enkaku.binary()), name]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, start_new_session=True)


def set_congestion_control(name: str, free: bool = False) -> None:
    """For every connection made from now on in this network namespace: by route, because the
    sysctl is refused inside containers. Unless it is free, a program cannot choose another one."""
    routes = run(["ip", "-4", "route", "show", "dev", "wan0"]).stdout.splitlines()
    for route in routes:
        words = route.split()
        if "congctl" in words:
            at = words.index("congctl")
            del words[at : at + 2 + (words[at + 1] == "lock")]
        choice = [name] if free else ["lock", name]
        run(["ip", "-4", "route", "change", *words, "dev", "wan0", "congctl", *choice])


def available() -> str | None:
    """Why there can be no lab on this machine, or None."""
    name = f"probe-{os.getpid()}"
    try:
        enkaku.command("wan", "up", name, "--rate", "1gbit", "--rtt", "0", timeout_s=UP_S_MAX)
    except CommandFailed as error:
        return error.stderr.strip().removeprefix("enkaku: ") or str(error)
    enkaku.command("wan", "down", name, check=False)
    return None


def need() -> None:
    """LabError where there can be no lab."""
    if reason := available():
        raise LabError(f"no emulated line can be made here: {reason}")


def _guardian_main(binary: str, name: str) -> None:
    sys.stdin.buffer.read()
    subprocess.run([binary, "wan", "down", name], check=False, capture_output=True)


if __name__ == "__main__":
    _guardian_main(*sys.argv[1:])
