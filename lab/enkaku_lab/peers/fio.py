"""fio: writes blocks that carry their own checksums and reads them back."""

from pathlib import Path

from enkaku_lab.peers import need
from enkaku_lab.process import Peer

MIB = 1 << 20


def start_verify(
    engine: list[str], size_mib: int, log: Path, rate_mib_per_s: int | None = None
) -> Peer:
    """Random writes of 4 to 256 KiB over the whole size, then every block is verified.

    `engine` is one of `nbd(...)` and `device(...)`. The run ends with another code than 0 at the
    first I/O error or wrong block. A rate makes it last long enough for something to go wrong.
    """
    return Peer(
        [
            *(need("fio"), "--name=verify", *engine, "--rw=randwrite", "--bsrange=4k-256k"),
            *("--iodepth=16", f"--size={size_mib}M", "--randseed=1", "--thread"),
            *("--verify=crc32c", "--verify_fatal=1", "--do_verify=1", "--end_fsync=1"),
            "--verify_state_save=0",
            *([f"--rate={rate_mib_per_s}M"] if rate_mib_per_s else []),
        ],
        log,
    )


def nbd(uri: str) -> list[str]:
    return ["--ioengine=nbd", f"--uri={uri}"]


def device(path: str) -> list[str]:
    return ["--ioengine=libaio", "--direct=1", f"--filename={path}"]
