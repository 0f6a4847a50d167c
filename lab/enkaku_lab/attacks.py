"""`python -m enkaku_lab attacks`: what ten honest initiators keep of their throughput while one host
attacks their target, as a ratio to the same run undisturbed. In a network of its own; an experiment
for a quiet machine, as attackers, initiators and target share its processors.
"""

import argparse
import json
import socket
import struct
import subprocess
import threading
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from enkaku_lab.attackers import Session, login_pdu, network, one_host
from enkaku_lab.peers import enkaku
from enkaku_lab.process import LabError, die_with_parent

HONEST = 10
MIB = 1 << 20
WANTED = 0.8
Connect = Callable[[], socket.socket]


def _crowd(connect: Connect, hello: bytes, stop: threading.Event) -> None:
    """Connections that go nowhere, some hundred a second, 400 at a time."""
    crowd = []
    while not stop.wait(0.005):
        try:
            crowd.append(connect())
            crowd[-1].sendall(hello)
        except OSError:
            pass  # shown out
        if len(crowd) > 400:
            crowd.pop(0).close()
    for connection in crowd:
        connection.close()


def _silent(connect: Connect, stop: threading.Event) -> None:
    _crowd(connect, b"", stop)


def _half_logins(connect: Connect, stop: threading.Event) -> None:
    _crowd(connect, login_pdu("iqn.2026-11.org.example:x", 1, transit=False), stop)


def _commands(connect: Connect, stop: threading.Event, sessions: int, pdus) -> None:
    """Sessions that send what they have and read nothing, until it is over."""
    kept = []
    for number in range(sessions):
        session = Session(connect(), f"iqn.2026-11.org.example:a{number % 2}", number)
        session.hears_the_news()
        session.connection.sendall(b"".join(pdus(session)))
        kept.append(session)
    stop.wait()
    for session in kept:
        session.connection.close()


def _write_same(connect: Connect, stop: threading.Event) -> None:
    cdb = struct.pack(">BBQIBB", 0x93, 0, 0, 16 * MIB // 512, 0, 0)
    _commands(connect, stop, 2, lambda s: (s.pdu(cdb, b"\x5a" * 512) for _ in range(500)))


def _holes(connect: Connect, stop: threading.Event) -> None:
    cdb = struct.pack(">BBQIBB", 0x9E, 0x12, 0, 8, 0, 0)
    _commands(connect, stop, 1, lambda s: (s.pdu(cdb, expects=8) for _ in range(500)))


def _promises(connect: Connect, stop: threading.Event) -> None:
    cdb = struct.pack(">BBQIBB", 0x8A, 0, 0, 16 * MIB // 512, 0, 0)
    _commands(
        connect, stop, 6, lambda s: (s.pdu(cdb, b"\1" * 512, sends=16 * MIB) for _ in range(14))
    )


ATTACKS = {
    "silent connections": _silent,
    "half logins": _half_logins,
    "WRITE SAME": _write_same,
    "GET LBA STATUS": _holes,
    "promises of data": _promises,
}


@contextmanager
def _attacked(attack, connect: Connect):
    stop = threading.Event()
    worker = threading.Thread(target=attack, args=(connect, stop))
    worker.start()
    try:
        yield
    finally:
        stop.set()
        worker.join()


def _honest_bytes_per_s(url: str, seconds: float) -> float:
    """Of ten initiators that begin at once; each has to get in."""
    argv = [enkaku.binary(), "bench", url, "--rw", "randread", "--bs", "4k", "--depth", "8"]
    argv += ["--time", f"{seconds}s", "--connections", "1", "--json"]
    words = [str(word) for word in argv]
    running = [
        subprocess.Popen(words, stdout=subprocess.PIPE, text=True, preexec_fn=die_with_parent)
        for _ in range(HONEST)
    ]
    rate = 0.0
    for child in running:
        out, _ = child.communicate(timeout=seconds + 60)
        if child.returncode:
            raise LabError(f"an honest initiator ended with code {child.returncode}")
        result = json.loads(out)
        rate += result["bytes"] / result["seconds"]
    return rate


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="enkaku_lab attacks", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each run")
    options = parser.parse_args(arguments)
    low = []
    with TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        stack.enter_context(network())
        luns = ["mem:64M", "mem:64M"]
        target = stack.enter_context(
            enkaku.serve(luns, folder, address="::", port=3260)
        )
        url = f"iscsi://127.0.0.1:{target.port}/{target.iqn}/1"
        for family in ("ipv4", "ipv6"):
            for what, attack in ATTACKS.items():
                alone = _honest_bytes_per_s(url, options.seconds)
                with _attacked(attack, one_host(family)):
                    attacked = _honest_bytes_per_s(url, options.seconds)
                ratio = attacked / alone
                print(f"{family} {what:20} {alone / 1e6:8.1f} MB/s alone, {ratio:.2f} of it attacked")
                if ratio < WANTED:
                    low.append(f"{family} {what}: {ratio:.2f}")
    if low:
        raise LabError(f"less than {WANTED} of the undisturbed throughput: {'; '.join(low)}")
