"""`python -m enkaku_lab kernel-log`: experiments whose result is the kernel's log of senders in the guest (`LOG` in a
file of `experiments/`)."""

import argparse
import gzip
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from enkaku_lab import OUT, data, docs, experiments, machine
from enkaku_lab.claims import Claim, as_head, markdown, of_head
from enkaku_lab.experiment import GUEST, KIB, STRETCH, Link
from enkaku_lab.in_guest import kernel_log, line, missing, recipe
from enkaku_lab.in_guest.kernel_log import Log
from enkaku_lab.peers import guest_image
from enkaku_lab.peers.guest import Guest
from enkaku_lab.process import LabError
from enkaku_lab.progress import say
from enkaku_lab.results import utc

MSS_BYTES = 1448
SOCKET_CALL_BYTES = 128 * KIB
"""iperf's."""
RUN_S = 8.0
"""Of one sender, about, and of a boot."""
# Times are of the second half of the sleeps.
COLUMNS = (
    *("sender", "label", "sleeps", "line", "timeout_ticks", "woken_by_ack_share", "median_rtt", "longest_rtt"),
    *("queue_kib", "unsent_kib", "flight_kib", "cwnd_kib", "memory_of_limit", "limit_kib", "stack", "waker"),
)
WORDS = ("sender", "label", "line", "stack", "waker")
FRAMES_MAX = 12
GUEST_MARK = "# guest: "
"""Begins the first line of a kept log: the versions in the guest."""
FOLDER = OUT / "lab" / "guest"
PAGE = "kernel-log.md"
HEAD = """# The kernel's log of a sender

Made by `python -m enkaku_lab kernel-log --docs docs/guest`; do not edit. How: [../lab.md](../lab.md#the-guest). Medians are over the
second half of the sleeps; a time in the guest is divided by the stretch of its line.
"""


@dataclass(frozen=True)
class Sender:
    name: str
    label: str
    stack: str
    task: str
    """Name of the process or thread that sends, as a pattern."""


Row = Mapping[str, float | str]


@dataclass(frozen=True)
class Picture:
    """Another figure of the same logs. Its numbers are what was drawn, and they have what was judged."""

    name: str
    title: str
    paper: str
    draw: Callable[[Mapping[str, Log], Path, Mapping[str, object]], None]
    """Draws into PATH.svg, PATH.png and PATH.csv."""


@dataclass(frozen=True)
class Senders:
    name: str
    title: str
    paper: str
    senders: Sequence[Sender]
    link: Link
    call_bytes: int
    bytes: int
    quick_bytes: int
    draw: Callable[[Mapping[str, Log], Path, Mapping[str, object]], None]
    claims: Callable[[Mapping[str, Row]], list[Claim]]
    pictures: Sequence[Picture] = ()

    @property
    def names(self) -> list[str]:
        """Of all its figures."""
        return [self.name, *(picture.name for picture in self.pictures)]

    @property
    def seconds(self) -> float:
        """About, at either pace."""
        return RUN_S * (1 + len(self.senders))


def load() -> dict[str, Senders]:
    return experiments.declared("LOG")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="enkaku_lab kernel-log", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="8 MiB of each sender")
    parser.add_argument("--out", type=Path, default=FOLDER, help="default: %(default)s")
    parser.add_argument("--docs", type=Path, metavar="DIR", help="write what is to be committed, too")
    parser.add_argument("--again", type=Path, metavar="DIR", help="write the page there again, from its CSV")
    parser.add_argument("--fresh", action="store_true", help="record again what is recorded")
    options = parser.parse_args(arguments)
    chosen = list(load().values())
    if options.again:
        print(f"Report: {again(chosen, options.again)}")
    elif page := perform(chosen, options.quick, options.out, options.fresh):
        print(f"Report: {page}")
        if options.docs:
            for name in (name for one in chosen for name in one.names):
                docs.keep(options.out / f"{name}.svg", options.docs)
                (options.docs / f"{name}.csv").write_bytes((options.out / f"{name}.csv").read_bytes())
            print(f"To be committed: {again(chosen, options.docs)}")


def again(chosen: Sequence[Senders], folder: Path) -> Path:
    """The page of what is committed, from the CSVs there."""
    if absent := [name for one in chosen for name in one.names if not (folder / f"{name}.csv").exists()]:
        raise LabError(f"{folder / absent[0]}.csv does not exist; `kernel-log --docs` makes it")
    drawn = {path.stem: path.name for path in folder.iterdir() if path.suffix in (".svg", ".png")}
    return _write(chosen, folder, drawn)


def _write(chosen: Sequence[Senders], folder: Path, drawn: Mapping[str, str]) -> Path:
    """The page of the CSVs in a folder and these files of the figures."""
    parts = [HEAD]
    for one in chosen:
        parts.append(section(one, folder / f"{one.name}.csv", drawn[one.name]))
        parts += [_picture(picture, folder / f"{picture.name}.csv", drawn[picture.name]) for picture in one.pictures]
    page = folder / PAGE
    page.write_text("\n".join(parts))
    return page


def perform(chosen: Sequence[Senders], quick: bool, out: Path, fresh: bool = False) -> Path | None:
    """Records what is not recorded yet, draws, writes the page; returns its path, or None where there can be no
    guest: the reason is said."""
    pace = "quick" if quick else "full"
    todo = [(one, sender) for one in chosen for sender in one.senders if fresh or not _kept(out, pace, one, sender).exists()]
    if todo and not _record(todo, quick, out, pace):
        return None
    for one in chosen:
        _draw(one, out, pace)
    return _write(chosen, out, {name: f"{name}.svg" for one in chosen for name in one.names})


def _kept(out: Path, pace: str, one: Senders, sender: Sender) -> Path:
    return out / f"runs-{pace}" / f"{one.name}-{sender.name}.log.gz"


def _record(todo: Iterable[tuple[Senders, Sender]], quick: bool, out: Path, pace: str) -> bool:
    todo = list(todo)
    try:
        if reason := missing():
            raise guest_image.NoImage(reason)
        image = guest_image.image(recipe())
    except guest_image.NoImage as lacks:
        say(f"{', '.join(dict.fromkeys(one.name for one, _ in todo))}: skipped, no stock-kernel guest: {lacks}")
        return False
    with Guest(image, counted=True) as guest:
        line.set_up(guest)
        for one, sender in todo:
            say(f"{one.name}: {sender.label}")
            text = _log(guest, one, sender, one.quick_bytes if quick else one.bytes)
            path = _kept(out, pace, one, sender)
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(".partial")
            versions = f"{GUEST_MARK}Linux {image.kernel_version}, open-iscsi {image.open_iscsi_version}\n"
            partial.write_bytes(gzip.compress((versions + text).encode()))
            partial.rename(path)
    return True


def _log(guest: Guest, one: Senders, sender: Sender, amount: int) -> str:
    from enkaku_lab.stacks.all import STACKS  # they have the guest's packages, which this one is of

    stack = STACKS[sender.stack]
    line.become(guest, one.link)
    with stack.opened_in(guest) as path:
        if sender.stack == f"{GUEST}socket":
            work = f"meter send {line.FAR} {stack.port} {SOCKET_CALL_BYTES} {amount}"
        else:
            work = f"meter write {path} {one.call_bytes} {amount} 1000 0"
        text, _ = kernel_log.record(guest, stack.port, sender.task, work)
    if not kernel_log.read(text).queues:
        raise LabError(f"{one.name}: the kernel's log of “{sender.label}” has none of its packets")
    return text


def rows(one: Senders, logs: Mapping[str, Log]) -> list[tuple]:
    """What the CSV has: medians over the sleeps, in the paper's time."""
    return [_row(sender, logs[sender.name], one.link.rtt_ms) for sender in one.senders if sender.name in logs]


def _row(sender: Sender, log: Log, rtt_ms: float) -> tuple:
    sleeps = log.sleeps
    if not sleeps:
        return (sender.name, sender.label, 0, "", *([None] * (len(COLUMNS) - 6)), "", "")
    # While the window grows, a sleeper waits for more than one round trip.
    lasted = [sleep.seconds / STRETCH * 1e3 / rtt_ms for sleep in sleeps[len(sleeps) // 2 :]]
    lines = [sleep.line for sleep in sleeps]
    typical = max(sleeps, key=lambda sleep: lines.count(sleep.line))

    def median(of: Callable[[kernel_log.Queue], float]) -> float:
        return float(statistics.median(of(sleep.begin) for sleep in sleeps))

    return (
        *(sender.name, sender.label, len(sleeps), typical.line, typical.timeout_ticks),
        sum(sleep.by_acknowledgement for sleep in sleeps) / len(sleeps),
        *(statistics.median(lasted), max(lasted)),
        *(median(lambda queue: queue.bytes / KIB), median(lambda queue: queue.unsent_bytes / KIB)),
        *(median(lambda queue: queue.in_flight_bytes / KIB), median(lambda queue: queue.cwnd_packets * MSS_BYTES / KIB)),
        *(median(lambda queue: queue.memory_bytes / queue.limit_bytes), median(lambda queue: queue.limit_bytes / KIB)),
        *(" < ".join(frames[:FRAMES_MAX]) for frames in (typical.stack, typical.waker)),
    )


def of_csv(path: Path) -> dict[str, Row]:
    """The rows of a CSV by the sender's name; numbers as numbers."""
    return {
        row["sender"]: {name: value if name in WORDS else float(value or 0) for name, value in row.items()}
        for row in data.read(path).rows
    }


def _draw(one: Senders, out: Path, pace: str) -> None:
    """Its figures and their CSVs."""
    kept = {sender.name: _kept(out, pace, one, sender) for sender in one.senders}
    kept = {name: path for name, path in kept.items() if path.exists()}
    texts = {name: gzip.decompress(path.read_bytes()).decode() for name, path in kept.items()}
    taken = max(path.stat().st_mtime for path in kept.values())
    logs = {name: kernel_log.read(text) for name, text in texts.items()}
    versions = {text.partition("\n")[0].removeprefix(GUEST_MARK) for text in texts.values()}
    facts = machine.facts()
    head = {
        "figure": one.name,
        "paper": "Higa et al. 2009",
        "stacks": " ".join(sender.stack for sender in one.senders),
        "machine": machine.summary(facts),
        "guest": "; ".join(sorted(versions)),
        "commit": facts["commit"],
        "taken": utc(taken),
        "pace": pace,
        "run": f"{(one.quick_bytes if pace == 'quick' else one.bytes) >> 20} MiB, RTT {one.link.rtt_ms:g} ms, in a guest whose clock counts instructions, "
        f"times divided by {STRETCH}",
    }
    csv = out / f"{one.name}.csv"
    data.write(csv, head, COLUMNS, rows(one, logs))
    judged = one.claims(of_csv(csv))
    data.write(csv, head | as_head(judged), COLUMNS, rows(one, logs))
    one.draw(logs, out / one.name, head)
    for picture in one.pictures:
        picture.draw(logs, out / picture.name, head)


def _picture(picture: Picture, csv: Path, file: str) -> str:
    """Of a page, from the CSV alone."""
    parts = [
        f"## {picture.name}: {picture.title}",
        f"The paper: {picture.paper}.",
        f"![{picture.title}]({file})",
        f"[The numbers]({csv.name}). From the same logs.",
        markdown(of_head(data.read(csv).head)),
    ]
    return "\n\n".join(parts) + "\n"


def section(one: Senders, csv: Path, picture: str) -> str:
    """Of a page, from the CSV alone."""
    kept = of_csv(csv)
    lines = ["| sender | sleeps | where | timeout | woken by | asleep (RTT) | in the queue, unsent, in flight (KiB) |", "|---|---:|---|---|---|---|---|"]
    for row in kept.values():
        timeout = "none" if row["timeout_ticks"] >= kernel_log.FOREVER else f"{row['timeout_ticks'] / kernel_log.TICKS_PER_S:g} s"
        lines.append(
            f"| {row['label']} | {row['sleeps']:.0f} | `{row['line']}` | {timeout} | acknowledgements: {row['woken_by_ack_share']:.0%} | "
            f"{row['median_rtt']:.2f}, at most {row['longest_rtt']:.2f} | {row['queue_kib']:.0f}, {row['unsent_kib']:.0f}, {row['flight_kib']:.0f} |"
        )
    stacks = [f"{row['label']}, asleep: `{row['stack']}`\n\nwoken by: `{row['waker']}`" for row in kept.values() if row["stack"]]
    head = data.read(csv).head
    parts = [
        f"## {one.name}: {one.title}",
        f"The paper: {one.paper}.",
        f"![{one.title}]({picture})",
        f"[The numbers]({csv.name}). Recorded {head['taken']} on {head['machine']}, commit {head['commit']}; in the guest {head['guest']}. {head['run']}.",
        "\n".join(lines),
        "\n\n".join(stacks),
        markdown(one.claims(kept)),
    ]
    return "\n\n".join(parts) + "\n"
