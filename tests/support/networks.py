"""Networks of a test's own (Linux network namespaces), and a router at the end of an emulated line
that lets one out and nobody in."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from enkaku_lab import wan
from enkaku_lab.experiment import Link
from enkaku_lab.peers import need
from enkaku_lab.process import run


class Namespace:
    """A network with nothing but its loopback, which ends with the process that holds it; or one
    that is there, if it is told how to enter that."""

    def __init__(self, enter: list[object] = ()) -> None:
        argv = [*(enter or [need("unshare"), "--net"]), sys.executable]
        argv = [str(word) for word in (*argv, "-c", "print(flush=True); input()")]
        pipe = subprocess.PIPE
        self._holder = subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True)
        self._holder.stdout.readline()
        self.run("ip", "link", "set", "lo", "up")

    def exec(self, argv: list[object]) -> list[object]:
        return [need("nsenter"), f"--net=/proc/{self._holder.pid}/ns/net", *argv]

    def run(self, program: str, *words: object, check: bool = True) -> str:
        """What a program says there."""
        return run(self.exec([need(program), *words]), check=check).stdout

    def set(self, name: str, value: int) -> None:
        code = f"open('/proc/sys/net/{name}', 'w').write('{value}')"
        run(self.exec([sys.executable, "-c", code]))

    def plug(self, name: str, address: str, other: "Namespace", its_name: str, its: str) -> None:
        """A cable to another network, with the addresses (and lengths of their prefixes) of both
        ends."""
        ends = (name, "netns", self._holder.pid), (its_name, "netns", other._holder.pid)
        run([need("ip"), "link", "add", *ends[0], "type", "veth", "peer", "name", *ends[1]])
        for network, device, own in ((self, name, address), (other, its_name, its)):
            network.run("ip", "address", "add", own, "dev", device)
            network.run("ip", "link", "set", device, "up")

    def end(self) -> None:
        self._holder.kill()
        self._holder.wait()


class Nat:
    """A home, the router before it, and whoever is outside, at the other end of a line. There is no
    way to the home: outside, nobody knows its address, and the router hands on nothing but answers.
    """

    HOME = "192.168.77.2"
    OUTSIDE = wan.FAR

    def __init__(self, home: Namespace, router: Namespace, outside: Namespace) -> None:
        self.home, self.router, self.outside = home, router, outside
        home.plug("home", f"{self.HOME}/24", router, "inside", "192.168.77.1/24")
        home.run("ip", "route", "add", "default", "via", "192.168.77.1")
        router.set("ipv4/ip_forward", 1)
        for rule in (
            "--table nat --append POSTROUTING ! --out-interface inside --jump MASQUERADE",
            "--append FORWARD --in-interface inside --jump ACCEPT",
            "--append FORWARD --match conntrack --ctstate ESTABLISHED --jump ACCEPT",
            "--policy FORWARD DROP",
        ):
            router.run("iptables", "--wait", *rule.split())

    @contextmanager
    def cut(self) -> Iterator[None]:
        """Nothing crosses the router in this block."""
        rule = ["FORWARD", "--jump", "DROP"]
        self.router.run("iptables", "--wait", "--insert", *rule)
        try:
            yield
        finally:
            self.router.run("iptables", "--wait", "--delete", *rule)


@contextmanager
def behind_nat(line: Link, logs: Path) -> Iterator[Nat]:
    """The three of them, with this line between the router and the outside."""
    with ExitStack() as stack:
        lab = stack.enter_context(wan.up(line, logs))
        lab.set(line)
        entered = [Namespace(), *(Namespace(lab.exec(end, [])) for end in ("near", "far"))]
        for network in entered:
            stack.callback(network.end)
        yield Nat(*entered)
