"""iperf3: what plain TCP reaches on the same path, the limit in every table."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from enkaku_lab.peers import log_path, need
from enkaku_lab.process import LabError, Peer, free_port, peer, run


@dataclass(frozen=True)
class Server:
    peer: Peer
    address: str
    port: int


@dataclass(frozen=True)
class Transfer:
    """One run of the client: bytes that arrived, and who was the sender with which algorithm."""

    bytes: int
    seconds: float
    cpu_s: float
    congestion_control: str


@contextmanager
def serve(
    logs: Path,
    *,
    address: str = "127.0.0.1",
    port: int | None = None,
    within: Callable[[list[object]], list[object]] = lambda argv: argv,
) -> Iterator[Server]:
    """`within` makes of the command the one that runs it elsewhere, which needs a port."""
    port = port or free_port(address)
    argv = [need("iperf3"), "--server", "--bind", address, "--port", port, "--forceflush"]
    with peer(within(argv), log_path(logs, "iperf3", port)) as server:
        server.wait_for_output("Server listening")
        yield Server(server, address, port)


def transfer(
    address: str,
    port: int,
    *,
    total_bytes: int | None = None,
    seconds: int = 0,
    from_server: bool = False,
    streams: int = 1,
    congestion_control: str | None = None,
    omit_seconds: int = 0,
    timeout_s: float | None = None,
) -> Transfer:
    """So many bytes (of all streams together) or so many seconds, to the server or from it; the
    first `omit_seconds` come before and are not counted."""
    limit = ["--bytes", total_bytes] if total_bytes else ["--time", seconds]
    reverse = ["--reverse"] if from_server else []
    argv = [need("iperf3"), "--client", address, "--port", port, "--json", *limit]
    argv += [*reverse, "--parallel", streams]
    argv += ["--omit", omit_seconds] if omit_seconds else []
    argv += ["--congestion", congestion_control] if congestion_control else []
    done = run(argv, timeout_s=timeout_s or seconds + omit_seconds + 300)
    return of_report(done.stdout, done.cpu_s)


def of_report(text: str, cpu_s: float = 0.0) -> Transfer:
    """What a client's `--json` says, wherever it ran."""
    said = json.loads(text)
    end = said["end"]
    if "sum_received" not in end:
        raise LabError(f"iperf3: {said.get('error', 'nothing was received')}")
    received = end["sum_received"]
    return Transfer(
        received["bytes"],
        received["seconds"],
        cpu_s,
        end.get("sender_tcp_congestion", "unknown"),
    )
