"""Data bases that keep a numbered ledger on a mounted volume: SQLite and PostgreSQL.

A row is a number and a note that follows from it. The number is printed, outside the volume, when the
data base has said that its transaction is committed; so what is printed has to be there afterwards,
whatever happens below. Numbers are never used twice: a row that was lost is not made good by chance.
"""

import getpass
import hashlib
import os
import pwd
import re
import shutil
import signal
import sqlite3
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from enkaku_lab.peers import need
from enkaku_lab.process import READY_S_MAX, LabError, Peer, run

ROWS_MAX = 20_000
"""That one run of a writer can make; a round needs some hundreds."""
SQLITE_WRITER = """
import hashlib, sqlite3, sys, time
base = sqlite3.connect(sys.argv[1], isolation_level=None)
base.execute(f"pragma journal_mode = {sys.argv[2]}")
base.execute("pragma synchronous = full")
base.execute("create table if not exists ledger (number integer primary key, note text)")
first, rows = int(sys.argv[3]), int(sys.argv[4])
for number in range(first, first + rows):
    note = hashlib.md5(str(number).encode()).hexdigest() * (1 + number % 150)
    try:
        base.execute("insert into ledger values (?, ?)", (number, note))
    except sqlite3.Error as error:
        sys.exit(f"refused: {error}")
    print("committed", number, time.time(), flush=True)
"""


def note(number: int) -> str:
    """Up to 5 KB that nothing compresses away between two numbers."""
    return hashlib.md5(str(number).encode()).hexdigest() * (1 + number % 150)


class Ledger(ABC):
    """Rows of one data base, over all the runs of its writer."""

    def __init__(self, logs: Path, *, gapless: bool = False):
        """`gapless`: each run goes on behind the last row that is there, so that the rows are 1 … m."""
        self.logs = logs
        self.gapless = gapless
        self.committed: set[int] = set()
        """What was acknowledged, outside the volume."""
        self.writer: Peer | None = None
        self.told_at: dict[int, float] = {}
        """When each of them was, in seconds since 1970; PostgreSQL says when the commit began."""
        self._runs = 0
        self._next = 1

    @abstractmethod
    def start(self, volume: Path) -> None:
        """Opens the data base on the volume, makes it where there is none, and begins to write."""

    @abstractmethod
    def stop(self) -> None:
        """Ends all of its processes at once, in the middle of what they do."""

    def close(self) -> None:
        self.stop()

    @abstractmethod
    def rows(self, volume: Path) -> dict[int, str]:
        """All rows of a copy of the volume, after the data base's own recovery and its own checks.

        Raises when a check finds damage.
        """

    def acknowledged(self) -> int:
        """Commits of the present run of the writer."""
        return len(self._told())

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing is committed, and so nothing flushed, while the block runs."""
        self.writer.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.writer.signal(signal.SIGCONT)

    def refused(self) -> bool:
        """Whether the writer was told of an error and has ended for it."""
        return self.writer is not None and not self.writer.running()

    def said(self) -> str:
        return self.writer.output() if self.writer else ""

    def settle(self) -> None:
        """Takes down what was acknowledged; the writer has ended."""
        told = self._told()
        self.committed |= told.keys()
        self.told_at |= told
        # One more may be under way, and may be there or not.
        self._next = max(told, default=self._next) + 2

    def last_told(self) -> int:
        """The highest number that was acknowledged so far, in this run or before."""
        return max(self._told().keys() | self.committed, default=0)

    def _told(self) -> dict[int, float]:
        """Numbers of the present run, and when they were told."""
        found = re.findall(r"^committed (\d+) ([\d.]+)$", self.said(), re.M)
        return {int(number): float(at_s) for number, at_s in found}

    def _log(self, name: str) -> Path:
        self._runs += 1
        return self.logs / f"{name}-{self._runs}.log"


class Sqlite(Ledger):
    """synchronous=FULL, with a write-ahead log or a rollback journal.

    The journal has to be `truncate`: in mode `delete` FULL does not sync the folder, and a commit may be
    rolled back by a power cut that follows it closely (sqlite.org/pragma.html, EXTRA).
    """

    def __init__(self, logs: Path, journal: str = "wal", *, gapless: bool = False):
        super().__init__(logs, gapless=gapless)
        self._journal = journal

    def start(self, volume: Path) -> None:
        if self.gapless and (volume / "ledger.db").exists():
            self._next = max(self.rows(volume), default=0) + 1
        words = [volume / "ledger.db", self._journal, self._next, ROWS_MAX]
        argv = [need("python3"), "-c", SQLITE_WRITER, *words]
        self.writer = Peer(argv, self._log("sqlite"))

    def stop(self) -> None:
        if self.writer and self.writer.running():
            self.writer.kill()

    def rows(self, volume: Path) -> dict[int, str]:
        base = sqlite3.connect(volume / "ledger.db")
        try:
            [(verdict,)] = base.execute("pragma integrity_check").fetchall()
            if verdict != "ok":
                raise LabError(f"sqlite: {verdict}")
            if not base.execute("select 1 from sqlite_master where name = 'ledger'").fetchall():
                return {}  # an image of before the first commit: who judges it knows whether it may be that old
            return dict(base.execute("select number, note from ledger"))
        finally:
            base.close()


class Postgres(Ledger):
    """A cluster of its own on the volume, with data checksums, run by an unprivileged user."""

    def __init__(self, logs: Path, *, gapless: bool = False):
        super().__init__(logs, gapless=gapless)
        self._bin = postgres_folder()
        assert self._bin is not None
        self._user = unprivileged_user()
        # A socket's path has to be short.
        self._sockets = Path(tempfile.mkdtemp(prefix="pg-"))
        shutil.chown(self._sockets, self._user)
        self._server: Peer | None = None

    def start(self, volume: Path) -> None:
        self._open(volume)
        if self.gapless:
            self._next = int(self._ask("select coalesce(max(number), 0) + 1 from ledger"))
        script = self.logs / "rows.sql"
        with script.open("w") as file:
            for number in range(self._next, self._next + ROWS_MAX):
                value = f"repeat(md5('{number}'), {1 + number % 150})"
                # What is told is told behind the commit (psql waits for the command's end).
                file.write(f"insert into ledger values ({number}, {value}) ")
                file.write("returning 'committed ' || number || ' ' || ")
                file.write("extract(epoch from clock_timestamp());\n")
        argv = [*self._psql(), "-v", "ON_ERROR_STOP=1", "-f", script]
        self.writer = Peer(argv, self._log("psql"))

    def _open(self, volume: Path) -> None:
        data, made = volume / "cluster", volume / "cluster-is-made"
        # Of a moment within initdb, which syncs at its end, there is no cluster yet.
        if not made.exists():
            shutil.rmtree(data, ignore_errors=True)
            data.mkdir(mode=0o700)
            shutil.chown(data, self._user)
            words = ["--auth=trust", "--username=postgres", "--data-checksums", "--no-locale"]
            words += ["--encoding=UTF8", "--wal-segsize=1", "--no-instructions"]
            run(self._as_user([self._bin / "initdb", "-D", data, *words]), timeout_s=180)
            made.touch()
            run([need("sync"), made, volume])
        settings = ["min_wal_size=2MB", "max_wal_size=16MB", "listen_addresses="]
        settings += [f"unix_socket_directories={self._sockets}", "shared_buffers=8MB"]
        words = [word for setting in settings for word in ("-c", setting)]
        argv = self._as_user([self._bin / "postgres", "-D", data, *words])
        self._server = Peer(argv, self._log("postgres"))
        # It recovers first, so it may take its time.
        _until(self._ready, lambda: self._server.output())
        self._ask("create table if not exists ledger (number int primary key, note text)")
        self._ask("alter table ledger alter note set storage external")

    def _ready(self) -> bool:
        if not self._server.running():
            raise LabError(f"postgres ended:\n{self._server.output()[-2000:]}")
        asked = run([*self._psql(), "-c", "select 1"], check=False)
        return asked.code == 0

    def stop(self) -> None:
        if self.writer and self.writer.running():
            self.writer.kill()
        if self._server and self._server.running():
            # All of its processes end at once, and nothing is written any more.
            self._server.signal(signal.SIGQUIT)
            self._server.wait(timeout_s=60)

    def rows(self, volume: Path) -> dict[int, str]:
        own, self._server = self._server, None
        try:
            self._open(volume)
            self._ask("create extension if not exists amcheck")
            words = ["-h", self._sockets, "-U", "postgres", "-d", "postgres", "--heapallindexed"]
            run([self._bin / "pg_amcheck", *words], timeout_s=180)
            told = self._ask("select number, note from ledger")
            self._server.signal(signal.SIGINT)
            self._server.wait(timeout_s=60)
            checks = [self._bin / "pg_checksums", "--check", "-D", volume / "cluster"]
            run(self._as_user(checks), timeout_s=180)
        finally:
            if self._server:
                self._server.stop()
            self._server = own
        pairs = (line.split("|") for line in told.splitlines())
        return {int(number): text for number, text in pairs}

    def close(self) -> None:
        super().close()
        shutil.rmtree(self._sockets, ignore_errors=True)

    def _as_user(self, argv: list[object]) -> list[object]:
        if os.geteuid() != 0:
            return argv
        group = ["--regid", str(_group(self._user))]
        return [need("setpriv"), "--reuid", self._user, *group, "--clear-groups", *argv]

    def _psql(self) -> list[object]:
        words = ["-h", self._sockets, "-U", "postgres", "-d", "postgres", "-X", "-q", "-A", "-t"]
        return [self._bin / "psql", *words]

    def _ask(self, sql: str) -> str:
        return run([*self._psql(), "-c", sql]).stdout


def postgres_folder() -> Path | None:
    """Debian keeps the server's programs out of PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    elsewhere = shutil.which("initdb")
    if found:
        return found[-1].parent
    return Path(elsewhere).resolve().parent if elsewhere else None


def unprivileged_user() -> str:
    """PostgreSQL does not run as root."""
    if os.geteuid() != 0:
        return getpass.getuser()
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def _group(user: str) -> int:
    return pwd.getpwnam(user).pw_gid


def _until(condition, output) -> None:
    deadline = time.monotonic() + 3 * READY_S_MAX
    while not condition():
        if time.monotonic() > deadline:
            raise LabError(f"never ready:\n{output()[-2000:]}")
        time.sleep(0.05)
