"""`python -m enkaku_lab s3-limits`: how near the target's limits are to what they say.

Over loopback, so that nothing but the limit limits. Single clients under `max_iops`, small and large,
with one command at a time and many; four at once under `max_rate`, each with its own, which the mean
of bytes and time of each has to meet; and four that share one limit of a LUN.
"""

import argparse
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from enkaku_lab import machine
from enkaku_lab.peers import Measurement, Workload, enkaku
from enkaku_lab.process import free_port, peer
from enkaku_lab.table import fenced, render

KIB = 1 << 10
MBIT = 1e6 / 8
NAME = "iqn.2026-11.org.example:limited"
INITIATORS = [f"iqn.2026-11.org.example:node{number}" for number in range(1, 5)]
IOPS = [(1, 1), (10, 1), (100, 1), (100, 32), (1000, 1), (1000, 32), (10_000, 32)]
"""Commands per second, and commands at a time."""
RATES_MBIT = [20, 50, 100, 400]
SHARED_MBIT = 200
HEAD = ["what", "limit", "client", "got", "of the limit"]
PAGE = """# How near limits are

Made by `python -m enkaku_lab s3-limits --docs docs`; do not edit. Runs of {seconds:g} s over loopback against limits of
the daemon; those of a group at once. {machine}

{body}
"""


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="enkaku_lab s3-limits", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--docs", type=Path, metavar="DIR", help="write DIR/limits.md, too")
    options = parser.parse_args(arguments)
    table = render(HEAD, [*_commands(options.seconds), *_rates(options.seconds), *_shared(options.seconds)])
    print(table)
    if options.docs:
        words = {"body": fenced(table), "machine": machine.summary(machine.facts())}
        page = options.docs / "limits.md"
        page.write_text(PAGE.format(**words, seconds=options.seconds))
        print(f"Page: {page}")


def _row(what: str, limit: float, client: str, got: float, unit: str) -> list[str]:
    return [what, f"{limit:,.0f} {unit}", client, f"{got:,.1f}", f"{got / limit:.3f}"]


def _commands(seconds: float) -> Iterator[list[str]]:
    for limit, depth in IOPS:
        load = Workload(write=False, random=True, block_bytes=4 * KIB, depth=depth)
        with _target(f"anyone = true\nmax_iops = {limit}\n") as url:
            done = _run(url, load, INITIATORS[0], seconds)
        yield _row("commands", limit, load.label, done.bytes / load.block_bytes / done.seconds, "a second")


def _rates(seconds: float) -> Iterator[list[str]]:
    own = "".join(
        f'[[target.initiator]]\nname = "{name}"\nmax_rate = "{rate}mbit"\n'
        for name, rate in zip(INITIATORS, RATES_MBIT, strict=True)
    )
    for write in (True, False):
        load = Workload(write=write, random=False, block_bytes=256 * KIB, depth=16)
        with _target("", own) as url:
            done = _at_once(url, [load] * len(INITIATORS), seconds)
        for name, rate, one in zip(INITIATORS, RATES_MBIT, done, strict=True):
            client = f"{load.label}, {name.rpartition(':')[2]}"
            yield _row("bytes, four at once", rate, client, one.bytes_per_s / MBIT, "Mbit/s")


def _shared(seconds: float) -> Iterator[list[str]]:
    loads = [
        Workload(write=True, random=False, block_bytes=1024 * KIB, depth=32),
        Workload(write=False, random=True, block_bytes=4 * KIB, depth=64),
        Workload(write=True, random=True, block_bytes=64 * KIB, depth=4),
        Workload(write=False, random=False, block_bytes=256 * KIB, depth=16),
    ]
    with _target("anyone = true\n", lun=f'max_rate = "{SHARED_MBIT}mbit"\n') as url:
        done = _at_once(url, loads, seconds)
    for load, one in zip(loads, done, strict=True):
        part = SHARED_MBIT / len(loads)
        yield _row("bytes of one LUN, a quarter each", part, load.label, one.bytes_per_s / MBIT, "Mbit/s")


def _at_once(url: str, loads: list[Workload], seconds: float) -> list[Measurement]:
    with ThreadPoolExecutor(len(loads)) as pool:
        runs = zip(loads, INITIATORS, strict=True)
        return list(pool.map(lambda run: _run(url, *run, seconds), runs))


def _run(url: str, load: Workload, initiator: str, seconds: float) -> Measurement:
    # What was saved up before a run, and the debt of the first commands, are not of its steady
    # state.
    options = ["--initiator-name", initiator, "--ramp", "2s"]
    return enkaku.bench(url, load, seconds, options=options)


@contextmanager
def _target(head: str, tail: str = "", lun: str = "") -> Iterator[str]:
    """A daemon with one disk of memory, and these lines of its configuration."""
    portal = f"127.0.0.1:{free_port()}"
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        config = folder / "target.toml"
        config.write_text(
            f'[server]\nadmin_socket = "{folder}/admin.sock"\n[[portal]]\nlisten = "{portal}"\n'
            f'[[target]]\nname = "{NAME}"\n{head}[[target.lun]]\nnumber = 0\npath = "mem:256M"\n{lun}{tail}'
        )
        with peer([enkaku.binary(), "target", "run", "--config", config], folder / "log") as daemon:
            daemon.wait_for_output("serving")
            yield f"iscsi://{portal}/{NAME}/0"
