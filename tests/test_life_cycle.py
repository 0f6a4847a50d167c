"""Logical units, initiators and portals that come and go while the daemon runs: `enkaku target
lun|initiator|portal`, with stock clients that look, and what is refused, killed or hostile."""

import json
import os
import random
import re
import stat
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from conftest import MIB, empty, noise, sha256
from support.admin import Admin
from support.daemon import NAME_A, Daemon, target
from support.volume import loop_device, mounted

from enkaku_lab.peers import enkaku, libiscsi, need, qemu
from enkaku_lab.peers.libiscsi_session import Outcome, Session, session
from enkaku_lab.process import CommandFailed, LabError, free_port, run

pytestmark = pytest.mark.needs("iscsi-ls", "iscsi-inq", "qemu-img")
NAME_B = "iqn.2026-11.org.example:b"
HOST = "iqn.2026-11.org.example:host"
BACKUP = "iqn.2026-11.org.example:backup"
CHECK_CONDITION, UNIT_ATTENTION, ILLEGAL_REQUEST, DATA_PROTECT = 2, 6, 5, 7
CAPACITY_CHANGED, LUNS_CHANGED, POWER_ON = 0x2A09, 0x3F0E, 0x2900
NO_SUCH_LUN, WRITE_PROTECTED, BEYOND_THE_END = 0x2500, 0x2700, 0x2100
CAPACITY = Outcome(CHECK_CONDITION, UNIT_ATTENTION, CAPACITY_CHANGED)
LUNS = Outcome(CHECK_CONDITION, UNIT_ATTENTION, LUNS_CHANGED)
GONE = Outcome(CHECK_CONDITION, ILLEGAL_REQUEST, NO_SUCH_LUN)
GOOD = Outcome(0)
WRITE_10 = bytes([0x2A, 0, 0, 0, 0, 0, 0, 0, 1, 0])
SESSIONS, MANY, BY_COMMAND = 16, 1000, 50


def drop_ins(daemon: Daemon) -> list[str]:
    return sorted(path.name for path in (daemon.folder / "target.d").glob("*"))


def luns(daemon: Daemon) -> dict[str, dict]:
    """The units, by name, or as TARGET/LUN."""
    listed = json.loads(daemon.ask("lun", "list", "--json").stdout)
    return {one.get("name") or f"{one['target']}/{one['lun']}": one for one in listed}


def refused(daemon: Daemon, *words: object) -> str:
    """What is said of a command that changes nothing."""
    before = drop_ins(daemon)
    done = daemon.ask(*words, check=False)
    assert done.code == 1 and len(done.stderr.splitlines()) == 1, done
    assert drop_ins(daemon) == before
    return done.stderr


def start(daemon: Daemon, more: str = "anyone = true") -> Path:
    """A daemon whose main file has one unit."""
    disk = empty(daemon.folder / "main.img", 16 * MIB)
    daemon.write(target(NAME_A, disk, more=more))
    daemon.start()
    return disk


def test_a_unit_comes_grows_and_goes_while_sessions_look(daemon: Daemon):
    start(daemon)
    file = daemon.folder / "vm1.img"
    with session(daemon.portal, NAME_A, HOST) as old:
        assert old.test_unit_ready() == GOOD
        added = daemon.ask("lun", "add", "vm1", "--path", file, "--create", "64M").stdout
        assert "LUN 1: added" in added and "session" not in added
        assert (file.stat().st_size, file.stat().st_blocks) == (64 * MIB, 0)
        assert old.test_unit_ready() == LUNS
        assert old.test_unit_ready() == GOOD
        # Stock clients see it.
        assert re.search(r"Lun:1 +.*63M", libiscsi.ls(daemon.portal).stdout), "of its last block"
        assert "ENKAKU" in libiscsi.inq(daemon.url(lun=1)).stdout
        source = noise(daemon.folder / "source", 64 * MIB)
        qemu.convert(source, daemon.url(lun=1))
        qemu.compare(source, daemon.url(lun=1))
        with session(daemon.portal, NAME_A, HOST, lun=1) as user:
            assert user.test_unit_ready() == GOOD
            assert user.command(WRITE_10, bytes(512)) == GOOD
            assert "LUN 1: grown" in daemon.ask("lun", "resize", "vm1", "128M").stdout
            assert user.test_unit_ready() == CAPACITY
            at_the_end = bytes([0x2A, 0]) + struct.pack(">I", 128 * MIB // 512 - 1) + WRITE_10[6:]
            assert user.command(at_the_end, bytes(512)) == GOOD
            # Sessions of the clients before end a moment after they have logged out.
            alone = lambda: luns(daemon)["vm1"]["sessions"] == 1
            daemon.peer.wait_until(alone, "old sessions stay")
            listed = luns(daemon)["vm1"]
            assert (listed["lun"], listed["size_bytes"]) == (1, 128 * MIB)
            assert listed["file"].endswith("target.d/lun-vm1.toml")
            table = daemon.ask("lun", "list").stdout
            assert re.search(rf"^vm1 +{NAME_A} +1 +128.0M +{file} +read-write +1$", table, re.M)
            # Nobody loses it unasked.
            said = refused(daemon, "lun", "remove", "vm1")
            assert f"LUN 1 of {NAME_A} is in use by {HOST}" in said and "--force" in said
            assert user.command(WRITE_10, bytes(512)) == GOOD
            assert "LUN 1: removed" in daemon.ask("lun", "remove", "vm1", "--force").stdout
            assert user.command(WRITE_10, bytes(512)) == GONE
        assert old.test_unit_ready() == LUNS
        assert old.test_unit_ready() == GOOD
    assert file.stat().st_size == 128 * MIB and drop_ins(daemon) == []
    assert "Lun:1" not in libiscsi.ls(daemon.portal).stdout


def test_a_unit_brings_a_target_of_its_own_and_takes_it_along(daemon: Daemon):
    start(daemon)
    own = "iqn.2026-11.org.example:own"
    add = ("lun", "add", "own", "--path", daemon.folder / "own.img", "--create", "8M", "--target", own)
    targets = lambda: json.loads(daemon.ask("status", "--json").stdout)["targets"]
    assert f"there is no target {own}" in refused(daemon, *add)
    assert "LUN 0: added" in daemon.ask(*add, "--new-target").stdout
    assert sorted(targets()) == sorted([NAME_A, own])
    assert own not in libiscsi.ls(daemon.portal).stdout, "it admits nobody"
    again = ("lun", "add", "other", "--path", "mem:1M", "--target", own, "--new-target")
    assert "is there already (" in refused(daemon, *again)
    daemon.ask("initiator", "allow", HOST, "--target", own)
    daemon.peer.kill()
    daemon.start()
    with session(daemon.portal, own, HOST) as its:
        assert its.test_unit_ready() == GOOD
    assert drop_ins(daemon) == [f"initiator-{HOST}.toml", "lun-own.toml"]
    daemon.ask("initiator", "deny", HOST, "--target", own)
    daemon.ask("lun", "remove", "own")
    assert (targets(), drop_ins(daemon)) == ([NAME_A], [])


def test_what_was_added_is_there_after_a_restart(daemon: Daemon):
    start(daemon)
    image = noise(daemon.folder / "b.img", 8 * MIB)
    before = sha256(image)
    options = ("--lun", 200, "--read-only", "--max-iops", 500, "--serial", 'with "quotes"')
    daemon.ask("lun", "add", "b", "--path", image, *options)
    daemon.ask("lun", "add", "m", "--path", "mem:8M")
    daemon.ask("lun", "add", "s", "--path", daemon.folder / "s.img", "--create", "8M")
    daemon.ask("lun", "resize", "s", "12M")
    port = free_port()
    daemon.ask("portal", "add", "wan", "--listen", f"127.0.0.1:{port}")
    expected = luns(daemon)
    assert drop_ins(daemon) == ["lun-b.toml", "lun-m.toml", "lun-s.toml", "portal-wan.toml"]
    text = (daemon.folder / "target.d/lun-s.toml").read_text()
    assert text.startswith("# Written by `enkaku target lun add`") and 'create = "12M"' in text
    # What a killed daemon left behind is not taken for a drop-in, and written over.
    (daemon.folder / "target.d/.lun-c.toml.new").write_text("[[tar")
    daemon.peer.kill()
    daemon.start()
    assert luns(daemon) == expected
    assert "Total size:8388608" in libiscsi.readcapacity16(daemon.url(lun=200)).stdout
    assert 'with "quotes"' in libiscsi.inq(daemon.url(lun=200), 0x80).stdout
    checked = enkaku.command("target", "check", "--config", daemon.config, check=False)
    assert f"LUN 200: {image}, read-only" in checked.stdout, checked
    assert NAME_A in run(["iscsi-ls", f"iscsi://127.0.0.1:{port}"]).stdout
    daemon.ask("lun", "add", "c", "--path", daemon.folder / "c.img", "--create", "1M")
    daemon.ask("lun", "remove", "b")
    daemon.ask("reload")
    assert sha256(image) == before and "b" not in luns(daemon)


def test_what_cannot_be_is_refused_and_leaves_nothing(daemon: Daemon):
    start(daemon)
    folder = daemon.folder
    precious = noise(folder / "precious.img", 4 * MIB)
    before = sha256(precious)
    new = folder / "new.img"
    add = ("lun", "add", "x", "--path")
    daemon.ask("lun", "add", "a", "--path", folder / "a.img", "--create", "1M")
    main = f"{daemon.config}:1"
    for words, wanted in (
        ((*add, precious, "--create", "8M"), "is there and has 4194304 bytes, not 8388608"),
        ((*add, folder, "--create", "8M"), "is no regular file"),
        ((*add, new), "path: " + str(new) + ": no such file"),
        ((*add, new, "--create", "1M", "--lun", 0), f"there is a LUN 0 already, in {main}"),
        ((*add, new, "--create", "1M", "--lun", 20000), "20000 is not allowed"),
        ((*add, new, "--create", "1M", "--block-size", 1024), "block_size: 1024 is not allowed"),
        ((*add, new, "--create", "1000"), "512"),
        ((*add, new, "--create", "1M", "--target", NAME_B), f"there is no target {NAME_B}"),
        ((*add, new, "--create", "1M", "--target", "disk"), '"disk"'),
        ((*add, new, "--create", "1M", "--serial", "ü"), "serial number"),
        ((*add, new, "--create", "1M", "--max-rate", "1bit"), "max_rate"),
        ((*add, folder / "no/new.img", "--create", "1M"), "there is no folder"),
        ((*add, folder / "main.img"), "is behind LUN 0"),
        ((*add, "mem:1M", "--create", "1M"), "create: mem:1M is no file"),
        ((*add, "rbd:pool/x"), "Ceph's"),
        ((*add, "http://h/x"), "is no URL of a volume"),
        ((*add, f"nbd://127.0.0.1:{free_port()}/x"), "onnection refused"),
        (("lun", "add", "a", "--path", new, "--create", "1M"), "lun-a.toml is there already"),
        (("lun", "add", "../a", "--path", "mem:1M"), "is no name of a LUN"),
        (("lun", "resize", "a", "512k"), "--shrink cuts it to 524288"),
        (("lun", "resize", "a", "1000"), "whole blocks of 512"),
        (("lun", "resize", "a", "0"), "whole blocks of 512"),
        (("lun", "resize", "x", "1M"), 'there is no LUN "x"'),
        (("lun", "resize", f"{NAME_A}/0", "32M"), f"is said in {main}"),
        (("lun", "remove", f"{NAME_A}/0"), f"is said in {main}"),
        (("lun", "remove", f"{NAME_A}/9"), "there is no LUN"),
        (("portal", "remove", "lan"), f"the portal lan is said in {daemon.config}:"),
        (("portal", "remove", "wan"), "there is no portal"),
        (("portal", "add", "wan", "--listen", daemon.portal), "there is a portal lan on"),
        (("portal", "add", "wan", "--listen", "3260"), "listen: "),
        (("portal", "add", "wan", "--listen", "192.0.2.1:3260"), "listen: "),
        (("initiator", "deny", HOST), f"admits anyone ({daemon.config}:"),
        (("initiator", "allow", "host"), "not an iqn., eui. or naa. name"),
        (("initiator", "allow", HOST, "--chap", "op"), "there is no [chap.op]"),
    ):
        said = refused(daemon, *words)
        assert wanted in said, (words, said)
        assert not new.exists() and "Traceback" not in said, words
    assert sha256(precious) == before
    assert list(luns(daemon)) == [f"{NAME_A}/0", "a"]
    # One of the right size is taken as it is.
    daemon.ask(*add, precious, "--create", "4M")
    daemon.ask("lun", "remove", "x")
    assert sha256(precious) == before


def test_files_of_others_are_not_touched(daemon: Daemon):
    start(daemon)
    folder = daemon.folder / "target.d"
    folder.mkdir()
    by_hand = f'[[target]]\nname = "{NAME_A}"\n[[target.lun]]\nnumber = 5\npath = "mem:1M"\n'
    (folder / "lun-mine.toml").write_text(by_hand)
    assert "LUN 5: added" in daemon.reload()
    for words in (("lun", "remove", "mine"), ("lun", "remove", f"{NAME_A}/5")):
        assert f"{folder}/lun-mine.toml:5, which no command wrote" in refused(daemon, *words)
    assert "is there already" in refused(daemon, "lun", "add", "mine", "--path", "mem:1M")
    assert (folder / "lun-mine.toml").read_text() == by_hand
    # Lines that somebody has added to one of ours stay, and what it says besides is not removed.
    daemon.ask("lun", "add", "ours", "--path", daemon.folder / "ours.img", "--create", "1M")
    ours = folder / "lun-ours.toml"
    ours.write_text(ours.read_text() + "max_iops = 7\n")
    daemon.ask("lun", "resize", "ours", "2M")
    assert 'create = "2M"\nmax_iops = 7\n' in ours.read_text()
    ours.write_text(ours.read_text() + f'[[target.initiator]]\nname = "{BACKUP}"\n')
    daemon.reload()
    assert "says more than this LUN" in refused(daemon, "lun", "remove", "ours")
    # What is wrong in any file is told with its place, and keeps all from being changed.
    (folder / "wrong.toml").write_text(by_hand)
    said = refused(daemon, "lun", "add", "x", "--path", daemon.folder / "x.img", "--create", "1M")
    assert f"{folder}/wrong.toml:4: " in said and f"already, in {folder}/lun-mine.toml:5" in said
    assert not (daemon.folder / "x.img").exists()
    checked = enkaku.command("target", "check", "--config", daemon.config, check=False)
    assert checked.code == 1 and f"{folder}/wrong.toml:4: " in checked.stderr
    (folder / "wrong.toml").unlink()
    # Gone by hand, and not reloaded yet.
    (folder / "lun-mine.toml").unlink()
    assert "which is gone" in refused(daemon, "lun", "remove", "mine")
    assert "LUN 5: removed" in daemon.reload()


def test_a_drop_in_that_cannot_be_written_changes_nothing(daemon: Daemon):
    start(daemon)
    folder = daemon.folder / "target.d"
    file = daemon.folder / "x.img"
    add = ("lun", "add", "x", "--path", file, "--create", "1M")
    folder.write_text("no folder\n")
    said = daemon.ask(*add, check=False)
    assert said.code == 1 and f"has to be allowed to write to {folder}" in said.stderr, said
    assert not file.exists() and "x" not in luns(daemon)
    folder.unlink()
    # The file that is written first is called so.
    in_the_way = folder / ".lun-x.toml.new"
    in_the_way.mkdir(parents=True)
    assert "directory" in refused(daemon, *add)
    assert not file.exists() and "x" not in luns(daemon)
    in_the_way.rmdir()
    daemon.ask(*add)
    noise(file, MIB)
    before = sha256(file)
    in_the_way.mkdir()
    assert "directory" in refused(daemon, "lun", "resize", "x", "2M")
    assert "directory" in refused(daemon, "lun", "resize", "x", "512k", "--shrink")
    assert sha256(file) == before and luns(daemon)["x"]["size_bytes"] == MIB
    assert daemon.reload() == "reloaded, 0 changes\n"


def test_one_is_cut_when_nobody_uses_it(daemon: Daemon):
    start(daemon)
    file = daemon.folder / "s.img"
    daemon.ask("lun", "add", "s", "--path", file, "--create", "4M")
    with session(daemon.portal, NAME_A, HOST, lun=1) as host:
        host.test_unit_ready()
        assert host.command(WRITE_10, bytes(512)) == GOOD
        assert "in use by" in refused(daemon, "lun", "resize", "s", "1M", "--shrink")
    with session(daemon.portal, NAME_A, BACKUP, lun=1) as looks:
        looks.test_unit_ready()
        daemon.peer.wait_until(lambda: luns(daemon)["s"]["sessions"] == 0, "the session stays")
        assert "cut to 1048576 bytes" in daemon.ask("lun", "resize", "s", "1M", "--shrink").stdout
        assert looks.test_unit_ready() == CAPACITY
        beyond = bytes([0x2A, 0, 0, 0, 0x08, 0, 0, 0, 1, 0])
        outcome = Outcome(CHECK_CONDITION, ILLEGAL_REQUEST, BEYOND_THE_END)
        assert looks.command(beyond, bytes(512)) == outcome
    assert file.stat().st_size == MIB and luns(daemon)["s"]["size_bytes"] == MIB
    daemon.reload()
    daemon.peer.stop()
    daemon.start()
    assert luns(daemon)["s"]["size_bytes"] == MIB


def test_a_snapshot_is_what_was_there_or_nothing(daemon: Daemon):
    """Here mostly without reflinks, so that it is refused; where there are some, it is served."""
    disk = start(daemon)
    noise(disk, 16 * MIB)
    before = sha256(disk)
    kept = daemon.folder / "kept.img"
    words = ("lun", "snapshot", f"{NAME_A}/0", kept)
    done = daemon.ask(*words, check=False)
    if done.code == 0:
        noise(disk, 16 * MIB, seed=2)
        assert sha256(kept) == before
        daemon.ask("lun", "add", "kept", "--path", kept)
        assert "is there already" in refused(daemon, *words)
    else:
        assert "no reflinks" in done.stderr and not kept.exists()
    assert f"{disk}: it is there already" in refused(daemon, *words[:3], disk)
    daemon.ask("lun", "add", "m", "--path", "mem:1M")
    assert "has no file behind it" in refused(daemon, "lun", "snapshot", "m", kept)


@pytest.mark.needs("root", "mkfs.xfs", "losetup", "mount")
def test_a_snapshot_shares_blocks_until_somebody_writes(daemon: Daemon):
    start(daemon)
    image = empty(daemon.folder / "xfs.img", 400 * MIB)
    run([need("mkfs.xfs"), "-q", "-m", "reflink=1", image])
    with loop_device(image) as device, mounted(device, daemon.folder / "xfs") as folder:
        try:
            disk = noise(folder / "disk.img", 64 * MIB)
            before = sha256(disk)
            daemon.ask("lun", "add", "x", "--path", disk)
            free = os.statvfs(folder).f_bavail
            with session(daemon.portal, NAME_A, HOST, lun=1) as host:
                host.test_unit_ready()
                daemon.ask("lun", "snapshot", "x", folder / "kept.img")
                assert (free - os.statvfs(folder).f_bavail) * 4096 < MIB
                assert host.command(WRITE_10, bytes(512)) == GOOD
            assert sha256(folder / "kept.img") == before
            daemon.ask("lun", "add", "kept", "--path", folder / "kept.img", "--read-only")
            qemu.compare(folder / "kept.img", daemon.url(lun=2))
            assert stat.S_IMODE((folder / "kept.img").stat().st_mode) == 0o600
        finally:
            daemon.peer.stop()  # or the file system cannot be unmounted
        assert sha256(disk) != before


def test_initiators_are_allowed_and_denied_and_nobody_else_notices(daemon: Daemon):
    closed = "anyone = false"
    disk = empty(daemon.folder / "main.img", 16 * MIB)
    daemon.write(target(NAME_A, disk, more=closed), target(NAME_B, more=closed))
    daemon.start()
    assert f"which target? (there are: {NAME_A}, {NAME_B})" in refused(
        daemon, "initiator", "allow", HOST
    )
    with pytest.raises(LabError, match="login"), session(daemon.portal, NAME_A, HOST):
        pass
    daemon.ask("initiator", "allow", HOST, "--target", NAME_A)
    daemon.ask("initiator", "allow", HOST.upper(), "--target", NAME_B)
    daemon.ask("initiator", "allow", BACKUP, "--target", NAME_A, "--read-only")
    assert drop_ins(daemon) == [f"initiator-{BACKUP}.toml", f"initiator-{HOST}.toml"]
    with session(daemon.portal, NAME_A, BACKUP) as backup:
        backup.test_unit_ready()
        protected = Outcome(CHECK_CONDITION, DATA_PROTECT, WRITE_PROTECTED)
        assert backup.command(WRITE_10, bytes(512)) == protected
        daemon.ask("initiator", "allow", BACKUP, "--target", NAME_A)
        assert backup.command(WRITE_10, bytes(512)) == GOOD
        with pytest.raises(LabError), ExitStack() as stack:
            hosts = [stack.enter_context(session(daemon.portal, NAME_A, HOST)) for _ in range(3)]
            listed = json.loads(daemon.ask("initiator", "list", "--json").stdout)
            by_name = {(one["initiator"], one["target"]): one for one in listed}
            assert by_name[HOST, NAME_A]["sessions"] == 3
            assert by_name[HOST, NAME_B]["sessions"] == 0
            assert by_name[BACKUP, NAME_A]["read_only_luns"] == []
            ended = daemon.ask("initiator", "deny", HOST, "--target", NAME_A).stdout
            assert ended.endswith("3 sessions ended\n"), ended
            hosts[0].test_unit_ready()
        assert backup.command(WRITE_10, bytes(512)) == GOOD
        assert "0 sessions ended" in daemon.ask("initiator", "deny", HOST).stdout
        assert drop_ins(daemon) == [f"initiator-{BACKUP}.toml"]
        assert "is not allowed to use anything" in refused(daemon, "initiator", "deny", HOST)
        assert re.search(rf"^{BACKUP} +{NAME_A} +read-write +no +1 ", daemon.ask(
            "initiator", "list").stdout, re.M)
    daemon.peer.stop()
    daemon.start()
    with session(daemon.portal, NAME_A, BACKUP):
        pass


def test_a_portal_comes_and_goes_and_its_sessions_stay(daemon: Daemon):
    start(daemon)
    port = free_port()
    portal = f"127.0.0.1:{port}"
    told = ("--external", "san.example.org:3261", "--dscp", "cs1")
    added = daemon.ask("portal", "add", "wan", "--listen", portal, *told).stdout
    assert f"portal {portal}: open" in added
    assert "Portal:san.example.org:3261,1" in run(["iscsi-ls", f"iscsi://{daemon.portal}"]).stdout
    with session(portal, NAME_A, HOST) as host:
        host.test_unit_ready()
        listed = json.loads(daemon.ask("portal", "list", "--json").stdout)
        assert [(one["name"], one["address"], one["sessions"]) for one in listed] == [
            ("lan", daemon.portal, 0), ("wan", portal, 1)]
        assert re.search(rf"^wan +{portal} +san.example.org:3261 +1 ", daemon.ask(
            "portal", "list").stdout, re.M)
        assert "portal wan: closed" in daemon.ask("portal", "remove", "wan").stdout
        assert host.command(WRITE_10, bytes(512)) == GOOD
        with pytest.raises(CommandFailed):
            run(["iscsi-ls", f"iscsi://{portal}"])
        assert host.test_unit_ready() == GOOD
    assert drop_ins(daemon) == []


def test_hostile_words_at_the_admin_socket(daemon: Daemon):
    """Whatever somebody of the group says there costs the others nothing."""
    start(daemon)
    mode = daemon.socket.stat().st_mode
    assert stat.S_IMODE(mode) == 0o660
    with ExitStack() as stack:
        half = stack.enter_context(Admin(daemon.socket))
        half.send(b'{"do":"lun_add","name":"x"')  # and silence
        with session(daemon.portal, NAME_A, HOST) as host:
            assert host.test_unit_ready() == GOOD
            # Behind a line that is too long, nothing is taken for a request.
            with Admin(daemon.socket) as long:
                drop = json.dumps({"do": "lun_add", "name": "smuggled", "path": "mem:1M"}).encode()
                long.send(b" " * (32 << 10) + drop + b"\n")
                answered = long.answer()
                assert not answered["ok"] and "longer than 32768" in answered["errors"][0]
                assert long.answer() is None
            with Admin(daemon.socket) as admin:
                for line, wanted in (
                    (b"{}", "do"),
                    (b"[]", "not a request"),
                    (b"\xff\xfe", "not a request"),
                    (b"[" * 5000, "not a request"),
                    (b'{"do":"lun_delete"}', "unknown variant"),
                    (b'{"do":"status","verbose":true}', "unknown field"),
                    (b'{"do":"lun_list","x":1}', "unknown field"),
                    (b'{"do":"lun_add","name":"x","path":"mem:1M","shrink":true}', "unknown field"),
                    (b'{"do":"lun_add","name":"x"}', "missing field"),
                    (b'{"do":"lun_add","name":"x","path":"mem:1M","lun":-1}', "not a request"),
                    (b'{"do":"lun_add","name":"x","path":"mem:1M","lun":1e9}', "not a request"),
                    (b'{"do":"lun_add","name":"x","path":"x.img","create":512}', "begins with /"),
                    (b'{"do":"lun_add","name":"x\\n","path":"mem:1M"}', "is no name of a LUN"),
                    (b'{"do":"lun_add","name":"x","path":"/a\\u0000b"}', "path"),
                    (b'{"do":"lun_add","name":"x","path":"/a\\n[[portal]]"}', "no such file"),
                    (b'{"do":"lun_resize","name":"x","size":18446744073709551615}', "no LUN"),
                    (b'{"do":"portal_add","name":"p","listen":"1.2.3.4:1\\"\\nx=1"}', "listen"),
                ):
                    admin.send(line + b"\n")
                    answered = admin.answer()
                    assert not answered["ok"] and wanted in answered["errors"][0], (line, answered)
                assert admin.done("lun_list")["luns"][0]["target"] == NAME_A
            # More who are silent than there is room for: the first of them have to go.
            silent = [stack.enter_context(Admin(daemon.socket)) for _ in range(100)]
            assert list(luns(daemon)) == [f"{NAME_A}/0"]
            assert silent[0].answer() is None
            assert host.test_unit_ready() == GOOD
    assert drop_ins(daemon) == []
    assert "panicked" not in daemon.peer.output()


def test_killed_at_any_moment_it_starts_with_all_that_was_acknowledged(daemon: Daemon):
    start(daemon)
    random.seed(28)
    acknowledged: set[str] = set()
    removed: set[str] = set()

    def work(kind: int) -> None:
        """Adds and removes until the daemon is gone."""
        try:
            with Admin(daemon.socket) as admin:
                for number in range(10_000):
                    name = f"k{kind}-{number}"
                    path = str(daemon.folder / f"{name}.img")
                    if admin.ask("lun_add", name=name, path=path, create=MIB)["ok"]:
                        acknowledged.add(name)
                    if number % 3 == 2:
                        acknowledged.discard(name)
                        if admin.ask("lun_remove", name=name)["ok"]:
                            removed.add(name)
        except (OSError, AssertionError):
            pass  # it was killed

    for round_number in range(5):
        seen = len(acknowledged)
        worker = threading.Thread(target=work, args=(round_number,))
        worker.start()
        wanted = seen + random.randrange(1, 12)
        daemon.peer.wait_until(lambda: len(acknowledged) >= wanted, "nothing is added")
        daemon.peer.kill()
        worker.join()
        daemon.start()
        there = set(luns(daemon))
        assert acknowledged <= there and not removed & there
        unanswered = [name for name in there - acknowledged if name.startswith("k")]
        assert len(unanswered) <= round_number + 1, unanswered
        for path in (daemon.folder / "target.d").glob("*.toml"):
            assert path.read_text().endswith("\n"), path


class Load:
    """A session that writes and compares (VERIFY with BYTCHK) blocks of its own, all the time."""

    BLOCKS = 2048
    AT_ONCE = 8

    def __init__(self, number: int):
        self.first = number * self.BLOCKS
        self.random = random.Random(number)
        self.rounds = 0
        self.attentions = 0
        self.error: BaseException | None = None

    def data(self, at: int, version: int) -> bytes:
        return struct.pack(">QQ", self.first + at, version) * (self.AT_ONCE * 32)

    def command(self, host: Session, opcode: int, flags: int, at: int, data: bytes) -> None:
        cdb = struct.pack(">BBIBHB", opcode, flags, self.first + at, 0, self.AT_ONCE, 0)
        while (outcome := host.command(cdb, data)) == LUNS:
            self.attentions += 1
        assert outcome == GOOD, outcome

    def run(self, portal: str, stop: threading.Event) -> None:
        versions: dict[int, int] = {}
        try:
            with session(portal, NAME_A, f"{HOST}{self.first}") as host:
                host.test_unit_ready()
                while not stop.is_set():
                    self.rounds += 1
                    at = self.random.randrange(self.BLOCKS // self.AT_ONCE) * self.AT_ONCE
                    self.command(host, 0x2A, 0, at, self.data(at, self.rounds))
                    versions[at] = self.rounds
                    at = self.random.choice(list(versions))
                    self.command(host, 0x2F, 0x02, at, self.data(at, versions[at]))
        except BaseException as error:  # noqa: BLE001  told by whoever waits for it
            self.error = error


@contextmanager
def under_load(daemon: Daemon) -> Iterator[list[Load]]:
    loads = [Load(number) for number in range(SESSIONS)]
    stop = threading.Event()
    threads = [threading.Thread(target=one.run, args=(daemon.portal, stop)) for one in loads]
    for thread in threads:
        thread.start()
    try:
        ready = lambda: all(one.rounds > 2 or one.error for one in loads)
        daemon.peer.wait_until(ready, "no load")
        yield loads
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert [one.error for one in loads if one.error] == []


def resident(daemon: Daemon) -> int:
    text = Path(f"/proc/{daemon.peer.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", text)[1]) << 10


class Many:
    """A thousand units: some by command, one after the other, and most by files and one reload."""

    def __init__(self, daemon: Daemon, admin: Admin):
        self.daemon = daemon
        self.admin = admin
        self.by_command = [f"c{number}" for number in range(BY_COMMAND)]
        self.by_file = [f"f{number}" for number in range(MANY - BY_COMMAND)]
        self.took: dict[str, list[float]] = {"reload": [], "command": []}

    @contextmanager
    def timed(self, what: str, count: int = 1) -> Iterator[None]:
        begin = time.monotonic()
        yield
        self.took[what].append((time.monotonic() - begin) / count)

    def image(self, name: str) -> Path:
        return self.daemon.folder / f"{name}.img"

    def reload(self) -> list[str]:
        with self.timed("reload"):
            return self.admin.done("reload")["changes"]

    def each(self, do: str, **fields: object) -> None:
        with self.timed("command", BY_COMMAND):
            for name in self.by_command:
                more = {"path": str(self.image(name))} if do == "lun_add" else {}
                self.admin.done(do, name=name, **more, **fields)

    def add(self) -> None:
        self.each("lun_add", create=MIB)
        for number, name in enumerate(self.by_file, 1000):
            unit = f'number = {number}\npath = "{empty(self.image(name), MIB)}"\n'
            text = f'[[target]]\nname = "{NAME_A}"\n[[target.lun]]\n{unit}'
            (self.daemon.folder / f"target.d/{name}.toml").write_text(text)
        assert len(self.reload()) == len(self.by_file)

    def resize(self) -> None:
        self.each("lun_resize", size=2 * MIB)
        for name in self.by_file:
            os.truncate(self.image(name), 2 * MIB)
        assert len(self.reload()) == len(self.by_file)

    def remove(self) -> None:
        for name in self.by_file:
            (self.daemon.folder / f"target.d/{name}.toml").unlink()
        assert len(self.reload()) == len(self.by_file)
        self.each("lun_remove")

    def sizes(self) -> list[int]:
        return [one["size_bytes"] for one in self.admin.done("lun_list")["luns"]][1:]


def test_a_thousand_units_come_grow_and_go_under_sixteen_sessions(daemon: Daemon, capsys):
    """No session is dropped, what they read is what they wrote, memory is bounded. The times are
    printed, for people."""
    disk = empty(daemon.folder / "main.img", 64 * MIB)
    daemon.write('[limits]\nmemory = "128M"\n', target(NAME_A, disk))
    daemon.start()
    with under_load(daemon) as loads, Admin(daemon.socket) as admin:
        many = Many(daemon, admin)
        sessions = {one["id"] for one in daemon.sessions()}
        assert len(sessions) == SESSIONS
        before = resident(daemon)
        many.add()
        full = resident(daemon)
        assert many.sizes() == [MIB] * MANY
        rounds = [one.rounds for one in loads]
        many.resize()
        assert many.sizes() == [2 * MIB] * MANY
        many.remove()
        assert many.sizes() == []
        assert {one["id"] for one in daemon.sessions()} == sessions
        assert all(one.rounds > then for one, then in zip(loads, rounds, strict=True))
        after = resident(daemon)
    assert all(one.attentions > 0 for one in loads)
    assert "session is dropped" not in daemon.peer.output()
    assert drop_ins(daemon) == []
    assert full - before < MANY * 256 * 1024, (before, full)
    assert after < full + 32 * MIB, (full, after)
    with capsys.disabled():
        took = (f"{what} {1000 * max(times):.0f} ms" for what, times in many.took.items())
        a_lun = (full - before) // MANY >> 10
        print(f"\n{MANY} LUNs, {SESSIONS} sessions at work: {', '.join(took)}; {a_lun} KiB a LUN")
