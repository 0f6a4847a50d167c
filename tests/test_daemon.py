"""`enkaku target`: the daemon with stock clients; reload, resize, access, shutdown, metrics."""

import json
import os
import re
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import MIB, empty, noise, sha256
from support.daemon import NAME_A, Daemon, target

from enkaku_lab.peers import enkaku, libiscsi, need, qemu
from enkaku_lab.peers.libiscsi_session import Outcome, session
from enkaku_lab.process import CommandFailed, LabError, Peer, free_port, run

pytestmark = pytest.mark.needs("iscsi-ls", "qemu-img")
NAME_B = "iqn.2026-11.org.example:b"
HOST = "iqn.2026-11.org.example:host"
BACKUP = "iqn.2026-11.org.example:backup"
USER, PASSWORD = "operator", "correct-horse-77"
MUTUAL_USER, MUTUAL_PASSWORD = "enkaku", "battery-staple-88"
UNIT_ATTENTION, DATA_PROTECT, ILLEGAL_REQUEST, MEDIUM_ERROR = 6, 7, 5, 3
CAPACITY_CHANGED, LUNS_CHANGED, WRITE_PROTECTED, NO_SUCH_LUN = 0x2A09, 0x3F0E, 0x2700, 0x2500
SOFT_THRESHOLD, NO_SPACE = 0x3807, 0x2707
CHECK_CONDITION, RESERVATION_CONFLICT = 2, 0x18


def copying(daemon: Daemon, source: Path, *options: object) -> subprocess.Popen:
    """Our own copy to LUN 0 of the first target, slow enough to be caught in the middle."""
    words = [enkaku.binary(), "copy", source, daemon.url(), "--force", *options]
    return subprocess.Popen([str(word) for word in words], stderr=subprocess.PIPE, text=True)


def finish(copy: subprocess.Popen) -> None:
    try:
        _, stderr = copy.communicate(timeout=60)
    finally:
        copy.kill()
    assert copy.returncode == 0, stderr


def test_check_tells_every_mistake_with_its_line(daemon: Daemon):
    daemon.write(target(NAME_A, "mem:1M"))
    good = enkaku.command("target", "check", "--config", daemon.config)
    assert NAME_A in good.stdout and "LUN 0: memory" in good.stdout
    daemon.config.write_text("[limits]\nsession = 1\nlogins = 0\n[[target]]\n")
    bad = enkaku.command("target", "check", "--config", daemon.config, check=False)
    assert bad.code == 1
    for place in (":2: limits.session: unknown key", ":3: limits.logins: 0 is not allowed"):
        assert place in bad.stderr
    assert "name is missing" in bad.stderr and "no portal" in bad.stderr


def test_two_targets_and_what_each_initiator_is_shown(daemon: Daemon):
    listed = f'[[target.initiator]]\nname = "{HOST}"\n'
    only_host = target(NAME_B, "mem:16M", more="") + listed
    behind_nat = (
        f'[[portal]]\nname = "nat"\nlisten = "127.0.0.1:{free_port()}"\n'
        'external = "san.example.org:3261"\n'
    )
    daemon.write(target(NAME_A, "mem:32M"), only_host, behind_nat)
    daemon.start()
    shown = {
        name: run(["iscsi-ls", "-i", name, f"iscsi://{daemon.portal}"]).stdout
        for name in (HOST, BACKUP)
    }
    assert f"Target:{NAME_A} Portal:{daemon.portal},1" in shown[HOST]
    assert f"Target:{NAME_A} Portal:san.example.org:3261,1" in shown[HOST]
    assert f"Target:{NAME_B} Portal:{daemon.portal},1" in shown[HOST]
    assert NAME_A in shown[BACKUP] and NAME_B not in shown[BACKUP]
    with session(daemon.portal, NAME_B, HOST) as host:
        assert host.test_unit_ready().status == 0
    with pytest.raises(LabError, match="login"), session(daemon.portal, NAME_B, BACKUP):
        pass
    assert daemon.metric("enkaku_login_failures_total", reason="not_admitted") == 1


def test_mutual_chap_with_a_foreign_client_and_no_secret_in_sight(daemon: Daemon):
    for name, secret in (("user", PASSWORD), ("mutual", MUTUAL_PASSWORD)):
        path = daemon.folder / name
        path.write_text(secret + "\n")
        path.chmod(0o600)
    chap = f"""
[chap.op]
user = "{USER}"
password_file = "{daemon.folder}/user"
mutual_user = "{MUTUAL_USER}"
mutual_password_file = "{daemon.folder}/mutual"
"""
    daemon.write(chap, target(NAME_A, "mem:16M", more='anyone = true\nchap = "op"'))
    daemon.start()
    base = f"iscsi://{USER}%{PASSWORD}@{daemon.portal}/{NAME_A}/0"
    mutual = f"?target_user={MUTUAL_USER}&target_password="
    assert "Total size" in libiscsi.readcapacity16(base + mutual + MUTUAL_PASSWORD).stdout
    for wrong in (
        base + mutual + "not-the-secret-99",
        base.replace(PASSWORD, "not-the-secret-99"),
        base.replace(USER, "stranger"),
        daemon.url(),
    ):
        with pytest.raises(CommandFailed):
            libiscsi.readcapacity16(wrong)
    assert daemon.metric("enkaku_login_failures_total", reason="authentication") == 3
    argv = Path(f"/proc/{daemon.peer.pid}/cmdline").read_text()
    for secret in (PASSWORD, MUTUAL_PASSWORD):
        assert secret not in argv and secret not in daemon.peer.output()


def test_discovery_asks_for_a_secret_where_it_is_told_to(daemon: Daemon):
    path = daemon.folder / "secret"
    path.write_text(PASSWORD + "\n")
    chap = f'[chap.op]\nuser = "{USER}"\npassword_file = "{path}"\n[discovery]\nchap = "op"\n'
    daemon.write(chap, target(NAME_A, "mem:16M"))
    path.chmod(0o644)
    daemon.start()
    assert "can be read by everybody" in daemon.peer.output()
    with pytest.raises(CommandFailed):
        run(["iscsi-ls", f"iscsi://{daemon.portal}"])
    listed = run(["iscsi-ls", f"iscsi://{USER}%{PASSWORD}@{daemon.portal}"]).stdout
    assert NAME_A in listed
    # Ours, with the password in a file, and in the environment.
    path.chmod(0o600)
    with pytest.raises(CommandFailed, match="USER@HOST and --chap-password-file"):
        enkaku.command("discover", daemon.portal)
    asked = ["discover", f"{USER}@{daemon.portal}"]
    assert NAME_A in enkaku.command(*asked, "--chap-password-file", path).stdout
    environment = {"LIBISCSI_CHAP_PASSWORD": PASSWORD}
    assert NAME_A in run([enkaku.binary(), *asked], env=environment).stdout
    with pytest.raises(CommandFailed, match="no password for CHAP user"):
        enkaku.command(*asked)


def test_sessions_of_one_initiator_are_limited(daemon: Daemon):
    daemon.write("[limits]\nsessions_per_initiator = 1\n", target(NAME_A, "mem:16M"))
    daemon.start()
    with session(daemon.portal, NAME_A, HOST) as host:
        with pytest.raises(LabError, match="login"), session(daemon.portal, NAME_A, HOST):
            pass
        with session(daemon.portal, NAME_A, BACKUP) as backup:
            assert backup.test_unit_ready() == Outcome(0)
        assert host.test_unit_ready() == Outcome(0)
    assert daemon.metric("enkaku_login_failures_total", reason="limit") == 1


def test_systemd_is_told_and_the_journal_gets_priorities(daemon: Daemon):
    log = daemon.folder / "daemon.log"
    log.touch()
    stat = log.stat()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        notified.bind(str(daemon.folder / "notify"))
        notified.settimeout(20)
        daemon.write(target(NAME_A, "mem:16M"))
        daemon.start(
            {
                "NOTIFY_SOCKET": notified.getsockname(),
                "JOURNAL_STREAM": f"{stat.st_dev}:{stat.st_ino}",
            }
        )
        assert "READY=1" in notified.recv(4096).decode()
        os.kill(daemon.peer.pid, signal.SIGHUP)
        reloading = notified.recv(4096).decode()
        assert "RELOADING=1" in reloading and "MONOTONIC_USEC=" in reloading
        assert "READY=1" in notified.recv(4096).decode()
        assert daemon.peer.stop() == 0
        assert "STOPPING=1" in notified.recv(4096).decode()
    lines = [line for line in log.read_text().splitlines() if "reloaded" in line]
    assert lines and all(line.startswith("<6>") for line in lines)


def test_reload_under_load_disturbs_no_session(daemon: Daemon):
    disk = empty(daemon.folder / "a.img", 64 * MIB)
    first = target(NAME_A, disk)
    daemon.write(first)
    daemon.start()
    source = noise(daemon.folder / "source", 64 * MIB)
    copy = copying(daemon, source)
    reloads = 0
    while copy.poll() is None:
        more = target(NAME_B, "mem:16M") if reloads % 2 == 0 else ""
        daemon.write(first, more)
        changed = daemon.reload()
        assert f"target {NAME_B}: {'added' if more else 'removed'}" in changed
        assert "dropped" not in changed
        reloads += 1
    finish(copy)
    assert reloads > 0
    qemu.compare(source, daemon.url())
    assert sha256(disk) == sha256(source)
    assert "session is dropped" not in daemon.peer.output()


def test_a_bad_reload_changes_nothing_and_a_signal_reloads(daemon: Daemon):
    daemon.write(target(NAME_A, "mem:16M"))
    daemon.start()
    with session(daemon.portal, NAME_A, HOST) as host:
        assert host.test_unit_ready() == Outcome(0)
        missing = daemon.folder / "missing.img"
        daemon.write(target(NAME_A, missing), target(NAME_B, "mem:1M", more="nayone = true"))
        refused = daemon.ask("reload", check=False)
        assert refused.code == 1 and "nayone: unknown key" in refused.stderr
        daemon.write(target(NAME_A, missing))
        assert "no such file" in daemon.ask("reload", check=False).stderr
        assert host.test_unit_ready() == Outcome(0)
        daemon.write(target(NAME_A, "mem:16M"), target(NAME_B, "mem:16M"))
        os.kill(daemon.peer.pid, signal.SIGHUP)
        daemon.peer.wait_for_output(f"target {NAME_B}: added")
        assert host.test_unit_ready() == Outcome(0)


def test_luns_come_grow_and_go_while_a_session_looks(daemon: Daemon):
    disk = empty(daemon.folder / "a.img", 16 * MIB)
    daemon.write(target(NAME_A, disk))
    daemon.start()
    with session(daemon.portal, NAME_A, HOST) as host:
        assert host.test_unit_ready() == Outcome(0)
        os.truncate(disk, 32 * MIB)
        assert "grown to" in daemon.reload()
        assert host.test_unit_ready() == Outcome(CHECK_CONDITION, UNIT_ATTENTION, CAPACITY_CHANGED)
        assert f"Total size:{32 * MIB}" in libiscsi.readcapacity16(daemon.url()).stdout
        daemon.write(target(NAME_A, disk, "mem:8M"))
        assert "LUN 1: added" in daemon.reload()
        assert host.test_unit_ready() == Outcome(CHECK_CONDITION, UNIT_ATTENTION, LUNS_CHANGED)
        assert f"Total size:{8 * MIB}" in libiscsi.readcapacity16(daemon.url(lun=1)).stdout
        daemon.write(target(NAME_A, "mem:8M"))
        assert "LUN 0: replaced" in daemon.reload()
        daemon.write(
            target(NAME_A, more="anyone = true") + '[[target.lun]]\nnumber = 1\npath = "mem:8M"\n'
        )
        assert "LUN 0: removed" in daemon.reload()
        assert host.test_unit_ready() == Outcome(CHECK_CONDITION, ILLEGAL_REQUEST, NO_SUCH_LUN)


def test_a_shrunk_file_is_refused(daemon: Daemon):
    disk = empty(daemon.folder / "a.img", 16 * MIB)
    daemon.write(target(NAME_A, disk))
    daemon.start()
    os.truncate(disk, 8 * MIB)
    refused = daemon.ask("reload", check=False)
    assert refused.code == 1 and "has shrunk" in refused.stderr
    os.truncate(disk, 16 * MIB)
    daemon.reload()


def test_access_changes_drop_those_who_lose_it_and_nobody_else(daemon: Daemon):
    def rules(*names: str, backup: str = "") -> str:
        text = target(NAME_A, "mem:16M", more="")
        for name in names:
            text += f'[[target.initiator]]\nname = "{name}"\n'
            text += backup if name == BACKUP else ""
        return text

    write_10 = bytes([0x2A, 0, 0, 0, 0, 0, 0, 0, 1, 0])
    daemon.write(rules(HOST, BACKUP))
    daemon.start()
    with session(daemon.portal, NAME_A, HOST) as host:
        host.test_unit_ready()
        with (
            pytest.raises(LabError),
            session(daemon.portal, NAME_A, BACKUP) as backup,
        ):
            backup.test_unit_ready()
            assert backup.command(write_10, bytes(512)).status == 0
            daemon.write(rules(HOST, BACKUP, backup="read_only = true\n"))
            daemon.reload()
            protected = Outcome(CHECK_CONDITION, DATA_PROTECT, WRITE_PROTECTED)
            assert backup.command(write_10, bytes(512)) == protected
            assert host.command(write_10, bytes(512)).status == 0
            daemon.write(rules(HOST))
            assert f"session of {BACKUP} with {NAME_A}: dropped" in daemon.reload()
            backup.test_unit_ready()
        assert host.test_unit_ready() == Outcome(0)


def test_read_only_memory_and_readers_of_a_unit(daemon: Daemon):
    """`read_only` of a LUN holds for memory as for files, and `read_only` of an initiator keeps it
    from everything that would take the unit from those who write."""
    write_10 = bytes([0x2A, 0, 0, 0, 0, 0, 0, 0, 1, 0])
    reserve_6 = bytes([0x16, 0, 0, 0, 0, 0])
    register = bytes([0x5F, 6, 0, 0, 0, 0, 0, 0, 24, 0])
    key = bytes(8) + bytes([0, 0, 0, 0, 0, 0, 0, 7]) + bytes(8)
    luns = target(NAME_A, "mem:16M", more="") + "read_only = true\n"
    luns += '[[target.lun]]\nnumber = 1\npath = "mem:16M"\n'
    rules = f'[[target.initiator]]\nname = "{HOST}"\n'
    rules += f'[[target.initiator]]\nname = "{BACKUP}"\nread_only = true\n'
    daemon.write(luns + rules)
    daemon.start()
    protected = Outcome(CHECK_CONDITION, DATA_PROTECT, WRITE_PROTECTED)
    with session(daemon.portal, NAME_A, HOST) as host:
        host.test_unit_ready()
        assert host.command(write_10, bytes(512)) == protected
    with (
        session(daemon.portal, NAME_A, HOST, 1) as host,
        session(daemon.portal, NAME_A, BACKUP, 1) as backup,
    ):
        host.test_unit_ready()
        backup.test_unit_ready()
        assert backup.command(write_10, bytes(512)) == protected
        assert backup.command(reserve_6, b"") == protected
        assert backup.command(register, key) == protected
        assert host.command(write_10, bytes(512)).status == 0


def test_an_admin_socket_over_a_file_is_refused(daemon: Daemon):
    """A slip of the hand must not cost an image."""
    image = noise(daemon.folder / "disk.img", MIB)
    before = sha256(image)
    daemon.socket = image
    daemon.write(target(NAME_A, "mem:16M"))
    done = enkaku.command("target", "run", "--config", daemon.config, check=False, timeout_s=30)
    assert done.code == 1 and "no socket" in done.stderr, done.stderr
    assert sha256(image) == before


def test_names_are_not_told_before_authentication(daemon: Daemon):
    """What a login without a secret is told does not depend on who or what it names; the log says
    what it was."""
    secret = daemon.folder / "secret"
    secret.write_text(PASSWORD + "\n")
    secret.chmod(0o640)
    chap = f'[chap.op]\nuser = "{USER}"\npassword_file = "{secret}"\n'
    rule = f'[[target.initiator]]\nname = "{HOST}"\nchap = "op"\n'
    daemon.write(chap, target(NAME_A, "mem:16M", more="") + rule)
    daemon.start()
    assert "can be read by its group" in daemon.peer.output()
    wrong = daemon.folder / "wrong"
    wrong.write_text("not-the-secret-99\n")
    wrong.chmod(0o600)
    told = set()
    for initiator, name in ((HOST, NAME_A), (HOST, NAME_B), (BACKUP, NAME_A)):
        url = daemon.url(name).replace("iscsi://", f"iscsi://{USER}@")
        words = ["info", url, "--chap-password-file", wrong, "--initiator-name", initiator]
        done = enkaku.command(*words, check=False, timeout_s=60)
        assert done.code == 1
        told.add(done.stderr.replace(name, "NAME"))
    assert len(told) == 1, told
    for reason in ("authentication", "no_such_target", "not_admitted"):
        assert daemon.metric("enkaku_login_failures_total", reason=reason) >= 1, reason


def test_sessions_are_listed_and_dropped(daemon: Daemon):
    daemon.write(target(NAME_A, "mem:16M"))
    daemon.start()
    with pytest.raises(LabError), session(daemon.portal, NAME_A, HOST) as host:
        host.test_unit_ready()
        [listed] = [one for one in daemon.sessions() if one["initiator"] == HOST]
        assert listed["target"] == NAME_A and len(listed["connections"]) == 1
        assert listed["parameters"]["MaxConnections"] == 1
        assert listed["connections"][0]["peer"].startswith("127.0.0.1:")
        table = daemon.ask("sessions").stdout
        assert table.startswith("ID ") and HOST in table
        assert daemon.ask("sessions", "--drop", listed["id"] + 1, check=False).code == 1
        daemon.ask("sessions", "--drop", listed["id"])
        host.test_unit_ready()
    daemon.peer.wait_until(lambda: daemon.sessions() == [], "the session stays")


def test_graceful_shutdown_in_mid_transfer_is_an_outage_and_no_error(daemon: Daemon):
    disk = empty(daemon.folder / "a.img", 96 * MIB)
    daemon.write(target(NAME_A, disk))
    daemon.start()
    source = noise(daemon.folder / "source", 96 * MIB)
    copy = copying(daemon, source, "--verify")
    try:
        daemon.peer.wait_until(
            lambda: daemon.metric("enkaku_lun_bytes_total", operation="write") > 0, "no writes"
        )
        assert copy.poll() is None, "the copy was done before the daemon was stopped"
        assert daemon.peer.stop() == 0
        log = daemon.peer.output()
        assert "stopping" in log and "stopped" in log
        assert "initiators did not log out in time" not in log
        assert not daemon.socket.exists()
        daemon.start()
    finally:
        finish(copy)
    assert sha256(disk) == sha256(source)


def test_registrations_survive_a_restart(daemon: Daemon):
    disk = empty(daemon.folder / "a.img", 16 * MIB)
    daemon.write(target(NAME_A, disk))
    daemon.start()
    key = bytes.fromhex("00000000cafe0001")
    register = bytes([0x5F, 0, 0, 0, 0, 0, 0, 0, 24, 0])
    reserve = bytes([0x5F, 1, 1, 0, 0, 0, 0, 0, 24, 0])  # write exclusive
    aptpl = bytes(4) + bytes([1]) + bytes(3)
    with session(daemon.portal, NAME_A, HOST) as host:
        host.test_unit_ready()
        assert host.command(register, bytes(8) + key + aptpl) == Outcome(0)
        assert host.command(reserve, key + bytes(16)) == Outcome(0)
    daemon.peer.stop()
    daemon.start()
    with session(daemon.portal, NAME_A, BACKUP) as backup:
        backup.test_unit_ready()
        write_10 = bytes([0x2A, 0, 0, 0, 0, 0, 0, 0, 1, 0])
        assert backup.command(write_10, bytes(512)).status == RESERVATION_CONFLICT


def test_metrics_and_health(daemon: Daemon):
    daemon.write(target(NAME_A, "mem:16M"))
    daemon.start()
    assert daemon.page("/health")[0] == 200
    assert json.loads(daemon.page("/health")[1])["status"] == "healthy"
    assert daemon.page("/nowhere")[0] == 404
    text = daemon.page("/metrics")[1]
    assert text.endswith("# EOF\n") and 'enkaku_build_info{version="' in text
    source = noise(daemon.folder / "source", 16 * MIB)
    qemu.convert(source, daemon.url())
    qemu.compare(source, daemon.url())
    assert daemon.metric("enkaku_lun_bytes_total", operation="write", lun="0") == 16 * MIB
    assert daemon.metric("enkaku_lun_bytes_total", operation="read", target=NAME_A) >= 16 * MIB
    reads = daemon.metric("enkaku_lun_latency_seconds_count", operation="read")
    last = daemon.metric("enkaku_lun_latency_seconds_bucket", operation="read", le="+Inf")
    assert reads == last > 0
    assert daemon.metric("enkaku_logins_total") >= 2
    assert daemon.metric("enkaku_memory_used_bytes") == 0
    with session(daemon.portal, NAME_A, HOST) as host:
        host.test_unit_ready()
        assert daemon.metric("enkaku_sessions") == 1
        assert daemon.metric("enkaku_tcp_rtt_seconds", initiator=HOST) > 0
        errors = daemon.metric("enkaku_lun_check_conditions_total", sense_key="unit_attention")
        assert errors >= 1


def test_a_portal_that_polls_serves_says_what_it_burns_and_rests_when_idle(daemon: Daemon):
    port = free_port()
    polls = f'[[portal]]\nname = "quick"\nlisten = "127.0.0.1:{port}"\npoll = "1ms"\n'
    daemon.write(polls, target(NAME_A, "mem:32M"))
    daemon.start()
    burned = lambda: daemon.metric("enkaku_poll_seconds_total", portal="quick")
    assert burned() == 0, "nobody has come"
    source = noise(daemon.folder / "source", 16 * MIB)
    url = f"iscsi://127.0.0.1:{port}/{NAME_A}/0"
    qemu.convert(source, url)
    qemu.compare(source, daemon.url())
    after = burned()
    assert after > 0 and "enkaku_poll_seconds_total" in daemon.page("/metrics")[1]
    assert daemon.metric("enkaku_poll_seconds_total", portal="lan") == 0
    # A session that asks for nothing: it comes to rest, whenever that is.
    with session(f"127.0.0.1:{port}", NAME_A, HOST) as host:
        host.test_unit_ready()
        until_it_rests = [burned()]
        while len(until_it_rests) < 2 or until_it_rests[-1] > until_it_rests[-2]:
            until_it_rests.append(burned())
        assert host.test_unit_ready().status == 0
    daemon.write(polls.replace("1ms", "2ms"), target(NAME_A, "mem:32M"))
    with pytest.raises(CommandFailed, match="cannot poll in another way"):
        daemon.reload()


@contextmanager
def small_file_system(folder: Path, mebibytes: int):
    folder.mkdir()
    run([need("mount"), "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", folder])
    try:
        yield folder
    finally:
        run([need("umount"), "--lazy", folder])


@pytest.mark.needs("root")
def test_storage_that_runs_low_is_announced_and_when_full_told(daemon: Daemon):
    with small_file_system(daemon.folder / "fs", 64) as storage:
        disk = empty(storage / "a.img", 128 * MIB)
        lun = target(NAME_A, disk) + 'thin = true\nspace_warning = "16M"\n'
        daemon.write(lun)
        daemon.start()
        with session(daemon.portal, NAME_A, HOST) as host:
            host.test_unit_ready()
            other = storage / "other"
            other.write_bytes(bytes(56 * MIB))
            low = Outcome(CHECK_CONDITION, UNIT_ATTENTION, SOFT_THRESHOLD)
            daemon.peer.wait_until(lambda: host.test_unit_ready() == low, "no unit attention")
            assert host.test_unit_ready() == Outcome(0), "the warning came twice"
            write_10 = bytes([0x2A, 0, 0, 0, 0, 0, 0, 0x80, 0, 0])  # 16 MiB where 8 are left
            full = host.command(write_10, bytes(16 * MIB))
            assert full == Outcome(CHECK_CONDITION, DATA_PROTECT, NO_SPACE)
            other.unlink()
            assert host.command(write_10, bytes(16 * MIB)) == Outcome(0)
        daemon.peer.stop()


def test_health_names_the_lun_whose_storage_fails(daemon: Daemon):
    disk = empty(daemon.folder / "a.img", 1 * MIB)
    daemon.write(target(NAME_A, "mem:1M", disk))
    daemon.start()
    verify_10 = bytes([0x2F, 0, 0, 0, 0, 0, 0, 0, 8, 0])  # reads, and brings nothing back
    with session(daemon.portal, NAME_A, HOST, lun=1) as host:
        host.test_unit_ready()
        assert host.command(verify_10) == Outcome(0)
        os.truncate(disk, 0)
        outcome = host.command(verify_10)
        assert (outcome.status, outcome.key) == (CHECK_CONDITION, MEDIUM_ERROR)
        status, health = daemon.page("/health")
        assert status == 503 and json.loads(health)["status"] == "failed"
        (failure,) = json.loads(health)["failures"]
        assert failure.startswith(f"{NAME_A} LUN 1: ")
        os.truncate(disk, 1 * MIB)
        assert host.command(verify_10) == Outcome(0)
        assert daemon.page("/health")[0] == 200


def test_a_second_signal_does_not_wait_for_initiators(daemon: Daemon):
    daemon.write(target(NAME_A, "mem:1M"))
    daemon.config.write_text(daemon.config.read_text().replace('"5s"', '"600s"'))
    daemon.start()
    with session(daemon.portal, NAME_A, HOST) as host:
        host.test_unit_ready()  # and never looks at what it is asked for afterwards
        daemon.peer.signal(signal.SIGTERM)
        daemon.peer.wait_until(lambda: daemon.page("/health")[0] == 503, "still healthy")
        assert json.loads(daemon.page("/health")[1])["status"] == "stopping"
        daemon.peer.signal(signal.SIGTERM)
        assert daemon.peer.wait(timeout_s=30) == 1
    assert "second signal" in daemon.peer.output()
