"""A guest that can be told to measure a cell, as a lab of namespaces can (enkaku_lab.laboratory).

Everything that is said in seconds there is STRETCH times longer in the guest, and is divided again here.
"""

import json
import shlex
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict

from enkaku_lab import sockets
from enkaku_lab.experiment import STRETCH, Cell, Load
from enkaku_lab.in_guest import Metered, line, nfs, recipe
from enkaku_lab.peers import guest_image, iperf3
from enkaku_lab.peers.guest import Guest
from enkaku_lab.process import CommandFailed, LabError
from enkaku_lab.stacks import GaveUp, Reached
from enkaku_lab.stacks.all import STACKS
from enkaku_lab.stacks.in_guest import DISK_BYTES, GuestTcp, InGuest

REAL_S_MAX = 600.0
"""Of this machine, for one run: the guest's own time says nothing about it."""
BUSY_MAX = 0.85
"""Of the guest's processor. More of it, and it was the limit, not the line."""


class GuestLaboratory:
    def __init__(self, guest: Guest):
        self._guest = guest
        self._served = False

    def facts(self) -> dict:
        """What a result must be read with."""
        image = self._guest.image
        return {
            "guest": {
                "kernel": image.kernel_version,
                "open-iscsi": image.open_iscsi_version,
                "stretch": STRETCH,
            }
        }

    def measure(self, cell: Cell) -> dict:
        """What was reached and which congestion control was seen; the guest's processor, too."""
        stack, guest = STACKS[cell.stack], self._guest
        assert isinstance(stack, InGuest)
        line.become(guest, cell.link, loss=0.0)
        self._serve()
        try:
            with stack.opened_in(guest) as path:
                line.become(guest, cell.link)
                guest.run("echo 3 >/proc/sys/vm/drop_caches")
                try:
                    return self._run(stack, path, cell)
                finally:
                    line.become(guest, cell.link, loss=0.0)
        except CommandFailed as failed:
            raise LabError(str(failed)[-500:]) from None

    def _run(self, stack: InGuest, path: str, cell: Cell) -> dict:
        before = _busy(self._guest.run("head -1 /proc/stat"))
        script = tcp_script(cell, stack.port) if isinstance(stack, GuestTcp) else meter_script(path, cell.load)
        order = self._guest.start(script)
        said = order.wait(REAL_S_MAX)
        after = _busy(self._guest.run("head -1 /proc/stat"))
        sender = "" if cell.load.kind == "write" else line.IN_FAR
        algorithms, connections = sockets.seen(
            self._guest.run(f"{sender} ss {shlex.join(sockets.established(stack.port))}")
        )
        if isinstance(stack, GuestTcp):
            # Its connection is gone by now.
            reached, algorithms = of_iperf3(said)
        else:
            reached = of_meter(said, cell.load)
        busy = (after[0] - before[0]) / max(1, after[1] - before[1])
        if busy > BUSY_MAX:
            raise GaveUp(f"the guest's processor was busy for {busy:.0%} of the time: it was the limit")
        return {
            "reached": asdict(reached),
            "congestion_control": sorted(algorithms),
            "connections_seen": connections,
            "guest_busy": round(busy, 3),
        }

    def _serve(self) -> None:
        """The NFS server goes on for as long as the guest does."""
        if not self._served:
            nfs.serve(self._guest, DISK_BYTES)
            self._served = True


def meter_script(path: str, load: Load) -> str:
    word = "write" if load.kind == "write" else "read"
    seconds, ramp = load.seconds_max * STRETCH, load.ramp_s * STRETCH
    return f"meter {word} {path} {load.block_bytes} {load.bytes_max} {seconds:.3f} {ramp:.3f}"


def of_meter(said: str, load: Load) -> Reached:
    """GaveUp where nothing came in the time, LabError where something else came."""
    found = Metered(**json.loads(said.splitlines()[-1]))
    if found.error:
        raise LabError(f"after {found.all_bytes} bytes: {found.error}")
    if found.bytes <= 0 or found.seconds <= 0:
        raise GaveUp(f"nothing arrived in {found.all_seconds / STRETCH:.1f} s")
    if not found.right:
        raise LabError("what was read is not what is written there")
    return Reached(found.bytes, found.seconds / STRETCH, 0.0, verified=load.kind != "write")


def tcp_script(cell: Cell, port: int) -> str:
    """iperf3 takes bytes or whole seconds, and a ramp beside seconds only: as many bytes as others move, or behind a ramp the
    time that the line needs for them."""
    load = cell.load
    reverse = "" if load.kind == "write" else "--reverse"
    ramp = max(0, round(load.ramp_s * STRETCH))
    carried_s = load.bytes_max * 8 / cell.link.payload_bits_per_s
    seconds = max(1, round(min(load.seconds_max, carried_s) * STRETCH))
    amount = f"-t {seconds} --omit {ramp}" if ramp else f"-n {load.bytes_max}"
    return f"iperf3 -c {line.FAR} -p {port} -J {amount} {reverse}"


def of_iperf3(said: str) -> tuple[Reached, set[str]]:
    """And the sender's congestion control. GaveUp where nothing came in the time."""
    got = iperf3.of_report(said)
    if not got.bytes:
        raise GaveUp("nothing arrived")
    return Reached(got.bytes, got.seconds / STRETCH, 0.0), {got.congestion_control}


def _busy(stat: str) -> tuple[int, int]:
    """Ticks in which the guest's processor worked, and all of them, from the first line of /proc/stat."""
    ticks = [int(word) for word in stat.split()[1:9]]
    idle = ticks[3] + ticks[4]
    return sum(ticks) - idle, sum(ticks)


class NoLaboratory:
    """Where no guest can be had: each measurement says why."""

    def __init__(self, reason: str):
        self._reason = reason

    def facts(self) -> dict:
        return {"guest": {"missing": self._reason}}

    def measure(self, cell: Cell) -> dict:
        raise LabError(f"no stock-kernel guest: {self._reason}")


@contextmanager
def laboratory() -> Iterator[GuestLaboratory | NoLaboratory]:
    """One boot for all of the cells."""
    with ExitStack() as closing:
        try:
            image = guest_image.image(recipe())
            guest = closing.enter_context(Guest(image, counted=True))
            line.set_up(guest)
            found: GuestLaboratory | NoLaboratory = GuestLaboratory(guest)
        except LabError as failed:
            found = NoLaboratory(str(failed).strip().splitlines()[-1])
        yield found
