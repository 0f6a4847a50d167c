"""The daemon's admin socket as a program uses it: one JSON object a line, one answer each."""

import json
import socket
from pathlib import Path


class Admin:
    """One connection."""

    def __init__(self, path: Path, timeout_s: float = 60.0):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(timeout_s)
        self.socket.connect(str(path))
        self._lines = self.socket.makefile("rb")

    def __enter__(self) -> "Admin":
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()
        self.socket.close()

    def send(self, line: bytes) -> None:
        self.socket.sendall(line)

    def answer(self) -> dict | None:
        """The next one; None where the daemon has closed the connection."""
        try:
            line = self._lines.readline()
        except ConnectionResetError:  # it had not read all that was said
            line = b""
        return json.loads(line) if line else None

    def ask(self, do: str, **fields: object) -> dict:
        self.send(json.dumps({"do": do, **fields}).encode() + b"\n")
        answered = self.answer()
        assert answered is not None, do
        return answered

    def done(self, do: str, **fields: object) -> dict:
        answered = self.ask(do, **fields)
        assert answered["ok"], (do, fields, answered)
        return answered
