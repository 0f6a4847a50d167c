"""Every stack by its name."""

from enkaku_lab.stacks import Stack, in_guest
from enkaku_lab.stacks.enkaku import Enkaku, EnkakuBench, EnkakuPipelined
from enkaku_lab.stacks.local import Local
from enkaku_lab.stacks.mirrored import (
    MirrorAsync,
    MirrorPaused,
    MirrorSync,
    QemuMirror,
    QemuMirrorBehind,
)
from enkaku_lab.stacks.nfs import Nfs
from enkaku_lab.stacks.smb import Smb, Smb1
from enkaku_lab.stacks.tcp import Tcp
from enkaku_lab.stacks.tgt_libiscsi import TgtLibiscsi, TgtTuned
from enkaku_lab.stacks.written import EnkakuCached, EnkakuGathered, EnkakuUncached

STACKS: dict[str, Stack] = {
    stack.name: stack
    for stack in (
        Enkaku(),
        EnkakuPipelined(),
        EnkakuBench(),
        TgtLibiscsi(),
        TgtTuned(),
        Nfs(),
        Smb(),
        Smb1(),
        Tcp(),
        Local(),
        EnkakuCached(),
        EnkakuUncached(),
        EnkakuGathered(),
        MirrorSync(),
        MirrorAsync(),
        MirrorPaused(),
        QemuMirror(),
        QemuMirrorBehind(),
        *in_guest.ALL,
    )
}
