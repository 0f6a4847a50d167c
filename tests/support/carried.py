"""Programs of this machine for a guest: a disk that is an archive of them and of the libraries that they load."""

import os
import re
import tarfile
from pathlib import Path

from enkaku_lab.peers import enkaku, need
from enkaku_lab.peers.guest import Guest
from enkaku_lab.process import run

ENVIRONMENT = """
export LD_LIBRARY_PATH=/opt/lib:$LD_LIBRARY_PATH PATH=/opt/bin:$PATH
"""
"""Before an order that uses them."""


def carried(folder: Path, *names: str) -> Path:
    """A file to be the guest's /dev/vda, with `enkaku`, without its symbols, and programs that have these names here."""
    program = folder / "enkaku"
    run([need("strip"), "-o", program, enkaku.binary()])
    disk = folder / "carried.tar"
    libraries: set[str] = set()
    with tarfile.open(disk, "w") as archive:
        for path in (program, *(Path(need(name)) for name in names)):
            archive.add(os.path.realpath(path), arcname=f"bin/{path.name}")
            loads = run([need("ldd"), path], check=False).stdout
            libraries |= set(re.findall(r"(?:=> )?(/\S+\.so\S*) \(", loads))
        for path in libraries:
            archive.add(os.path.realpath(path), arcname=f"lib/{Path(path).name}")
    return disk


def unpack(guest: Guest) -> None:
    guest.run("mkdir /opt && tar xf /dev/vda -C /opt", 120)
