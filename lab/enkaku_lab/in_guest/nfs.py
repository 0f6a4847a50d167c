"""The kernel's NFS server at the far end and its client at the near end, NFSv3 as in 2004."""

from collections.abc import Iterator
from contextlib import contextmanager

from enkaku_lab.experiment import STRETCH
from enkaku_lab.in_guest import line
from enkaku_lab.peers.guest import Guest
from enkaku_lab.process import CommandFailed
from enkaku_lab.stacks import GaveUp

EXPORT, MOUNT, NAME = "/export", "/mnt/nfs", "data"
MOUNTD_PORT, NFS_PORT = 20048, 2049
THREADS = 8
NETCONFIG = "udp tpi_clts v inet udp - -\ntcp tpi_cots_ord v inet tcp - -\nlocal tpi_cots_ord - loopback - - -"
SERVE = f"""
set -e
printf '{NETCONFIG}\\n' >/etc/netconfig
printf 'rpcbind 111/tcp\\nrpcbind 111/udp\\n' >/etc/services
echo _rpc:x:100:0::/:/bin/false >>/etc/passwd
mkdir -p /run/rpcbind /var/lib/nfs/sm /var/lib/nfs/rpc_pipefs {EXPORT} {MOUNT} /etc/exports.d
touch /var/lib/nfs/etab /var/lib/nfs/rmtab
echo '{EXPORT} *(rw,async,no_root_squash,no_subtree_check,insecure,fsid=1)' >/etc/exports
mount -t tmpfs -o size=%d export {EXPORT}
meter fill {EXPORT}/{NAME} %d
far="{line.IN_FAR}"
$far mount -t nfsd nfsd /proc/fs/nfsd
$far rpcbind -i -r
until $far netstat -lnt | grep -q :111; do sleep 0.1; done
$far exportfs -a
$far rpc.mountd -p {MOUNTD_PORT}
$far sh -c 'echo tcp {NFS_PORT} >/proc/fs/nfsd/portlist; echo udp {NFS_PORT} >/proc/fs/nfsd/portlist'
$far sh -c 'echo {THREADS} >/proc/fs/nfsd/threads'
"""
DEBUG = "echo %d >/proc/sys/sunrpc/nfs_debug\n"
DEBUG_MOUNT = 0x400
"""NFSDBG_MOUNT: without it a refused mount has a number and no words."""
TIMEO_DS = {"udp": 11, "tcp": 600}
"""nfs(5): the client's first timeout in tenths of a second; stretched with the line."""


def serve(guest: Guest, size: int) -> None:
    """The file NAME of that many bytes, of which every 8 are their offset."""
    guest.run(SERVE % (size + (8 << 20), size), 120)


@contextmanager
def mounted(guest: Guest, transport: str, read_ahead_kib: int | None) -> Iterator[str]:
    """The file's path at the near end; GaveUp with the kernel's words where it does not mount that."""
    options = f"vers=3,proto={transport},nolock,addr={line.FAR},port={NFS_PORT},mountproto=tcp,mountport={MOUNTD_PORT}"
    options += f",mountaddr={line.FAR},timeo={TIMEO_DS[transport] * STRETCH},retrans=3"
    try:
        guest.run(f"{DEBUG % DEBUG_MOUNT}mount -i -t nfs -o {options} {line.FAR}:{EXPORT} {MOUNT}", 120)
    except CommandFailed as failed:
        raise GaveUp(f"NFS over {transport.upper()}: {refusal(guest, failed)}") from None
    guest.run(DEBUG % 0)
    try:
        if read_ahead_kib:
            device = guest.run(f"awk '$5 == \"{MOUNT}\" {{print $3}}' /proc/self/mountinfo").strip()
            guest.run(f"echo {read_ahead_kib} >/sys/class/bdi/{device}/read_ahead_kb")
        yield f"{MOUNT}/{NAME}"
    finally:
        guest.run(f"umount {MOUNT} || umount -l {MOUNT}", 120, check=False)


def refusal(guest: Guest, failed: CommandFailed) -> str:
    """What the kernel itself says to it, where its debugging messages tell."""
    told = [line for line in guest.kernel_log().splitlines() if "Unsupported transport" in line]
    return told[-1].partition("] ")[2] if told else str(failed).splitlines()[-1]
