"""`enkaku conformance`: our target passes all of it, tgt fails what is known, and every important
check can fail: a proxy that changes single PDUs makes a broken target of ours.
"""

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import MIB, noise, sha256
from support.pdu_proxy import Link, Pdu, PduProxy

from enkaku_lab import REPOSITORY
from enkaku_lab.peers import Target, disk_url, enkaku, istgt, tgt

RESULTS = REPOSITORY / "docs" / "conformance"
SIZE = 16 * MIB
COMES_AND_GOES = ["nop.no-answer-wanted"]
"""Now and then tgt does not answer a ping that follows a NOP-Out without a tag."""
NEED_A_FULL_DISK = ["errors.flush-is-true"]
"""Skipped where every write succeeds."""
SECRET = ("checker", "correct-horse-77")
NOP_IN, SCSI_RESPONSE, TASK_RESPONSE, LOGIN_RESPONSE = 0x20, 0x21, 0x22, 0x23
TEXT_RESPONSE, DATA_IN, LOGOUT_RESPONSE, R2T, ASYNC, REJECT = 0x24, 0x25, 0x26, 0x31, 0x32, 0x3F
SCSI_COMMAND, LOGIN_REQUEST, TEXT_REQUEST, LOGOUT_REQUEST, SNACK = 0x01, 0x03, 0x04, 0x06, 0x10
SYNCHRONIZE_CACHE, ORDERED = 0x35, 2


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    return noise(tmp_path / "lun0.img", SIZE)


@pytest.fixture
def target(disk: Path, tmp_path: Path) -> Iterator[Target]:
    with enkaku.serve([disk], tmp_path) as serving:
        yield serving


def check(url: str, *options: object, code: int = 0) -> dict[str, dict]:
    """A run with `--json`: results by name."""
    done = enkaku.command("conformance", url, "--json", *options, check=False, timeout_s=300)
    assert done.code == code, (done.code, done.stdout[-2000:], done.stderr)
    report = json.loads(done.stdout)
    for kind in ("passed", "failed", "skipped"):
        assert report[kind] == sum(each["result"] == kind for each in report["checks"])
    assert all(set(each) >= {"name", "rfc", "result", "detail"} for each in report["checks"])
    return {each["name"]: each for each in report["checks"]}


def kept(name: str) -> dict[str, str]:
    report = json.loads((RESULTS / f"{name}.json").read_text())
    return {each["name"]: each["result"] for each in report["checks"]}


def test_our_target_fails_nothing_and_keeps_its_data(target: Target, disk: Path, tmp_path: Path):
    before, junit = sha256(disk), tmp_path / "junit.xml"
    results = check(target.url(), "--junit", junit)
    assert len(results) >= 100
    not_passed = [name for name, each in results.items() if each["result"] != "passed"]
    assert not_passed == NEED_A_FULL_DISK
    assert sha256(disk) == before, "the scratch area was not restored"
    suite = ElementTree.parse(junit).getroot()
    assert int(suite.get("tests")) == len(suite) == len(results)
    assert suite.get("failures") == "0"
    assert {name: each["result"] for name, each in results.items()} == kept("enkaku")


def test_read_only_writes_nothing(target: Target, disk: Path):
    listed = json.loads(enkaku.command("conformance", "--list", "--json").stdout)
    writing = {each["name"] for each in listed if each["writes"]}
    before = disk.stat().st_mtime_ns
    results = check(target.url(), "--read-only")
    assert disk.stat().st_mtime_ns == before
    assert {n for n, each in results.items() if each["result"] == "skipped"} == writing
    assert writing and len(listed) == len(results)


def test_with_chap(disk: Path, tmp_path: Path):
    password = tmp_path / "password"
    password.write_text(SECRET[1] + "\n")
    options = ["--chap-user", SECRET[0], "--chap-password-file", password]
    with enkaku.serve([disk], tmp_path, options=options) as target:
        url = target.url().replace("iscsi://", f"iscsi://{SECRET[0]}@")
        results = check(url, "--chap-password-file", password)
        assert [each for each in results.values() if each["result"] == "failed"] == []
        done = enkaku.command("conformance", target.url(), check=False)
        assert done.code == 1 and "an ordinary session does not work" in done.stderr


def test_names_are_chosen_by_patterns(target: Target):
    results = check(target.url(), "--only", "nop.*", "--only", "order.gap-*", "--skip", "*-order")
    assert set(results) == {
        "nop.echo",
        "nop.no-answer-wanted",
        "nop.immediate-uses-no-cmdsn",
        "order.gap-holds-back",
        "order.gap-over-two-connections",
    }
    for words in (["--only", "nosuch*"], ["--skip", "nosuch"], ["--timeout", "1us"]):
        done = enkaku.command("conformance", target.url(), *words, check=False)
        assert done.code == 2 and len(done.stderr.splitlines()) == 1, done.stderr


def test_nobody_there(tmp_path: Path):
    with enkaku.serve(["mem:16M"], tmp_path) as target:
        url = target.url()
    done = enkaku.command("conformance", url, check=False)
    assert done.code == 1 and len(done.stderr.splitlines()) == 1, done.stderr


@pytest.mark.needs("tgtd", "tgtadm", "root")
def test_tgt_fails_what_is_known(disk: Path, tmp_path: Path):
    parameters = {"InitialR2T": "No", "HeaderDigest": "CRC32C,None", "DataDigest": "CRC32C,None"}
    with tgt.serve([disk], tmp_path, max_connections=8, parameters=parameters) as target:
        results = check(target.url(), "--timeout", "2s", code=1)
        assert target.peer.running()
    found = {name: each["result"] for name, each in results.items()}
    expected = kept("tgt")
    for name in COMES_AND_GOES:
        assert {found.pop(name), expected.pop(name)} <= {"passed", "failed"}
    assert found == expected


ISTGT_STARTS = 20


@pytest.mark.needs("istgt", "root")
def test_istgt_is_accused_of_its_own_faults_only(disk: Path, tmp_path: Path):
    """It closes connections before its Logout Response is out, now and then: the suite starts all
    the same, each time, and only the check that looks at that says so."""
    innocent = ["nop.echo", "unsolicited.immediate", "data-out.unknown-tag", "keys.portal-group-tag"]
    only = [word for name in innocent for word in ("--only", name)]
    with istgt.serve(disk, tmp_path) as target:
        for start in range(ISTGT_STARTS):
            # All of them each time would take minutes: it takes a second for each login.
            words = only if start == 0 else ["--only", innocent[0]]
            results = check(target.url(), *words, "--timeout", "2s", "--writable")
            assert {each["result"] for each in results.values()} == {"passed"}, (start, results)
        words = ["--only", "logout.response", "--only", "keys.obsolete-marker-intervals"]
        blamed = check(target.url(), *words, "--timeout", "2s", code=1)
        assert "RFC 3720" in blamed["keys.obsolete-marker-intervals"]["detail"]
        print(blamed["logout.response"])


def test_what_is_kept_is_in_the_document():
    document = (REPOSITORY / "docs" / "conformance.md").read_text()
    listed = json.loads(enkaku.command("conformance", "--list", "--json").stdout)
    names = [each["name"] for each in listed]
    for target in ("enkaku", "tgt", "lio"):
        results = kept(target)
        assert list(results) == names, f"{target}.json is of another version of the suite"
        for name in (name for name, result in results.items() if result == "failed"):
            assert f"`{name}`" in document


# Broken targets: what the proxy changes, and the check that must notice.

Broken = Callable[[PduProxy, Link, Pdu, bool], list[Pdu] | None]
BROKEN: dict[str, Broken] = {}
KEEPS_OPEN = {"reinstatement.session", "mcs.removed-over-another"}
"""Closed connections do not reach the initiator."""


def breaks(name: str) -> Callable[[Broken], Broken]:
    def add(change: Broken) -> Broken:
        BROKEN[name] = change
        return change

    return add


def rewrites(name: str, opcode: int, change: Callable[[Pdu], object]) -> None:
    """Changes every PDU of this kind that comes from the target."""

    def apply(_proxy: PduProxy, _link: Link, pdu: Pdu, from_target: bool) -> list[Pdu]:
        if from_target and pdu.opcode == opcode:
            change(pdu)
        return [pdu]

    BROKEN[name] = apply


def add(at: int, step: int, clear: int = 0) -> Callable[[Pdu], None]:
    return lambda pdu: pdu.put(at, (pdu.number(at) & ~clear) + step)


def byte(at: int, value: int) -> Callable[[Pdu], None]:
    return lambda pdu: pdu.bhs.__setitem__(at, value)


def text(old: bytes, new: bytes) -> Callable[[Pdu], None]:
    return lambda pdu: pdu.replace(pdu.data.replace(old, new)) if old in pdu.data else None


def flip(pdu: Pdu) -> None:
    """One bit of the data; a digest stays what it was."""
    if pdu.data:
        pdu.data = bytes([pdu.data[0] ^ 4]) + pdu.data[1:]


def unless_status(change: Callable[[Pdu], None]) -> Callable[[Pdu], None]:
    return lambda pdu: None if pdu.bhs[1] & 1 else change(pdu)


def last_login(change: Callable[[Pdu], None]) -> Callable[[Pdu], None]:
    return lambda pdu: change(pdu) if pdu.bhs[1] & 0x83 == 0x83 else None


def status(old: int, new: int) -> Callable[[Pdu], None]:
    def change(pdu: Pdu) -> None:
        if pdu.bhs[36:38] == old.to_bytes(2):
            pdu.bhs[36:38] = new.to_bytes(2)

    return change


rewrites("login.version-unsupported", LOGIN_RESPONSE, status(0x0205, 0x0200))
rewrites("login.tsih-generated", LOGIN_RESPONSE, last_login(add(12, 0, clear=0xFFFF)))
rewrites("login.response-fields", LOGIN_RESPONSE, add(16, 1))
rewrites("keys.unknown-key", LOGIN_RESPONSE, text(b"=NotUnderstood", b"=Irrelevant"))
rewrites("keys.portal-group-tag", LOGIN_RESPONSE, text(b"TargetPortalGroupTag=1\0", b""))
rewrites("keys.numeric-results", LOGIN_RESPONSE, text(b"BurstLength=77824", b"BurstLength=99328"))
rewrites("text.send-targets-in-discovery", TEXT_RESPONSE, text(b"Name=iqn", b"Name=eui"))
rewrites("nop.echo", NOP_IN, flip)
rewrites("nop.immediate-uses-no-cmdsn", NOP_IN, add(28, 1))
rewrites("order.statsn-consecutive", SCSI_RESPONSE, add(24, 1))
rewrites("mcs.window-on-every-connection", NOP_IN, add(28, -1))
rewrites("data-in.numbers-and-offsets", DATA_IN, unless_status(add(36, 1)))
rewrites("data-in.max-burst", DATA_IN, unless_status(byte(1, 0)))
rewrites("data-in.residual-underflow", DATA_IN, add(44, 1))
rewrites("data-out.r2t-sequence", R2T, byte(39, 0))
rewrites("data-out.r2t-max-burst", R2T, add(44, 4096))
rewrites("unsolicited.immediate", DATA_IN, flip)
rewrites("tmf.abort-unknown-task", TASK_RESPONSE, byte(2, 0))
rewrites("tmf.abort-task", TASK_RESPONSE, byte(2, 1))
rewrites("logout.unknown-cid", LOGOUT_RESPONSE, byte(2, 0))
rewrites("reject.contains-header", REJECT, lambda pdu: pdu.replace(pdu.data[:20]))
rewrites("digest.data", DATA_IN, flip)
rewrites("level1.recovery-r2t", REJECT, byte(2, 9))
rewrites("level1.status-snack-acknowledged", REJECT, byte(2, 5))
rewrites("level2.reassign-write-after-logout", TASK_RESPONSE, byte(2, 1))


@breaks("order.window-never-shrinks")
def window_shrinks(proxy: PduProxy, _link: Link, pdu: Pdu, from_target: bool) -> list[Pdu]:
    if from_target and pdu.opcode == NOP_IN:
        proxy.notes["lost"] = proxy.notes.get("lost", 0) + 5
        pdu.put(32, pdu.number(32) - proxy.notes["lost"])
    return [pdu]


def answered_at_once(link: Link, command: Pdu) -> None:
    """GOOD for a command that the target has not taken yet."""
    answer = Pdu(bytearray(48))
    answer.bhs[0:2] = bytes([SCSI_RESPONSE, 0x80])
    for at, value in ((16, command.number(16)), (24, command.number(28))):
        answer.put(at, value)
    answer.put(28, command.number(24))
    answer.put(32, command.number(24) + 10)
    link.to_client(answer)


@breaks("order.gap-holds-back")
def out_of_order(_proxy: PduProxy, link: Link, pdu: Pdu, from_target: bool) -> list[Pdu]:
    if not from_target and pdu.opcode == SCSI_COMMAND:
        cmd_sn, last = pdu.number(24), link.notes.setdefault("last", pdu.number(24) - 1)
        link.notes["last"] = max(cmd_sn, last)
        if cmd_sn > last + 1:
            answered_at_once(link, pdu)
    return [pdu]


@breaks("order.gap-over-two-connections")
def out_of_order_over_two(proxy: PduProxy, link: Link, pdu: Pdu, from_target: bool) -> list[Pdu]:
    if not from_target and pdu.opcode == SCSI_COMMAND:
        cmd_sn, last = pdu.number(24), proxy.notes.get("last", pdu.number(24) - 1)
        proxy.notes["last"] = cmd_sn
        if cmd_sn == last + 2:
            answered_at_once(link, pdu)
    return [pdu]


@breaks("order.below-window-ignored")
def old_numbers_taken(_proxy: PduProxy, link: Link, pdu: Pdu, from_target: bool) -> list[Pdu]:
    if not from_target and pdu.opcode == SCSI_COMMAND:
        cmd_sn, last = pdu.number(24), link.notes.get("last", 0)
        link.notes["last"] = cmd_sn
        if cmd_sn == last:
            answered_at_once(link, pdu)
    return [pdu]


@breaks("mcs.read-allegiance")
def data_on_the_other_connection(
    proxy: PduProxy, link: Link, pdu: Pdu, from_target: bool
) -> list[Pdu]:
    """Data-In of the session's second connection come on the first, which is link 1."""
    if from_target and pdu.opcode == DATA_IN and link.number == 2:
        proxy.links[1].to_client(pdu)
        return []
    return [pdu]


@breaks("mcs.removed-over-another")
@breaks("reinstatement.session")
def as_it_is(_proxy: PduProxy, _link: Link, pdu: Pdu, _from_target: bool) -> list[Pdu]:
    return [pdu]


@breaks("level1.data-snack")
def one_lost_again(_proxy: PduProxy, link: Link, pdu: Pdu, from_target: bool) -> list[Pdu]:
    if not from_target and pdu.opcode == SNACK:
        link.notes["asked"] = True
    if from_target and pdu.opcode == DATA_IN and link.notes.pop("asked", False):
        return []
    return [pdu]


@breaks("level1.status-snack")
def status_not_repeated(_proxy: PduProxy, _link: Link, pdu: Pdu, from_target: bool) -> list[Pdu]:
    return [] if not from_target and pdu.opcode == SNACK else [pdu]


@breaks("async.fast-abort-tells-others")
def nothing_told(_proxy: PduProxy, _link: Link, pdu: Pdu, from_target: bool) -> list[Pdu]:
    return [] if from_target and pdu.opcode == ASYNC else [pdu]


def flush_is_answered_at_once(_proxy: PduProxy, link: Link, pdu: Pdu, from_target: bool):
    if not from_target and pdu.opcode == SCSI_COMMAND and pdu.bhs[32] == SYNCHRONIZE_CACHE:
        if pdu.bhs[1] & 7 == ORDERED:
            answered_at_once(link, pdu)
    return [pdu]


BROKEN["order.flush-waits-for-data"] = flush_is_answered_at_once
BROKEN["order.flush-waits-over-two-connections"] = flush_is_answered_at_once


POWER_ON, NEXUS_LOSS = b"\x29\x00", b"\x29\x07"
SENSE_CODES = slice(14, 16)
"""Of fixed-format sense in the data of a SCSI Response: two bytes of length, then ASC and ASCQ at 12."""


def power_on_is_told_once(proxy: PduProxy, link: Link, pdu: Pdu, from_target: bool) -> list[Pdu]:
    """To a port that was there before 29/00 becomes 29/07, as if a lost nexus were all it missed."""
    if not from_target and pdu.opcode == LOGIN_REQUEST and "again" not in link.notes:
        ports = proxy.notes.setdefault("ports", set())
        isid = bytes(pdu.bhs[8:14])
        link.notes["again"] = isid in ports
        ports.add(isid)
    if from_target and pdu.opcode == SCSI_RESPONSE and link.notes.get("again"):
        if bytes(pdu.data[SENSE_CODES]) == POWER_ON:
            pdu.data = pdu.data[: SENSE_CODES.start] + NEXUS_LOSS + pdu.data[SENSE_CODES.stop :]
    return [pdu]


BROKEN["attention.power-on-not-replaced"] = power_on_is_told_once
BROKEN["attention.told-until-acknowledged"] = power_on_is_told_once


@breaks("logout.response")
def closes_without_a_word(_proxy: PduProxy, _link: Link, pdu: Pdu, from_target: bool):
    return None if not from_target and pdu.opcode == LOGOUT_REQUEST else [pdu]


@breaks("text.unknown-key")
def closes_on_text(_proxy: PduProxy, _link: Link, pdu: Pdu, from_target: bool):
    return None if not from_target and pdu.opcode == TEXT_REQUEST else [pdu]


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_target_fails(target: Target, name: str):
    """The check passes through a proxy that changes nothing, and fails with the change."""

    def change(proxy: PduProxy, link: Link, pdu: Pdu, from_target: bool) -> list[Pdu] | None:
        # The first connection is not the check's: there the suite finds out what it deals with.
        return BROKEN[name](proxy, link, pdu, from_target) if link.number else [pdu]

    options = ["--only", name, "--timeout", "1s", "--writable"]
    with PduProxy(target.port, as_it_is) as honest:
        url = disk_url(f"127.0.0.1:{honest.port}", target.iqn, 0)
        assert check(url, *options)[name]["result"] == "passed"
    with PduProxy(target.port, change, name in KEEPS_OPEN) as broken:
        url = disk_url(f"127.0.0.1:{broken.port}", target.iqn, 0)
        result = check(url, *options, code=1)[name]
    assert result["result"] == "failed" and result["detail"]
    print(name, "→", result["detail"])


def test_a_logout_without_an_answer_fails_no_other_check(target: Target):
    def change(proxy: PduProxy, link: Link, pdu: Pdu, from_target: bool) -> list[Pdu] | None:
        return closes_without_a_word(proxy, link, pdu, from_target)

    names = ["nop.echo", "unsolicited.immediate", "logout.response"]
    words = [word for name in names for word in ("--only", name)]
    with PduProxy(target.port, change) as proxy:
        url = disk_url(f"127.0.0.1:{proxy.port}", target.iqn, 0)
        results = check(url, *words, "--timeout", "1s", "--writable", code=1)
    found = {name: each["result"] for name, each in results.items()}
    assert found == {names[0]: "passed", names[1]: "passed", names[2]: "failed"}
    assert "no Logout Response" in results["logout.response"]["detail"]


def test_the_suite_goes_on_after_a_closed_connection(target: Target):
    names = ["--only", "text.unknown-key", "--only", "nop.echo", "--timeout", "1s"]
    with PduProxy(target.port, closes_on_text) as proxy:
        url = disk_url(f"127.0.0.1:{proxy.port}", target.iqn, 0)
        results = check(url, *names, code=1)
    detail = results["text.unknown-key"]["detail"]
    assert "closed by the target; TEXT_REQUEST had been sent last" in detail
    assert results["nop.echo"]["result"] == "passed"
