"""A small cluster on this machine: compute nodes that talk by MPI, each with a volume of its own.

Every node is a node of a star of `enkaku wan`: a network namespace, and around it a host name and
mounts that nobody else sees, so that all nodes have their volume under one path. A compute node's
volume is a file of its own (`local`), or a disk of one target node, attached by iSCSI over the
network of the messages (`merged`) or over another one (`separate`). It is ext4 on a loop device in
all three.
"""

import argparse
import os
import shlex
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from enkaku_lab import wan
from enkaku_lab.peers import disk_url, enkaku, need, openmpi
from enkaku_lab.process import Completed, LabError, Peer, peer, run

LOCAL, SEPARATE, MERGED = "local", "separate", "merged"
SHAPES = (LOCAL, SEPARATE, MERGED)
MESSAGES, STORAGE = "10.77.0", "10.78.0"
"""The networks of a star, without the node's number."""
LATE = 0.05
"""With the emulator late for more of the time a number tells of the machine, not of the network."""
PORT = 3270
END_S = 60.0
PROGRAMS = (*openmpi.PROGRAMS, "mkfs.ext4", "losetup", "nsenter", "unshare", "fusermount3")
AGENT = """#!/bin/sh
# HOST COMMAND...: runs a command at a node, as ssh would.
case $1 in
{cases}
*) echo "no node is called $1" >&2; exit 1 ;;
esac
shift
exec $enter sh -c "$*"
"""


@dataclass(frozen=True)
class Line:
    """Of every node to the switch and back."""

    rate: str = "1gbit"
    rtt: str = "100us"
    queue: str = "256k"
    classes: str = ""
    """Of marks, as `enkaku wan up --classes` takes them; one queue for all where it is empty."""

    def words(self) -> list[object]:
        words = ["--rate", self.rate, "--rtt", self.rtt, "--queue", self.queue]
        return [*words, *(["--classes", self.classes] if self.classes else [])]


class Node:
    """One node, for as long as its keeper runs, which does nothing else."""

    def __init__(self, lab: wan.Lab, number: int, logs: Path):
        self.number, self.name = number, f"node{number}"
        alone = ["unshare", "--uts", "--mount", "--propagation", "private"]
        keep = 'hostname "$0"; echo ready; exec sleep infinity'
        argv = lab.exec(self.name, [*alone, "sh", "-c", keep, self.name])
        self._keeper = Peer(argv, logs / f"{self.name}.log")
        self._keeper.wait_for_output("ready")

    def inside(self, argv: list[object]) -> list[object]:
        """The command that runs a command at the node."""
        entered = ["--mount", "--uts", "--net"]
        return [need("nsenter"), "--target", self._keeper.pid, *entered, "--", *argv]

    def seen(self, path: Path) -> Path:
        """What the node sees at a path."""
        return Path(f"/proc/{self._keeper.pid}/root{path}")

    def end(self) -> None:
        self._keeper.kill()


@dataclass(frozen=True)
class Seen:
    """What the lines have carried so far, and how the emulator fared."""

    at_s: float
    carried: tuple[int, ...]
    """Bytes of packets that came to the switch of each network."""
    dropped: int
    """Packets that found a line's queue full."""
    cpu_s: float
    waited_s: float
    """The emulator was to run, and had no processor."""

    def since(self, before: "Seen") -> "Seen":
        carried = (now - then for now, then in zip(self.carried, before.carried, strict=True))
        return Seen(
            self.at_s - before.at_s,
            tuple(carried),
            self.dropped - before.dropped,
            self.cpu_s - before.cpu_s,
            self.waited_s - before.waited_s,
        )

    @property
    def late(self) -> float:
        """The part of the time in which the line was late, because of this machine."""
        return self.waited_s / self.at_s


@dataclass
class Volume:
    """A file system at a node. It is on a file, which is there already or comes by iSCSI."""

    node: Node
    mount: Path
    file: Path
    attached: Peer | None = None

    def make(self) -> None:
        """An empty file system."""
        # Nothing may be left for later, where it would be measured.
        options = ["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"]
        run(self.node.inside([need("mkfs.ext4"), *options, self.file]))

    def use(self) -> None:
        losetup = [need("losetup"), "--find", "--show", "--direct-io=on", self.file]
        device = run(self.node.inside(losetup)).stdout.strip()
        try:
            run(self.node.inside(["mount", device, self.mount]))
        finally:
            # It stays for as long as it is mounted, and no longer, however that ends.
            run(self.node.inside([need("losetup"), "--detach", device]))

    def leave(self) -> None:
        """Unmounted and detached: who attaches the disk elsewhere finds all that was written."""
        run(self.node.inside(["umount", self.mount]))
        if self.attached is None:
            return
        self.attached.signal(2)
        if code := self.attached.wait(END_S):
            raise LabError(f"attach ended with {code}: {self.attached.output()[-1000:]}")


@dataclass
class Cluster:
    """`volumes` are the compute nodes', in their order, once they are in use."""

    lab: wan.Lab
    shape: str
    folder: Path
    computing: list[Node]
    disks: list[Path]
    options: list[object]
    """Of `enkaku attach`."""
    targets: list[Peer] = field(default_factory=list)
    """In the order of the disks; none where disks are local."""
    volumes: list[Volume] = field(default_factory=list)

    @property
    def mount(self) -> Path:
        """Where every node has its volume."""
        return self.folder / "volume"

    def attach(self, order: list[int], *, fresh: bool = False) -> None:
        """Each compute node uses the disk that stands in its place in the order."""
        for node, disk in zip(self.computing, order, strict=True):
            volume = self._volume(node, disk)
            self.volumes.append(volume)
            if fresh:
                volume.make()
            volume.use()

    def detach(self) -> None:
        while self.volumes:
            self.volumes.pop().leave()

    def _volume(self, node: Node, disk: int) -> Volume:
        if self.shape == LOCAL:
            return Volume(node, self.mount, self.disks[disk])
        network = MESSAGES if self.shape == MERGED else STORAGE
        target = len(self.computing) + disk + 1
        url = disk_url(f"{network}.{target}:{PORT}", iqn(target), 0)
        front = self.folder / "front"
        argv = [enkaku.binary(), "attach", url, "--fuse", front, *self.options]
        argv += ["--initiator-name", f"{enkaku.IQN}-{self.lab.name}-{node.name}"]
        attached = Peer(node.inside(argv), self.folder / f"attach-{node.name}.log")
        file = front / "volume"
        attached.wait_until(node.seen(file).exists, "its volume cannot be seen")
        return Volume(node, self.mount, file, attached)

    def mpirun(
        self, order: list[int], ranks: int, program: list[object], timeout_s: float, mpi_io: str
    ) -> Completed:
        """A program with so many ranks at each compute node, the nodes in this order."""
        mpi = openmpi.installed()
        nodes = [self.computing[number] for number in order]
        hosts = [f"{MESSAGES}.{node.number}" for node in nodes]
        words = mpi.across(hosts, ranks, f"{MESSAGES}.0/24", self._agent())
        argv = nodes[0].inside([*words, *mpi.mpi_io(mpi_io), *program])
        # Sockets and files of Open MPI's own: gone with the folder, also after a crash.
        scratch = self.folder / "t"
        scratch.mkdir(exist_ok=True)
        env = {**openmpi.ENVIRONMENT, "TMPDIR": str(scratch)}
        return run(argv, check=False, env=env, timeout_s=timeout_s)

    def seen(self) -> Seen:
        shown = enkaku.report("wan", "show", self.lab.name)
        lines = [(one["network"], one["to_switch"], one["from_switch"]) for one in shown["nodes"]]
        networks = sorted({network for network, _, _ in lines})
        carried = (sum(up["bytes"] for n, up, _ in lines if n == network) for network in networks)
        dropped = sum(up["dropped_queue"] + down["dropped_queue"] for _, up, down in lines)
        waited_s = sum(
            int(path.read_text().split()[1]) / 1e9
            for path in Path(f"/proc/{shown['pid']}/task").glob("*/schedstat")
        )
        return Seen(time.monotonic(), tuple(carried), dropped, shown["cpu_s"], waited_s)

    def _agent(self) -> Path:
        path = self.folder / "agent"
        enter = {node: shlex.join(map(str, node.inside([]))) for node in self.computing}
        cases = [
            f"{MESSAGES}.{node.number}|{node.name}) enter='{words}' ;;"
            for node, words in enter.items()
        ]
        path.write_text(AGENT.format(cases="\n".join(cases)))
        path.chmod(0o755)
        return path

    def end(self) -> None:
        """Whatever state it is in."""
        for volume in self.volumes:
            run(volume.node.inside(["umount", "--lazy", volume.mount]), check=False)
        for volume in self.volumes:
            if volume.attached:
                volume.attached.stop()
        for node in self.computing:
            node.end()


@contextmanager
def cluster(
    shape: str,
    computing: int,
    line: Line,
    volume_bytes: int,
    folder: Path,
    options: list[object] = (),
) -> Iterator[Cluster]:
    """So many compute nodes and as many target nodes; the volumes are not attached yet."""
    folder.mkdir(exist_ok=True)
    with ExitStack() as stack:
        networks = 2 if shape == SEPARATE else 1
        lab = stack.enter_context(wan.star(2 * computing, networks, line.words(), folder))
        disks = [disk(folder / f"disk-{number}.img", volume_bytes) for number in range(computing)]
        made = Cluster(lab, shape, folder, [], disks, list(options))
        for path in (made.mount, folder / "front"):
            path.mkdir()
        stack.callback(made.end)
        made.computing = [Node(lab, number + 1, folder) for number in range(computing)]
        if shape != LOCAL:
            for number, path in enumerate(disks, computing + 1):
                made.targets.append(stack.enter_context(serve(lab, number, path, folder)))
        yield made


@contextmanager
def serve(lab: wan.Lab, number: int, path: Path, logs: Path, options: list[object] = ()) -> Iterator[Peer]:
    """`enkaku serve` at a target node, on all its networks."""
    argv = [enkaku.binary(), "serve", "--lun", path, "--iqn", iqn(number), "--listen", f"0.0.0.0:{PORT}"]
    with peer(lab.exec(f"node{number}", [*argv, *options]), logs / f"serve-{number}.log") as serving:
        serving.wait_for_output("listening on")
        yield serving


def iqn(number: int) -> str:
    """Of a target node."""
    return f"{enkaku.IQN}-node{number}"


def disk(path: Path, size: int) -> Path:
    """A file of that many bytes, none of them written."""
    with path.open("wb") as file:
        file.truncate(size)
    return path


@contextmanager
def folder() -> Iterator[Path]:
    """Where clusters have what they need, gone afterwards. Its path is short, because Open MPI
    makes sockets in it, and it is not in memory, where no loop device could pass the page cache."""
    prefix = f"star-{os.getpid()}-"
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix=prefix) as name:
        yield Path(name)


def add_options(parser: argparse.ArgumentParser, page: str) -> None:
    """What every study on a cluster can be told."""
    parser.add_argument("names", nargs="*", metavar="STORAGE", help=", ".join(SHAPES))
    parser.add_argument("--repeat", type=int, metavar="N")
    parser.add_argument("--rate", default=Line.rate)
    parser.add_argument("--rtt", default=Line.rtt, help="from a node to the switch and back")
    parser.add_argument("--attach", action="append", default=[], metavar="OPTION")
    parser.add_argument("--out", type=Path, default=Path("out/s3"), metavar="DIR")
    parser.add_argument("--docs", type=Path, metavar="DIR", help=f"write DIR/{page}, too")


def chosen(names: list[str], known: Iterable[str] = SHAPES) -> list[str]:
    """The named ones of what there is; all, where none is named."""
    known = list(known)
    if unknown := [name for name in names if name not in known]:
        raise LabError(f"no storage is called {unknown[0]}; there are: {', '.join(known)}")
    return [name for name in known if name in names] or known


def shown_late(late: float) -> str:
    return f"{late:.1%}" + ("*" if late > LATE else "")


def need_one() -> None:
    """Ends the command where no cluster can be made."""
    if reason := missing():
        raise LabError(f"no cluster can be made here: {reason}")


def missing() -> str | None:
    """Why there can be no cluster on this machine, or None."""
    if os.geteuid() != 0:
        return "needs root (namespaces, loop devices, mounts)"
    if reason := openmpi.missing():
        return reason
    return wan.available()
