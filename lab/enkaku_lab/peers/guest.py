"""A virtual machine with a stock Debian kernel: the kernel's initiator and target as peers.

QEMU interprets every instruction (no hardware virtualisation is asked for), so the guest is for
function, never for a timing, unless its clock counts instructions (`counted`). One boot serves many orders: shell scripts that are sent over a
virtio-serial port and whose output comes back line by line. From inside, the host is HOST; a port
of the guest is reached through a forwarded one on the host.
"""

import base64
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from enkaku_lab import OUT
from enkaku_lab.peers import guest_image, need
from enkaku_lab.process import CommandFailed, LabError, Peer, free_port

HOST = "10.0.2.2"
"""The host's loopback as the guest sees it (QEMU's user network)."""
TARGET_PORT = 3260
"""Where a target in the guest listens."""
CPU = "Westmere"
"""It has SSE 4.2 (CRC32C) and lacks ERMS: interpreted string moves go byte by byte."""
MEMORY_MIB = 768
DRIVE = "if=virtio,format=raw"
INNER_LOGS = """
dmesg
echo --- iscsid; cat /tmp/iscsid.log
for thread in /proc/[0-9]*; do
    case $(cat $thread/comm) in iscsi*) echo "--- $thread $(cat $thread/comm)"; cat $thread/stack; esac
done
"""
"""What the guest knows and its console did not show: also where LIO's threads stand."""
COUNTED = "shift=0,sleep=off"
"""An instruction is a nanosecond of the guest's time, and time in which it has nothing to do passes at once."""
BOOT_S_MAX = 180.0
"""A boot takes 7 s on an idle machine; beside other work several times as long."""
COUNTED_TIMES = 5
"""So many times longer may everything take where instructions are counted: its own time does not tell."""


class Order:
    """A script under way in the guest."""

    def __init__(self, script: str):
        self.script = script
        self.lines: list[str] = []
        self._code: int | None = None
        self._changed = threading.Condition()

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    def running(self) -> bool:
        return self._code is None

    def wait_for(self, text: str, timeout_s: float) -> None:
        """Until a line of the output contains the text."""

        def seen() -> bool:
            return any(text in line for line in self.lines)

        with self._changed:
            self._changed.wait_for(lambda: seen() or not self.running(), timeout_s)
            if not seen():
                raise self._failure(f"never said {text!r}")

    def wait(self, timeout_s: float, check: bool = True) -> str:
        """Until it ends; returns its output. With `check`, a code other than 0 is an error."""
        with self._changed:
            if not self._changed.wait_for(lambda: not self.running(), timeout_s):
                raise self._failure(f"did not end within {timeout_s:.0f} s")
        if check and self._code != 0:
            raise self._failure(f"ended with code {self._code}")
        return self.output

    @property
    def code(self) -> int | None:
        return self._code

    def _failure(self, how: str) -> CommandFailed:
        return CommandFailed(["guest:", self.script.strip(), how], self._code, self.output, "")

    def _take(self, line: str | None = None, code: int | None = None) -> None:
        with self._changed:
            if line is not None:
                self.lines.append(line)
            if code is not None:
                self._code = code
            self._changed.notify_all()


class Guest:
    """A running guest; a context manager.

    The console's log is in OUT/guest and is removed at the end unless `keep_log` was set.
    """

    def __init__(
        self,
        image: guest_image.Image,
        disk: Path | None = None,
        *,
        own_disks: Sequence[Path] = (),
        port: int | None = None,
        forwards: list[int] | None = None,
        tap: str | None = None,
        within: Callable[[list[object]], list[object]] = list,
        counted: bool = False,
    ):
        """With `disk`, the guest reads this file of the host as /dev/vda (no network between).
        Behind it come `own_disks`, to which it also writes: that outlives it, as on a disk.

        `port` is the host's that leads to the guest's TARGET_PORT; without one it is a free one.
        `within` makes a command of one that runs QEMU elsewhere, as in a network namespace;
        `forwards` are ports of all addresses there that lead to the same ones of the guest.
        `counted`: the guest's clock is made of the instructions that it executes, not of this
        machine's time: what it measures of itself does not depend on how busy this machine is.

        With `tap`, the name of a device that is there, the guest's packets come out of it as they
        are: its TCP talks to the other end itself, and not to QEMU, which has windows of its own.
        HOST is then whatever has that address behind it, and no port leads into the guest.
        """
        self.image = image
        self.disk, self.own_disks = disk, own_disks
        self.forwards, self.tap, self.within = forwards or [], tap, within
        self.counted = counted
        self.keep_log = False
        self.port = port or free_port()
        self._orders: dict[int, Order] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="enkaku-guest-")
        path = Path(self._folder.name) / "orders"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen(1)
            self._patience = COUNTED_TIMES if counted else 1
            listener.settimeout(BOOT_S_MAX * self._patience)
            self.peer = Peer(self.within(self._qemu(path)), OUT / "guest" / f"console-{self.port}.log")
            try:
                self._channel, _ = listener.accept()
            except BaseException:
                self.close()
                raise
        self._hello = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _qemu(self, orders: Path) -> list[object]:
        forwarded = f"hostfwd=tcp:127.0.0.1:{self.port}-:{TARGET_PORT}"
        forwarded += "".join(f",hostfwd=tcp:0.0.0.0:{port}-:{port}" for port in self.forwards)
        network = f"user,id=net,ipv6=off,{forwarded}"
        if self.tap:
            network = f"tap,id=net,ifname={self.tap},script=no,downscript=no"
        return [
            *(need("qemu-system-x86_64"), "-nodefaults", "-no-reboot", "-display", "none"),
            *("-accel", "tcg", "-cpu", CPU, "-m", MEMORY_MIB),
            *(["-icount", COUNTED] if self.counted else []),
            *("-kernel", self.image.kernel, "-initrd", self.image.initrd),
            *("-append", "console=ttyS0 loglevel=5 panic=-1 mitigations=off no_timer_check"),
            *("-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console"),
            *("-netdev", network),
            *("-device", "virtio-net-pci,netdev=net,romfile="),
            *("-device", "virtio-serial-pci,max_ports=2"),
            *("-chardev", f"socket,id=orders,path={orders}"),
            *("-device", "virtserialport,chardev=orders,name=orders"),
            *("-device", "virtio-rng-pci"),
            *(["-drive", f"file={self.disk},{DRIVE},readonly=on"] if self.disk else []),
            *(word for disk in self.own_disks for word in ("-drive", f"file={disk},{DRIVE}")),
        ]

    def __enter__(self) -> "Guest":
        try:
            self.wait_until_up()
        except BaseException:
            self.keep_log = True
            self.close()
            raise
        return self

    def __exit__(self, kind, *_) -> None:
        self.keep_log |= kind is not None
        self.close()

    def wait_until_up(self) -> None:
        deadline = time.monotonic() + BOOT_S_MAX * self._patience
        while not self._hello.wait(0.1):
            if not self.peer.running() or time.monotonic() > deadline:
                tail = self.peer.output()[-2000:]
                raise LabError(f"the guest did not boot ({self.peer.log}):\n{tail}")

    def start(self, script: str) -> Order:
        """Sends a script; it runs beside those that were sent before."""
        order = Order(script)
        number = len(self._orders)
        self._orders[number] = order
        encoded = base64.b64encode(script.encode()).decode()
        try:
            self._channel.sendall(f"run {number} {encoded}\n".encode())
        except OSError:
            tail = self.peer.output()[-3000:]
            raise LabError(f"the guest is gone ({self.peer.log}):\n{tail}") from None
        return order

    def run(self, script: str, timeout_s: float = 60.0, check: bool = True) -> str:
        """Runs a script to its end and returns what it wrote."""
        return self.start(script).wait(timeout_s * self._patience, check)

    def kernel_log(self) -> str:
        return self.run("dmesg")

    def close(self) -> None:
        """Takes the power away. Nothing in the guest outlives it."""
        if hasattr(self, "_reader"):
            if self.keep_log and self.peer.running() and self._hello.is_set():
                self._save_inner_logs()
            self.peer.kill()
            self._channel.close()
            self._reader.join()
        else:
            self.peer.kill()
        self._folder.cleanup()
        if not self.keep_log:
            self.peer.log.unlink(missing_ok=True)

    def _save_inner_logs(self) -> None:
        """Appends what the guest knows and its console did not show."""
        try:
            inner = self.run(INNER_LOGS, 20, check=False)
        except LabError as failed:
            inner = str(failed)
        with self.peer.log.open("a") as log:
            log.write(f"\n--- dmesg\n{inner}\n")

    def _read(self) -> None:
        buffered = b""
        while True:
            try:
                piece = self._channel.recv(65536)
            except OSError:
                piece = b""
            if not piece:
                break
            *lines, buffered = (buffered + piece).split(b"\n")
            for line in lines:
                self._take(line.decode(errors="replace"))
        for order in self._orders.values():
            if order.running():
                order._take("(the guest is gone)", code=-1)

    def _take(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        number, _, text = rest.partition(" ")
        if word == "hello":
            self._hello.set()
        elif word == "out":
            self._orders[int(number)]._take(text)
        elif word == "end":
            self._orders[int(number)]._take(code=int(text))
