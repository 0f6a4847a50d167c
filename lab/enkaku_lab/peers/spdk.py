"""SPDK's iscsi_tgt, given by its path: a target that spins on a processor of its own instead of sleeping, the
strongest peer on one machine. No distribution has it as a package; it is built from its sources.

Its disk is memory of its own (Malloc), without huge pages, so that it runs where none are reserved.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from enkaku_lab.peers import Target, log_path
from enkaku_lab.process import accepts, free_port, peer

IQN = "iqn.2026-01.lab.enkaku:spdk"
BLOCK_BYTES = 512
MEMORY_MIB_BESIDE = 1024
"""For its pools of buffers and PDUs."""
QUEUE_DEPTH = 128


def configuration(address: str, port: int, disk_bytes: int) -> dict:
    """What its option -c takes: one disk behind one portal, open to everybody who reaches it."""
    disk = {"name": "Malloc0", "num_blocks": disk_bytes // BLOCK_BYTES, "block_size": BLOCK_BYTES}
    target = {
        "name": IQN,
        "alias_name": "bench",
        "pg_ig_maps": [{"pg_tag": 1, "ig_tag": 1}],
        "luns": [{"bdev_name": "Malloc0", "lun_id": 0}],
        "queue_depth": QUEUE_DEPTH,
        "disable_chap": True,
    }
    portals = {"tag": 1, "portals": [{"host": address, "port": str(port)}]}
    initiators = {"tag": 1, "initiators": ["ANY"], "netmasks": ["ANY"]}
    calls = {
        "bdev": [("bdev_malloc_create", disk)],
        "iscsi": [
            ("iscsi_create_portal_group", portals),
            ("iscsi_create_initiator_group", initiators),
            ("iscsi_create_target_node", target),
        ],
    }
    return {
        "subsystems": [
            {
                "subsystem": name,
                "config": [{"method": method, "params": params} for method, params in made],
            }
            for name, made in calls.items()
        ]
    }


@contextmanager
def serve(
    program: Path, disk_bytes: int, logs: Path, *, address: str = "127.0.0.1"
) -> Iterator[Target]:
    """One processor of it (mask 1), as long as the `with` block."""
    port = free_port(address)
    settings = logs / f"spdk-{port}.json"
    settings.write_text(json.dumps(configuration(address, port, disk_bytes), indent=1))
    memory_mib = (disk_bytes >> 20) + MEMORY_MIB_BESIDE
    argv = [program, "-m", "0x1", "--no-huge", "-s", memory_mib, "--no-pci", "-c", settings]
    argv += ["-r", logs / f"spdk-{port}.sock"]
    with peer(argv, log_path(logs, "spdk", port)) as serving:
        serving.wait_until(lambda: accepts(address, port), "its portal does not accept connections")
        yield Target("spdk", serving, address, port, IQN)
