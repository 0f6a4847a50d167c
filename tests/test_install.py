"""`make install`, and what `make build` asks of a machine."""

import os
import re
import stat
from pathlib import Path

import pytest

from enkaku_lab import REPOSITORY
from enkaku_lab.peers import enkaku
from enkaku_lab.process import run


def _make(*words: object, check: bool = True):
    return run(["make", "-s", "-C", REPOSITORY, *words], check=check)


def _files(folder: Path) -> dict[str, Path]:
    return {f"/{path.relative_to(folder)}": path for path in folder.rglob("*") if path.is_file()}


def test_everything_is_below_the_prefix_and_goes_again(tmp_path: Path):
    where = [f"ENKAKU_BIN={enkaku.binary()}", f"DESTDIR={tmp_path}", "PREFIX=/opt/enkaku"]
    _make("install", *where)
    files = _files(tmp_path)
    assert all(name.startswith("/opt/enkaku/") for name in files)
    binary = files["/opt/enkaku/bin/enkaku"]
    assert run([binary, "--version"]).stdout.startswith("enkaku ")
    units = [path for name, path in files.items() if name.endswith(".service")]
    assert {path.name for path in units} == {
        path.name for path in (REPOSITORY / "contrib").glob("*.service")
    }
    for unit in units:
        started = re.findall(r"^Exec\w+=(\S+)", unit.read_text(), re.MULTILINE)
        assert set(started) == {"/opt/enkaku/bin/enkaku"}, unit.name
    for name, path in files.items():
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o755 if "/bin/" in name else 0o644), name
    _make("uninstall", *where)
    assert not _files(tmp_path)


@pytest.mark.parametrize(
    "words, said",
    [
        (["PREFIX=usr"], "an absolute path is needed"),
        (["ENKAKU_BIN=/nowhere/enkaku", "PREFIX=/usr"], "`make build` makes it"),
    ],
)
def test_what_cannot_be_installed_is_said(words: list[str], said: str, tmp_path: Path):
    done = _make("install", f"DESTDIR={tmp_path}", *words, check=False)
    assert done.code != 0 and said in done.stderr, done
    assert not _files(tmp_path)


def test_building_installs_no_package(tmp_path: Path):
    """Whoever would become root or fetch a package leaves a mark."""
    for name in ("apt-get", "sudo"):
        tool = tmp_path / name
        tool.write_text(f"#!/bin/sh\ntouch {tmp_path}/called\nexit 1\n")
        tool.chmod(0o755)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = run([REPOSITORY / "scripts/setup", "build"], env={**os.environ, **path}, check=False)
    assert done.code == 0, done.stderr
    assert not (tmp_path / "called").exists()
    done = run([REPOSITORY / "scripts/setup", "everything"], check=False)
    assert done.code == 2 and "build, demo, media, test and lab" in done.stderr


def test_each_package_is_in_one_group_and_says_what_for():
    groups: dict[str, list[str]] = {}
    for line in (REPOSITORY / "packages.txt").read_text().splitlines():
        line = line.partition("#")[0].strip()
        if line.startswith("["):
            group = groups.setdefault(line.strip("[]"), [])
        elif line:
            name, what = line.split(maxsplit=1)
            group.append(name)
            assert what
    assert set(groups) == {"build", "demo", "media", "test", "lab"}
    names = sum(groups.values(), [])
    assert len(names) == len(set(names))
