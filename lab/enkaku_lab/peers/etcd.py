"""etcd of one machine: a cluster of members in the foreground, each in a folder and on ports of its own, which
can be killed and started again; over TLS and with a user where the test wants that.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from enkaku_lab.peers import need
from enkaku_lab.process import Completed, Peer, free_port, run

PROGRAMS = ("etcd", "etcdctl")
"""What has to be installed: Debian's etcd-server and etcd-client."""

PROBE_S = 3
"""How long a question may take whose answer is that a member is well, or is not."""

CHANGE_S = 60
"""How long a change may take: a member writes it to its disk, which others may keep busy."""


@dataclass(frozen=True)
class Certificates:
    """Files with an authority, and with a certificate and a key that it has signed."""

    ca: Path
    cert: Path
    key: Path


class Cluster:
    """Members that know each other."""

    def __init__(self, folder: Path, count: int, tls: Certificates | None):
        self.tls = tls
        self.scheme = "https" if tls else "http"
        self.clients = [free_port() for _ in range(count)]
        peers = [f"http://127.0.0.1:{free_port()}" for _ in range(count)]
        named = ",".join(f"m{number}={peer}" for number, peer in enumerate(peers))
        self.members: list[Peer] = []
        for number, peer in enumerate(peers):
            here = f"{self.scheme}://127.0.0.1:{self.clients[number]}"
            argv = [need("etcd"), "--name", f"m{number}", "--data-dir", folder / f"m{number}"]
            argv += ["--listen-client-urls", here, "--advertise-client-urls", here]
            argv += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
            argv += ["--initial-cluster", named, "--logger", "zap", "--log-level", "warn"]
            if tls:
                argv += ["--cert-file", tls.cert, "--key-file", tls.key]
                argv += ["--trusted-ca-file", tls.ca, "--client-cert-auth"]
            self.members.append(Peer(argv, folder / f"m{number}.log"))

    def wait(self) -> None:
        for number, member in enumerate(self.members):
            member.wait_until(lambda at=number: self.is_well(at), "does not get well")

    def is_well(self, at: int) -> bool:
        return self._probe(at, "health").code == 0

    def url(self, prefix: str, **parameters: object) -> str:
        """For `shared`, with all members."""
        hosts = ",".join(f"127.0.0.1:{port}" for port in self.clients)
        if self.tls:
            parameters = {"ca": self.tls.ca, "cert": self.tls.cert, "key": self.tls.key} | parameters
        query = "&".join(f"{name}={value}" for name, value in parameters.items())
        return f"etcd://{hosts}/{prefix}" + (f"?{query}" if query else "")

    def ctl(self, *words: object) -> Completed:
        """`etcdctl WORDS` of any of the members: a change, which is waited for."""
        return run([*self._etcdctl(self.clients, CHANGE_S), *words])

    def _probe(self, at: int, *words: object) -> Completed:
        """`etcdctl endpoint WORDS` of one member, which may not be well."""
        argv = self._etcdctl([self.clients[at]], PROBE_S)
        return run([*argv, "endpoint", *words], check=False)

    def _etcdctl(self, ports: list[int], patience_s: int) -> list[object]:
        # A login counts as a part of dialing.
        argv: list[object] = [need("etcdctl"), "--dial-timeout", f"{patience_s}s"]
        argv += ["--command-timeout", f"{patience_s}s"]
        argv += ["--endpoints", ",".join(f"{self.scheme}://127.0.0.1:{port}" for port in ports)]
        if self.tls:
            argv += ["--cacert", self.tls.ca, "--cert", self.tls.cert, "--key", self.tls.key]
        return argv

    def leader(self) -> int:
        """Which member the others follow."""
        for number in range(len(self.members)):
            told = self._probe(number, "status", "-w", "json")
            if told.code == 0:
                (status,) = (one["Status"] for one in json.loads(told.stdout))
                if status["leader"] == status["header"]["member_id"]:
                    return number
        raise LookupError("no member leads")

    def stop(self) -> None:
        for member in self.members:
            member.stop()


@contextmanager
def cluster(folder: Path, count: int = 3, tls: Certificates | None = None) -> Iterator[Cluster]:
    folder.mkdir()
    made = Cluster(folder, count, tls)
    try:
        made.wait()
        yield made
    finally:
        made.stop()
