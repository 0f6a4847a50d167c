"""Python packages that only one test wants, in an environment of its own, from PyPI."""

import re
import sys
from pathlib import Path

import pytest

from enkaku_lab.process import run

INSTALL_S_MAX = 300
OUT_OF_REACH = re.compile(r"No matching distribution|Connection|Temporary failure|Max retries")


def installed(place: Path, *wanted: str, python: str = sys.executable) -> Path:
    """The Python of the environment. The test is skipped where PyPI is out of reach."""
    run([python, "-m", "venv", place], timeout_s=INSTALL_S_MAX)
    own = place / "bin/python"
    install = [own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted]
    done = run(install, timeout_s=INSTALL_S_MAX, check=False)
    if done.code != 0 and OUT_OF_REACH.search(done.stderr):
        pytest.skip(f"{' and '.join(wanted)} cannot be had: PyPI is out of reach")
    assert done.code == 0, done.stderr
    return own
