"""`enkaku attach`: a remote volume as a file (FUSE) and as an NBD export, with real file systems
on it and the target killed under them."""

import json
import os
from pathlib import Path

import pytest
from conftest import MIB, empty, noise, sha256
from support.tree import fingerprints, grow, tree_bytes
from support.volume import check_ext4, loop_device, make_ext4, mounted

from enkaku_lab.peers import Target, enkaku, fio, host_for_url, need, qemu
from enkaku_lab.process import Peer, free_port, peer, run

SIZE = 512 * MIB
TREE_BYTES = 150 * MIB
FIO_MIB = 96
FIO_S_MAX = 180
NEEDS_VOLUME = pytest.mark.needs(
    "root", "/dev/fuse", "/dev/loop-control", "mkfs.ext4", "fusermount3"
)
NEEDS_NBD = pytest.mark.needs("fio", "nbdinfo", "qemu-img")


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    return empty(tmp_path / "lun0.img", SIZE)


@pytest.fixture
def target(disk: Path, tmp_path: Path):
    with enkaku.serve([disk], tmp_path) as serving:
        yield serving


@pytest.fixture
def device(request, target: Target, tmp_path: Path):
    """The volume as a loop device over the FUSE file; with options of attach as the parameter."""
    options = getattr(request, "param", ())
    with (
        enkaku.attach_fuse(target.url(), tmp_path / "fuse", tmp_path, options) as file,
        loop_device(file) as path,
    ):
        yield path


def _received(disk: Path) -> int:
    """Bytes that have reached the target's file."""
    return disk.stat().st_blocks * 512


def _kill_when(disk: Path, received: int, target: Target, writer: Peer) -> None:
    """Kills the target once it has so many bytes, while the writer is still at work."""
    writer.wait_until(lambda: _received(disk) >= received, f"{received} bytes at the target")
    target.peer.kill()
    assert writer.running(), "the writer was done before the target was killed"
    enkaku.restart(target)


@NEEDS_VOLUME
def test_fuse_file_has_the_volume_size_and_contents(target: Target, disk: Path, tmp_path: Path):
    with disk.open("r+b") as file:
        file.write(noise(tmp_path / "head", 8 * MIB).read_bytes())
    with enkaku.attach_fuse(target.url(), tmp_path / "fuse", tmp_path) as file:
        assert file.stat().st_size == disk.stat().st_size
        with file.open("rb") as attached, disk.open("rb") as original:
            assert attached.read(8 * MIB) == original.read(8 * MIB)
    assert not (tmp_path / "fuse").is_mount()
    assert "WARN" not in (tmp_path / "attach-fuse.log").read_text()


@NEEDS_VOLUME
def test_ext4_holds_a_real_tree(device: str, tmp_path: Path):
    roots = grow(tmp_path / "tree", TREE_BYTES)
    make_ext4(device)
    with mounted(device, tmp_path / "mnt") as folder:
        run([need("cp"), "-a", *roots, folder], timeout_s=300)
    check_ext4(device)
    with mounted(device, tmp_path / "mnt") as folder:
        copied = [folder / root.name for root in roots]
        assert fingerprints(copied) == fingerprints(roots)


# So slow that it is at work still when the third kill comes, on any machine.
@pytest.mark.parametrize("device", [["--max-rate", "400mbit"]], indirect=True, ids=[""])
@NEEDS_VOLUME
def test_file_system_survives_a_killed_target(
    device: str, target: Target, disk: Path, tmp_path: Path
):
    roots = grow(tmp_path / "tree", TREE_BYTES)
    make_ext4(device)
    base = _received(disk)
    with mounted(device, tmp_path / "mnt") as folder:
        copy = ["sh", "-c", 'cp -a "$@" && sync -f "$0"', folder, *roots, folder]
        with peer(copy, tmp_path / "copy.log") as writer:
            for share in (0.1, 0.25, 0.4):
                _kill_when(disk, base + int(tree_bytes(*roots) * share), target, writer)
            assert writer.wait(300) == 0, writer.output()
    check_ext4(device)
    with mounted(device, tmp_path / "mnt") as folder:
        copied = [folder / root.name for root in roots]
        assert fingerprints(copied) == fingerprints(roots)


@NEEDS_VOLUME
@pytest.mark.needs("fio")
def test_fio_verifies_through_the_loop_device(device: str, tmp_path: Path):
    verify = fio.start_verify(fio.device(device), FIO_MIB, tmp_path / "fio.log")
    assert verify.wait(FIO_S_MAX) == 0, verify.output()[-3000:]


@NEEDS_VOLUME
@pytest.mark.needs("fio")
def test_fio_verifies_across_a_killed_target(
    device: str, target: Target, disk: Path, tmp_path: Path
):
    verify = fio.start_verify(
        fio.device(device), FIO_MIB, tmp_path / "fio.log", rate_mib_per_s=40
    )
    for mib in (20, 40, 60):
        _kill_when(disk, mib * MIB, target, verify)
    assert verify.wait(FIO_S_MAX) == 0, verify.output()[-3000:]


@pytest.fixture(params=["unix", "127.0.0.1", "::1"])
def nbd_uri(request, target: Target, tmp_path: Path):
    """The volume as an NBD export; yields its URI."""
    if request.param == "unix":
        where = tmp_path / "nbd.sock"
        uri = f"nbd+unix:///?socket={where}"
    else:
        where = f"{host_for_url(request.param)}:{free_port(request.param)}"
        uri = f"nbd://{where}/"
    with enkaku.attach_nbd(target.url(), where, tmp_path):
        yield uri


@NEEDS_NBD
def test_nbd_export_describes_the_volume(nbd_uri: str):
    size = run([need("nbdinfo"), "--size", nbd_uri]).stdout.strip()
    assert int(size) == SIZE
    assert run([need("nbdinfo"), "--can", "flush", nbd_uri], check=False).code == 0


@NEEDS_NBD
def test_fio_verifies_through_nbd(nbd_uri: str, tmp_path: Path):
    verify = fio.start_verify(fio.nbd(nbd_uri), FIO_MIB, tmp_path / "fio.log")
    assert verify.wait(FIO_S_MAX) == 0, verify.output()[-3000:]


@NEEDS_NBD
def test_fio_verifies_through_nbd_across_a_killed_target(
    target: Target, disk: Path, tmp_path: Path
):
    socket = tmp_path / "nbd.sock"
    with enkaku.attach_nbd(target.url(), socket, tmp_path):
        verify = fio.start_verify(
            fio.nbd(f"nbd+unix:///?socket={socket}"),
            FIO_MIB,
            tmp_path / "fio.log",
            rate_mib_per_s=40,
        )
        for mib in (20, 40, 60):
            _kill_when(disk, mib * MIB, target, verify)
        assert verify.wait(FIO_S_MAX) == 0, verify.output()[-3000:]


@NEEDS_NBD
def test_qemu_img_through_nbd_reaches_the_same_blocks(nbd_uri: str, disk: Path, tmp_path: Path):
    source = noise(tmp_path / "source", SIZE)
    qemu.convert(source, nbd_uri)
    qemu.compare(source, nbd_uri)
    assert sha256(disk) == sha256(source)


@NEEDS_VOLUME
def test_attach_says_at_its_end_that_io_had_failed(target: Target, tmp_path: Path):
    """An outage names the volume and what it means; I/O that failed makes the exit code bad."""
    folder = tmp_path / "fuse"
    folder.mkdir()
    argv = [enkaku.binary(), "attach", target.url(), "--fuse", folder, "--cache", "none"]
    with peer([*argv, "--replacement-timeout", "1s"], tmp_path / "attach.log") as attach:
        attach.wait_for_output("attached as")
        descriptor = os.open(folder / "volume", os.O_RDWR)
        try:
            target.peer.kill()
            with pytest.raises(OSError):
                os.pread(descriptor, 4096, 0)
            enkaku.restart(target)
            attach.wait_for_output("back after")
        finally:
            os.close(descriptor)
        assert attach.stop() == 1
        said = attach.output()
    assert f"{target.url()}: no connection to " in said and "I/O waits up to 1 s" in said, said
    assert "I/O failed while it was attached" in said and "the first: read of" in said, said


def _listed(place: Path) -> list[dict]:
    """What is attached as this; others may have something attached, too."""
    entries = json.loads(enkaku.command("attach", "--list", "--json").stdout)
    return [entry for entry in entries if str(place) in entry["places"]]


@pytest.mark.needs("root")
def test_what_is_attached_is_listed_and_detached(target: Target, tmp_path: Path):
    socket = tmp_path / "nbd.sock"
    with enkaku.attach_nbd(target.url(), socket, tmp_path) as attached:
        (entry,) = _listed(socket)
        assert (entry["pid"], entry["volume"]) == (attached.pid, target.url())
        assert f"{attached.pid}  {target.url()}" in enkaku.command("attach", "--list").stdout
        assert f"detached {target.url()}" in enkaku.command("detach", socket).stdout
        assert attached.wait(10) == 0 and not _listed(socket)
    with enkaku.attach_nbd(target.url(), socket, tmp_path) as attached:
        attached.kill()
        assert not _listed(socket)
        gone = enkaku.command("detach", socket, check=False)
        assert gone.code == 2 and "nothing is attached as" in gone.stderr


@pytest.mark.needs("root", "qemu-io")
def test_a_volume_that_ends_badly_is_not_called_detached(target: Target, tmp_path: Path):
    socket = tmp_path / "nbd.sock"
    argv = [enkaku.binary(), "attach", target.url(), "--nbd", socket, "--replacement-timeout", "1s"]
    with peer(argv, tmp_path / "attach.log") as attached:
        attached.wait_for_output("listening on")
        target.peer.kill()
        uri = f"nbd+unix:///?socket={socket}"
        run([need("qemu-io"), "-f", "raw", "-c", "write 0 4k", uri], check=False, timeout_s=60)
        done = enkaku.command("detach", socket, check=False, timeout_s=60)
        assert done.code == 1 and "cannot connect" in done.stderr, done
        assert not _listed(socket)
