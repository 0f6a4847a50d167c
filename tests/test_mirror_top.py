"""`enkaku mirror top` over mirrors that run: as text, as JSON, and on a terminal."""

import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import MIB, empty, noise
from support.mirror import TAIL, Mirror, cleaned_up, write

from enkaku_lab.peers import enkaku
from enkaku_lab.process import Completed

SIZE = 4 * MIB
SCREEN_S_MAX = 30.0


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[Mirror]:
    """One with two legs, files of this machine."""
    local = noise(tmp_path / "local.img", SIZE)
    legs = [empty(tmp_path / f"leg{n}.img", SIZE + TAIL) for n in (1, 2)]
    with cleaned_up(Mirror(tmp_path, local, legs)) as made:
        made.create()
        yield made


def top(mirror: Mirror, *words: object, check: bool = True) -> Completed:
    folder = ("--config-dir", mirror.config_dir)
    return enkaku.command("mirror", "top", *folder, *words, check=check, timeout_s=60)


def test_text_and_json(mirror: Mirror, tmp_path: Path):
    nothing = top(mirror, check=False)
    assert (nothing.code, nothing.stdout) == (1, "no mirror runs here\n")
    stopped = top(mirror, "vm1", check=False)
    assert stopped.code == 1 and "not running" in stopped.stdout
    mirror.start("--nbd", tmp_path / "nbd.sock")
    mirror.wait_in_sync()
    said = top(mirror).stdout.splitlines()
    assert said[0] == "1 mirror, 2 legs: all in sync"
    assert said[1].split()[:4] == ["MIRROR", "LEG", "STATE", "FOR"]
    assert [line.split()[:4] for line in said[2:]] == [
        ["vm1", "1", "in", "sync"], ["vm1", "2", "in", "sync"],
    ]
    mirror.command("pause", "--leg", "2")
    mirror.wait_state("paused", leg=2)
    said = top(mirror, "vm1", "vm1", "other", check=True).stdout
    assert "1 is not in sync; 1 mirror not running" in said
    assert [line.split()[1:3] for line in said.splitlines()[3:5]] == [["1", "in"], ["2", "paused"]]
    lines = top(mirror, "--json", "--count", "2", "--interval", "100ms").stdout.splitlines()
    looks = [json.loads(line) for line in lines]
    assert len(looks) == 2
    assert [leg["state"] for leg in looks[1][0]["legs"]] == ["in-sync", "paused"]
    # One that was killed leaves its socket; nobody is there.
    mirror.kill()
    assert top(mirror, check=False).stdout == "no mirror runs here\n"
    assert top(mirror, "--interval", "1ms", check=False).code == 2
    assert top(mirror, "a/b", check=False).code == 2


@pytest.mark.needs("/dev/fuse", "fusermount3")
def test_on_a_terminal_it_follows_and_leaves_the_terminal_as_it_was(mirror: Mirror):
    volume = mirror.start_fuse()
    mirror.wait_in_sync()
    main, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    before = termios.tcgetattr(terminal)
    words = ["mirror", "top", "--config-dir", mirror.config_dir, "--interval", "100ms"]
    argv = [str(word) for word in (enkaku.binary(), *words)]
    env = {**os.environ, "TERM": "xterm-256color"}
    with subprocess.Popen(argv, stdin=terminal, stdout=terminal, stderr=terminal, env=env) as shown:
        try:
            seen = b""

            def until(text: bytes) -> None:
                nonlocal seen
                deadline_s = time.monotonic() + SCREEN_S_MAX
                while text not in seen:
                    assert shown.poll() is None and time.monotonic() < deadline_s, seen
                    if select.select([main], [], [], 0.1)[0]:
                        seen += os.read(main, 65536)

            until(b"all in sync")
            write(volume, 0, os.urandom(4096))
            mirror.command("pause", "--leg", "1")
            until(b"paused")
            os.write(main, b"jkq")
            assert shown.wait(SCREEN_S_MAX) == 0
        finally:
            shown.kill()
    assert termios.tcgetattr(terminal) == before
    os.close(main)
    os.close(terminal)
