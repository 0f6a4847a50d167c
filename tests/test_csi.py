"""`enkaku csi`: volumes for Kubernetes, with csi-sanity and with a client of our own; as a file system and as a
device; what is refused, killed in the middle, or left behind.

This machine's kernel is no client of NBD: volumes come as loop devices on files of FUSE. Before a process that serves
such a file ends, its device has to be unmounted and gone, also where a test has failed: `Plugin.clear` does that.
"""

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import MIB, empty, noise, sha256
from support import csi, from_pypi
from support.csi import Refused, as_block, mounted_as
from support.daemon import NAME_A, Daemon, target
from support.processes import that_name, until

from enkaku_lab import REPOSITORY
from enkaku_lab.peers import enkaku, need
from enkaku_lab.process import Peer, run

pytestmark = pytest.mark.needs("curl", "iscsi-ls")
SANITY = "github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity@v5.4.0"
SANITY_S_MAX = 900
BUILD_S_MAX = 900
ROUNDS = int(os.environ.get("ENKAKU_CSI_ROUNDS", "5"))
SIZE = 64 * MIB
BASE = "iqn.2026-11.io.enkaku:csi"
NODE = "iqn.2026-11.org.enkaku:node-1"
OTHER = "iqn.2026-11.org.enkaku:node-2"
USER, PASSWORD = "operator", "a-secret-of-24-characters"
on_a_node = pytest.mark.needs("root", "/dev/fuse", "losetup", "mkfs.ext4", "blkid")


def mounts_below(folder: Path) -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    places = [line.split(" ")[4] for line in lines]
    return [place for place in places if place == str(folder) or place.startswith(f"{folder}/")]


def loops_below(folder: Path) -> list[str]:
    found = []
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            if backing.read_text().startswith(f"{folder}/"):
                found.append(f"/dev/{backing.parents[1].name}")
        except OSError:
            pass  # it went just now
    return found


def attached_below(folder: Path) -> list[dict]:
    entries = json.loads(enkaku.command("attach", "--list", "--json").stdout)
    return [one for one in entries if any(place.startswith(f"{folder}/") for place in one["places"])]


class Plugin:
    """A daemon, a folder for volumes, and the plugin in both of its roles."""

    def __init__(self, daemon: Daemon, volumes: Path):
        self.daemon, self.volumes = daemon, volumes
        self.folder = daemon.folder
        self.socket, self.run_folder = self.folder / "csi.sock", self.folder / "run"
        self.client = csi.Client(self.socket, self.folder)
        self.peer: Peer | None = None

    def start(self, *more: str) -> None:
        argv = [
            enkaku.binary(), "csi", "--endpoint", f"unix://{self.socket}", "--controller", "--node",
            "--target-admin", self.daemon.socket, "--portal", self.daemon.portal, "--folder", self.volumes,
            "--node-id", NODE, "--run-folder", self.run_folder, *more,
        ]
        self.peer = Peer(argv, self.folder / "csi.log")
        self.peer.wait_for_output("listening on")

    def clear(self) -> None:
        """Unmounts, ends loop devices, detaches: in this order, whatever has failed."""
        if self.peer is not None:
            self.peer.stop()
        of_fuse = [place for place in mounts_below(self.run_folder) if place.endswith("/fuse")]
        for place in reversed(mounts_below(self.folder)):
            if place not in [*of_fuse, str(self.volumes)]:
                run([need("umount"), place], timeout_s=60, check=False)
        for device in filter(lambda one: not self.is_pool(one), loops_below(self.folder)):
            run([need("losetup"), "--detach", device], timeout_s=60, check=False)
        for one in attached_below(self.folder):
            run([enkaku.binary(), "detach", one["places"][0], "--timeout", "30s"], timeout_s=60, check=False)
        for place in mounts_below(self.run_folder):
            run([need("umount"), place], timeout_s=60, check=False)

    def left(self) -> dict[str, list]:
        """What there is of volumes on this machine: all of it lists that are to be empty."""
        return {
            "mounts": [place for place in mounts_below(self.folder) if place != str(self.volumes)],
            "loop devices": [one for one in loops_below(self.folder) if not self.is_pool(one)],
            "attached": attached_below(self.folder),
            "run": sorted(path.name for path in self.run_folder.glob("*")),
            "files": sorted(path.name for path in self.volumes.glob("[cs.]*")),
            "drop-ins": sorted(path.name for path in (self.folder / "target.d").glob("*")),
            "processes": that_name(f"attach\0iscsi://{self.daemon.portal}/"),
        }

    def is_pool(self, device: str) -> bool:
        file = Path(f"/sys/block/{Path(device).name}/loop/backing_file")
        return file.exists() and file.read_text().strip() == f"{self.folder}/pool.img"

    def create(self, name: str, size: int = SIZE, usage: dict | None = None, **more: object) -> dict:
        return self.client.CreateVolume(
            name=name, capacity_range={"required_bytes": size}, volume_capabilities=[usage or mounted_as()], **more
        )["volume"]

    def publish(self, id: str, usage: dict | None = None, node: str = NODE, readonly: bool = False) -> dict:
        return self.client.ControllerPublishVolume(
            volume_id=id, node_id=node, volume_capability=usage or mounted_as(), readonly=readonly
        )["publish_context"]

    def stage(self, id: str, usage: dict | None = None, readonly: bool = False, **more: object) -> Path:
        staging = self.folder / f"staging-{id}"
        self.client.NodeStageVolume(
            volume_id=id, publish_context=self.publish(id, usage, readonly=readonly), staging_target_path=str(staging),
            volume_capability=usage or mounted_as(), **more,
        )
        return staging

    def unstage(self, id: str) -> None:
        self.client.NodeUnstageVolume(volume_id=id, staging_target_path=str(self.folder / f"staging-{id}"))

    def mount(self, id: str, place: Path, usage: dict | None = None, readonly: bool = False) -> Path:
        self.client.NodePublishVolume(
            volume_id=id, staging_target_path=str(self.folder / f"staging-{id}"), target_path=str(place),
            volume_capability=usage or mounted_as(), readonly=readonly,
        )
        return place

    def unmount(self, id: str, place: Path) -> None:
        self.client.NodeUnpublishVolume(volume_id=id, target_path=str(place))

    def delete(self, id: str) -> None:
        self.client.ControllerUnpublishVolume(volume_id=id, node_id="")
        self.client.DeleteVolume(volume_id=id)

    def ids(self) -> list[str]:
        return [one["volume"]["volume_id"] for one in self.client.ListVolumes().get("entries", [])]


@contextmanager
def reflinks(folder: Path) -> Iterator[Path]:
    """A folder on XFS where that can be had, else on what there is: then there are no snapshots."""
    volumes = folder / "volumes"
    volumes.mkdir()
    xfs = shutil.which("mkfs.xfs", path="/usr/sbin:/sbin:/usr/bin")
    if os.geteuid() != 0 or not xfs:
        yield volumes
        return
    image = empty(folder / "pool.img", 1024 * MIB)
    run([xfs, "-q", "-m", "reflink=1", image])
    run([need("mount"), "-o", "loop", image, volumes])
    try:
        yield volumes
    finally:
        run([need("umount"), volumes], timeout_s=60)


@pytest.fixture
def plugin(daemon: Daemon) -> Iterator[Plugin]:
    with reflinks(daemon.folder) as volumes:
        made = Plugin(daemon, volumes)
        daemon.write()  # serves nothing yet, and nothing again when the last volume has gone
        daemon.start()
        try:
            made.start()
            yield made
        finally:
            made.clear()
            if daemon.peer is not None:
                daemon.peer.stop()


def refused(call, *words: object, **fields: object) -> str:
    """The code with which something is refused, and why."""
    with pytest.raises(Refused) as told:
        call(*words, **fields)
    return str(told.value)


# Controller.


def test_a_volume_comes_grows_and_goes_and_a_new_controller_knows_it(plugin: Plugin):
    client, daemon = plugin.client, plugin.daemon
    info = client.GetPluginInfo()
    assert info["name"] == "csi.enkaku.io" and client.Probe()["ready"] == {1: 1}
    volume = plugin.create("pvc-1")
    id, file = volume["volume_id"], plugin.volumes / "csi-pvc-1.img"
    assert (id, volume["capacity_bytes"]) == ("csi-pvc-1", SIZE)
    assert (file.stat().st_size, file.stat().st_blocks) == (SIZE, 0), "thin"
    assert plugin.create("pvc-1") == volume, "asked for again"
    assert refused(plugin.create, "pvc-1", 2 * SIZE).startswith("ALREADY_EXISTS")
    text = (plugin.folder / "target.d/lun-csi-pvc-1.toml").read_text()
    assert f'name = "{BASE}:csi-pvc-1"' in text and "anyone = false" in text
    # Nobody is let in that is not a node of the volume.
    assert "csi-pvc-1" not in run(["iscsi-ls", f"iscsi://{daemon.portal}"], check=False).stdout
    other = plugin.create("Another Name / ü")
    assert re.fullmatch(r"csi\.[0-9a-f]{32}", other["volume_id"])
    context = plugin.publish(id)
    assert context["target"] == f"{BASE}:{id}" and context["portal"] == daemon.portal
    assert plugin.publish(id) == context
    assert refused(plugin.publish, id, readonly=True).startswith("ALREADY_EXISTS")
    said = refused(plugin.publish, id, node=OTHER)
    assert said.startswith("FAILED_PRECONDITION") and NODE in said
    # Both are killed.
    plugin.peer.kill()
    daemon.peer.kill()
    daemon.start()
    plugin.start()
    assert plugin.ids() == sorted([id, other["volume_id"]])
    entries = client.ListVolumes()["entries"]
    assert [one["status"].get("published_node_ids") for one in entries if one["volume"]["volume_id"] == id] == [[NODE]]
    assert plugin.publish(id) == context
    said = refused(client.DeleteVolume, volume_id=id)
    assert said.startswith("FAILED_PRECONDITION") and NODE in said
    grown = client.ControllerExpandVolume(volume_id=id, capacity_range={"required_bytes": 2 * SIZE})
    assert grown == {"capacity_bytes": 2 * SIZE, "node_expansion_required": 1} and file.stat().st_size == 2 * SIZE
    for one in (id, other["volume_id"]):
        plugin.delete(one)
        plugin.delete(one)
    assert not any(plugin.left().values()), plugin.left()
    assert plugin.peer.stop() == 0 and not plugin.socket.exists()


def test_several_may_read_and_one_may_write(plugin: Plugin):
    id = plugin.create("shared", usage=mounted_as(mode=3))["volume_id"]
    reader = mounted_as(mode=3)
    for node in (NODE, OTHER):
        assert plugin.publish(id, reader, node)["readOnly"] == "true"
    assert refused(plugin.publish, id, mounted_as(), NODE).startswith("ALREADY_EXISTS")
    assert refused(plugin.publish, id, mounted_as(), "iqn.2026-11.a:third").startswith("FAILED_PRECONDITION")
    plugin.client.ControllerUnpublishVolume(volume_id=id, node_id=OTHER)
    assert len(plugin.client.ListVolumes()["entries"][0]["status"]["published_node_ids"]) == 1
    for wrong, code in [
        (lambda: plugin.publish(id, node="some-node"), "NOT_FOUND"),
        (lambda: plugin.publish("csi-nobody"), "NOT_FOUND"),
        (lambda: plugin.publish("../x"), "NOT_FOUND"),
        (lambda: plugin.create("many", usage=mounted_as(mode=5)), "INVALID_ARGUMENT"),
        (lambda: plugin.create("odd", usage=mounted_as("ntfs")), "INVALID_ARGUMENT"),
        (lambda: plugin.create("odd", parameters={"colour": "blue"}), "INVALID_ARGUMENT"),
        (lambda: plugin.create("odd", -1), "OUT_OF_RANGE"),
        (lambda: plugin.client.ListVolumes(starting_token="csi-"), "ABORTED"),
    ]:
        assert refused(wrong).startswith(code)
    plugin.delete(id)


def test_what_a_controller_did_not_make_is_not_its(plugin: Plugin):
    """Units of somebody else, files that hold something, and what a kill in the middle has left."""
    image = noise(plugin.volumes / "csi-old.img", 2 * MIB)
    before = sha256(image)
    plugin.daemon.ask("lun", "add", "csi-old", "--path", image, "--new-target", "--target", NAME_A)
    assert plugin.ids() == []
    assert refused(plugin.client.DeleteVolume, volume_id="csi-old").startswith("FAILED_PRECONDITION")
    assert refused(plugin.publish, "csi-old").startswith("NOT_FOUND")
    plugin.daemon.ask("lun", "remove", "csi-old")
    said = refused(plugin.create, "old")
    assert said.startswith("FAILED_PRECONDITION") and str(image) in said
    assert sha256(image) == before
    # A blank one is what an earlier attempt left.
    image.unlink()
    empty(image, 5 * MIB)
    assert plugin.create("old")["capacity_bytes"] == SIZE
    # The unit is gone, and the controller was killed before the file was.
    plugin.daemon.ask("lun", "remove", "csi-old")
    plugin.delete("csi-old")
    assert not any(plugin.left().values()), plugin.left()
    plugin.daemon.peer.kill()
    assert refused(plugin.client.Probe).startswith("FAILED_PRECONDITION")
    assert refused(plugin.create, "a").startswith("UNAVAILABLE")


@pytest.mark.needs("root", "mkfs.xfs", "qemu-img")
def test_snapshots_and_copies_hold_what_was_there(plugin: Plugin):
    client = plugin.client
    id = plugin.create("source", 16 * MIB)["volume_id"]
    file = plugin.volumes / "csi-source.img"
    noise(file, 16 * MIB)
    before = sha256(file)
    first = client.CreateSnapshot(name="monday", source_volume_id=id)["snapshot"]
    assert (first["snapshot_id"], first["size_bytes"], first["ready_to_use"]) == ("snap-monday", 16 * MIB, 1)
    assert client.CreateSnapshot(name="monday", source_volume_id=id)["snapshot"] == first
    noise(file, 16 * MIB, seed=2)
    after = sha256(file)
    restored = plugin.create("restored", 32 * MIB, volume_content_source={"snapshot": {"snapshot_id": "snap-monday"}})
    assert restored["content_source"] == {"snapshot": {"snapshot_id": "snap-monday"}}
    copied = plugin.volumes / "csi-restored@snap-monday.img"
    assert copied.stat().st_size == 32 * MIB and sha256_of_first(copied, 16 * MIB) == before
    clone = plugin.create("clone", 16 * MIB, volume_content_source={"volume": {"volume_id": id}})
    assert sha256(plugin.volumes / f"{clone['volume_id']}@{id}.img") == after
    of_nothing = lambda: plugin.create("clone", 16 * MIB)
    assert refused(of_nothing).startswith("ALREADY_EXISTS")
    from_nobody = lambda name: plugin.create("x", volume_content_source={"snapshot": {"snapshot_id": name}})
    assert refused(from_nobody, "snap-nobody").startswith("NOT_FOUND")
    assert refused(from_nobody, "../../etc/passwd").startswith("NOT_FOUND")
    other = plugin.create("other", 16 * MIB)["volume_id"]
    assert refused(client.CreateSnapshot, name="monday", source_volume_id=other).startswith("ALREADY_EXISTS")
    # A volume goes, its snapshots stay.
    plugin.delete(id)
    listed = client.ListSnapshots(source_volume_id=id)["entries"]
    assert [one["snapshot"]["snapshot_id"] for one in listed] == ["snap-monday"]
    for one in (restored["volume_id"], clone["volume_id"], other):
        plugin.delete(one)
    client.DeleteSnapshot(snapshot_id="snap-monday")
    client.DeleteSnapshot(snapshot_id="snap-monday")
    assert not any(plugin.left().values()), plugin.left()


def sha256_of_first(path: Path, size: int) -> str:
    part = path.with_name("part")
    with path.open("rb") as file:
        part.write_bytes(file.read(size))
    try:
        return sha256(part)
    finally:
        part.unlink()


# Node.


@on_a_node
@pytest.mark.needs("mkfs.xfs", "xfs_growfs")
def test_a_file_system_is_made_once_kept_grown_and_read(plugin: Plugin, tmp_path: Path):
    xfs, size = mounted_as("xfs"), 320 * MIB
    id = plugin.create("data", size, xfs)["volume_id"]
    staging = plugin.stage(id, xfs)
    assert plugin.stage(id, xfs) == staging, "asked for again"
    place = plugin.mount(id, tmp_path / "pods/a/mount", xfs)
    plugin.mount(id, place, xfs)
    (place / "file").write_text("kept")
    usage = plugin.client.NodeGetVolumeStats(volume_id=id, volume_path=str(place))["usage"]
    assert [one["unit"] for one in usage] == [1, 2] and usage[0]["total"] > size // 2
    reader = plugin.mount(id, tmp_path / "reader", xfs, readonly=True)
    assert (reader / "file").read_text() == "kept"
    with pytest.raises(OSError, match="Read-only"):
        (reader / "other").write_text("x")
    # The plugin is killed and started again: nothing of it is noticed.
    plugin.peer.kill()
    (place / "while it was gone").write_text("kept")
    plugin.start()
    assert plugin.stage(id, xfs) == staging
    plugin.mount(id, place, xfs)
    said = refused(plugin.unstage, id)
    assert said.startswith("FAILED_PRECONDITION") and str(place) in said
    # It grows while it is in use. (A mounted ext4 wants CAP_SYS_RESOURCE for that, which not every
    # root has.)
    plugin.client.ControllerExpandVolume(volume_id=id, capacity_range={"required_bytes": 2 * size})
    expanded = plugin.client.NodeExpandVolume(
        volume_id=id, volume_path=str(place), capacity_range={"required_bytes": 2 * size}
    )
    assert expanded == {"capacity_bytes": 2 * size}
    assert os.statvfs(place).f_blocks * os.statvfs(place).f_frsize > 3 * size // 2
    for one in (reader, place):
        plugin.unmount(id, one)
        plugin.unmount(id, one)
        assert not one.exists()
    plugin.unstage(id)
    plugin.unstage(id)
    assert plugin.left()["run"] == [] and plugin.left()["attached"] == []
    # What was written is there when it comes again: nothing was formatted.
    staging = plugin.stage(id, xfs)
    assert (staging / "file").read_text() == "kept" and (staging / "while it was gone").exists()
    plugin.unstage(id)
    plugin.delete(id)
    assert not any(plugin.left().values()), plugin.left()


@on_a_node
@pytest.mark.needs("sfdisk", "mkfs.xfs")
def test_nothing_is_formatted_that_holds_something(plugin: Plugin):
    id = plugin.create("precious", 32 * MIB)["volume_id"]
    file = plugin.volumes / "csi-precious.img"
    table = plugin.folder / "table"
    table.write_text("label: gpt\n,\n")
    for what, make in {
        "blkid does not know": lambda: noise(file, 32 * MIB),
        "something on it that is no file system": lambda: run([need("sfdisk"), "-q", file], stdin=table),
        "has ext4 on it, not xfs": lambda: run([need("mkfs.ext4"), "-q", file]),
    }.items():
        empty(file, 0)
        empty(file, 32 * MIB)
        make()
        before = sha256(file)
        said = refused(plugin.stage, id, mounted_as("xfs"))
        assert said.startswith("FAILED_PRECONDITION") and what in said, said
        assert sha256(file) == before, what
        assert plugin.left()["attached"] == [] and plugin.left()["run"] == [], "nothing of it stays"
        plugin.client.ControllerUnpublishVolume(volume_id=id, node_id=NODE)
    # What is only read is not formatted either, blank as it is.
    empty(file, 0)
    empty(file, 32 * MIB)
    assert "blank" in refused(plugin.stage, id, mounted_as(mode=2))
    plugin.delete(id)
    assert not any(plugin.left().values()), plugin.left()


@on_a_node
def test_a_device_is_given_as_it_is(plugin: Plugin, tmp_path: Path):
    block = as_block()
    id = plugin.create("raw", usage=block)["volume_id"]
    plugin.stage(id, block)
    device = plugin.mount(id, tmp_path / "pods/b/device", block)
    plugin.mount(id, device, block)
    assert device.is_block_device()
    stats = plugin.client.NodeGetVolumeStats(volume_id=id, volume_path=str(device))["usage"]
    assert stats == [{"total": SIZE, "unit": 1}]
    source = noise(tmp_path / "noise", 4 * MIB)
    run(["dd", f"if={source}", f"of={device}", "bs=1M", "oflag=direct", "conv=fsync,notrunc", "status=none"])
    said = refused(plugin.mount, id, tmp_path / "reader", block, readonly=True)
    assert said.startswith("FAILED_PRECONDITION"), "who may not write could"
    plugin.client.ControllerExpandVolume(volume_id=id, capacity_range={"required_bytes": 2 * SIZE})
    where = {"volume_id": id, "volume_path": str(device), "capacity_range": {"required_bytes": 2 * SIZE}}
    assert plugin.client.NodeExpandVolume(**where) == {"capacity_bytes": 2 * SIZE}
    plugin.unmount(id, device)
    plugin.unstage(id)
    assert sha256_of_first(plugin.volumes / "csi-raw.img", 4 * MIB) == sha256(source)
    # For its node it may be read-only as a whole.
    plugin.client.ControllerUnpublishVolume(volume_id=id, node_id=NODE)
    plugin.stage(id, block, readonly=True)
    device = plugin.mount(id, tmp_path / "reader", block, readonly=True)
    with pytest.raises(OSError), device.open("r+b", buffering=0) as file:
        file.write(bytes(4096))
    plugin.unmount(id, device)
    plugin.unstage(id)
    plugin.delete(id)
    assert not any(plugin.left().values()), plugin.left()


@on_a_node
def test_a_node_proves_who_it_is_by_a_secret(daemon: Daemon, plugin: Plugin):
    secret = daemon.folder / "secret"
    secret.write_text(PASSWORD)
    secret.chmod(0o600)
    daemon.write(target(NAME_A, "mem:1M"), f'[chap.nodes]\nuser = "{USER}"\npassword_file = "{secret}"\n')
    daemon.reload()
    plugin.peer.stop()
    plugin.start("--chap", "nodes")
    id = plugin.create("secret")["volume_id"]
    assert refused(plugin.stage, id).startswith("UNAVAILABLE")
    said = refused(plugin.stage, id, secrets={"username": USER, "password": "a-wrong-secret-of-some-length"})
    assert said.startswith("UNAVAILABLE") and "wrong-secret" not in said
    assert "not known" in refused(plugin.stage, id, secrets={"user": USER, "password": PASSWORD})
    assert plugin.left()["run"] == [] and plugin.left()["attached"] == []
    staging = plugin.stage(id, secrets={"username": USER, "password": PASSWORD})
    assert staging.is_mount()
    # Neither in an argument list, nor in a log, nor in a file that stays.
    assert not that_name(PASSWORD)
    files = [path for path in plugin.run_folder.rglob("*") if path.is_file() and path.name != "volume"]
    for file in [*files, plugin.peer.log, daemon.folder / "daemon.log"]:
        assert PASSWORD not in file.read_text(errors="replace"), file
    plugin.unstage(id)
    plugin.delete(id)
    assert not any(plugin.left().values()), plugin.left()


@on_a_node
def test_a_volume_of_a_process_that_died_comes_again(plugin: Plugin, tmp_path: Path):
    """kill -9 of `attach` under a device (under a file system the kernel would wait for its server)."""
    block = as_block()
    id = plugin.create("killed", usage=block)["volume_id"]
    plugin.stage(id, block)
    (pid,) = [one["pid"] for one in attached_below(plugin.run_folder)]
    os.kill(pid, signal.SIGKILL)
    until(lambda: not attached_below(plugin.run_folder), 10)
    plugin.stage(id, block)
    device = plugin.mount(id, tmp_path / "device", block)
    run(["dd", "if=/dev/zero", f"of={device}", "bs=1M", "count=1", "oflag=direct", "status=none"])
    plugin.unmount(id, device)
    (pid,) = [one["pid"] for one in attached_below(plugin.run_folder)]
    os.kill(pid, signal.SIGKILL)
    plugin.unstage(id)
    plugin.delete(id)
    assert not any(plugin.left().values()), plugin.left()


# Both, by others' words.


@pytest.fixture(scope="module")
def sanity() -> Path:
    """csi-sanity, built once into a folder of the user's caches."""
    go = shutil.which("go", path=f"{os.environ.get('PATH', '')}:/usr/local/go/bin")
    if go is None:
        pytest.skip("Go is not installed (package golang): csi-sanity is built with it")
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    place = caches / "enkaku" / SANITY.rpartition("/")[2]
    program = place / "csi-sanity"
    if not program.exists():
        built = run([go, "install", SANITY], env={"GOBIN": str(place)}, timeout_s=BUILD_S_MAX, check=False)
        if built.code != 0 and re.search(r"dial tcp|lookup|i/o timeout|requires go", built.stderr):
            pytest.skip(f"csi-sanity cannot be built here: {built.stderr.strip()[-300:]}")
        assert built.code == 0, built.stderr
    return program


def run_sanity(sanity: Path, plugin: Plugin, *more: str) -> str:
    argv = [
        sanity, f"--csi.endpoint={plugin.socket}", f"--csi.mountdir={plugin.folder}/mount",
        f"--csi.stagingdir={plugin.folder}/staging", f"--csi.testvolumesize={SIZE}",
        f"--csi.testvolumeexpandsize={2 * SIZE}", "--ginkgo.no-color", *more,
    ]
    # Its connecting may miss that it is connected already (it waits for the state to change), and
    # gives up after 60 s.
    for _ in range(3):
        done = run(argv, timeout_s=SANITY_S_MAX, check=False)
        if "Connection timed out" not in done.stdout:
            break
    assert done.code == 0, done.stdout[-6000:]
    return done.stdout


def counts(said: str) -> dict[str, int]:
    return {word.lower(): int(count) for count, word in re.findall(r"(\d+) (Passed|Failed|Skipped)", said)}


@on_a_node
@pytest.mark.parametrize("kind", ["mount", "block"])
def test_csi_sanity(sanity: Path, plugin: Plugin, kind: str):
    said = run_sanity(sanity, plugin, f"--csi.testvolumeaccesstype={kind}")
    print(counts(said))
    assert counts(said)["failed"] == 0 and counts(said)["passed"] > 55, said[-3000:]
    assert not any(plugin.left().values()), plugin.left()


@on_a_node
def test_rounds_leave_nothing(plugin: Plugin, tmp_path: Path):
    """ENKAKU_CSI_ROUNDS says how many."""
    descriptors = lambda peer: len(os.listdir(f"/proc/{peer.pid}/fd"))
    before = None
    for number in range(ROUNDS):
        id = plugin.create(f"round-{number}")["volume_id"]
        plugin.stage(id)
        place = plugin.mount(id, tmp_path / "pod/mount")
        (place / "file").write_text(str(number))
        plugin.unmount(id, place)
        plugin.unstage(id)
        plugin.delete(id)
        assert not any(plugin.left().values()), plugin.left()
        before = before or [descriptors(peer) for peer in (plugin.peer, plugin.daemon.peer)]
    # Sockets of the last calls may be closing.
    settled = lambda: all(descriptors(p) <= b + 3 for p, b in zip((plugin.peer, plugin.daemon.peer), before))
    until(settled, 10)


# contrib/kubernetes.


def test_manifests_are_what_kubernetes_reads(tmp_path: Path):
    python = from_pypi.installed(tmp_path / "venv", "PyYAML>=6,<7")
    files = sorted((REPOSITORY / "contrib/kubernetes").glob("*.yaml"))
    script = "import json, sys, yaml\nprint(json.dumps([list(yaml.safe_load_all(open(f))) for f in sys.argv[1:]]))"
    read = json.loads(subprocess.check_output([python, "-c", script, *files]))
    objects = [one for documents in read for one in documents]
    kinds = {one["kind"] for one in objects}
    assert {"CSIDriver", "StorageClass", "Deployment", "DaemonSet", "Secret", "ServiceAccount"} <= kinds
    assert all(one["apiVersion"] and one["metadata"]["name"] for one in objects)
    by_kind = lambda kind: [one for one in objects if one["kind"] == kind]
    (driver,) = by_kind("CSIDriver")
    assert driver["metadata"]["name"] == "csi.enkaku.io"
    assert {one["provisioner"] for one in by_kind("StorageClass")} == {"csi.enkaku.io"}
    accounts = {one["metadata"]["name"] for one in by_kind("ServiceAccount")}
    for workload in by_kind("Deployment") + by_kind("DaemonSet"):
        pod = workload["spec"]["template"]["spec"]
        assert pod["serviceAccountName"] in accounts
        volumes = {one["name"] for one in pod["volumes"]}
        for container in pod["containers"]:
            assert re.search(r":v?\d+\.\d+\.\d+$", container["image"]), f"{container['image']} is not pinned"
            assert {one["name"] for one in container["volumeMounts"]} <= volumes
            if container["name"] == "enkaku":
                # The command line is one that there is.
                done = run([enkaku.binary(), *container["args"], "--help"], check=False)
                assert done.code == 0, done
