"""contrib/ansible/enkaku_target: the role in a folder of its own, with a real daemon that is told to
reload. Ansible comes from PyPI."""

import json
import re
import sys
import tomllib
from pathlib import Path

import pytest
from support import from_pypi
from support.daemon import NAME_A, Daemon, target

from enkaku_lab import REPOSITORY
from enkaku_lab.peers import enkaku
from enkaku_lab.process import Completed, run

pytestmark = pytest.mark.needs("root", "runuser")
ROLES = REPOSITORY / "contrib/ansible"
PLAY_S_MAX = 300


@pytest.fixture(scope="module")
def ansible(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("ansible")
    return from_pypi.installed(place, "ansible-core>=2.14,<3").with_name("ansible-playbook")


class Role:
    """The role with a daemon that no unit runs."""

    def __init__(self, ansible: Path, daemon: Daemon):
        self.ansible, self.daemon = ansible, daemon
        self.folder = daemon.folder / "target.d"

    def play(self, *words: str, check: bool = True, **variables: object) -> Completed:
        own = self.daemon.folder
        play = {"hosts": "localhost", "connection": "local", "gather_facts": False}
        play["vars"] = {
            "ansible_python_interpreter": sys.executable, "enkaku_target_binary": str(enkaku.binary()),
            "enkaku_target_config": str(self.daemon.config), "enkaku_target_service": "",
            "enkaku_target_socket": str(self.daemon.socket), "enkaku_target_user": "root",
            "enkaku_target_group": "root",
        } | {f"enkaku_target_{name}": value for name, value in variables.items()}
        book = own / "play.yml"
        book.write_text(json.dumps([play | {"roles": ["enkaku_target"]}]))
        env = {
            "ANSIBLE_ROLES_PATH": str(ROLES), "ANSIBLE_HOME": str(own / "ansible"), "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_LOCALHOST_WARNING": "0", "LC_ALL": "C.UTF-8",
        }
        argv = [self.ansible, "-i", "localhost,", *words, book]
        return run(argv, env=env, check=check, timeout_s=PLAY_S_MAX)

    def files(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("*"))

    def luns(self) -> dict[int, str]:
        listed = json.loads(self.daemon.ask("lun", "list", "--json").stdout)
        return {one["lun"]: one.get("name") or "" for one in listed}


@pytest.fixture
def role(ansible: Path, daemon: Daemon) -> Role:
    return Role(ansible, daemon)


def changed(done: Completed) -> int:
    return int(re.search(r"changed=(\d+)", done.stdout)[1])


def disk(number: int, **more: object) -> dict:
    lun = {"number": number, "path": "mem:1M", **more}
    return {"target": [{"name": NAME_A, "lun": [lun]}]}


def test_disks_come_and_go_by_a_reload(role: Role):
    daemon = role.daemon
    daemon.write(target(NAME_A, "mem:1M"))
    daemon.start()
    daemon.ask("lun", "add", "own", "--path", "mem:1M", "--lun", "9")
    wanted = {"vm1": disk(1), "vm2": disk(2, read_only=True)}
    first = role.play(drop_ins=wanted)
    assert changed(first) > 0
    assert set(role.luns()) == {0, 1, 2, 9}
    assert changed(role.play(drop_ins=wanted)) == 0, "the second time there is nothing to do"

    told = role.play("--check", "--diff", drop_ins={"vm1": disk(1), "vm3": disk(3)})
    assert changed(told) > 0 and "number = 3" in told.stdout
    assert set(role.luns()) == {0, 1, 2, 9}, "only told"

    role.play(drop_ins={"vm1": disk(1)})
    assert role.files() == ["lun-own.toml", "vm1.toml"]
    assert set(role.luns()) == {0, 1, 9}
    assert not list(daemon.folder.glob(".ansible-*"))


def test_what_the_daemon_would_refuse_is_not_written(role: Role):
    daemon = role.daemon
    daemon.write(target(NAME_A, "mem:1M"))
    daemon.start()
    daemon.ask("lun", "add", "own", "--path", "mem:1M", "--lun", "9")
    wrong = role.play(drop_ins={"vm1": disk(1, blocksize=512)}, check=False)
    assert wrong.code != 0 and "blocksize" in wrong.stdout and "block_size" in wrong.stdout
    foreign = role.play(drop_ins={"lun-own": disk(1)}, check=False)
    assert foreign.code != 0 and "not written by this role" in foreign.stdout
    outside = role.play(drop_ins={"../vm1": disk(1)}, check=False)
    assert outside.code != 0 and "a letter or digit first" in outside.stdout
    kind = role.play(drop_ins=["vm1"], check=False)
    assert kind.code != 0 and "enkaku_target_drop_ins" in kind.stdout
    assert role.files() == ["lun-own.toml"] and set(role.luns()) == {0, 9}
    assert not list(daemon.folder.glob(".ansible-*"))


def test_tables_are_written_as_they_are_meant(role: Role):
    daemon = role.daemon
    settings = {
        "server": {"admin_socket": str(daemon.socket), "shutdown_timeout": "5s", "log": None},
        "limits": {"sessions": 32},
        "chap": {"über \"allem\"": {"user": "operator", "password_file": f"{daemon.folder}/operator.secret"}},
        "portal": [{"name": "lan", "listen": daemon.portal}],
        "target": [
            {
                "name": NAME_A, "alias": 'a "quoted" \\ ü 🙂\n', "portals": ["lan"], "anyone": True,
                "parameters": {"max_connections": 4},
                "lun": [{"number": 0, "path": "mem:1M"}, {"number": 1, "path": "mem:1M", "read_only": True}],
            },
            {"name": f"{NAME_A}2", "anyone": False},
        ],
    }
    secret = [{"name": "operator", "secret": "0123456789abcdef"}]
    # There is no daemon yet that could be told.
    told = role.play(settings=settings, secrets=secret, check=False)
    assert "0123456789abcdef" not in told.stdout + told.stderr
    del settings["server"]["log"]
    assert tomllib.loads(daemon.config.read_text()) == settings
    assert (daemon.folder / "operator.secret").read_text() == "0123456789abcdef\n"
    assert (daemon.folder / "operator.secret").stat().st_mode & 0o777 == 0o640
