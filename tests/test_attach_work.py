"""What a block device of `enkaku attach` costs the processor, by each way: target, volume and load in one stock-kernel guest
whose clock counts instructions. So a rate is work, the same each time and on any machine.
"""

import json
from pathlib import Path

import pytest
from support import stock_guest
from support.carried import ENVIRONMENT, carried, unpack

from enkaku_lab.peers import enkaku, guest_image
from enkaku_lab.peers.guest import Guest

pytestmark = pytest.mark.needs("qemu-system-x86_64", "busybox", "strip", "fio", "losetup")
RECIPE = guest_image.Recipe(modules=("nbd", "ublk_drv", "fuse", "loop"))
ORDER_S_MAX = 240
URL = f"iscsi://127.0.0.1:3270/{enkaku.IQN}/0"
WAYS = {"--ublk": "/dev/ublkb0", "--nbd-device": "/dev/nbd0", "--fuse /tmp/far": "/dev/loop0"}
FILE = "/tmp/far/volume"


def _run(machine: Guest, script: str) -> str:
    return machine.run(ENVIRONMENT + script, ORDER_S_MAX)


def _carried(machine: Guest, device: str, load: str) -> int:
    """Bytes a second of the guest's clock, 256 KiB at a time, eight under way."""
    said = _run(
        machine,
        f"fio --name=load --filename={device} --rw={load} --bs=256k --iodepth=8 --ioengine=libaio --direct=1"
        " --size=32M --thread --output-format=json",
    )
    (job,) = json.loads(said[said.index("{") :])["jobs"]
    assert job["error"] == 0, said
    return job[load]["bw_bytes"]


def _rates(machine: Guest, way: str, device: str) -> dict[str, int]:
    machine.run("mkdir -p /tmp/far")
    attached = machine.start(f"{ENVIRONMENT} exec enkaku attach {URL} {way}")
    attached.wait_for(FILE if device == WAYS["--fuse /tmp/far"] else "attached as", ORDER_S_MAX)
    if device.startswith("/dev/loop"):
        _run(machine, f"/opt/bin/losetup --direct-io=on {device} {FILE}")
        assert machine.run("cat /sys/block/loop0/loop/dio").strip() == "1"
    _carried(machine, device, "write")  # what is touched first has to be found first, by each
    rates = {load: _carried(machine, device, load) for load in ("write", "read")}
    if device.startswith("/dev/loop"):
        _run(machine, f"/opt/bin/losetup --detach {device}")
    _run(machine, f"enkaku detach {URL}")
    attached.wait(ORDER_S_MAX)
    return rates


def test_ublk_is_no_more_work_a_byte_than_a_file_and_a_loop_device(tmp_path: Path):
    image = stock_guest.image(RECIPE)
    with Guest(image, carried(tmp_path, "fio", "losetup"), counted=True) as machine:
        unpack(machine)
        serve = f"enkaku serve --lun mem:32M --listen 127.0.0.1:3270 --iqn {enkaku.IQN}"
        machine.start(f"{ENVIRONMENT} exec {serve}").wait_for("listening on", ORDER_S_MAX)
        rates = {way: _rates(machine, way, device) for way, device in WAYS.items()}
    print(rates)  # what the table of docs/attach.md shows
    ublk, loop = rates["--ublk"], rates["--fuse /tmp/far"]
    assert all(ublk[load] >= loop[load] for load in ublk), rates
