"""`enkaku csi --node` where the kernel is a client of NBD: a stock Debian kernel in a guest. Daemon and controller run on
this machine, as on a storage host of their own.

The guest is interpreted: function, no times. Its root has what growing a mounted ext4 takes, which not every root has.
"""

import base64
import json
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import MIB, sha256
from support import csi, stock_guest
from support.carried import ENVIRONMENT, carried, unpack
from support.csi import as_block, mounted_as
from support.daemon import Daemon

from enkaku_lab.peers import enkaku, guest_image
from enkaku_lab.peers.guest import HOST, Guest, Order
from enkaku_lab.process import Peer

PROGRAMS = ("curl", "blkid", "mkfs.ext4", "fsck.ext4", "resize2fs")
pytestmark = pytest.mark.needs("qemu-system-x86_64", "busybox", "strip", *PROGRAMS)
RECIPE = guest_image.Recipe(modules=("nbd",))
SIZE = 48 * MIB
STAGING, POD, RUN = Path("/tmp/staging"), Path("/tmp/pods/db-0"), "/run/enkaku-csi"
SOCKET = Path("/run/csi.sock")
ROUNDS = int(os.environ.get("ENKAKU_CSI_ROUNDS", "5"))


class ClientInside(csi.Client):
    """Its curl runs in the guest."""

    def __init__(self, machine: Guest):
        super().__init__(SOCKET, Path("/tmp"))
        self.machine = machine

    def exchange(self, method: str, body: bytes) -> tuple[str, bytes]:
        asked, told, head = (self.scratch / f"curl-{name}" for name in ("asked", "told", "head"))
        curl = shlex.join(["curl", *self.options(method, asked, told, head)])
        said = self.machine.run(
            f"{ENVIRONMENT} rm -f {told}; echo {base64.b64encode(body).decode()} | base64 -d >{asked} && {curl} || exit 1;"
            f" cat {head}; echo +++; [ ! -e {told} ] || base64 {told}",
            csi.CALL_S_MAX,
        )
        headers, _, data = said.partition("+++")
        return headers, base64.b64decode(data)


class Cluster:
    """A storage host, which is this machine, and a node, which is the guest."""

    def __init__(self, machine: Guest, daemon: Daemon, volumes: Path):
        self.machine, self.daemon, self.volumes = machine, daemon, volumes
        socket = daemon.folder / "csi.sock"
        argv = [
            enkaku.binary(), "csi", "--controller", "--endpoint", f"unix://{socket}", "--target-admin", daemon.socket,
            "--portal", f"{HOST}:{daemon.port}", "--folder", volumes,
        ]
        self.peer = Peer(argv, daemon.folder / "csi.log")
        self.peer.wait_for_output("listening on")
        self.controller, self.node = csi.Client(socket, daemon.folder), ClientInside(machine)
        self.plugin: Order | None = None
        self.start()
        self.name = self.node.NodeGetInfo()["node_id"]

    def start(self) -> None:
        words = f"enkaku csi --node --endpoint unix://{SOCKET} --node-id worker-1 --run-folder {RUN}"
        self.plugin = self.machine.start(f"{ENVIRONMENT} exec {words}")
        self.plugin.wait_for("listening on", 60)

    def clear(self) -> None:
        """Without a device nothing waits for it."""
        self.machine.run("killall -9 enkaku; for at in $(seq 3); do umount /tmp/pods/* /tmp/staging; done", check=False)
        self.machine.run(f"{ENVIRONMENT} enkaku detach /dev/nbd0 --timeout 5s", check=False)
        self.machine.run(f"rm -rf {SOCKET} {RUN} {STAGING} {POD.parent}", check=False)
        self.peer.stop()

    def claim(self, name: str, usage: dict) -> str:
        """Created, attached to the node, staged and given to a pod."""
        made = self.controller.CreateVolume(name=name, capacity_range={"required_bytes": SIZE}, volume_capabilities=[usage])
        id = made["volume"]["volume_id"]
        self.stage(id, usage)
        self.mount(id, usage)
        return id

    def stage(self, id: str, usage: dict) -> None:
        context = self.controller.ControllerPublishVolume(volume_id=id, node_id=self.name, volume_capability=usage)
        self.node.NodeStageVolume(
            volume_id=id, publish_context=context["publish_context"], staging_target_path=str(STAGING), volume_capability=usage
        )

    def mount(self, id: str, usage: dict) -> None:
        self.node.NodePublishVolume(
            volume_id=id, staging_target_path=str(STAGING), target_path=str(POD), volume_capability=usage
        )

    def release(self, id: str) -> None:
        self.node.NodeUnpublishVolume(volume_id=id, target_path=str(POD))
        self.node.NodeUnstageVolume(volume_id=id, staging_target_path=str(STAGING))

    def delete(self, id: str) -> None:
        self.controller.ControllerUnpublishVolume(volume_id=id, node_id=self.name)
        self.controller.DeleteVolume(volume_id=id)

    def attached(self) -> list[dict]:
        return json.loads(self.machine.run(f"{ENVIRONMENT} enkaku attach --list --json"))

    def left(self) -> dict[str, object]:
        """What there is of volumes at both."""
        return {
            "attached": self.attached(),
            "size of the device": int(self.machine.run("cat /sys/block/nbd0/size")),
            "mounts": self.machine.run("grep -c nbd0 /proc/mounts", check=False).strip() not in ("", "0"),
            "run": self.machine.run(f"ls {RUN}").split(),
            "processes": self.machine.run("pidof enkaku").split()[1:],  # one is the plugin
            "files": sorted(path.name for path in self.volumes.glob("[cs.]*")),
            "drop-ins": sorted(path.name for path in (self.daemon.folder / "target.d").glob("*")),
        }


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    image = stock_guest.image(RECIPE)
    with Guest(image, carried(tmp_path_factory.mktemp("csi"), *PROGRAMS)) as running:
        unpack(running)
        yield running


@contextmanager
def made(machine: Guest, daemon: Daemon) -> Iterator[Cluster]:
    daemon.write()
    daemon.start()
    volumes = daemon.folder / "volumes"
    volumes.mkdir()
    cluster = Cluster(machine, daemon, volumes)
    try:
        yield cluster
    finally:
        cluster.clear()


@pytest.fixture
def cluster(machine: Guest, daemon: Daemon) -> Iterator[Cluster]:
    with made(machine, daemon) as one:
        yield one


def test_a_pod_keeps_its_files_when_whoever_serves_them_is_killed(cluster: Cluster):
    """Plugin and process of the volume; then the volume grows under its file system, goes, and comes back."""
    machine, usage = cluster.machine, mounted_as("ext4")
    id = cluster.claim("db", usage)
    (entry,) = cluster.attached()
    assert entry["places"][0] == "/dev/nbd0" and "by_nbd=true" in cluster.plugin.output
    machine.run(f"cp /opt/bin/mkfs.ext4 {POD}/first && sync")
    machine.run(f"kill -9 {entry['pid']}; killall -9 enkaku", check=False)
    cluster.plugin.wait(60, check=False)
    writing = machine.start(f"cp /opt/bin/mkfs.ext4 {POD}/second && sync && cmp {POD}/first {POD}/second")
    machine.run(f"rm -f {SOCKET}")
    cluster.start()
    assert writing.running(), "what is written waits for a successor"
    cluster.stage(id, usage)
    writing.wait(120)
    cluster.mount(id, usage)
    assert cluster.attached()[0]["pid"] not in (None, entry["pid"])

    cluster.controller.ControllerExpandVolume(volume_id=id, capacity_range={"required_bytes": 2 * SIZE})
    grown = cluster.node.NodeExpandVolume(volume_id=id, volume_path=str(POD), capacity_range={"required_bytes": 2 * SIZE})
    assert grown == {"capacity_bytes": 2 * SIZE}
    told = cluster.node.NodeGetVolumeStats(volume_id=id, volume_path=str(POD))["usage"]
    assert told[0]["total"] > 3 * SIZE // 2, told
    cluster.release(id)
    assert cluster.attached() == [] and machine.run("cat /sys/block/nbd0/size").strip() == "0"
    cluster.stage(id, usage)
    cluster.mount(id, usage)
    machine.run(f"echo 3 >/proc/sys/vm/drop_caches; cmp /opt/bin/mkfs.ext4 {POD}/first && cmp {POD}/first {POD}/second")
    kernel_said = machine.kernel_log()
    assert "I/O error" not in kernel_said and "EXT4-fs error" not in kernel_said, kernel_said
    cluster.release(id)
    cluster.delete(id)
    assert not any(cluster.left().values()), cluster.left()


def test_a_device_is_given_as_it_is(cluster: Cluster, tmp_path: Path):
    block = as_block()
    id = cluster.claim("raw", block)
    cluster.machine.run(f"[ -b {POD} ] && dd if=/opt/bin/mkfs.ext4 of={POD} bs=4k count=16 oflag=direct conv=fsync")
    expected = base64.b64decode(cluster.machine.run("dd if=/opt/bin/mkfs.ext4 bs=4k count=16 2>/dev/null | base64"))
    cluster.release(id)
    (tmp_path / "expected").write_bytes(expected)
    (tmp_path / "there").write_bytes((cluster.volumes / "csi-raw.img").read_bytes()[: len(expected)])
    assert len(expected) == 64 << 10 and sha256(tmp_path / "there") == sha256(tmp_path / "expected")
    cluster.delete(id)
    assert not any(cluster.left().values()), cluster.left()


def test_rounds_leave_nothing(cluster: Cluster):
    usage = mounted_as("ext4")
    for number in range(ROUNDS):
        id = cluster.claim(f"round-{number}", usage)
        cluster.machine.run(f"echo {number} >{POD}/number")
        cluster.release(id)
        cluster.delete(id)
        assert not any(cluster.left().values()), cluster.left()
