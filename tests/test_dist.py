"""`cargo xtask dist`: what is in the packages, and that they come out the same again. What Debian makes of
one is looked at by scripts/test-package, which takes longer."""

import gzip
import hashlib
import json
import re
import zlib
from pathlib import Path

import pytest
from support import from_pypi

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


def _dist(*words: object, check: bool = True, umask: str = "022", **variables: str) -> Completed:
    argv = ["sh", "-c", f'umask {umask}; exec "$@"', "sh", *_xtask(), "dist", *words]
    return run(argv, env={"SOURCE_DATE_EPOCH": EPOCH, **variables}, check=check, timeout_s=600)


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


def _of(made: Path, ending: str) -> Path:
    [file] = made.glob(f"enkaku-*{ending}")
    return file


def _binary(made: Path, folder: Path) -> Path:
    run(["tar", "-xf", _of(made, "-linux.tar.gz"), "-C", folder])
    [binary] = folder.glob("*/bin/enkaku")
    return binary


def test_it_is_the_same_again(made: Path, light: Path):
    """Elsewhere on the earth, for a user who hides files from others. That a build is the same, too, is
    found out by `cargo xtask dist --compare`, which takes two builds."""
    again = made.parent / "the-second-one"
    told = _dist("--binary", light, "--out", again, umask="077", TZ="Asia/Tokyo").stdout.split()
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
    symbols = _of(made, "-symbols.tar.gz")
    binary = _binary(made, tmp_path)
    run(["tar", "-xf", symbols, "-C", tmp_path])
    sections = run(["readelf", "--wide", "--sections", binary]).stdout
    assert ".gnu_debuglink" in sections and ".symtab" not in sections
    debug = tmp_path / symbols.name.removesuffix(".tar.gz") / "enkaku.debug"
    assert ".symtab" in run(["readelf", "--wide", "--sections", debug]).stdout
    assert run([binary, "-V"]).stdout == f"enkaku {VERSION}\n"
    unit = (binary.parent.parent / "lib/systemd/system/enkaku-target.service").read_text()
    assert "ExecStart=/usr/local/bin/enkaku target run" in unit


def test_the_list_tells_what_is_linked(made: Path, tmp_path: Path):
    bill = json.loads(_of(made, ".cdx.json").read_text())
    product = bill["metadata"]["component"]
    binary = _binary(made, tmp_path)
    digest = hashlib.sha256(binary.read_bytes()).hexdigest()
    assert product["hashes"] == [{"alg": "SHA-256", "content": digest}]
    assert bill["metadata"]["timestamp"] == "2025-11-26T09:40:00Z"
    assert [tool["name"] for tool in bill["metadata"]["tools"]["components"]] == ["rustc"]
    told = {(one["name"], one["version"]) for one in [product, *bill["components"]]}
    assert len(told) == len(bill["components"]) + 1
    assert ("enkaku-iscsi-proto", VERSION) in told and "tokio" in dict(told)
    assert str(REPOSITORY) not in json.dumps(bill)
    section = tmp_path / "section"
    run(["objcopy", f"--dump-section=.dep-v0={section}", binary, tmp_path / "copy"])
    inside = json.loads(zlib.decompress(section.read_bytes()))["packages"]
    assert {(one["name"], one["version"]) for one in inside} == told


def test_the_list_is_one_to_cyclonedx(made: Path, tmp_path: Path):
    """By the format's own library, with its schema and each name that refers to another."""
    python = from_pypi.installed(tmp_path / "cyclonedx", "cyclonedx-python-lib[json-validation]>=11,<12")
    check = """
import sys
from cyclonedx.model.bom import Bom
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
import json
text = open(sys.argv[1]).read()
assert not (wrong := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)), wrong
bill = Bom.from_json(json.loads(text))
assert bill.validate()
print(len(bill.components))
"""
    bill = _of(made, ".cdx.json")
    told = run([python, "-c", check, bill], check=False)
    assert told.code == 0, told.stderr
    assert int(told.stdout) == len(json.loads(bill.read_text())["components"])


@pytest.mark.needs("root", "chroot")
def test_the_image_runs_alone(made: Path, tmp_path: Path):
    archive, files = tmp_path / "archive", tmp_path / "files"
    for folder in (archive, files):
        folder.mkdir()
    run(["tar", "-xf", _of(made, ".oci.tar"), "-C", archive])

    def named(by: dict) -> bytes:
        content = (archive / "blobs" / by["digest"].replace(":", "/")).read_bytes()
        assert by["digest"] == f"sha256:{hashlib.sha256(content).hexdigest()}"
        assert by["size"] == len(content)
        return content

    assert json.loads((archive / "oci-layout").read_text()) == {"imageLayoutVersion": "1.0.0"}
    [image] = json.loads((archive / "index.json").read_text())["manifests"]
    manifest = json.loads(named(image))
    config = json.loads(named(manifest["config"]))
    [layer] = manifest["layers"]
    unpacked = gzip.decompress(named(layer))
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(unpacked).hexdigest()}"]
    (tmp_path / "layer.tar").write_bytes(unpacked)
    run(["tar", "-xf", tmp_path / "layer.tar", "--same-owner", "-C", files])
    user = config["config"]["User"]
    assert (files / "var/lib/enkaku").stat().st_uid == int(user.split(":")[0]) != 0
    assert (files / "usr/bin/enkaku").stat().st_uid == 0
    assert not list(files.glob("**/sh")), "no shell"
    alone = run(["chroot", f"--userspec={user}", files, *config["config"]["Entrypoint"], "--version"])
    assert alone.stdout.startswith(f"enkaku {VERSION}\n")


def test_what_is_asked_for_wrongly_is_said(tmp_path: Path):
    done = _dist("--binary", tmp_path / "nowhere", check=False)
    assert done.code != 0 and "there is no such file" in done.stderr
    done = _dist("--fast", check=False)
    assert done.code != 0 and "usage: cargo xtask dist" in done.stderr
    done = _dist("--compare", "--binary", REPOSITORY / "Cargo.toml", check=False)
    assert done.code != 0 and "builds the binary itself" in done.stderr
