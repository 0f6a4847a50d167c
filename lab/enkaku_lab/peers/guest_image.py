"""What the guest boots: a stock Debian kernel, an initrd with open-iscsi and the kernel's modules.

The packages are downloaded with apt-get and unpacked into a cache folder; nothing is installed, so
neither the host's kernel nor an iSCSI service of its own is touched. The initrd is made once for
each kernel, set of packages and init script.
"""

import fcntl
import hashlib
import json
import lzma
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from enkaku_lab.peers import need
from enkaku_lab.process import LabError, run

KERNELS = ["linux-image-6.12-cloud-amd64", "linux-image-cloud-amd64"]
"""Metapackages, best first: Debian 12 has both (6.12 from backports, 6.1), Debian 13 the second."""
PROGRAMS_PACKAGES = ["open-iscsi", "libopeniscsiusr", "libisns0", "libkmod2"]
"""What open-iscsi needs and an ordinary Debian machine may lack. Installing it would bring udev,
systemd and a service that runs on the host."""
MODULES = [
    "virtio_pci",
    "virtio_console",
    "virtio_net",
    "virtio_blk",
    "virtio_rng",
    "crc32c_intel",
    "sd_mod",
    "iscsi_tcp",
    "iscsi_target_mod",
    "target_core_file",
    "tcp_diag",
    "sch_netem",
]
HOST_PROGRAMS = ["busybox", "mke2fs", "e2fsck"]
GUEST_PROGRAMS = ["sbin/iscsid", "sbin/iscsiadm"]


@dataclass(frozen=True)
class Recipe:
    """What is in an image beside what every one has. Programs are `PACKAGE/path/in/it`."""

    kernels: tuple[str, ...] = tuple(KERNELS)
    packages: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    own: tuple[Path, ...] = ()
    """Programs of this machine, beside HOST_PROGRAMS."""
    replaced: tuple[Path, ...] = ()
    """Modules that are loaded in place of the kernel's, those among them that are of its version."""


STOCK = Recipe()
OLD_S = 86400
INIT = Path(__file__).with_name("guest_init.sh")
LIBRARIES = "usr/lib/x86_64-linux-gnu"


class NoImage(LabError):
    """The guest cannot be had on this machine; the message says what is missing."""


@dataclass(frozen=True)
class Image:
    """Files to boot, and the version of the kernel and open-iscsi in them."""

    kernel: Path
    initrd: Path
    kernel_version: str
    open_iscsi_version: str

    @classmethod
    def read(cls, record: Path) -> "Image":
        kernel, initrd, *versions = json.loads(record.read_text())
        return cls(Path(kernel), Path(initrd), *versions)

    def write(self, record: Path) -> None:
        paths = [str(self.kernel), str(self.initrd)]
        record.write_text(json.dumps([*paths, self.kernel_version, self.open_iscsi_version]))


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "enkaku" / "guest"


def image(recipe: Recipe = STOCK) -> Image:
    """The image from the cache, made first when it is not there; newer packages are not looked for.

    Removing the cache folder makes the next call download what is current.
    """
    try:
        host = [*(Path(need(name)) for name in HOST_PROGRAMS), *recipe.own]
    except LabError as missing:
        raise NoImage(str(missing)) from None
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / "lock"):
        record = folder / f"image-{_made_of(host, recipe)}.json"
        if record.exists():
            kept = Image.read(record)
            if kept.kernel.exists() and kept.initrd.exists():
                return kept
        _forget_old(folder)
        made = _make(folder, host, recipe)
        made.write(record)
        return made


def _forget_old(folder: Path) -> None:
    """Removes former images; not the newest ones, which another checkout may be about to boot."""
    for kind in ("image-*.json", "initrd-*.cpio"):
        for old in folder.glob(kind):
            if time.time() - old.stat().st_mtime > OLD_S:
                old.unlink()


def _made_of(host: list[Path], recipe: Recipe) -> str:
    """Changes when the init script, this file, the recipe or a program of the host does."""
    digest = hashlib.sha256(INIT.read_bytes() + Path(__file__).read_bytes())
    if recipe != STOCK:
        digest.update(repr(recipe).encode())
    for path in host:
        digest.update(f"{path} {path.stat().st_mtime_ns}".encode())
    return digest.hexdigest()[:16]


def _make(folder: Path, host: list[Path], recipe: Recipe) -> Image:
    try:
        for program in ("apt-get", "apt-cache", "dpkg-deb", "dpkg", "ldd"):
            need(program)
    except LabError as missing:
        raise NoImage(str(missing)) from None
    architecture = run(["dpkg", "--print-architecture"]).stdout.strip()
    if architecture != "amd64":
        raise NoImage(f"the guest is built from amd64 packages, this machine is {architecture}")
    names = [_kernel_package(folder, recipe), *PROGRAMS_PACKAGES, *recipe.packages]
    packages = unpacked(names)
    return _built(folder, packages, host, recipe)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One builder at a time; a second one finds the first one's work."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _kernel_package(folder: Path, recipe: Recipe) -> str:
    """The package with the files, on which the metapackage depends."""
    depends = _apt(folder, "apt-cache", "depends", *recipe.kernels).stdout
    if real := re.search(r"Depends: (linux-image-\S+)", depends):
        return real[1]
    raise NoImage(f"apt knows none of {', '.join(recipe.kernels)}")


def unpacked(names: list[str]) -> list[Path]:
    """Folders with the packages' files: downloaded and unpacked unless they are there."""
    folder = cache_folder()
    shown = _apt(folder, "apt-cache", "show", "--no-all-versions", *names).stdout
    versions = dict(re.findall(r"^Package: (\S+)$.*?^Version: (\S+)$", shown, re.M | re.S))
    if absent := [name for name in names if name not in versions]:
        raise NoImage(f"apt does not know {', '.join(absent)}")
    places = []
    for name in names:
        place = folder / f"{name}_{versions[name]}".replace(":", "%")
        if not place.is_dir():
            partial = place.with_name(place.name + ".partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            _download(name, partial, folder)
            run(["dpkg-deb", "-x", next(partial.glob("*.deb")), partial / "files"])
            partial.rename(place)
        places.append(place)
    return places


def _download(package: str, where: Path, folder: Path) -> None:
    """Into `where`. When the machine's lists are older than the archive, with lists of our own."""
    words = ["apt-get", "download", package]
    if _apt(folder, *words, where=where, own_lists=False).code == 0:
        return
    updated = _apt(folder, "apt-get", "update", own_lists=True)
    tried = _apt(folder, *words, where=where, own_lists=True)
    if tried.code != 0:
        why = (tried.stderr or updated.stderr).strip().splitlines()
        raise NoImage(f"{package} cannot be downloaded: {why[-1] if why else 'apt-get failed'}")


def _apt(folder: Path, *words: str, where: Path | None = None, own_lists: bool | None = None):
    """An apt command. `own_lists=None` takes the cache folder's lists once they have been made."""
    lists = folder / "apt" / "lists"
    if own_lists is None:
        own_lists = lists.is_dir() and not _machine_has_lists()
    options: list[object] = ["-q", "-o", "APT::Sandbox::User="]
    if own_lists:
        (lists / "partial").mkdir(parents=True, exist_ok=True)
        options += ["-o", f"Dir::State::Lists={lists}", "-o", f"Dir::Cache={folder / 'apt'}"]
    program, *rest = words
    argv = [need(program), *options, *rest]
    if where:
        # apt-get download writes into its working directory.
        argv = [need("env"), "-C", where, *argv]
    return run(argv, timeout_s=300, check=False)


def _machine_has_lists() -> bool:
    return any(Path("/var/lib/apt/lists").glob("*_Packages*"))


def _built(folder: Path, packages: list[Path], host: list[Path], recipe: Recipe) -> Image:
    kernel, *programs = packages
    vmlinuz = next((kernel / "files" / "boot").glob("vmlinuz-*"))
    version = vmlinuz.name.removeprefix("vmlinuz-")
    archive = _Cpio()
    theirs = [programs[0] / "files" / path for path in GUEST_PROGRAMS]
    for program in recipe.programs:
        package, _, path = program.partition("/")
        found = next(place for place in programs if place.name.startswith(f"{package}_"))
        theirs.append(found / "files" / path)
    _add_programs(archive, programs, [*host, *theirs])
    modules = kernel / "files" / "lib" / "modules" / version
    _add_modules(archive, modules, [*MODULES, *recipe.modules], _of_version(recipe.replaced, version))
    archive.add("init", INIT.read_bytes(), executable=True)
    content = archive.finished()
    initrd = folder / f"initrd-{hashlib.sha256(content).hexdigest()[:16]}.cpio"
    partial = initrd.with_suffix(".partial")
    partial.write_bytes(content)
    partial.rename(initrd)
    return Image(vmlinuz, initrd, version, programs[0].name.partition("_")[2].replace("%", ":"))


def _add_programs(archive: "_Cpio", packages: list[Path], programs: list[Path]) -> None:
    """Programs under /sbin with the libraries that they load, at the paths where they are found."""
    roots = [package / "files" for package in packages]
    search = ":".join(str(root / LIBRARIES) for root in roots)
    for program in programs:
        where = "bin" if program.name == "busybox" else "sbin"
        archive.add(f"{where}/{program.name}", program.read_bytes(), executable=True)
        loads = run([need("ldd"), program], env={"LD_LIBRARY_PATH": search}, check=False).stdout
        if absent := re.search(r"(\S+) => not found", loads):
            raise NoImage(f"{program.name} needs {absent[1]}, which is not on this machine")
        for found in re.findall(r"(?:=> )?(/\S+\.so\S*) \(", loads):
            library = Path(found)
            inside = "lib64" if library.name.startswith("ld-linux") else LIBRARIES
            archive.add(f"{inside}/{library.name}", library.read_bytes(), executable=True)


def _of_version(modules: tuple[Path, ...], kernel: str) -> list[Path]:
    """Those that this kernel would load."""
    return [path for path in modules if b"\0vermagic=" + kernel.encode() + b" " in path.read_bytes()]


def _add_modules(archive: "_Cpio", folder: Path, names: list[str], replaced: list[Path]) -> None:
    """The modules and those they depend on, and /etc/modules in the order to load them."""
    files = {_module_name(path): path for path in [*folder.rglob("*.ko*"), *replaced]}
    order: list[str] = []

    def add(name: str) -> None:
        if name in order or name not in files:  # absent: built into the kernel
            return
        path = files[name]
        code = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
        for dependency in _module_dependencies(code):
            add(dependency)
        order.append(name)
        archive.add(f"lib/modules/{name}.ko", code)

    for name in names:
        add(name)
    archive.add("etc/modules", "\n".join(order).encode() + b"\n")


def _module_name(path: Path) -> str:
    return path.name.partition(".ko")[0].replace("-", "_")


def _module_dependencies(code: bytes) -> list[str]:
    """Names from the module's own `depends=` and `softdep=pre:`, as modprobe would load them."""
    found = b",".join(re.findall(rb"\0depends=([^\0]+)\0", code))
    for before in re.findall(rb"\0softdep=pre: ([^\0]+)\0", code):
        found += b"," + before.replace(b" ", b",")
    names = found.decode().replace("-", "_").split(",")
    return [name for name in names if name and ":" not in name]


class _Cpio:
    """An archive in the format `newc`, which is what the kernel unpacks."""

    def __init__(self) -> None:
        self._content = bytearray()
        self._paths: set[str] = set()

    def add(self, path: str, content: bytes, executable: bool = False) -> None:
        if path in self._paths:
            return
        parts = path.split("/")[:-1]
        for depth in range(1, len(parts) + 1):
            folder = "/".join(parts[:depth])
            if folder not in self._paths:
                self._entry(folder, stat.S_IFDIR | 0o755, b"")
        self._entry(path, stat.S_IFREG | (0o755 if executable else 0o644), content)

    def finished(self) -> bytes:
        self._entry("TRAILER!!!", 0, b"")
        return bytes(self._content)

    def _entry(self, path: str, mode: int, content: bytes) -> None:
        self._paths.add(path)
        name = path.encode() + b"\0"
        fields = [len(self._paths), mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name), 0]
        header = b"070701" + b"".join(b"%08X" % field for field in fields)
        for part in (header + name, content):
            self._content += part
            self._content += bytes(-len(self._content) % 4)
