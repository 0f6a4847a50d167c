"""contrib/enkaku-target.service: what systemd makes of it, from 252 on."""

import re
from pathlib import Path

import pytest

from enkaku_lab import REPOSITORY
from enkaku_lab.peers import enkaku, need
from enkaku_lab.process import run

UNIT = REPOSITORY / "contrib/enkaku-target.service"
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
def test_systemd_has_nothing_against_it(tmp_path: Path):
    """Its commands are replaced by ours, as they have to be there to be found right."""
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/usr/bin/enkaku", str(enkaku.binary())))
    done = run([need("systemd-analyze"), "verify", "--man=no", unit], check=False)
    said = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert (done.code, said) == (0, []), done.stderr
