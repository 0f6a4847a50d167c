"""Two daemons that serve one volume under one name."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.daemon import NAME_A, Daemon, target


class Pair:
    """Daemons of the groups 1 and 2."""

    def __init__(self, folder: Path, url: str, shared: str | None = None):
        self.shared = folder / "shared"
        self.shared.mkdir()
        self.place = shared or self.shared
        self.daemons: list[Daemon] = []
        for group in (1, 2):
            own = folder / f"daemon{group}"
            own.mkdir()
            daemon = Daemon(own)
            daemon.write(self.target(group, url))
            self.daemons.append(daemon)

    def target(self, group: int, url: str) -> str:
        pair = f'[target.pair]\ngroup = {group}\nshared = "{self.place}"\n'
        return target(NAME_A, url, more=f"anyone = true\n{pair}")

    def start(self) -> None:
        for daemon in self.daemons:
            daemon.start()

    def groups(self, at: int) -> dict[int, str]:
        told = json.loads(self.daemons[at].ask("access", "list", "--json").stdout)
        return {one["group"]: one["state"] for one in told}

    def stop(self) -> None:
        for daemon in self.daemons:
            if daemon.peer is not None:
                daemon.peer.stop()


@contextmanager
def pair_of(folder: Path, url: str, shared: str | None = None) -> Iterator[Pair]:
    made = Pair(folder, url, shared)
    try:
        made.start()
        yield made
    finally:
        made.stop()
