"""`python -m enkaku_lab nfs-udp`: the NFS client of 2004, over UDP, for the guest.

Debian's kernels have UDP at the server and refuse it at the client (CONFIG_NFS_DISABLE_UDP_SUPPORT). Everything
else of it is there. So the client's module is built once more of Debian's own source of the same kernel, without
the lines that the option brings, and takes the place of the stock one in the image. It takes some minutes, gcc and
make, and 170 MB of packages that are unpacked into the cache of the guest. Without it the experiments say what the
stock client says.
"""

import argparse
import os
import re
import shutil
from pathlib import Path

from enkaku_lab.peers import guest_image, need
from enkaku_lab.process import LabError, run
from enkaku_lab.progress import say

OPTION = "CONFIG_NFS_DISABLE_UDP_SUPPORT"
SOURCE_PACKAGE = "linux-source-{series}"
MODULES = ("nfs.ko", "nfsv3.ko")
BUILD_S_MAX = 3600.0


def modules() -> tuple[Path, ...]:
    """Those that were built, for whatever kernel; the image takes those of its own."""
    return tuple(sorted((guest_image.cache_folder() / "nfs-udp").glob("*/*.ko")))


def main(arguments: list[str]) -> None:
    argparse.ArgumentParser(prog="enkaku_lab nfs-udp", description=__doc__).parse_args(arguments)
    kernel = guest_image.image().kernel_version
    folder = guest_image.cache_folder() / "nfs-udp" / kernel
    if all((folder / name).exists() for name in MODULES):
        print(f"there already: {folder}")
        return
    for name in build(kernel, folder):
        print(f"built: {name}")


def build(kernel: str, folder: Path) -> list[Path]:
    for program in ("make", "gcc", "tar"):
        need(program)
    work = folder / f"build.{os.getpid()}"
    try:
        say(f"unpacking source and headers of Linux {kernel} …")
        headers = _headers(kernel, work)
        source = _source(kernel, work)
        say("building the NFS client; some minutes …")
        # Without types for BPF, which would take pahole.
        words = ["-C", headers, f"M={source}", "CONFIG_NFS_V2=", "CONFIG_NFS_V4=", "CONFIG_DEBUG_INFO_BTF_MODULES=", "modules"]
        run([need("make"), f"-j{len(os.sched_getaffinity(0))}", *words], timeout_s=BUILD_S_MAX)
        made = []
        for name in MODULES:
            run([need("strip"), "--strip-debug", source / name])
            (source / name).replace(folder / name)
            made.append(folder / name)
        return made
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _headers(kernel: str, work: Path) -> Path:
    """The tree to build against, whose makefile names the place where it would be installed."""
    common = re.sub(r"-cloud-amd64$", "-common", kernel)
    kbuild = re.sub(r"-cloud-amd64$", "", kernel)
    names = [f"linux-headers-{kernel}", f"linux-headers-{common}", f"linux-kbuild-{kbuild}"]
    tree = work / "headers"
    for place in guest_image.unpacked(names):
        shutil.copytree(place / "files", tree, symlinks=True, dirs_exist_ok=True)
    ours = tree / "usr/src" / f"linux-headers-{kernel}"
    makefile = ours / "Makefile"
    makefile.write_text(makefile.read_text().replace("/usr/src/", f"{tree}/usr/src/"))
    return ours


def _source(kernel: str, work: Path) -> Path:
    """fs/nfs without the option's lines."""
    series = ".".join(kernel.split(".")[:2])
    (place,) = guest_image.unpacked([SOURCE_PACKAGE.format(series=series)])
    (archive,) = (place / "files/usr/src").glob("linux-source-*.tar.xz")
    tree = work / "source"
    tree.mkdir(parents=True)
    run([need("tar"), "-xJf", archive, "-C", tree, "--wildcards", "*/fs/nfs/*"], timeout_s=BUILD_S_MAX)
    (source,) = tree.glob("*/fs/nfs")
    changed = 0
    for path in source.glob("*.[ch]"):
        text = path.read_text()
        changed += text.count(OPTION)
        path.write_text(text.replace(OPTION, f"{OPTION}_NOT_HERE"))
    if not changed:
        raise LabError(f"the source of Linux {kernel} does not know {OPTION}")
    return source
