"""The file of raw results: it only grows, and what is in it is never measured again.

A session line (machine, kernel, sysctls, versions) stands before the measurements that were taken
under it. A line that a killed run left half is passed over.
"""

import json
from dataclasses import asdict
from pathlib import Path

from enkaku_lab.experiment import Cell, Link, Load
from enkaku_lab.results import utc


class Store:
    def __init__(self, path: Path):
        self.path = path
        self.sessions: dict[str, dict] = {}
        self.records: dict[str, list[dict]] = {}
        """By the key of their cell."""
        self._torn = False
        if path.exists():
            self._load()

    def _load(self) -> None:
        text = self.path.read_text()
        self._torn = not text.endswith("\n")
        for line in text.splitlines():
            try:
                self._take(json.loads(line))
            except json.JSONDecodeError:
                continue

    def _take(self, record: dict) -> None:
        if record["kind"] == "session":
            self.sessions[record["session"]] = record
        elif record["kind"] == "forget":
            for key in record["keys"]:
                self.records.pop(key, None)
        elif record["kind"] == "measurement":
            self.records.setdefault(_key(record["cell"]), []).append(record)

    def begin(self, facts: dict) -> str:
        """A new session; returns its name."""
        name = f"{facts['taken']}#{len(self.sessions)}"
        self._add({**facts, "kind": "session", "session": name})
        return name

    def lab(self, session: str, facts: dict) -> None:
        """The lab in which the measurements that follow were taken."""
        self._add({**facts, "kind": "lab", "session": session})

    def forget(self, keys: set[str]) -> None:
        """These cells count as never measured from now on; their lines stay in the file."""
        self._add({"kind": "forget", "keys": sorted(keys & self.records.keys())})

    def finished(self, cell: Cell, repetition: int) -> bool:
        """Measured, or found to reach nothing. What failed otherwise is tried again."""
        return any(
            "reached" in one or one.get("gave_up")
            for one in self.of(cell)
            if one["repetition"] == repetition
        )

    def of(self, cell: Cell) -> list[dict]:
        return self.records.get(cell.key, [])

    def reached(self, session: str, cell: Cell, repetition: int, measured: dict) -> None:
        self._measurement(session, cell, repetition, measured)

    def failed(
        self, session: str, cell: Cell, repetition: int, reason: str, gave_up: bool
    ) -> None:
        self._measurement(
            session, cell, repetition, {"failed": reason[-500:], "gave_up": gave_up}
        )

    def unavailable(self, session: str, cell: Cell, reason: str) -> None:
        """The stack cannot run here."""
        if not any(one.get("unavailable") == reason for one in self.of(cell)):
            self._measurement(session, cell, 0, {"unavailable": reason})

    def _measurement(self, session: str, cell: Cell, repetition: int, more: dict) -> None:
        self._add(
            {
                "kind": "measurement",
                "repetition": repetition,
                "session": session,
                "taken": utc(),
                "cell": asdict(cell),
                **more,
            }
        )

    def _add(self, record: dict) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # What a killed run left half must not swallow this line.
        prefix, self._torn = "\n" if self._torn else "", False
        with self.path.open("a") as file:
            file.write(prefix + json.dumps(record) + "\n")
        self._take(record)


def _key(cell: dict) -> str:
    return Cell(cell["stack"], Link(**cell["link"]), Load(**cell["load"])).key
