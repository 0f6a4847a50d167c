"""`enkaku attach --nbd-device` and `--ublk` on a stock Debian kernel: a block device that outlives the process behind it.

Our program runs in the guest, the target on this machine. The guest is interpreted: function, no times.
"""

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import MIB, empty
from support import stock_guest
from support.carried import ENVIRONMENT, carried, unpack
from support.daemon import Daemon

from enkaku_lab.peers import Target, enkaku, guest_image
from enkaku_lab.peers.guest import HOST, Guest, Order

pytestmark = pytest.mark.needs("qemu-system-x86_64", "busybox", "strip", "fio")
RECIPE = guest_image.Recipe(modules=("nbd", "ublk_drv"))
SIZE = 96 * MIB
LINK = f"/dev/enkaku/{enkaku.IQN}/0"
ATTACH_S_MAX, LOAD_S_MAX = 60, 240
NBD, UBLK = "--nbd-device", "--ublk"
NODES = {NBD: "nbd0", UBLK: "ublkb0"}
both = pytest.mark.parametrize("way", NODES)
ERRORS = re.compile(r"I/O error|Buffer I/O|EXT4-fs \((?!.*mount)|Aborting journal")


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    image = stock_guest.image(RECIPE)
    with Guest(image, carried(tmp_path_factory.mktemp("device"), "fio")) as running:
        unpack(running)
        yield running


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    with enkaku.serve([empty(tmp_path / "lun0.img", SIZE)], tmp_path) as serving:
        yield serving


def _url(target: Target) -> str:
    return f"iscsi://{HOST}:{target.port}/{enkaku.IQN}/0"


def _run(machine: Guest, script: str, seconds_max: float = ATTACH_S_MAX, check: bool = True) -> str:
    return machine.run(ENVIRONMENT + script, seconds_max, check)


def _start(machine: Guest, target: Target, way: str, *words: str) -> Order:
    """Until it is attached."""
    words = ("enkaku", "attach", "-v", _url(target), way, *words)
    attached = machine.start(ENVIRONMENT + "exec " + " ".join(words))
    attached.wait_for(f"attached as /dev/{NODES[way]}, {LINK}", ATTACH_S_MAX)
    return attached


@contextmanager
def _attached(machine: Guest, target: Target, way: str, *words: str) -> Iterator[Order]:
    machine.run("dmesg -c >/dev/null")
    try:
        yield _start(machine, target, way, *words)
    finally:
        # Without the device nothing waits for it.
        machine.run("killall -9 fio enkaku 2>/dev/null", check=False)
        _run(machine, f"enkaku detach /dev/{NODES[way]}; umount /mnt 2>/dev/null", check=False)


def _size(machine: Guest, way: str) -> int:
    """Of the device in bytes: 0 where there is none."""
    sectors = machine.run(f"cat /sys/block/{NODES[way]}/size 2>/dev/null", check=False).strip()
    return int(sectors or 0) * 512


def _listed(machine: Guest) -> list[dict]:
    return json.loads(_run(machine, "enkaku attach --list --json"))


def _kill(machine: Guest, attached: Order) -> None:
    machine.run("killall -9 enkaku")
    attached.wait(ATTACH_S_MAX, check=False)


@both
def test_a_file_system_on_a_device_that_is_listed_and_detached(machine: Guest, target: Target, way: str):
    node = f"/dev/{NODES[way]}"
    with _attached(machine, target, way) as attached:
        assert _size(machine, way) == SIZE
        machine.run(f"/sbin/mke2fs -q -t ext4 {LINK} && mkdir -p /mnt && mount {LINK} /mnt", 120)
        machine.run("cp /opt/bin/fio /mnt/file && sync", 120)
        (entry,) = _listed(machine)
        assert entry["volume"] == _url(target) and entry["places"] == [node, LINK]
        assert int(machine.run("pidof enkaku")) == entry["pid"]
        assert f"{entry['pid']}  {_url(target)}" in _run(machine, "enkaku attach --list")
        # In use, it stays; unused, it goes, as was asked for.
        refused = _run(machine, f"enkaku detach {LINK} --timeout 3s; echo code $?")
        assert "is in use" in refused and "code 1" in refused, refused
        machine.run("cmp /opt/bin/fio /mnt/file && umount /mnt", 120)
        attached.wait(ATTACH_S_MAX)
        assert _listed(machine) == []
        assert _size(machine, way) == 0
        assert machine.run(f"ls {LINK} 2>&1", check=False).endswith("No such file or directory")
    with _attached(machine, target, way, "--read-only") as attached:
        machine.run(f"mount -t ext4 -o ro {node} /mnt && cmp /opt/bin/fio /mnt/file && umount /mnt", 120)
        assert machine.run(f"cat /sys/block/{NODES[way]}/ro").strip() == "1"
        assert f"detached {_url(target)}" in _run(machine, f"enkaku detach {_url(target)}")
        attached.wait(ATTACH_S_MAX)
        assert not ERRORS.search(machine.kernel_log()), machine.kernel_log()


@both
def test_a_process_killed_and_started_anew_under_load_is_no_error(machine: Guest, target: Target, way: str):
    """Twice: once with what fio verifies under way, once with a file system being written."""
    with _attached(machine, target, way) as attached:
        load = machine.start(
            # To fio, a colon stands between the names of two files.
            f"{ENVIRONMENT} fio --name=verify --ioengine=libaio --direct=1 --filename=/dev/{NODES[way]}"
            " --rw=randwrite --bsrange=4k-64k --iodepth=16 --size=12M --randseed=1 --thread"
            " --verify=crc32c --verify_fatal=1 --do_verify=1 --end_fsync=1 --verify_state_save=0"
        )
        _wait_for_writes(machine, way, load, 3 * MIB)
        _kill(machine, attached)
        assert load.running()
        time.sleep(2)  # what is asked meanwhile waits
        attached = _start(machine, target, way)
        assert "took over" in attached.output
        said = load.wait(LOAD_S_MAX)
        assert "err= 0" in said, said

        machine.run(f"/sbin/mke2fs -q -F -t ext4 {LINK} && mkdir -p /mnt && mount {LINK} /mnt", 120)
        begun = _written(machine, way)
        copy = machine.start("for n in 1 2 3; do cp /opt/bin/fio /mnt/$n && sync || exit 1; done")
        _wait_for_writes(machine, way, copy, 4 * MIB, begun)
        _kill(machine, attached)
        attached = _start(machine, target, way)
        copy.wait(LOAD_S_MAX)
        machine.run("echo 3 >/proc/sys/vm/drop_caches")
        machine.run("for n in 1 2 3; do cmp /opt/bin/fio /mnt/$n || exit 1; done; umount /mnt", LOAD_S_MAX)
        checked = machine.run(f"/sbin/e2fsck -f -n {LINK}", 120)
        assert "FILE SYSTEM WAS MODIFIED" not in checked
        kernel_said = machine.kernel_log()
        assert not ERRORS.search(kernel_said), kernel_said
        _run(machine, f"enkaku detach {LINK}")
        attached.wait(ATTACH_S_MAX)


def _written(machine: Guest, way: str) -> int:
    """Bytes that the kernel has written to the device so far."""
    return int(machine.run(f"cat /sys/block/{NODES[way]}/stat").split()[6]) * 512


def _wait_for_writes(machine: Guest, way: str, load: Order, count: int, begun: int = 0) -> None:
    deadline = time.monotonic() + LOAD_S_MAX
    while _written(machine, way) - begun < count:
        assert load.running() and time.monotonic() < deadline, load.output
        time.sleep(0.2)


@both
def test_a_second_process_is_refused_and_what_a_dead_one_left_can_be_detached(
    machine: Guest, target: Target, way: str
):
    with _attached(machine, target, way) as attached:
        again = _run(machine, f"enkaku attach {_url(target)} {way}; echo code $?")
        assert "is this volume already, and another process serves it" in again and "code 2" in again
        machine.run(f"dd if={LINK} of=/dev/null bs=64k count=16 iflag=direct")
        _kill(machine, attached)
        (entry,) = _listed(machine)
        assert entry["pid"] is None and entry["places"] == [f"/dev/{NODES[way]}"]
        reading = machine.start(f"dd if={LINK} of=/dev/null bs=4k count=1 iflag=direct")
        said = _run(machine, f"enkaku detach {LINK}")
        assert "which no process served any more" in said
        reading.wait(ATTACH_S_MAX, check=False)
        assert reading.code != 0
        assert _listed(machine) == []


def test_a_volume_that_grows_is_a_device_that_grows(machine: Guest, daemon: Daemon, tmp_path: Path):
    """That of ublk does from Linux 6.16 on."""
    disk = empty(tmp_path / "grows.img", 8 * MIB)
    lun = f'[[target.lun]]\nnumber = 0\npath = "{disk}"\n'
    daemon.write(f'[[target]]\nname = "{enkaku.IQN}"\nanyone = true\n{lun}')
    daemon.start()
    served = Target("enkaku", daemon.peer, "127.0.0.1", daemon.port, enkaku.IQN)
    with _attached(machine, served, NBD) as attached:
        os.truncate(disk, 16 * MIB)
        assert "grown" in daemon.reload()
        # A command learns of it, and then the device is told.
        look = f"dd if={LINK} of=/dev/null bs=4k count=1 iflag=direct 2>/dev/null; cat /sys/block/nbd0/size"
        deadline = time.monotonic() + ATTACH_S_MAX
        while int(machine.run(look)) * 512 != 16 * MIB:
            assert time.monotonic() < deadline, attached.output
            time.sleep(0.5)
        machine.run(f"dd if=/opt/bin/fio of={LINK} bs=1M seek=12 count=1 oflag=direct")
        _run(machine, f"enkaku detach {LINK}")
        attached.wait(ATTACH_S_MAX)


@both
def test_what_cannot_be_is_said(machine: Guest, target: Target, way: str):
    write_back = f"enkaku attach {_url(target)} {way} --cache write-back; echo code $?"
    said = _run(machine, write_back)
    assert "a successor would take the device over without what was not flushed" in said
    assert "code 2" in said
    module = {NBD: "nbd", UBLK: "ublk_drv"}[way]
    machine.run(f"rmmod {module}")
    try:
        said = _run(machine, f"enkaku attach {_url(target)} {way}; echo code $?")
        assert f"load its module (modprobe {module})" in said and "code 2" in said, said
        node = f"/dev/{NODES[way]}"
        assert f"nothing is attached as {node}" in _run(machine, f"enkaku detach {node}", check=False)
    finally:
        machine.run(f"insmod /lib/modules/{module}.ko")
