"""enkaku itself, as a black box: the release binary, its command line and its JSON."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from enkaku_lab import REPOSITORY
from enkaku_lab.peers import Measurement, Target, Workload, host_for_url, log_path, need
from enkaku_lab.process import Completed, LabError, Peer, free_port, peer, run

IQN = "iqn.2026-01.lab.enkaku:serve"
GATEWAY_IQN = "iqn.2026-11.io.enkaku:gateway"
"""What `attach --iscsi` calls its target where it is not told."""


def binary() -> Path:
    """ENKAKU_BIN, or the release build of this repository; where the lab was installed elsewhere,
    the one in PATH."""
    path = Path(os.environ.get("ENKAKU_BIN") or REPOSITORY / "target/release/enkaku")
    if os.access(path, os.X_OK):
        return path
    if not (REPOSITORY / "Cargo.toml").exists() and (found := shutil.which("enkaku")):
        return Path(found)
    raise LabError(f"{path} does not exist; `make build` makes it (or name one in ENKAKU_BIN)")


def command(*words: object, check: bool = True, timeout_s: float = 120.0, **more) -> Completed:
    """One run of the binary."""
    return run([binary(), *words], check=check, timeout_s=timeout_s, **more)


def report(*words: object, **more) -> dict:
    """One run with `--json`; the object that it prints."""
    return json.loads(command(*words, "--json", **more).stdout)


def start_target(
    luns: list[str | Path],
    logs: Path,
    *,
    address: str = "127.0.0.1",
    port: int | None = None,
    options: list[object] = (),
    iqn: str = IQN,
    within: Callable[[list[object]], list[object]] | None = None,
) -> Target:
    """`enkaku serve`, accepting connections. The caller stops `target.peer`.

    `within` makes of its command one that runs elsewhere, as for `tgt.serve`; give the port then, too.
    """
    port = port or free_port(address)
    words = ["serve", "--listen", f"{host_for_url(address)}:{port}", "--iqn", iqn]
    for lun in luns:
        words += ["--lun", lun]
    argv = [binary(), *words, *options]
    serving = Peer(within(argv) if within else argv, log_path(logs, "enkaku", port))
    try:
        serving.wait_for_output("listening on")
    except BaseException:
        serving.stop()
        raise
    return Target("enkaku", serving, address, port, iqn)


@contextmanager
def serve(luns: list[str | Path], logs: Path, **more) -> Iterator[Target]:
    """`enkaku serve` for the length of a `with` block; LUNs are files or `mem:SIZE`."""
    target = start_target(luns, logs, **more)
    try:
        yield target
    finally:
        target.peer.stop()


def bench(
    url: str,
    workload: Workload,
    seconds: float,
    connections: int | str | None = 1,
    timeout_s: float | None = None,
    options: list[object] = (),
) -> Measurement:
    """`enkaku bench` for so many seconds, with its percentiles. An image of Ceph has `None` connections."""
    words = ["bench", url, "--rw", workload.rw, "--bs", workload.block_bytes]
    words += ["--depth", workload.depth, "--time", f"{seconds}s"]
    words += [] if connections is None else ["--connections", connections]
    words += ["--force"] if workload.write else []
    done = command(*words, *options, "--json", timeout_s=timeout_s or seconds + 60)
    result = json.loads(done.stdout)
    return Measurement(
        result["bytes"],
        result["seconds"],
        done.cpu_s,
        result["lat_us"],
        result["connections"],
    )


def restart(target: Target) -> None:
    """The killed target comes back on the same port with the same LUNs."""
    target.peer.restart()
    target.peer.wait_for_output("listening on")


@contextmanager
def attach_fuse(
    url: str, folder: Path, logs: Path, options: list[object] = ()
) -> Iterator[Path]:
    """`enkaku attach --fuse`: the volume as the one file of a folder; yields that file."""
    folder.mkdir(parents=True, exist_ok=True)
    argv = [binary(), "attach", url, "--fuse", folder, *options]
    with peer(argv, logs / "attach-fuse.log") as attached:
        attached.wait_until(
            lambda: folder.is_mount() and any(folder.iterdir()), "its folder is not mounted"
        )
        try:
            yield next(folder.iterdir())
        finally:
            attached.stop()
            if folder.is_mount():
                run([need("fusermount3"), "-u", "-z", folder])


@contextmanager
def attach_nbd(url: str, where: str | Path, logs: Path) -> Iterator[Peer]:
    """`enkaku attach --nbd`: the volume as an NBD export on a Unix socket or ADDR:PORT."""
    argv = [binary(), "attach", url, "--nbd", where]
    with peer(argv, logs / "attach-nbd.log") as attached:
        attached.wait_for_output("listening on")
        yield attached
