"""Runs the ns-2 model once per set of parameters; what has been run is read from its file.

A run is a function of its parameters (the seed is one of them), so two figures that ask for the
same run share it, and an interrupted `run` goes on where it was.
"""

import hashlib
import json
import os
import shlex
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path

from enkaku_lab.peers import enkaku
from enkaku_lab.process import LabError, die_with_parent
from enkaku_lab.progress import Progress

MODEL = Path(__file__).with_name("session.tcl")
CONNECTIONS_MAX = 128
"""What golden may ask for; the paper names no limit, and its search never needed more."""
MIB = 1 << 20


@dataclass(frozen=True)
class Run:
    """The parameters of one run; the network is the study's unless `path` or `steps` say otherwise."""

    policy: str = "fixed"
    """fixed, golden or adaptive."""
    n: int = 4
    """Connections at the start; with `fixed`, always."""
    seconds: float = 20.0
    seed: int = 1
    measuring_time_s: float | None = None
    """Tm of golden."""
    pdu_mib: int = 1
    reads: bool = False
    """Whether the time of every read is kept."""
    trace: tuple[int, ...] = ()
    """Connections whose congestion window is kept."""
    steps: str = ""
    """Changes of the path: TIME WHAT VALUE …, see session.tcl."""
    path: str = ""
    """Another network than the study's: NAME VALUE …, parameters of session.tcl."""
    connections_max: int = CONNECTIONS_MAX
    interval_s: float = 0.1

    @property
    def key(self) -> str:
        """Differs where the result may: by parameters, model and, with adaptive, the binary (golden
        is the paper's algorithm and stays what it is; `--fresh` runs it again all the same)."""
        inputs = json.dumps(asdict(self), sort_keys=True).encode() + MODEL.read_bytes()
        if self.policy == "adaptive":
            inputs += enkaku.binary().read_bytes()
        return hashlib.sha256(inputs).hexdigest()[:16]

    @property
    def tuner(self) -> str:
        """The command that ns-2 talks to; nothing for a fixed number."""
        if self.policy == "fixed":
            return ""
        words = [enkaku.binary(), "tune", "--stdio", "--policy", self.policy]
        words += ["--connections-max", self.connections_max]
        if self.measuring_time_s:
            words += ["--measuring-time", self.measuring_time_s]
        return " ".join(shlex.quote(str(word)) for word in words)

    def argv(self) -> list[str]:
        parameters = {
            "n": self.n,
            "n_max": self.connections_max,
            "seconds": self.seconds,
            "seed": self.seed,
            "interval": self.interval_s,
            "pdu_bytes": self.pdu_mib * MIB,
            "reads": int(self.reads),
            "trace": " ".join(map(str, self.trace)),
            "steps": self.steps,
            "tuner": self.tuner,
        }
        words = [str(word) for pair in parameters.items() for word in pair]
        return ["ns", str(MODEL), *words, *self.path.split()]


@dataclass
class Result:
    """What a run wrote."""

    run: Run
    samples: list[dict]
    """t_s, open, n, phase, bytes_per_s, reads (so far), traced."""
    reads: list[dict]
    """t_s of the end, seconds, n; in ns-2 also the connection's id."""
    head: dict = field(default_factory=dict)
    """Parameters, and of real runs: machine, load, what the line dropped, the client's report."""


def missing() -> str | None:
    """Why ns-2 cannot run here, or None."""
    return None if shutil.which("ns") else "ns-2 is not installed (Debian: ns2, see packages.txt)"


def results(
    runs: list[Run], folder: Path, jobs: int | None = None, fresh: bool = False
) -> dict[Run, Result]:
    """All of them, running what has no file yet (`fresh`: everything), several at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = _paths(runs, folder)
    for path in paths.values() if fresh else ():
        path.unlink(missing_ok=True)
    # The longest first, so that none of them is left to run alone at the end.
    todo = sorted((run for run, path in paths.items() if not path.exists()), key=_cost)[::-1]
    if todo and (reason := missing()):
        raise LabError(reason)
    progress = Progress(len(todo))
    with ThreadPoolExecutor(jobs or len(os.sched_getaffinity(0))) as pool:
        waiting = {pool.submit(_execute, run, paths[run]): run for run in todo}
        try:
            for finished in as_completed(waiting):
                progress.step(f"ns-2: {title(waiting[finished])}")
                finished.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    if todo:
        progress.end()
    return {run: read(run, path) for run, path in paths.items()}


def stored(runs: list[Run], folder: Path) -> dict[Run, Result] | None:
    """All of them, if none has to be run."""
    paths = _paths(runs, folder)
    if not all(path.exists() for path in paths.values()):
        return None
    return {run: read(run, path) for run, path in paths.items()}


def _paths(runs: list[Run], folder: Path) -> dict[Run, Path]:
    return {run: folder / f"{run.key}.jsonl" for run in dict.fromkeys(runs)}


def _cost(run: Run) -> float:
    return run.seconds * (1 if run.policy != "fixed" else min(run.n, 32) / 32)


def title(run: Run) -> str:
    """A run in a few words."""
    tm = f", Tm {run.measuring_time_s:g} s" if run.measuring_time_s else ""
    number = f", N {run.n}" if run.policy == "fixed" else ""
    return f"{run.policy}{tm}{number}, {run.seconds:g} s, seed {run.seed}"


def failure(code: int, said: str) -> LabError:
    """What is told of a simulation that ended like this: its first line."""
    words = said.splitlines() or ["nothing was said"]
    return LabError(f"ns-2 ended with code {code}: {words[0]}")


def _execute(run: Run, path: Path) -> None:
    """Runs ns-2; the file appears under its name only when the run is complete."""
    torn = path.with_suffix(f".{os.getpid()}.part")
    head = {"kind": "run", **asdict(run)}
    try:
        with torn.open("w") as out:
            print(json.dumps(head), file=out, flush=True)
            done = subprocess.run(
                run.argv(),
                stdout=out,
                stderr=subprocess.PIPE,
                text=True,
                preexec_fn=die_with_parent,
                check=False,
            )
        last = torn.read_text().rstrip().rpartition("\n")[2]
        if done.returncode or '"kind":"end"' not in last:
            raise failure(done.returncode, done.stderr.strip() or last)
        torn.rename(path)
    finally:
        torn.unlink(missing_ok=True)


def read(run: Run, path: Path) -> Result:
    """What is in a file of results, of either engine."""
    result = Result(run, [], [])
    lists = {"sample": result.samples, "read": result.reads}
    with path.open() as file:
        for line in file:
            record = json.loads(line)
            if record["kind"] == "run":
                result.head = record
            lists.get(record["kind"], []).append(record)
    return result
