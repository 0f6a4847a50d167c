"""`python -m enkaku_lab stale` (`make lab-stale`): which committed figures are older than the code
that they show.

Every CSV in docs/ names the commit that its numbers were measured with. A figure depends on the
product's sources that its stacks run (`PARTS`), and on the emulator; what the lab itself says and
draws is not counted, because a page is written again from its CSV. A figure is old when a commit
since then changed one of these sources.
"""

import argparse
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from enkaku_lab import REPOSITORY, data
from enkaku_lab.curves import Curves
from enkaku_lab.experiment import GUEST
from enkaku_lab.process import LabError
from enkaku_lab.table import render

EMULATOR = ("crates/wanlab/src",)
INITIATOR = tuple(f"crates/{name}/src" for name in ("iscsi-proto", "iscsi", "path", "block"))
TARGET = (*INITIATOR, "crates/scsi/src")
PARTS = {
    "enkaku": (*TARGET, "crates/export/src"),
    "mirror": (*TARGET, "crates/export/src"),
    "media": (*TARGET, "crates/export/src", "crates/files/src", "crates/media/src"),
    "tgt-tuned": INITIATOR,
    "ns2": ("crates/path/src", "lab/enkaku_lab/ns2/session.tcl"),
    "packets": (*TARGET, "crates/tcpmon/src"),
}
"""By the beginning of a stack's name: what of the product it runs. Other stacks run none of it."""


def sources(stacks: Iterable[str]) -> list[str]:
    """What a figure with these stacks depends on."""
    stacks = list(stacks)
    # None of these goes over the emulated line.
    others = [one for one in stacks if one not in ("ns2", "local") and not one.startswith(GUEST)]
    found = set(EMULATOR) if others else set()
    for stack in stacks:
        for name, parts in PARTS.items():
            if stack == name or stack.startswith(f"{name}-"):
                found.update(parts)
    return sorted(found)


def since(commit: str, stacks: Iterable[str]) -> list[str]:
    """Commits after `commit` that changed what the stacks run, the latest first: subject, hash and
    date. LabError where it is no commit of this repository."""
    commit = commit.split()[0].rstrip("+") if commit else ""
    if not commit:
        raise LabError("its commit was not kept")
    argv = ["git", "-C", str(REPOSITORY), "log", "--format=%s (%h, %cs)", f"{commit}..HEAD", "--"]
    if not shutil.which("git"):
        raise LabError("git is not installed")
    if not (parts := sources(stacks)):
        return []
    done = subprocess.run([*argv, *parts], capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabError(f"{commit} is no commit of {REPOSITORY}")
    return done.stdout.splitlines()


def words(commit: str, stacks: Iterable[str]) -> str:
    """What a page says below an old figure; nothing below one that is not, or where that cannot be
    known."""
    try:
        later = since(commit, stacks)
    except LabError:
        return ""
    if not later:
        return ""
    return (
        f"**Older than the code that it shows:** what its stacks run was changed after commit {commit.split()[0]} "
        "(`make lab-stale` lists by what)."
    )


def of_curves(curves: Curves) -> str:
    """The same for a figure of curves."""
    commit = curves.kept.get("commit") or (
        curves.sessions[-1].get("commit", "") if curves.sessions else ""
    )
    return words(commit, {curve.series.stack for curve in curves.curves if curve.measured})


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="enkaku_lab stale", description=__doc__)
    parser.add_argument(
        "--docs", type=Path, default=REPOSITORY / "docs", help="default: %(default)s"
    )
    folder = parser.parse_args(arguments).docs
    rows = [_row(path) for path in sorted(folder.rglob("*.csv"))]
    if not rows:
        raise LabError(f"{folder} has no CSV of a figure")
    print(render(["figure", "measured", "commit", "commits since", "the last of them"], rows))


def _row(path: Path) -> list[str]:
    found = data.read(path)
    head = found.head
    stacks = (
        set(head["stacks"].split()) if "stacks" in head else {row["stack"] for row in found.rows}
    )
    commit = head.get("commit", "")
    try:
        later = since(commit, stacks)
        told = [str(len(later)), later[0] if later else "none: it is up to date"]
    except LabError as error:
        told = ["?", str(error)]
    return [
        head.get("figure", path.stem),
        head.get("taken", "")[:10],
        commit.split()[0] if commit else "",
        *told,
    ]
