"""`enkaku doctor` on a stock Debian kernel: open-iscsi with its default settings, our target 50 ms
away. It names the settings; whoever gives its commands, and no others, reads three times as fast.

The guest's packets go over an emulated line, so that its own TCP sees the path (peers/guest.py: with
QEMU's network it would not). The guest is interpreted: only the ratio within one run counts.
"""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import stock_guest
from support.carried import ENVIRONMENT, carried, unpack

from enkaku_lab import wan
from enkaku_lab.experiment import Link
from enkaku_lab.peers import enkaku, open_iscsi
from enkaku_lab.peers.guest import HOST, Guest
from enkaku_lab.process import peer, run

pytestmark = [
    pytest.mark.serial,
    pytest.mark.needs("root", "/dev/net/tun", "qemu-system-x86_64", "busybox", "strip", "tc"),
]
LINE = Link(rate="200mbit", rtt_ms=50, queue_packets=2000)
TAP = "tap0"
MIB_BEFORE, MIB_AFTER = 24, 96
"""Some seconds each: a window of 208 KiB brings 4 MiB in a second."""
READ_S_MAX, DOCTOR_S_MAX = 240.0, 180.0
SPEED_UP = 3.0


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    """A guest at the near end of the line, with our program in /opt and a target at the far end."""
    image = stock_guest.image()
    folder = tmp_path_factory.mktemp("doctor")
    disk = carried(folder, "tc")
    with wan.up(LINE, folder) as lab:
        lab.become(LINE)
        run(lab.exec("near", ["ip", "tuntap", "add", TAP, "mode", "tap"]))
        run(lab.exec("near", ["ip", "addr", "add", f"{HOST}/24", "dev", TAP]))
        run(lab.exec("near", ["ip", "link", "set", TAP, "up"]))
        run(lab.exec("near", ["sysctl", "-q", "-w", "net.ipv4.ip_forward=1"]))
        run(lab.exec("far", ["ip", "route", "add", "10.0.2.0/24", "via", wan.NEAR]))
        argv = [enkaku.binary(), "serve", "--listen", f"{wan.FAR}:3260", "--iqn", enkaku.IQN]
        with peer(lab.exec("far", [*argv, "--lun", "mem:1G"]), folder / "serve.log") as far:
            far.wait_for_output("listening on")
            inside = Guest(image, disk, tap=TAP, within=lambda argv: lab.exec("near", argv))
            with inside:
                unpack(inside)
                yield inside


def _bytes_per_s(machine: Guest, disk: str, mib: int) -> float:
    """Somebody reads the disk in order, as `cp` does."""
    machine.run("echo 3 >/proc/sys/vm/drop_caches")
    begin = time.monotonic()
    machine.run(f"dd if={disk} of=/dev/null bs=1M count={mib}", READ_S_MAX)
    return mib * 2**20 / (time.monotonic() - begin)


def _doctor(machine: Guest, *words: str) -> str:
    return machine.run(ENVIRONMENT + " ".join(["enkaku", "doctor", *words]), DOCTOR_S_MAX)


def _commands(text: str) -> list[str]:
    """What somebody pastes: in the order of the page, each line once with its continuation."""
    lines = text.replace("\\\n", " ").splitlines()
    pasted = [re.sub(r"^ +(change +)?", "", line) for line in lines]
    wanted = ("sysctl -w", "iscsiadm", "blockdev", "echo ")
    return [re.sub(r" +", " ", line) for line in pasted if line.startswith(wanted)]


def test_its_commands_make_open_iscsi_three_times_as_fast(machine: Guest):
    with open_iscsi.session(machine, enkaku.IQN, 3260, host=wan.FAR) as session:
        before = _bytes_per_s(machine, session.disk, MIB_BEFORE)
        forever = f"until [ -e /tmp/stop ]; do cat {session.disk} >/dev/null; done"
        load = machine.start(f"({forever}) & until [ -e /tmp/stop ]; do sleep .2; done; killall cat")
        try:
            found = json.loads(_doctor(machine, "--json"))
            text = _doctor(machine)
        finally:
            machine.run("touch /tmp/stop")
            load.wait(READ_S_MAX, check=False)
        (session_found,), (diagnosis,) = found["sessions"], found["diagnoses"]
        assert session_found["initiator"] == "open_iscsi" and session_found["target"] == enkaku.IQN
        assert session_found["portal"] == f"{wan.FAR}:3260"
        assert 0.049 < diagnosis["rtt_s"] < 0.09
        (reads,) = diagnosis["parts"]
        window = [one for one in reads["findings"] if one["cause"] == "receive_window"]
        assert window and reads["findings"][0]["cause"] in ("receive_window", "read_ahead"), reads
        assert f"session1: {enkaku.IQN}" in text and "net.core.rmem_max" in text
        commands = _commands(text)
        assert any("node.conn[0].tcp.window_size" in one for one in commands), text
        assert commands[-1].endswith("--login") or commands[-1].startswith("blockdev"), commands
        for command in commands:
            machine.run(command)
        disk = machine.run(open_iscsi.FIND_DISK.format(iqn=enkaku.IQN)).strip()
        after = _bytes_per_s(machine, disk, MIB_AFTER)
    print(f"{before / 1e6:.1f} -> {after / 1e6:.1f} MB/s by {len(commands)} commands")
    assert after >= SPEED_UP * before, (before, after, commands)
