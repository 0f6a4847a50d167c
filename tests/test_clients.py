"""Stock clients against `enkaku serve`: libiscsi's tools and qemu-img, over IPv4 and IPv6."""

from pathlib import Path

import pytest
from conftest import MIB, empty, noise, sha256

from enkaku_lab.peers import Target, Workload, enkaku, libiscsi, qemu
from enkaku_lab.peers.libiscsi_session import Outcome, session
from enkaku_lab.process import CommandFailed

pytestmark = pytest.mark.needs("iscsi-ls", "qemu-img")
ADDRESSES = ["127.0.0.1", "::1"]
SIZE = 64 * MIB
USER, PASSWORD = "operator", "correct-horse-77"


@pytest.fixture(params=ADDRESSES)
def target(request, tmp_path: Path):
    """Two LUNs: a file and memory."""
    disk = empty(tmp_path / "lun0.img", SIZE)
    with enkaku.serve([disk, "mem:32M"], tmp_path, address=request.param) as serving:
        yield serving


@pytest.fixture
def chap_target(tmp_path: Path):
    secret = tmp_path / "secret"
    secret.write_text(PASSWORD + "\n")
    secret.chmod(0o600)
    options = ["--chap-user", USER, "--chap-password-file", secret]
    with enkaku.serve([empty(tmp_path / "l.img", SIZE)], tmp_path, options=options) as serving:
        yield serving


def test_iscsi_ls_lists_target_and_luns(target: Target):
    listed = libiscsi.ls(target.portal).stdout
    assert f"Target:{target.iqn} Portal:{target.portal}" in listed
    assert "Lun:0    Type:DIRECT_ACCESS (Size:63M)" in listed  # the tool rounds down twice
    assert "Lun:1    Type:DIRECT_ACCESS" in listed
    assert "Lun:2" not in listed


def test_inquiry_names_the_device(target: Target):
    standard = libiscsi.inq(target.url()).stdout
    assert "Peripheral Device Type:DIRECT_ACCESS" in standard
    assert "Vendor:ENKAKU" in standard


VITAL_PRODUCT_DATA = {
    0x00: "Page:0xb2 LOGICAL_BLOCK_PROVISIONING",
    0x80: "Unit Serial Number:[",
    0x83: "Designator Type:(3) NAA",
    0xB0: "maximum transfer length:",
    0xB1: "Medium Rotation Rate:1RPM",  # 1 means: does not rotate
    0xB2: "lbpu:1",  # UNMAP is there
}


@pytest.mark.parametrize("page, says", VITAL_PRODUCT_DATA.items(), ids=lambda v: str(v)[:8])
def test_vital_product_data_page_is_there(target: Target, page: int, says: str):
    assert says in libiscsi.inq(target.url(), page).stdout


def test_serial_numbers_of_two_luns_differ(target: Target):
    pages = [libiscsi.inq(target.url(disk), 0x80).stdout for disk in (0, 1)]
    assert pages[0] != pages[1]


def test_capacity_is_that_of_the_file(target: Target):
    assert f"Total size:{SIZE}" in libiscsi.readcapacity16(target.url()).stdout
    assert f"Total size:{32 * MIB}" in libiscsi.readcapacity16(target.url(1)).stdout


@pytest.mark.parametrize("random_order", [True, False], ids=["random", "sequential"])
def test_iscsi_perf_runs_without_errors(target: Target, random_order: bool):
    load = Workload(write=False, random=random_order, block_bytes=4096, depth=32)
    assert libiscsi.perf(target.url(), load, seconds=1).bytes > 0


def test_qemu_img_convert_and_compare_both_ways(target: Target, tmp_path: Path):
    source = noise(tmp_path / "source", SIZE)
    with source.open("r+b") as file:  # a hole, so that WRITE SAME or UNMAP is used too
        file.seek(20 * MIB)
        file.write(bytes(8 * MIB))
    qemu.convert(source, target.url())
    qemu.compare(source, target.url())
    back = tmp_path / "back"
    qemu.convert(target.url(), back, create=True)
    qemu.compare(back, target.url())
    assert sha256(back) == sha256(source)
    assert sha256(tmp_path / "lun0.img") == sha256(source)


def test_luns_do_not_share_data(target: Target, tmp_path: Path):
    source = noise(tmp_path / "source", 32 * MIB)
    qemu.convert(source, target.url(1))
    with pytest.raises(CommandFailed):
        qemu.compare(source, target.url(0))


def test_qemu_img_with_chap(chap_target: Target, tmp_path: Path):
    source = noise(tmp_path / "source", SIZE)
    url = chap_target.url(credentials=(USER, PASSWORD))
    qemu.convert(source, url)
    qemu.compare(source, url)


@pytest.mark.parametrize(
    "credentials",
    [None, (USER, "wrong-password-1"), ("stranger", PASSWORD)],
    ids=["none", "wrong password", "unknown user"],
)
def test_login_without_the_right_secret_is_refused(chap_target: Target, credentials):
    with pytest.raises(CommandFailed):
        libiscsi.readcapacity16(chap_target.url(credentials=credentials))
    # The refusal must not disturb whoever knows the secret.
    libiscsi.readcapacity16(chap_target.url(credentials=(USER, PASSWORD)))


@pytest.mark.needs("iscsi-ls")
def test_read_only_memory_refuses_writes(tmp_path: Path):
    write_10 = bytes([0x2A, 0, 0, 0, 0, 0, 0, 0, 1, 0])
    with enkaku.serve(["mem:16M"], tmp_path, options=["--read-only"]) as target:
        assert enkaku.report("info", target.url())["read_only"]
        with session(target.portal, target.iqn, "iqn.2026-11.org.example:host") as nexus:
            nexus.test_unit_ready()
            assert nexus.command(write_10, bytes(512)) == Outcome(2, 7, 0x2700)


def test_read_only_target_refuses_writes_and_serves_reads(tmp_path: Path):
    disk = noise(tmp_path / "lun0.img", 16 * MIB)
    before = sha256(disk)
    with enkaku.serve([disk], tmp_path, options=["--read-only"]) as target:
        other = noise(tmp_path / "other", 16 * MIB, seed=2)
        with pytest.raises(CommandFailed):
            qemu.convert(other, target.url())
        qemu.compare(disk, target.url())
    assert sha256(disk) == before
