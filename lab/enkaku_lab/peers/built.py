"""Small programs of the lab's own in C, compiled on this machine."""

import hashlib
import os
from pathlib import Path

from enkaku_lab import OUT
from enkaku_lab.peers import need
from enkaku_lab.process import run


def program(source: Path, *flags: str) -> Path:
    """The program, compiled once for each version of its source; named as that."""
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    made = OUT / source.stem / digest / source.stem
    if not made.exists():
        made.parent.mkdir(parents=True, exist_ok=True)
        # Somebody else may do so at the same time.
        own = made.with_suffix(f".{os.getpid()}")
        run([need("cc"), "-O2", "-Wall", *flags, "-o", own, source])
        own.replace(made)
    return made
