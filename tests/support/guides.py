"""Runs a page of docs/guides as its reader would: its blocks in order, at two hosts of their own.

    PYTHONPATH=lab:tests .venv/bin/python -m support.guides docs/guides/backup.md

prints what each block printed. What a reader does not see are HTML comments; CONTRIBUTING.md
("Guides") tells which there are. This module is two programs: outside it starts itself in a mount
and a PID namespace, so that nothing which a guide starts or mounts outlives it; inside, `enkaku wan`
gives the hosts `near` and `far` a line between them, and each host is a bash with folders of its own.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from enkaku_lab import REPOSITORY
from enkaku_lab.peers import enkaku
from enkaku_lab.process import Peer, run

HOSTS = ("near", "far")
ADDRESSES = {"near": "10.77.0.1", "far": "10.77.0.2"}
"""As `enkaku wan up` gives them."""
LINE = ["--rate", "1gbit", "--rtt", "1ms"]
"""Where a guide says nothing about the line."""
BLOCK_S_MAX = 240.0
PAGE_S_MAX = 900.0
READY_S_MAX = 30.0
"""For a block that stays in the foreground, until it says that it is ready."""
POLL_S = 0.02
OWN_FOLDERS = ("/srv", "/mnt", "/run", "/var/lib", "/var/log")
"""Empty ones in memory at each host. /etc is the machine's; what a guide writes there is lost."""
COMMENT = re.compile(r"\s*<!-- guide: (.*?)\s*(?:-->|$)")
FENCE = re.compile(r"\s*```(\w*)")


class BadGuide(Exception):
    """The page itself is wrong; the message names its line."""


@dataclass
class Block:
    """A block of a page, and then what became of it."""

    line: int
    """Of the page, where the block begins."""
    text: str
    host: str = "near"
    stays: str | None = None
    """The text in its output that says it is ready; it stays in the foreground until the page ends."""
    not_here: str | None = None
    """Why it cannot run in namespaces of this machine."""
    hidden: bool = False
    """A comment: what the reader has already, such as a disk with something on it."""
    prints: list[str] = field(default_factory=list)
    """Lines that the page says it prints."""
    output: str = ""
    seconds: float = 0.0
    failed: str | None = None


@dataclass
class Guide:
    name: str
    line: list[str]
    needs: list[str]
    """Programs without which the page cannot be followed."""
    blocks: list[Block]


def parse(page: Path) -> Guide:
    """What is to be run of a page. Each block is run, is output, or says why it cannot run here."""
    guide = Guide(page.stem, list(LINE), [], [])
    marks: list[str] = []
    lines = enumerate(page.read_text().splitlines(), 1)
    for at, line in lines:
        if found := COMMENT.match(line):
            word, _, rest = found[1].partition(" ")
            if word == "line":
                guide.line = shlex.split(rest)
            elif word == "needs":
                guide.needs += rest.split()
            elif word == "before":
                host = _host(rest, page, at)
                text = "\n".join(_until("-->", lines, page, at))
                guide.blocks.append(Block(at, text, host, hidden=True))
            else:
                marks.append(found[1])
        elif found := FENCE.match(line):
            text = _until("```", lines, page, at)
            _add(guide, found[1], text, marks, f"{page.name}:{at}", at)
            marks = []
    if marks:
        raise BadGuide(f"{page.name}: no block follows {marks}")
    return guide


def _host(word: str, page: Path, at: int) -> str:
    if word not in HOSTS:
        raise BadGuide(f"{page.name}:{at}: {word!r} is no host; there are {' and '.join(HOSTS)}")
    return word


def _until(end: str, lines: Iterator[tuple[int, str]], page: Path, at: int) -> list[str]:
    text = []
    for _, line in lines:
        if line.strip() == end:
            return text
        text.append(line)
    raise BadGuide(f"{page.name}:{at}: nothing ends this block ({end})")


def _add(guide: Guide, kind: str, text: list[str], marks: list[str], where: str, at: int) -> None:
    block = Block(at, "\n".join(text))
    for mark in marks:
        word, _, rest = mark.partition(" ")
        if mark == "prints":
            if not guide.blocks:
                raise BadGuide(f"{where}: nothing has run that could have printed this")
            guide.blocks[-1].prints += text
            return
        if mark.startswith("printed once: "):
            return
        if word in HOSTS:
            block.host = word
            if rest:
                found = re.fullmatch(r'stays until "(.+)"', rest)
                if not found:
                    raise BadGuide(f'{where}: {rest!r}; allowed is: stays until "TEXT"')
                block.stays = found[1]
        elif mark.startswith("not here: "):
            block.not_here = mark.removeprefix("not here: ")
        else:
            raise BadGuide(f"{where}: the mark {mark!r} is not known")
    if kind != "sh" and not block.not_here:
        what = kind or "no language"
        raise BadGuide(f"{where}: a block of {what} is neither sh, nor printed, nor not here")
    guide.blocks.append(block)


def masked(line: str) -> str:
    """A line without what differs from run to run: numbers with units, long hexadecimal names."""
    line = re.sub(r"\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{8,}\b", "#", line)
    unit = r"(?: ?(?:bytes?|[kMGT]?i?B|[kMGT]?bit|ns|us|µs|ms|s|min|h)(?:/s)?(?![\w]))?"
    line = " ".join(re.sub(r"\d[\d.,:]*" + unit, "#", line).split())
    return re.sub(r"#( #)+", "#", line)


def not_printed(said: list[str], output: str) -> list[str]:
    """Lines that a page says are printed, and that are not in the output in that order."""
    actual = iter([masked(line) for line in output.splitlines()])
    missing = []
    for line in said:
        wanted = masked(line)
        if wanted in ("", "…"):
            continue
        pattern = re.compile(re.escape(wanted).replace("…", ".*") + r"\Z")
        if not any(pattern.match(line) for line in actual):
            missing.append(line)
            actual = iter(())
    return missing


class Host:
    """One end of the line: a bash that reads block after block, as a person's terminal does."""

    def __init__(self, name: str, folder: Path):
        self.name, self.folder = name, folder
        self.number = 0
        there = ["enkaku", "wan", "exec", "guide", name, "--"]
        self.shell = subprocess.Popen(
            [*there, "unshare", "--mount", "bash", "--norc"], stdin=subprocess.PIPE, stdout=(folder / f"{name}.log").open("wb"),
            stderr=subprocess.STDOUT, text=True, bufsize=1,
        )
        self.log = folder / f"{name}.log"

    def prepare(self) -> None:
        mounts = [f"mkdir -p {folder} && mount -t tmpfs guide {folder}" for folder in OWN_FOLDERS]
        over = f"{self.folder}/{self.name}-etc"
        layers = f"lowerdir=/etc,upperdir={over}/upper,workdir={over}/work"
        names = "\\n".join(f"{ADDRESSES[name]} {name}.example {name}" for name in HOSTS)
        self.run(Block(0, "\n".join([
            "set -e",
            *mounts,
            f"mount -t overlay guide -o {layers} /etc",
            f"printf '127.0.0.1 localhost\\n::1 localhost\\n{names}\\n' >/etc/hosts",
            f"mkdir -p {self.folder}/{self.name}-home && cd {self.folder}/{self.name}-home",
            "export HOME=$PWD",
            # What `enkaku wan` has used to get here; a root's shell has none.
            "unset XDG_RUNTIME_DIR",
            # What goes from one host to the other by scp or by pasting.
            f"export GUIDE={self.folder} REPOSITORY={REPOSITORY}",
            "set +e",
        ])))

    def run(self, block: Block) -> None:
        """Fills in what became of it."""
        self.number += 1
        script = self.folder / f"{self.name}-{self.number}.sh"
        out, code = script.with_suffix(".out"), script.with_suffix(".code")
        script.write_text(block.text + "\n")
        begin = time.monotonic()
        if block.stays:
            ended = f'echo "ended with code $?" >{code}'
            self._tell(f"{{ . {script}; {ended}; }} >{out} 2>&1 </dev/null &")
            # As in another terminal: `wait` of a guide waits for its own jobs alone.
            self._tell("disown")
        else:
            # -E and ERR: the first command that fails is what is told, as a reader would see it.
            trap = "'failed=$BASH_COMMAND'"
            self._tell(f"failed=; set -E; trap {trap} ERR; . {script} >{out} 2>&1 </dev/null")
            self._tell(f"trap - ERR; printf '%s' \"$failed\" >{code}.new; mv {code}.new {code}")
        limit = READY_S_MAX if block.stays else BLOCK_S_MAX
        while True:
            block.output = out.read_text(errors="replace") if out.exists() else ""
            if block.stays and block.stays in block.output:
                break
            if code.exists():
                failed = code.read_text(errors="replace").strip()
                block.failed = f"failed: {failed}" if failed and not block.stays else failed or None
                break
            if time.monotonic() > begin + limit:
                awaited = f"; awaited: {block.stays!r}" if block.stays else ""
                block.failed = f"did not end within {limit:.0f} s{awaited}"
                break
            if self.shell.poll() is not None:
                block.failed = f"its shell has ended: {self.log.read_text(errors='replace')[-500:]}"
                break
            time.sleep(POLL_S)
        block.output = out.read_text(errors="replace") if out.exists() else ""
        block.seconds = time.monotonic() - begin

    def _tell(self, line: str) -> None:
        try:
            self.shell.stdin.write(line + "\n")
        except BrokenPipeError:
            pass  # `run` finds that the shell has ended, and says why.


def _loops() -> dict[str, str]:
    """Loop devices and what is behind them, as this namespace sees it."""
    listed = run(["losetup", "--list", "--noheadings", "--output", "NAME,BACK-FILE"], check=False)
    pairs = (line.split(maxsplit=1) for line in listed.stdout.splitlines())
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


def perform(guide: Guide, folder: Path) -> None:
    """Runs the blocks, inside the namespaces of this run, until one fails."""
    before = _loops()
    run(["enkaku", "wan", "up", "guide", *guide.line])
    hosts = {name: Host(name, folder) for name in HOSTS}
    try:
        for host in hosts.values():
            for part in ("upper", "work"):
                (folder / f"{host.name}-etc" / part).mkdir(parents=True)
            host.prepare()
        for block in guide.blocks:
            if block.not_here:
                continue
            hosts[block.host].run(block)
            missing = [] if block.failed else not_printed(block.prints, block.output)
            if missing:
                block.failed = f"the page says it prints {missing[0]!r}"
            if block.failed:
                break
    finally:
        # A loop device is the machine's, not the namespace's: one that a guide made goes with it.
        for device, file in _loops().items():
            if device not in before and "/mnt/" in file:
                run(["losetup", "--detach", device], check=False)


def outside(page: Path, folder: Path) -> Guide:
    """Runs a page in namespaces of its own; what became of each block is in the answer."""
    folder.mkdir(parents=True, exist_ok=True)
    tools = folder / "bin"
    tools.mkdir(exist_ok=True)
    (tools / "enkaku").unlink(missing_ok=True)
    (tools / "enkaku").symlink_to(enkaku.binary().resolve())
    (folder / "run").mkdir(exist_ok=True, mode=0o700)
    path = f"{tools}:{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    env = {"PATH": path, "XDG_RUNTIME_DIR": str(folder / "run")}
    env["PYTHONPATH"] = f"{REPOSITORY}/lab:{REPOSITORY}/tests"
    result = folder / "result.json"
    own = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    words = [*own, sys.executable, "-m", "support.guides", "--inside", page, folder]
    running = Peer(words, folder / "guide.log", env)
    try:
        code = running.wait(PAGE_S_MAX)
        if code != 0 or not result.exists():
            raise BadGuide(f"{page.name}: ended with code {code}:\n{running.output()}")
    finally:
        running.stop()
    told = json.loads(result.read_text())
    guide = parse(page)
    guide.blocks = [Block(**block) for block in told]
    return guide


def transcript(guide: Guide) -> str:
    text = []
    for block in guide.blocks:
        how = f"{block.host}, {block.seconds:.1f} s"
        how = f"not here: {block.not_here}" if block.not_here else how
        text += [f"--- line {block.line} ({how})", block.text, block.output]
        text += [f"*** {block.failed}"] if block.failed else []
    return "\n".join(text)


def main(words: list[str]) -> int:
    if words[:1] == ["--inside"]:
        guide, folder = parse(Path(words[1])), Path(words[2])
        perform(guide, folder)
        (folder / "result.json").write_text(json.dumps([asdict(block) for block in guide.blocks]))
        return 0
    import tempfile

    with tempfile.TemporaryDirectory(prefix="guide-") as folder:
        guide = outside(Path(words[0]).resolve(), Path(folder))
    print(transcript(guide))
    return int(any(block.failed for block in guide.blocks))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
