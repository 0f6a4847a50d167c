"""Shared libraries that a client calls directly."""

import ctypes


def lacks(library: str, package: str) -> str | None:
    """Why the library cannot be used, or None."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return f"{library} is not installed (package {package}, packages.txt)"
    return None
