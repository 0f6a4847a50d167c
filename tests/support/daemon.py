"""`enkaku target run` with a configuration that a test may rewrite, its admin socket and its metrics."""

import json
import re
import urllib.error
import urllib.request
from pathlib import Path

from enkaku_lab.peers import enkaku
from enkaku_lab.process import Peer, free_port

NAME_A = "iqn.2026-11.org.example:a"


class Daemon:
    """A daemon with a configuration that the test may rewrite."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.port = free_port()
        self.portal = f"127.0.0.1:{self.port}"
        self.config = folder / "target.toml"
        self.socket = folder / "admin.sock"
        self.peer: Peer | None = None
        self.within: list[object] = []  # words before its own, as of a network that it is in
        (folder / "state").mkdir(exist_ok=True)

    def head(self) -> str:
        return f"""
[server]
admin_socket = "{self.socket}"
state_directory = "{self.folder}/state"
shutdown_timeout = "5s"
[metrics]
listen = "127.0.0.1:0"
[[portal]]
name = "lan"
listen = "{self.portal}"
"""

    def write(self, *targets: str) -> None:
        self.config.write_text(self.head() + "".join(targets))

    def start(self, env: dict[str, str] | None = None) -> None:
        if self.peer is None:
            argv = [*self.within, enkaku.binary(), "target", "run", "--config", self.config]
            self.peer = Peer(argv, self.folder / "daemon.log", env)
        else:
            self.peer.restart()
        self.peer.wait_for_output("metrics on")

    def ask(self, *words: object, check: bool = True):
        return enkaku.command("target", *words, "--socket", self.socket, check=check, timeout_s=30)

    def reload(self) -> str:
        return self.ask("reload").stdout

    def sessions(self) -> list[dict]:
        return json.loads(self.ask("sessions", "--json").stdout)

    def url(self, name: str = NAME_A, lun: int = 0) -> str:
        return f"iscsi://{self.portal}/{name}/{lun}"

    def page(self, path: str) -> tuple[int, str]:
        base = re.search(r"metrics on (http://\S+)/metrics", self.peer.output())[1]
        try:
            with urllib.request.urlopen(f"{base}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metric(self, name: str, **labels: str) -> float:
        """The value of a sample; 0 where there is none."""
        total = 0.0
        for line in self.page("/metrics")[1].splitlines():
            sample = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line)
            if sample and sample[1] == name:
                found = dict(re.findall(r'(\w+)="([^"]*)"', sample[2] or ""))
                if labels.items() <= found.items():
                    total += float(sample[3])
        return total


def target(name: str, *luns: object, more: str = "anyone = true") -> str:
    text = f'[[target]]\nname = "{name}"\n{more}\n'
    for number, path in enumerate(luns):
        text += f'[[target.lun]]\nnumber = {number}\npath = "{path}"\n'
    return text
