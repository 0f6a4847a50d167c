"""iSNS with real peers: our server with Open-iSNS's and tgt's clients, our client with Open-iSNS's
server, and the daemon that is registered at either, forgotten, and registered again."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import empty
from support.daemon import NAME_A, Daemon, target

from enkaku_lab.peers import enkaku, isns, need, tgt
from enkaku_lab.process import run

HOST = "iqn.2026-11.org.example:host"
STRANGER = "iqn.2026-11.org.example:stranger"
CONTROL = "iqn.2026-11.org.example:control"
DISK = "iqn.2026-11.org.example:disk"
AGAIN_S_MAX = 45.0
"""Within it, a server that has come back is to know a target again."""

SERVERS = {"ours": isns.ours, "isnsd": isns.isnsd}
with_isns = pytest.mark.needs("isnsd", "isnsadm")


def wait_for(what: Callable[[], bool], told: str, seconds: float = 30.0) -> float:
    """How long it took."""
    begin = time.monotonic()
    while not what():
        assert time.monotonic() - begin < seconds, f"not {told} within {seconds:.0f} s"
        time.sleep(0.1)
    return time.monotonic() - begin


def discovered(server: isns.Server, name: str = HOST) -> dict[str, list[str]]:
    words = ["discover", f"isns://{server.address}", "--initiator-name", name]
    words += ["--no-luns", "--json"]
    found = json.loads(enkaku.command(*words).stdout)
    return {entry["target"]: entry["portals"] for entry in found}


@pytest.fixture(params=[pytest.param("isnsd", marks=with_isns), "ours"])
def server(request: pytest.FixtureRequest, tmp_path: Path):
    with SERVERS[request.param](tmp_path) as running:
        yield running


def register(server: isns.Server, more: str = "", **keys: str) -> str:
    lines = "".join(f'{key} = "{value}"\n' for key, value in keys.items())
    return f'\n[isns]\nserver = "{server.address}"\nentity = "home.example"\n{lines}{more}'


def is_registered(daemon: Daemon) -> bool:
    health = json.loads(daemon.page("/health")[1])
    assert health["status"] == "healthy", "what is served does not depend on it"
    return health["isns"]["registered"]


def problem(daemon: Daemon) -> str:
    return json.loads(daemon.page("/health")[1])["isns"].get("problem", "")


def test_a_daemon_is_found_and_taken_away_when_it_stops(daemon: Daemon, server: isns.Server):
    daemon.write(target(NAME_A, "mem:1M"), register(server))
    daemon.start()
    wait_for(lambda: is_registered(daemon), "registered")
    assert discovered(server) == {NAME_A: [f"{daemon.portal},1"]}
    asked = ["discover", f"isns://{server.address}"]
    text = enkaku.command(*asked, "--no-luns").stdout
    assert text == f"{NAME_A}\t{daemon.portal},1\n"
    assert f"iscsi://{daemon.portal}/{NAME_A}/0" in enkaku.command(*asked).stdout
    assert daemon.metric("enkaku_isns_registered") == 1
    assert "iSNS: registered at" in daemon.ask("status").stdout
    # What was found can be used.
    assert NAME_A in enkaku.command("discover", daemon.portal).stdout
    daemon.peer.stop()
    assert discovered(server) == {}


def test_a_reload_is_what_is_registered_afterwards(daemon: Daemon, server: isns.Server):
    other = "iqn.2026-11.org.example:b"
    daemon.write(target(NAME_A, "mem:1M"), register(server))
    daemon.start()
    wait_for(lambda: set(discovered(server)) == {NAME_A}, "registered")
    daemon.write(target(NAME_A, "mem:1M"), target(other, "mem:1M"), register(server))
    daemon.reload()
    wait_for(lambda: set(discovered(server)) == {NAME_A, other}, "registered anew")
    daemon.write(target(other, "mem:1M"), "\n[isns]\nserver = 7\n")
    assert daemon.ask("reload", check=False).code == 1
    assert set(discovered(server)) == {NAME_A, other}, "a reload that fails changes nothing"
    daemon.write(target(other, "mem:1M"))
    daemon.reload()
    wait_for(lambda: discovered(server) == {}, "taken away")
    assert "isns" not in json.loads(daemon.page("/health")[1])


def test_a_server_that_was_killed_knows_the_target_again(daemon: Daemon, server: isns.Server):
    daemon.write(target(NAME_A, "mem:1M"), register(server))
    daemon.start()
    wait_for(lambda: is_registered(daemon), "registered")
    server.peer.kill()
    wait_for(lambda: not is_registered(daemon), "told")
    assert NAME_A in enkaku.command("discover", daemon.portal).stdout, "it serves on"
    server.restart()
    wait_for(lambda: set(discovered(server)) == {NAME_A}, "registered again", AGAIN_S_MAX)
    wait_for(lambda: is_registered(daemon), "told")


def test_inquiries_are_answered(daemon: Daemon, server: isns.Server):
    daemon.write(target(NAME_A, "mem:1M"), register(server, esi_interval="5s"))
    daemon.start()
    wait_for(lambda: daemon.metric("enkaku_isns_inquiries_total") >= 2, "inquired of", 60)
    assert set(discovered(server)) == {NAME_A}


def test_a_killed_daemon_is_forgotten_by_inquiries(daemon: Daemon, tmp_path: Path):
    with isns.ours(tmp_path) as server:
        daemon.write(target(NAME_A, "mem:1M"), register(server, esi_interval="5s"))
        daemon.start()
        wait_for(lambda: set(discovered(server)) == {NAME_A}, "registered")
        daemon.peer.kill()
        wait_for(lambda: discovered(server) == {}, "forgotten", 40)


@with_isns
def test_open_isns_registers_at_ours_asks_and_leaves(tmp_path: Path):
    with isns.ours(tmp_path, "--state", tmp_path / "state") as server:
        server.isnsadm(DISK, "--register", f"target={DISK},alias=Films", "portal=192.0.2.1:3260")
        assert DISK in server.names(HOST)
        found = server.isnsadm(HOST, "--query", f"iscsi-name={DISK}").stdout
        assert DISK in found and "192.0.2.1" in found, found
        # isnsadm writes an IPv4 address as a compatible, not as a mapped one: only names are ours.
        assert set(discovered(server)) == {DISK}
        server.peer.kill()
        server.restart()
        assert set(discovered(server)) == {DISK}, "it was kept"
        server.isnsadm(DISK, "--deregister", f"iscsi-name={DISK}")
        assert DISK not in server.names(HOST)


@with_isns
def test_open_isns_sees_by_the_domains_of_the_file(tmp_path: Path):
    domains = tmp_path / "domains.toml"
    domains.write_text(f'[[domain]]\nname = "family"\nmembers = ["{DISK}", "{HOST}"]\n')
    with isns.ours(tmp_path, "--domains", domains) as server:
        server.isnsadm(DISK, "--register", f"target={DISK}", "portal=192.0.2.1:3260")
        assert DISK in server.names(HOST)
        assert DISK not in server.names(STRANGER)
        assert set(discovered(server, HOST)) == {DISK}
        assert discovered(server, STRANGER) == {}


@with_isns
def test_open_isns_makes_domains_at_ours_as_a_control_node_only(tmp_path: Path):
    with isns.ours(tmp_path, "--control", CONTROL) as server:
        server.isnsadm(DISK, "--register", f"target={DISK}", "portal=192.0.2.1:3260")
        words = ["--dd-register", "dd-name=family", f"member-name={DISK}", f"member-name={HOST}"]
        assert server.isnsadm(STRANGER, *words, check=False).code != 0
        assert set(discovered(server, STRANGER)) == {DISK}
        server.isnsadm(CONTROL, *words)
        assert discovered(server, STRANGER) == {}
        assert set(discovered(server, HOST)) == {DISK}


def test_a_daemon_puts_its_targets_into_a_domain(daemon: Daemon, tmp_path: Path):
    with isns.ours(tmp_path, "--control", NAME_A) as server:
        in_family = register(server, more='domains = ["family"]\n')
        daemon.write(target(NAME_A, "mem:1M"), in_family)
        daemon.start()
        wait_for(lambda: is_registered(daemon), "registered")
        assert discovered(server, STRANGER) == {}
        assert set(discovered(server, NAME_A)) == {NAME_A}
    with isns.ours(tmp_path) as server:
        daemon.write(target(NAME_A, "mem:1M"), register(server, more='domains = ["family"]\n'))
        daemon.reload()
        wait_for(lambda: set(discovered(server)) == {NAME_A}, "registered")
        wait_for(lambda: "unauthorized" in problem(daemon), "told why it is in no domain")
        assert is_registered(daemon) and "family" in problem(daemon)


@pytest.mark.needs("tgtd", "tgtadm")
def test_tgt_registers_itself_at_ours(tmp_path: Path):
    disk = empty(tmp_path / "disk", 1 << 20)
    with isns.ours(tmp_path) as server, tgt.serve([disk], tmp_path) as stock:
        control = stock.peer.argv[stock.peer.argv.index("-C") + 1]

        def admin(*words: object) -> None:
            run([need("tgtadm"), "-C", control, "--lld", "iscsi", *words])

        system = ["--op", "update", "--mode", "sys", "--name"]
        admin(*system, "iSNSServerIP", "-v", "127.0.0.1")
        admin(*system, "iSNSServerPort", "-v", server.port)
        admin(*system, "iSNS", "-v", "On")
        for tid, name in enumerate((DISK, f"{DISK}2"), 2):
            admin("--op", "new", "--mode", "target", "--tid", tid, "-T", name)
        wait_for(lambda: {DISK, f"{DISK}2"} <= set(discovered(server)), "registered")
        assert discovered(server)[DISK] == [f"{stock.portal},1"]
        admin("--op", "delete", "--mode", "target", "--tid", 2)
        wait_for(lambda: DISK not in discovered(server), "deregistered")
        assert f"{DISK}2" in discovered(server)


def test_only_allowed_networks_are_answered(tmp_path: Path):
    with isns.ours(tmp_path, "--allow", "192.0.2.0/24") as server:
        asked = enkaku.command("discover", f"isns://{server.address}", check=False)
        assert asked.code == 1 and server.address in asked.stderr
        server.peer.wait_for_output("not allowed")


def test_mistakes_are_told_in_one_line(tmp_path: Path):
    domains = tmp_path / "domains.toml"
    domains.write_text('[[domain]]\nname = "family"\nmembers = ["disk"]\n')
    wrong = enkaku.command("isns", "serve", "--domains", domains, check=False)
    assert wrong.code == 2 and "is no iSCSI name" in wrong.stderr and str(domains) in wrong.stderr
    wrong = enkaku.command("isns", "serve", "--allow", "192.0.2.0/33", check=False)
    assert wrong.code == 2 and "0 to 32 are allowed" in wrong.stderr
    wrong = enkaku.command("discover", "isns://a b", check=False)
    assert wrong.code == 2 and "isns://HOST" in wrong.stderr
    state = tmp_path / "state"
    state.write_text("something else")
    words = ["--listen", "127.0.0.1:0", "--state", state]
    wrong = enkaku.command("isns", "serve", *words, check=False)
    assert wrong.code == 1 and "no directory of an iSNS server" in wrong.stderr
