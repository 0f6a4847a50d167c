"""Open MPI: how its programs are started here, in the words of the version that is installed.

Ranks give their processor up while they wait (`mpi_yield_when_idle`): there are more of them than
processors, and one that spins keeps from them what they wait for, the emulated line for instance.
"""

import functools
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from enkaku_lab.peers import need
from enkaku_lab.process import LabError, run

PROGRAMS = ("mpifort", "mpirun", "ompi_info", "make")
ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_ALLOW_RUN_AS_ROOT": "1",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}


@dataclass(frozen=True)
class OpenMpi:
    """An installation. `io` has the components of MPI-IO by their names in reports."""

    major: int
    io: dict[str, str]

    def local(self, ranks: int) -> list[object]:
        """The words before a program: so many ranks on this host, which talk through memory."""
        memory = "vader" if self.major < 5 else "sm"
        words = [need("mpirun"), "--oversubscribe", "--bind-to", "none", "-n", ranks]
        words += ["--mca", "pml", "ob1", "--mca", "btl", f"self,{memory}"]
        # Reading another process's memory is refused in containers, and each try says so.
        words += ["--mca", f"btl_{memory}_single_copy_mechanism", "none"]
        return [*words, *self.quiet()]

    def across(self, hosts: list[str], ranks: int, network: str, agent: Path) -> list[object]:
        """The same on several hosts, so many ranks on each, in this order; they talk by TCP over a
        network (as 10.77.0.0/24). `agent` is called with a host and a command, as ssh would be."""
        words = [need("mpirun"), "--host", ",".join(f"{host}:{ranks}" for host in hosts)]
        words += ["--bind-to", "none", "-n", len(hosts) * ranks]
        words += ["--mca", "pml", "ob1", "--mca", "btl", "tcp,self"]
        words += ["--mca", "btl_tcp_if_include", network]
        # OMPIO's others make a file that all hosts must see, for pointers that nobody here shares.
        words += ["--mca", "sharedfp", "individual"]
        if self.major < 5:
            words += ["--mca", "plm", "rsh", "--mca", "plm_rsh_agent", agent]
            words += ["--mca", "plm_rsh_no_tree_spawn", "1", "--mca", "oob_tcp_if_include", network]
        else:
            words += ["--prtemca", "plm", "ssh", "--prtemca", "plm_ssh_agent", agent]
            words += ["--prtemca", "plm_ssh_no_tree_spawn", "1"]
            words += ["--prtemca", "prte_if_include", network]
        return [*words, *self.quiet()]

    def quiet(self) -> list[object]:
        return ["--mca", "mpi_yield_when_idle", "1"]

    def mpi_io(self, name: str) -> list[object]:
        """MPI-IO by OMPIO or ROMIO."""
        if name not in self.io:
            raise LabError(f"this Open MPI has no {name}; it has {', '.join(self.io) or 'none'}")
        return ["--mca", "io", self.io[name]]


def missing() -> str | None:
    """Why nothing of it can be built or run here, or None."""
    for program in PROGRAMS:
        if not shutil.which(program):
            return f"{program} is not installed (packages.txt)"
    return None


@functools.cache
def installed() -> OpenMpi:
    if reason := missing():
        raise LabError(reason)
    said = run([need("ompi_info"), "--parsable", "--all"], env=ENVIRONMENT).stdout
    version = re.search(r"^ompi:version:full:(\d+)", said, re.M)
    if version is None:
        raise LabError("the MPI that is installed is not Open MPI (ompi_info names no version)")
    components = re.findall(r"^mca:io:(\w+):version", said, re.M)
    names = {"OMPIO": "ompio", "ROMIO": "romio"}
    found = {
        name: component
        for name, prefix in names.items()
        for component in components
        if component.startswith(prefix)
    }
    return OpenMpi(int(version[1]), found)
