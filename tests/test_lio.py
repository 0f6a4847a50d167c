"""What LIO does with commands that a mirror gives to its leg, seen without the mirror: libiscsi
sends them. Where one of these fails Linux has changed, and docs/interop.md has to, and far_lio.py.

Last, a leg at LIO that is cut off, compared and mended; data bases are in test_mirror_ledger.py.
"""

import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import MIB, empty, noise
from support import stock_guest
from support.mirror import Mirror, differences
from support.pdu_proxy import Link, Pdu, PduProxy

from enkaku_lab.peers import enkaku, lio
from enkaku_lab.peers.guest import Guest
from enkaku_lab.peers.libiscsi_session import Outcome, Session, session
from enkaku_lab.peers.lio import Lio
from enkaku_lab.process import CommandFailed, LabError
from enkaku_lab.proxy import Proxy

pytestmark = pytest.mark.needs("qemu-system-x86_64", "busybox")
DISKS = ["/dev/vda", "/dev/vdb", "/dev/vdc", "/dev/vdd"]
DISK_BYTES = 24 * MIB
IMAGE_BYTES, FLIPPED_AT = 16 * MIB, 5 * MIB
SCSI_COMMAND = 0x01
TASK_ATTRIBUTE, ORDERED = 0x07, 2
STRANGER = f"{lio.PREFIX}test-{os.getpid()}"
KEY = 0x656E6B616B75
GOOD = Outcome(0)
NOT_REACHABLE = Outcome(2, key=0xA, ascq=0x0D02)
"""COPY ABORTED, copy target device not reachable."""
RESERVED = Outcome(0x18)
COMMUNICATION_FAILURE = Outcome(2, key=0x2, ascq=0x0800)
"""NOT READY, logical unit communication failure."""
WAITS_S = 8
"""Below LIO's 15 s for a login, and several times what one takes."""
LIO_WAITS_S = 15
NO_FOLDER = "mkdir -p /etc/target/pr"
BLOCK_BYTES, COPIED_BLOCKS = 512, 8


@pytest.fixture(scope="module")
def machine(request, tmp_path_factory) -> Iterator[Guest]:
    """A guest of its own: what these tests leave in its kernel never ends."""
    image = stock_guest.image()
    folder: Path = tmp_path_factory.mktemp("lio")
    failed_before = request.session.testsfailed
    disks = [empty(folder / Path(disk).name, DISK_BYTES) for disk in DISKS]
    with Guest(image, own_disks=disks) as running:
        yield running
        running.keep_log = request.session.testsfailed > failed_before


def make_ordered(_proxy: PduProxy, _link: Link, pdu: Pdu, from_target: bool) -> list[Pdu]:
    """TEST UNIT READY gets the attribute ORDERED, which libiscsi has no word for."""
    if not from_target and pdu.opcode == SCSI_COMMAND and pdu.bhs[32] == 0:
        pdu.bhs[1] = pdu.bhs[1] & ~TASK_ATTRIBUTE | ORDERED
    return [pdu]


@contextmanager
def unit(guest: Guest, disk: str) -> Iterator[tuple[Lio, Session]]:
    """A target that stays until the guest goes, and a session whose TEST UNIT READY is ORDERED."""
    target = lio.start(guest, f"unit-{Path(disk).name}", 0, disk=disk)
    with (
        PduProxy(guest.port, make_ordered) as proxy,
        session(f"127.0.0.1:{proxy.port}", target.iqn, STRANGER) as there,
    ):
        while there.test_unit_ready() != GOOD:
            pass
        yield target, there


def write(to: Session) -> Outcome:
    cdb = struct.pack(">BBIBHB", 0x2A, 0, 0, 0, COPIED_BLOCKS, 0)
    return to.command(cdb, bytes(COPIED_BLOCKS * BLOCK_BYTES))


def copy_within(to: Session, target: Lio) -> Outcome:
    """EXTENDED COPY(LID1) of one segment; the unit is named twice, by its NAA designator."""
    naa = bytes.fromhex(f"6001405{target.serial[:25]}")
    cscd = struct.pack(">BxxxBBxB16s5xB2s", 0xE4, 1, 3, len(naa), naa, 0, b"\x02\0")
    segment = struct.pack(">BBHHHHHQQ", 2, 0, 24, 0, 1, 0, COPIED_BLOCKS, 0, 64)
    header = struct.pack(">BBHIII", 0, 0x18, 2 * len(cscd), 0, len(segment), 0)
    parameters = header + 2 * cscd + segment
    return to.command(struct.pack(">B9xIxx", 0x83, len(parameters)), parameters)


def reserve_out(to: Session, action: int, key: int, service_key: int, kind: int) -> Outcome:
    cdb = struct.pack(">BBBxxxxxBx", 0x5F, action, kind, 24)
    return to.command(cdb, struct.pack(">QQ8x", key, service_key))


def register(to: Session) -> Outcome:
    """REGISTER AND IGNORE EXISTING KEY, not to outlive a loss of power."""
    return reserve_out(to, 0x06, 0, KEY, 0)


def reserve(to: Session) -> Outcome:
    """Write exclusive, registrants only."""
    return reserve_out(to, 0x01, KEY, 0, 0x05)


def never_answered(command: Callable[[], Outcome]) -> bool:
    try:
        command()
    except LabError as error:
        return "not answered" in str(error)
    return False


def test_a_unit_that_has_copied_never_answers_an_ordered_command_again(machine: Guest):
    with unit(machine, DISKS[0]) as (target, there):
        assert write(there) == GOOD
        assert there.test_unit_ready() == GOOD
        assert copy_within(there, target) == GOOD
        assert write(there) == GOOD
        assert never_answered(there.test_unit_ready)


def test_a_reservation_is_in_the_way_of_its_own_holders_copy(machine: Guest):
    """What LIO reads and writes for it comes from a nexus of nobody's."""
    with unit(machine, DISKS[1]) as (target, there):
        assert (register(there), reserve(there)) == (GOOD, GOOD)
        assert write(there) == GOOD
        assert copy_within(there, target) == NOT_REACHABLE
        assert write(there) == GOOD


def test_without_a_folder_for_reservations_a_registration_is_refused_and_counts(machine: Guest):
    with unit(machine, DISKS[2]) as (_, there):
        machine.run(f"rm -r {lio.PR_FOLDER}")
        assert register(there) == COMMUNICATION_FAILURE
        assert reserve(there) == GOOD, "only who is registered may reserve"
        assert f"filp_open({lio.PR_FOLDER}/" in machine.kernel_log()


def test_a_connection_that_says_nothing_keeps_all_logins_waiting(machine: Guest):
    target = lio.start(machine, "silent", MIB)
    enkaku.command("info", target.url())
    with socket.create_connection(("127.0.0.1", machine.port)):
        with pytest.raises(CommandFailed):
            enkaku.command("info", target.url(), timeout_s=WAITS_S)
        # LIO gives up the silent one and the one that was ended, and then it is ours: in one
        # attempt.
        enkaku.command("info", target.url(), timeout_s=4 * LIO_WAITS_S)


@pytest.mark.parametrize("wanted", [False, True], ids=["as it can be", "reservation"])
def test_a_leg_that_cannot_be_reserved_says_what_the_target_lacks(
    wanted: bool, machine: Guest, tmp_path: Path
):
    target = lio.start(machine, f"folderless-{int(wanted)}", 24 * MIB)
    machine.run(f"rm -rf {lio.PR_FOLDER}")
    mirror = Mirror(tmp_path, noise(tmp_path / "local.img", MIB), [target.url()])
    mirror.create()
    if wanted:
        text = mirror.config.read_text()
        mirror.config.write_text(text + 'fence = "reservation"\n')
    try:
        mirror.start("--nbd", tmp_path / "nbd.sock")
        if wanted:
            mirror.wait_state("failed")
            assert NO_FOLDER in mirror.leg()["message"], mirror.leg()
        else:
            mirror.wait_in_sync()
            assert mirror.leg()["guard"] == "superblock", mirror.leg()
            assert NO_FOLDER in mirror.peer.output(), mirror.peer.output()
    finally:
        mirror.clean_up()
        lio.stop(target)


def flip(image: Path, at: int) -> None:
    with image.open("r+b") as file:
        file.seek(at)
        [byte] = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def test_a_leg_is_caught_up_compared_and_mended(
    machine: Guest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It has the mirror's reservation meanwhile, and somebody changes its disk below LIO."""
    monkeypatch.setenv("ENKAKU_INITIATOR_NAME", f"{lio.PREFIX}mirror-{os.getpid()}")
    image = machine.own_disks[DISKS.index("/dev/vdd")]
    local = noise(tmp_path / "local.img", IMAGE_BYTES)

    def serve() -> Lio:
        return lio.start(machine, "leg", 0, disk="/dev/vdd")

    def verify(*options: str) -> tuple[int, str]:
        done = mirror.command("verify", *options, check=False)
        return done.code, done.stdout

    leg = serve()
    with Proxy(machine.port) as line:
        mirror = Mirror(tmp_path, local, [leg.url(line.port)])
        mirror.create()
        try:
            mirror.start("--nbd", tmp_path / "nbd.sock")
            mirror.wait_in_sync()
            assert mirror.leg()["guard"] == "reservation"
            with session(f"127.0.0.1:{machine.port}", leg.iqn, STRANGER) as there:
                assert write(there) == RESERVED
            code, said = verify()
            assert code == 0 and "nothing differs" in said, said
            line.cut(reset=True)
            mirror.wait_state("lost")
            lio.stop(leg)
            flip(image, FLIPPED_AT)
            leg = serve()
            line.mend()
            mirror.command("resync")
            mirror.wait_in_sync()
            code, said = verify()
            assert code == 1 and f"1 blocks of 4 KiB differ (at {FLIPPED_AT})" in said, said
            code, said = verify("--heal")
            assert code == 0 and "1 of them mended" in said, said
            assert mirror.stop() == 0, mirror.peer.output()
        finally:
            mirror.clean_up()
    lio.stop(leg)
    assert not differences(local, image, IMAGE_BYTES)
