"""contrib/*.service: what systemd makes of them, from 252 on."""

import os
import re
import socket
from pathlib import Path

import pytest

from enkaku_lab import REPOSITORY
from enkaku_lab.peers import enkaku, need
from enkaku_lab.process import peer, run

UNIT = REPOSITORY / "contrib/enkaku-target.service"
UNITS = sorted((REPOSITORY / "contrib").rglob("*.service"))
EXAMPLE = REPOSITORY / "contrib/target.toml"
TYPES_OF_252 = {"simple", "exec", "forking", "oneshot", "dbus", "notify", "idle"}
"""systemd.service(5) of 252. A word that is not among them is taken for `simple`, with a warning."""


def _settings() -> dict[str, str]:
    lines = (line.partition("=") for line in UNIT.read_text().splitlines() if "=" in line)
    return {key: value for key, _, value in lines if not key.startswith("#")}


def test_the_type_is_one_that_every_systemd_knows():
    settings = _settings()
    assert settings["Type"] in TYPES_OF_252
    assert settings["Type"] == "notify", "the daemon says READY=1, RELOADING=1 and STOPPING=1"


def test_reload_is_a_command_and_finds_the_daemon():
    """That a daemon which is told so reloads, and that the command fails when it does not, is in
    test_daemon.py."""
    settings = _settings()
    *words, socket = settings["ExecReload"].split()
    assert words == ["/usr/bin/enkaku", "target", "reload", "--socket"]
    said = re.search(r'^admin_socket = "(.*?)"', EXAMPLE.read_text(), re.MULTILINE)
    assert said and said[1] == socket
    assert socket.startswith(f"/run/{settings['RuntimeDirectory']}/")


@pytest.mark.needs("systemd-analyze")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_has_nothing_against_it(unit: Path, tmp_path: Path):
    """Its commands are replaced by ours, as they have to be there to be found right."""
    # A template is verified as one of its instances.
    installed = tmp_path / unit.name.replace("@.", "@test.")
    installed.write_text(unit.read_text().replace("/usr/bin/enkaku", str(enkaku.binary())))
    done = run([need("systemd-analyze"), "verify", "--man=no", installed], check=False)
    said = [line for line in done.stderr.splitlines() if installed.name in line]
    assert (done.code, said) == (0, []), done.stderr


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_its_command_is_one_that_there_is(unit: Path):
    """Options and subcommands are ours; what is wrong is told before anything is opened."""
    started = re.search(r"^ExecStart=/usr/bin/enkaku (.*)$", unit.read_text(), re.M)[1]
    commands = re.match(r"[a-z ]+", started)[0].split()
    told = enkaku.command(*commands, "--help").stdout
    assert f"Usage: enkaku {' '.join(commands)}" in told
    for option in re.findall(r"--[a-z-]+", started):
        assert option in told, option


def test_an_attached_volume_is_told_to_systemd(tmp_path: Path):
    """What is ordered behind enkaku-attach@ and enkaku-mirror@ finds it there."""
    address = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(address))
        listener.settimeout(20)
        with enkaku.serve(["mem:1M"], tmp_path) as target:
            front = tmp_path / "nbd.sock"
            argv = [enkaku.binary(), "attach", target.url(), "--nbd", front]
            environment = {**os.environ, "NOTIFY_SOCKET": str(address)}
            with peer(argv, tmp_path / "attach.log", env=environment):
                assert listener.recv(100).strip() == b"READY=1"
                assert front.is_socket(), "it is there by then"
