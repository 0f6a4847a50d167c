"""BT-IO (lab/btio): a solver on p x p ranks that writes its solution as it goes and verifies it."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from enkaku_lab import REPOSITORY
from enkaku_lab.peers import need, openmpi
from enkaku_lab.process import LabError, run

SOURCES = REPOSITORY / "lab/btio"
SUBTYPES = ("full", "simple", "fortran", "epio")
VERIFIED, NOT_VERIFIED, REFUSED, NO_REFERENCE = 0, 1, 2, 3
"""Exit codes."""
BUILD_S_MAX = 300.0
RUN_S_MAX = 1800.0


@dataclass(frozen=True)
class Work:
    """What one run does. Paths are those that a rank sees."""

    size: str
    """The class."""
    subtype: str = "none"
    file: Path | None = None
    verify_only: bool = False
    checksum: str | None = None
    sync: bool = False
    hints: dict[str, object] = field(default_factory=dict)

    def words(self, report: Path) -> list[object]:
        words = ["--class", self.size, "--subtype", self.subtype, "--report", report]
        words += ["--file", self.file] if self.file else []
        words += ["--verify-only"] if self.verify_only else []
        words += ["--checksum", self.checksum] if self.checksum else []
        words += ["--sync"] if self.sync else []
        for key, value in self.hints.items():
            words += ["--hint", f"{key}={value}"]
        return words


@dataclass(frozen=True)
class Done:
    """The report; `code` is the program's."""

    code: int
    report: dict
    stderr: str

    @property
    def verified(self) -> bool:
        return self.code == VERIFIED and self.report["verified"] is True


def build(folder: Path) -> Path:
    """The program, made in a folder; `mixed` is beside it. The path is absolute: mpirun starts it on
    nodes, whose agents have working directories of their own."""
    if reason := openmpi.missing():
        raise LabError(reason)
    if not SOURCES.is_dir():
        raise LabError(f"{SOURCES} does not exist: BT-IO's sources are in a clone of the repository, not in what pip installs")
    folder.mkdir(parents=True, exist_ok=True)
    folder = folder.resolve()
    argv = [need("make"), "--silent", "-C", SOURCES, f"OUT={folder}"]
    run(argv, timeout_s=BUILD_S_MAX)
    return folder / "btio"


def run_here(
    program: Path, ranks: int, work: Work, folder: Path, mpi_io: str | None = None
) -> Done:
    """One run on this host. A code other than 0 is told, not raised: its report says why."""
    mpi = openmpi.installed()
    report = folder / "report.json"
    argv = [*mpi.local(ranks), *(mpi.mpi_io(mpi_io) if mpi_io else []), program]
    return _run([*argv, *work.words(report)], report)


def mixed_here(program: Path, words: list[object], folder: Path) -> Done:
    """One run of `mixed`, both ranks on this host. `program` is what `build` returned."""
    report = folder / "mixed.json"
    mixed = [*openmpi.installed().local(2), program.with_name("mixed")]
    return _run([*mixed, *words, "--report", report], report)


def _run(argv: list[object], report: Path) -> Done:
    report.unlink(missing_ok=True)
    ran = run(argv, check=False, env=openmpi.ENVIRONMENT, timeout_s=RUN_S_MAX)
    return Done(ran.code, json.loads(report.read_text()) if report.exists() else {}, ran.stderr)
