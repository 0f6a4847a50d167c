"""`cargo xtask dist`: what is in the packages, and that they come out the same again. What Debian makes of
one is looked at by scripts/test-package, which takes longer."""

import hashlib
import os
import re
from pathlib import Path

import pytest

from enkaku_lab import REPOSITORY
from enkaku_lab.peers import enkaku
from enkaku_lab.process import Completed, run

pytestmark = [pytest.mark.serial, pytest.mark.needs("dpkg-deb", "dpkg-shlibdeps", "objcopy", "readelf")]
VERSION = re.search(r'^version = "(.*)"', (REPOSITORY / "Cargo.toml").read_text(), re.M)[1]
EPOCH = "1764150000"
"""2025-11-26."""


def _xtask() -> list[object]:
    """As built, if nothing of it changed since, which does not wait for somebody's build to end."""
    built = REPOSITORY / "target/debug/xtask"
    of = [*(REPOSITORY / "xtask").rglob("*.rs"), REPOSITORY / "xtask/Cargo.toml"]
    if built.exists() and built.stat().st_mtime > max(path.stat().st_mtime for path in of):
        return [built]
    manifest = ["--manifest-path", REPOSITORY / "Cargo.toml"]
    return ["cargo", "run", "--quiet", "--locked", *manifest, "--package", "xtask", "--"]


def _dist(*words: object, check: bool = True) -> Completed:
    environment = {**os.environ, "SOURCE_DATE_EPOCH": EPOCH}
    return run([*_xtask(), "dist", *words], env=environment, check=check, timeout_s=600)


@pytest.fixture(scope="module")
def light(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ours with names but without lines, which take minutes to be packed."""
    binary = tmp_path_factory.mktemp("binary") / "enkaku"
    run(["objcopy", "--strip-debug", enkaku.binary(), binary])
    return binary


@pytest.fixture(scope="module")
def made(light: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    _dist("--binary", light, "--out", out / "first")
    return out / "first"


def _package(made: Path) -> Path:
    [package] = made.glob("enkaku_*.deb")
    return package


def test_it_is_the_same_again(made: Path, light: Path):
    again = made.parent / "second"
    told = _dist("--binary", light, "--out", again).stdout.split()
    sums = {}
    for folder in (made, again):
        files = sorted(path for path in folder.iterdir())
        sums[folder] = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    assert sums[made] == sums[again]
    assert sorted(told) == sorted(sums[made]), "everything that is there was told"
    run(["sh", "-c", 'cd "$0" && sha256sum --strict --check SHA256SUMS', made])


def test_the_package_has_the_places_of_debian(made: Path):
    package = _package(made)
    assert package.name.startswith(f"enkaku_{VERSION}-1_")
    fields = run(["dpkg-deb", "--field", package]).stdout
    assert re.search(r"^Depends: libc6 \(>= [\d.]+\), ", fields, re.M), fields
    listed = run(["dpkg-deb", "--contents", package]).stdout.splitlines()
    names = {line.split()[5] for line in listed}
    assert {
        "./usr/bin/enkaku",
        "./lib/systemd/system/enkaku-target.service",
        "./lib/systemd/system/enkaku-attach@.service",
        "./lib/systemd/system/enkaku-mirror@.service",
        "./lib/systemd/system/enkaku-monitor.service",
        "./usr/lib/sysusers.d/enkaku.conf",
        "./usr/lib/tmpfiles.d/enkaku.conf",
        "./usr/share/man/man1/enkaku-copy.1.gz",
        "./usr/share/bash-completion/completions/enkaku",
        "./usr/share/doc/enkaku/copyright",
        "./usr/share/doc/enkaku/examples/target.toml",
    } <= names
    assert not [line for line in listed if " root/root " not in line]
    assert not [name for name in names if name.startswith("./etc/")], "nothing to be asked about"
    assert not [line for line in listed if "2025-11-26" not in line], "one time for all"


def test_the_binary_is_stripped_and_its_symbols_are_apart(made: Path, tmp_path: Path):
    [symbols] = made.glob("*-symbols.tar.gz")
    [plain] = set(made.glob("enkaku-*.tar.gz")) - {symbols}
    stem = plain.name.removesuffix(".tar.gz")
    for archive in (plain, symbols):
        run(["tar", "-xf", archive, "-C", tmp_path])
    binary = tmp_path / stem / "bin/enkaku"
    sections = run(["readelf", "--wide", "--sections", binary]).stdout
    assert ".gnu_debuglink" in sections and ".symtab" not in sections
    debug = tmp_path / symbols.name.removesuffix(".tar.gz") / "enkaku.debug"
    assert ".symtab" in run(["readelf", "--wide", "--sections", debug]).stdout
    assert run([binary, "-V"]).stdout == f"enkaku {VERSION}\n"
    unit = (tmp_path / stem / "lib/systemd/system/enkaku-target.service").read_text()
    assert "ExecStart=/usr/local/bin/enkaku target run" in unit


def test_what_is_asked_for_wrongly_is_said(tmp_path: Path):
    done = _dist("--binary", tmp_path / "nowhere", check=False)
    assert done.code != 0 and "there is no such file" in done.stderr
    done = _dist("--fast", check=False)
    assert done.code != 0 and "usage: cargo xtask dist" in done.stderr
