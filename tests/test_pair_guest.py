"""A pair before an image of Ceph, and a kernel with a path to each: Debian's open-iscsi and dm-multipath in a guest."""

import re
from pathlib import Path

import pytest
from conftest import MIB, sha256
from support import stock_guest
from support.carried import ENVIRONMENT, carried, unpack
from support.daemon import NAME_A, Daemon
from support.pair import pair_of

from enkaku_lab.peers import ceph, guest_image
from enkaku_lab.peers.guest import HOST, Guest

SIZE = 32 * MIB
RECIPE = guest_image.Recipe(modules=("dm_multipath", "dm_round_robin"))
ORDER_S_MAX, LOAD_S_MAX = 60, 240
PATH_S = 3
"""After which a path that is silent fails what it has under way."""

pytestmark = pytest.mark.needs(
    "qemu-system-x86_64", "busybox", "strip", "fio", "dmsetup", *ceph.PROGRAMS
)
SETTINGS = {
    "node.session.timeo.replacement_timeout": PATH_S,
    "node.conn[0].timeo.noop_out_interval": 1,
    "node.conn[0].timeo.noop_out_timeout": 1,
}
IMAGE = "--image-feature", "layering"
"""Without the exclusive lock: both are active."""


def _log_in(machine: Guest, daemon: Daemon) -> str:
    """The disk of a session with it."""
    where = f"-m node -T {NAME_A} -p {HOST}:{daemon.port}"
    settings = "".join(
        f" && iscsiadm {where} -o update -n '{name}' -v {value} >/dev/null" for name, value in SETTINGS.items()
    )
    before = set(_disks(machine))
    machine.run(f"iscsiadm {where} -o new >/dev/null{settings} && iscsiadm {where} --login", ORDER_S_MAX)
    machine.run(f"until [ $(ls /sys/block | grep -c '^sd') -gt {len(before)} ]; do sleep 0.1; done", ORDER_S_MAX)
    (disk,) = set(_disks(machine)) - before
    return disk


def _disks(machine: Guest) -> list[str]:
    return re.findall(r"^sd\w+$", machine.run("ls /sys/block"), re.M)


def _failed_paths(machine: Guest) -> int:
    """As dm-multipath counts them: F instead of A."""
    return len(re.findall(r"\d+:\d+ F \d+", machine.run(f"{ENVIRONMENT} dmsetup status both")))


def test_a_daemon_killed_under_load_is_no_error_where_there_is_another_path(tmp_path: Path):
    image = stock_guest.image(RECIPE)
    with (
        ceph.cluster(tmp_path / "ceph") as cluster,
        pair_of(tmp_path, cluster.create("shared", SIZE, *IMAGE), cluster.url("pairs")) as pair,
        Guest(image, carried(tmp_path, "fio", "dmsetup")) as machine,
    ):
        unpack(machine)
        one, two = (_log_in(machine, daemon) for daemon in pair.daemons)
        paths = " ".join(f"round-robin 0 1 1 /dev/{disk} 1000" for disk in (one, two))
        table = f"0 {SIZE // 512} multipath 1 queue_if_no_path 0 2 1 {paths}"
        machine.run(f"{ENVIRONMENT} export DM_DISABLE_UDEV=1; echo '{table}' | dmsetup create both")
        machine.run("dmesg -c >/dev/null")
        load = machine.start(
            f"{ENVIRONMENT} fio --name=verify --ioengine=libaio --direct=1 --filename=/dev/mapper/both"
            " --rw=randwrite --bsrange=4k-64k --iodepth=8 --size=24M --randseed=1 --thread"
            " --verify=crc32c --verify_fatal=1 --do_verify=1 --end_fsync=1 --verify_state_save=0"
        )
        written = f"until [ $(awk '{{print $7}}' /sys/block/{one}/stat) -gt {4 * MIB // 512} ]; do sleep 0.1; done"
        machine.run(written, ORDER_S_MAX)
        pair.daemons[0].peer.kill()
        assert load.running(), "it was done before the daemon was killed"
        said = load.wait(LOAD_S_MAX)
        assert "err= 0" in said, said
        kernel_said = machine.kernel_log()
        assert _failed_paths(machine) == 1
        assert "device-mapper: multipath" in kernel_said and "Failing path" in kernel_said, kernel_said
        assert "Buffer I/O error" not in kernel_said, kernel_said
        # The other one alone has all of it.
        sum_of = f"dd if=/dev/{{}} bs=1M count={SIZE // MIB} iflag=direct 2>/dev/null | sha256sum"
        there = machine.run(sum_of.format(two), ORDER_S_MAX).split()[0]
        assert there == machine.run(sum_of.format("mapper/both"), ORDER_S_MAX).split()[0]
        machine.run(f"{ENVIRONMENT} export DM_DISABLE_UDEV=1; dmsetup remove both")
        exported = tmp_path / "exported"
        cluster.rbd("export", f"{ceph.POOL}/shared", exported)
        machine.run(f"iscsiadm -m node -T {NAME_A} --logout", ORDER_S_MAX, check=False)
    assert sha256(exported) == there
