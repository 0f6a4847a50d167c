"""The near gateway, `attach URL --iscsi`: initiators of others through it, what it refuses, and a far end
that is killed under it, grows, or is an NBD export."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import MIB, empty, noise, sha256
from support.daemon import NAME_A, Daemon, target
from support.faulty_volume import until

from enkaku_lab.peers import enkaku, libiscsi, nbd, need, qemu
from enkaku_lab.process import Peer, free_port, peer, run

SIZE = 64 * MIB
NAME = enkaku.GATEWAY_IQN
SUITES = ["ALL.Read10", "ALL.Write10", "ALL.Write16", "ALL.ReadCapacity16", "ALL.Inquiry", "ALL.Unmap"]
with_qemu = pytest.mark.needs("qemu-img")


class Gateway:
    def __init__(self, attached: Peer, port: int):
        self.peer = attached
        self.url = f"iscsi://127.0.0.1:{port}/{NAME}/0"


@contextmanager
def gateway(url: str, logs: Path, *options: object) -> Iterator[Gateway]:
    port = free_port()
    argv = [enkaku.binary(), "attach", url, "--iscsi", f"127.0.0.1:{port}", *options]
    with peer(argv, logs / f"gateway-{port}.log") as attached:
        attached.wait_for_output("listening on")
        yield Gateway(attached, port)


def size_of(url: str) -> int:
    told = libiscsi.readcapacity16(url).stdout
    return int(re.search(r"Total size:\s*(\d+)", told)[1])


@with_qemu
@pytest.mark.parametrize("cache", ["none", "write-back"])
def test_what_qemu_has_flushed_is_at_the_far_end(tmp_path: Path, cache: str):
    """Also when the gateway is killed in the next moment."""
    disk, image = empty(tmp_path / "far", SIZE), noise(tmp_path / "image", SIZE)
    with (
        enkaku.serve([disk], tmp_path) as far,
        gateway(far.url(), tmp_path, "--cache", cache) as near,
    ):
        # Without -t, qemu-img does not flush what it has written.
        flushing = ["convert", "-t", "writeback", "-n", "-f", "raw", "-O", "raw"]
        run([need("qemu-img"), *flushing, image, near.url], timeout_s=120)
        near.peer.kill()
        assert sha256(disk) == sha256(image)


@with_qemu
def test_a_far_target_that_is_killed_under_it_is_ridden_out(tmp_path: Path):
    disk, image = empty(tmp_path / "far", SIZE), noise(tmp_path / "image", SIZE)
    with (
        enkaku.serve([disk], tmp_path, options=["--delay", "5ms"]) as far,
        gateway(far.url(), tmp_path) as near,
    ):
        argv = [need("qemu-img"), "convert", "-n", "-f", "raw", "-O", "raw", image, near.url]
        with peer(argv, tmp_path / "convert.log") as converting:
            written = lambda: disk.stat().st_blocks * 512 > SIZE // 4  # noqa: E731
            converting.wait_until(written, "nothing is written")
            far.peer.kill()
            assert converting.running(), "it was done before the target was killed"
            enkaku.restart(far)
            assert converting.wait(120) == 0, converting.output()
        qemu.compare(image, near.url)
    assert sha256(disk) == sha256(image)


@pytest.mark.needs("iscsi-test-cu")
def test_initiators_find_a_disk_like_any_other(tmp_path: Path):
    with (
        enkaku.serve(["mem:64M"], tmp_path) as far,
        gateway(far.url(), tmp_path, "--cache", "write-back") as near,
    ):
        for suite in SUITES:
            result = libiscsi.compliance_suite(suite, near.url)
            assert result.tests and not result.failed, result.output


@pytest.mark.needs("iscsi-test-cu")
@pytest.mark.parametrize("suite", ["ALL.CompareAndWrite", "ALL.ProutRegister", "ALL.Reserve6"])
def test_what_would_not_hold_against_others_is_refused(tmp_path: Path, suite: str):
    """The suites skip what a target does not have; with --exclusive they pass."""
    with enkaku.serve(["mem:64M"], tmp_path) as far:
        with gateway(far.url(), tmp_path) as near:
            refused = libiscsi.compliance_suite(suite, near.url)
        with gateway(far.url(), tmp_path, "--exclusive") as near:
            offered = libiscsi.compliance_suite(suite, near.url)
    assert not refused.failed, refused.output
    assert not offered.failed, offered.output
    assert len(refused.skipped) > len(offered.skipped), (refused.skipped, offered.skipped)


@pytest.mark.needs("iscsi-readcapacity16")
def test_a_far_volume_that_grows_grows_here(daemon: Daemon, tmp_path: Path):
    disk = empty(tmp_path / "disk", SIZE)
    daemon.write(target(NAME_A, disk))
    daemon.start()
    with gateway(daemon.url(), tmp_path) as near:
        assert size_of(near.url) == SIZE
        with disk.open("r+b") as file:
            file.truncate(2 * SIZE)
        daemon.reload()

        def has_grown() -> bool:
            # The far target tells with the next command that gets there.
            enkaku.command("bench", near.url, "--time", "100ms", "--depth", "1")
            return size_of(near.url) == 2 * SIZE

        until(has_grown, "the near unit does not grow")


@pytest.mark.needs("nbdkit", "qemu-img")
def test_an_export_is_a_unit_near_its_initiators(tmp_path: Path):
    disk, image = empty(tmp_path / "disk", SIZE), noise(tmp_path / "image", SIZE)
    with nbd.nbdkit(tmp_path, "file", disk) as server:
        with gateway(server.url, tmp_path, "--cache", "write-back") as near:
            qemu.convert(image, near.url)
            server.kill()
            server.restart()
            qemu.compare(image, near.url)
            assert near.peer.stop() == 0
    assert sha256(disk) == sha256(image)


def test_who_may_come_in(tmp_path: Path):
    secret = tmp_path / "secret"
    secret.write_text("a-secret-of-16-chars\n")
    secret.chmod(0o600)
    with enkaku.serve(["mem:64M"], tmp_path) as far:
        options = ["--front-user", "host", "--front-password-file", secret]
        with gateway(far.url(), tmp_path, *options) as near:
            refused = enkaku.command("info", near.url, check=False)
            assert refused.code == 1
            known = near.url.replace("iscsi://", "iscsi://host@")
            enkaku.command("info", known, "--chap-password-file", secret)
        wrong = enkaku.command("attach", far.url(), "--iscsi", "nowhere", check=False)
        assert wrong.code == 2 and "127.0.0.1:3260" in wrong.stderr
        elsewhere = ("--nbd", tmp_path / "socket", "--exclusive")
        wrong = enkaku.command("attach", far.url(), *elsewhere, check=False)
        assert wrong.code == 2 and "cannot be used with '--exclusive'" in wrong.stderr
