"""Child processes: started, waited for, measured, and certain to end.

A child gets PR_SET_PDEATHSIG, so it dies with the lab even when the lab is killed; the context
managers end it by process id in every other case. Nothing here sleeps for a fixed time: readiness
is a condition that is polled, with a limit after which the child's own output is shown.
"""

import ctypes
import errno
import os
import random
import select
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

POLL_S = 0.01
READY_S_MAX = 20.0
"""A peer that is not ready by then is broken, not slow."""
STOP_S_MAX = 5.0
"""Time between SIGTERM and SIGKILL."""
PORT_LEAST, PORTS_TRIED = 10_000, 100
PORTS_GIVEN = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""From the first to the last port that the kernel gives to connections which go out."""
PR_SET_PDEATHSIG = 1
CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK")

_libc = ctypes.CDLL(None, use_errno=True)


class LabError(Exception):
    """Something outside the lab failed; the message is for the user, without a traceback."""


class CommandFailed(LabError):
    """A command ended with another code than 0, or did not end in time."""

    def __init__(self, argv: list[str], code: int | None, stdout: str, stderr: str):
        self.code = code
        self.stdout = stdout
        self.stderr = stderr
        how = "did not end in time" if code is None else f"ended with code {code}"
        # Some programs tell what is wrong on stdout, and greet on stderr.
        tail = "\n".join(filter(None, (stdout.strip(), stderr.strip())))[-2000:]
        super().__init__(f"{' '.join(argv)}\n{how}:\n{tail}")


@dataclass(frozen=True)
class Completed:
    """A command that has ended. CPU seconds are its own and its waited-for children's."""

    code: int
    stdout: str
    stderr: str
    seconds: float
    cpu_s: float


def die_with_parent() -> None:
    """For `preexec_fn`: the child is killed when this process ends, however that happens."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def run(
    argv: list[object],
    *,
    timeout_s: float = 120.0,
    check: bool = True,
    env: dict[str, str] | None = None,
    stdin: Path | None = None,
    while_running: Callable[[int], None] | None = None,
) -> Completed:
    """Runs a command to its end. With `check`, a code other than 0 raises CommandFailed.

    `while_running` is called with the process id about every 0.2 s until the command ends.
    """
    words = [str(word) for word in argv]
    with (
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
        open(stdin or os.devnull, "rb") as source,
    ):
        begin = time.monotonic()
        child = subprocess.Popen(
            words,
            stdin=source,
            stdout=out,
            stderr=err,
            env={**os.environ, **(env or {})},
            preexec_fn=die_with_parent,
        )
        try:
            ended = _wait(child.pid, begin + timeout_s, while_running)
        except BaseException:
            child.kill()
            child.wait()
            raise
        if not ended:
            child.kill()
            # A child that hangs inside the kernel (a mount without its server) cannot be waited
            # for: it ends when the context managers around us take that server down.
            if not _wait(child.pid, time.monotonic() + STOP_S_MAX, None):
                raise CommandFailed(words, None, _text(out), _text(err))
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.monotonic() - begin
        child.returncode = os.waitstatus_to_exitcode(status)
        stdout, stderr = _text(out), _text(err)
    code = child.returncode if ended else None
    if code is None or (check and code != 0):
        raise CommandFailed(words, code, stdout, stderr)
    return Completed(code, stdout, stderr, seconds, usage.ru_utime + usage.ru_stime)


def _wait(pid: int, deadline: float, while_running: Callable[[int], None] | None) -> bool:
    """Whether the child ended before the deadline; it is left for wait4 to reap."""
    descriptor = os.pidfd_open(pid)
    try:
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        while (left := deadline - time.monotonic()) > 0:
            slice_s = min(left, 0.2) if while_running else left
            if poller.poll(slice_s * 1000):
                return True
            if while_running:
                while_running(pid)
        return False
    finally:
        os.close(descriptor)


def _text(file) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _stat(folder: Path) -> list[str]:
    """The words of a process or a thread in /proc behind its name, from its state on."""
    return (folder / "stat").read_text().rpartition(")")[2].split()


class Peer:
    """A program that runs until it is stopped. Its output goes to a file of its own."""

    def __init__(self, argv: list[object], log: Path, env: dict[str, str] | None = None):
        self.argv = [str(word) for word in argv]
        self.log = log
        self.env = env
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_bytes(b"")
        self._child = self._start()

    def _start(self) -> subprocess.Popen:
        self._log_start = self.log.stat().st_size
        with open(self.log, "ab") as out:
            return subprocess.Popen(
                self.argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(self.env or {})},
                preexec_fn=die_with_parent,
            )

    @property
    def pid(self) -> int:
        return self._child.pid

    def running(self) -> bool:
        return self._child.poll() is None

    def output(self) -> str:
        """What it has written since it was last started."""
        return self.log.read_bytes()[self._log_start :].decode(errors="replace")

    def cpu_s(self) -> float:
        """CPU seconds of all its threads so far, user and system."""
        fields = _stat(Path(f"/proc/{self.pid}"))
        return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS_PER_S

    def wait_until(self, ready: Callable[[], bool], what: str) -> None:
        """Waits for a condition; raises with the output when the program ends or takes too long."""
        deadline = time.monotonic() + READY_S_MAX
        while not ready():
            if not self.running():
                why = f"ended with code {self._child.returncode}"
            elif time.monotonic() > deadline:
                why = f"was not ready after {READY_S_MAX:.0f} s ({what})"
            else:
                time.sleep(POLL_S)
                continue
            raise LabError(f"{' '.join(self.argv)}\n{why}:\n{self.output().strip()[-2000:]}")

    def wait_for_output(self, text: str) -> None:
        self.wait_until(lambda: text in self.output(), f"it never said {text!r}")

    def signal(self, number: signal.Signals) -> None:
        self._child.send_signal(number)

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """SIGSTOP, for the length of the block. The signal is acted on only when a thread of the
        program is scheduled, and until then its others go on, on a busy machine for tens of
        milliseconds: the block begins when all of them stand."""
        self.signal(signal.SIGSTOP)
        try:
            self.wait_until(self._stands_still, "it goes on after SIGSTOP")
            yield
        finally:
            self.signal(signal.SIGCONT)

    def _stands_still(self) -> bool:
        states = set()
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            with suppress(OSError):  # It has just ended.
                states.add(_stat(task)[0])
        return states <= {"T", "t", "Z", "X"}

    def kill(self) -> None:
        """SIGKILL, as a power cut would be."""
        self._child.kill()
        self._child.wait()

    def restart(self) -> None:
        """The same command again, after it was killed; output is appended to the same file."""
        assert not self.running()
        self._child = self._start()

    def wait(self, timeout_s: float) -> int:
        """Waits for its end; returns the exit code."""
        try:
            return self._child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise CommandFailed(self.argv, None, self.output(), "") from None

    def stop(self) -> int:
        """SIGTERM, then SIGKILL. Returns the exit code."""
        if self.running():
            self._child.terminate()
            try:
                self._child.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                self.kill()
        return self._child.returncode


@contextmanager
def peer(argv: list[object], log: Path, env: dict[str, str] | None = None) -> Iterator[Peer]:
    """A program for the length of a `with` block."""
    started = Peer(argv, log, env)
    try:
        yield started
    finally:
        started.stop()


def free_port(address: str = "127.0.0.1") -> int:
    """A TCP port that nothing listens on at the moment. It is below those that the kernel gives to connections
    that go out: one of these would have it before the one who has asked."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    given_from = int(PORTS_GIVEN.read_text().split()[0])
    below = range(PORT_LEAST, given_from) or [0]
    for port in random.SystemRandom().choices(below, k=PORTS_TRIED):
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((address, port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
            return probe.getsockname()[1]
    raise LabError(f"no port of {address} from {PORT_LEAST} to {given_from} is free")


def accepts(address: str, port: int) -> bool:
    """Whether something accepts TCP connections there."""
    try:
        socket.create_connection((address, port), timeout=1.0).close()
    except OSError:
        return False
    return True
