"""`python -m enkaku_lab findings`: docs/findings.md, what five papers said and what we found, made
of the CSVs that are committed beside the figures. A number that is not in one of them is not on the
page; what was not measured is said."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from enkaku_lab import REPOSITORY, claims, data, packets, s3_figures, story
from enkaku_lab.claims import NOT_MEASURED, Claim
from enkaku_lab.curves import Curves
from enkaku_lab.experiments import common, load, s0_guest, s1_fig7, s1_mirror
from enkaku_lab.experiments.s0_guest_queue import PICTURE
from enkaku_lab.in_guest import senders
from enkaku_lab.process import LabError
from enkaku_lab.story import Numbers
from enkaku_lab.transfers import HELD, STOCK, WIDE

DOCS = REPOSITORY / "docs"
PAGE = "findings.md"
ANSWERED, CORRECTED = "answered", "corrected"
WINDOW_2004_BYTES = 65535
QUEUE = PICTURE.name
PAPER_NEAR, PAPER_FAR = (2.8, 102.5), (16.0, 40.0)
"""S1's own iSCSI: RTT in ms and Mbit/s, the middle of 101 to 104 at the one."""
HEAD = """# What five papers said, and what we found

Made by `python -m enkaku_lab findings` from the numbers committed beside the figures (CSV); do not edit. **confirmed** and **not
confirmed** are judged by code from these numbers, **corrected** and **answered** say what else they show, **not measured
here** says why. How it is measured: [lab.md](lab.md); each figure's axes, ranges and stacks beside the paper's: [review.md](review.md). Many of the figures are older than today's code: each page says
so, and `make lab-stale` lists them.
"""


@dataclass(frozen=True)
class Row:
    """A statement of a paper against what is committed."""

    says: str
    verdict: str
    found: str
    figure: str
    """Name of the figure that shows it; empty where there is none."""
    command: str = ""

    def __str__(self) -> str:
        where = f"[{self.figure}]({PLACES[folder_of(self.figure)]})" if self.figure else "–"
        command = (
            f"`{self.command or _command(self.figure)}`" if self.command or self.figure else "–"
        )
        return f"| {self.says} | **{self.verdict}** | {self.found} | {where}, {command} |"


PLACES = {
    "lab": "lab/README.md",
    "packets": "packets/README.md",
    "long-fat": "long-fat/README.md",
    "mirror": "mirror/README.md",
    "tuner": "tuner/ns2.md",
    "guest": "guest/README.md",
    "kernel-log": "guest/kernel-log.md",
    s3_figures.BTIO: "s3-btio.md",
    s3_figures.MIXED: "s3-mixed.md",
}


def folder_of(figure: str) -> str:
    """Of docs/, where a figure's numbers are; a key of `PLACES`."""
    if figure.startswith("s2-"):
        return "tuner"
    if figure in (s3_figures.BTIO, s3_figures.MIXED):
        return figure
    if figure.startswith("s5-"):
        return "long-fat"
    if figure == "s1-mirror":
        return "mirror"
    if figure in senders.load() or figure == QUEUE:
        return "kernel-log"
    if "-guest" in figure:
        return "guest"
    return "packets" if figure in packets.load() else "lab"


def _command(figure: str) -> str:
    if figure == QUEUE:
        figure = "s0-fig17"
    return f"python -m enkaku_lab run {figure}"


class Committed:
    """The CSVs of a folder of documents."""

    def __init__(self, docs: Path):
        self._docs = docs
        self._experiments = load()

    @cached_property
    def numbers(self) -> Numbers:
        """Of S0's packets."""
        found = data.read(self._docs / "packets" / f"{packets.NUMBERS}.csv")
        return Numbers([tuple(row[name] for name in story.COLUMNS) for row in found.rows])

    def curves(self, name: str) -> Curves:
        path = self._docs / folder_of(name) / "figures" / f"{name}.csv"
        return data.read_curves(path, self._experiments[name])

    def has(self, name: str) -> bool:
        """Whether numbers of a figure of curves are committed."""
        return (self._docs / folder_of(name) / "figures" / f"{name}.csv").exists()

    def kernel_log(self, name: str) -> list[Claim]:
        """What the paper says of a log, judged; nothing where no log is committed."""
        path = self._docs / "guest" / f"{name}.csv"
        return senders.load()[name].claims(senders.of_csv(path)) if path.exists() else []

    def picture(self, name: str) -> list[Claim]:
        """The same of another picture of the logs, judged when it was drawn."""
        path = self._docs / "guest" / f"{name}.csv"
        return claims.of_head(data.read(path).head) if path.exists() else []

    def cluster(self, name: str) -> list[Claim]:
        """Judged when it was drawn; nothing where nothing is committed."""
        path = self._docs / "figures" / f"{name}.csv"
        return claims.of_head(data.read(path).head) if path.exists() else []

    def claim(self, name: str, index: int) -> Claim:
        """What the paper says of a figure of curves, judged."""
        curves = self.curves(name)
        return curves.experiment.claims(curves)[index]

    def packets(self, name: str, index: int) -> Claim:
        return packets.load()[name].claims(self.numbers)[index]

    def study(self, name: str, index: int) -> Claim:
        """Judged when the figure was drawn; a figure without its numbers is not measured."""
        path = self._docs / "tuner" / f"{name}.csv"
        if not path.exists():
            return claims.not_measured("", "no numbers of it are committed")
        return claims.of_head(data.read(path).head)[index]


def _row(claim: Claim, figure: str, says: str = "") -> Row:
    return Row(says or claim.says, claim.verdict, claim.found, figure)


def s0(of: Committed) -> list[Row]:
    """Higa et al. 2009."""
    curves, rtt = of.curves("s5-rtt"), 50
    tcp, auto = (curves.get(name, "write") for name in ("plain TCP, 1 connection", "enkaku, auto"))
    loss = of.curves("s5-loss")
    rows = [
        _row(of.claim("s0-fig4", 0), "s0-fig4"),
        _row(of.claim("s0-fig4", 1), "s0-fig4"),
        _row(of.claim("s0-fig4", 2), "s0-fig4"),
        *(_row(of.packets("s0-fig8", index), "s0-fig8") for index in range(3)),
        *(_row(of.packets("s0-fig9", index), "s0-fig9") for index in range(2)),
        _row(of.packets("s0-fig11", 0), "s0-fig11"),
        _row(of.packets("s0-fig12", 0), "s0-fig12"),
        _row(of.packets("s0-fig16", 0), "s0-fig16"),
        _cause(of.numbers, of.has("s0-guest")),
        *_own_initiator(of),
        Row(
            "future work: find where the buffer's limit is decided, enlarge and control it",
            ANSWERED,
            "it is decided by `tcp_wmem[2]` (or SO_SNDBUF), and Linux wakes a writer only when a third of it is free; larger buffers or more "
            f"connections remove it: with connections chosen by itself a write has {_least(auto, curves.limit_mbit)} of the line or more up to RTT "
            f"{max(point.x for point in auto.measured):g} ms, one plain TCP connection {common.rate(tcp.at(rtt))} at {rtt} ms",
            "s5-rtt",
        ),
        _kernels(of, "s0-guest-cc", 0)
        or Row(
            "congestion control changes the socket's throughput, not iSCSI's",
            NOT_MEASURED,
            "no sweep without loss. With loss it does matter: at RTT 50 ms and 1e-3 enkaku has "
            f"{common.rate(loss.get('auto', 'cubic, forced').at(1e-3))} with cubic and "
            f"{common.rate(_bbr(loss))} where it may choose bbr",
            "s5-loss",
        ),
        Row(
            "settings of the network card bring about 5 %",
            NOT_MEASURED,
            "the emulated line (TUN) has no card",
            "",
        ),
        Row("the same collapse on Windows", NOT_MEASURED, "no Windows here", ""),
        *_asleep(of),
        *(_row(claim, QUEUE) for claim in of.picture(QUEUE)),
    ]
    return rows


def _asleep(of: Committed) -> list[Row]:
    """Figure 17."""
    if judged := of.kernel_log("s0-fig17"):
        return [_row(claim, "s0-fig17") for claim in judged]
    why = "this machine's kernel refuses the probes that see it (fentry); the guest's has not been asked"
    says = "both sleep in schedule_timeout(), at different lines (figure 17)"
    return [Row(says, NOT_MEASURED, why, "", _command("s0-fig17"))]


def _own_initiator(of: Committed) -> list[Row]:
    """S0's stack itself: the kernel's initiator."""
    if not of.has("s0-guest"):
        return []
    curves = of.curves("s0-guest")
    at = s0_guest.AT_MS
    bursts, doubled, wide = (curves.get(name).at(at) for name in (s0_guest.BURSTS, s0_guest.DOUBLED, s0_guest.WIDE))
    return [
        _row(of.claim("s0-guest", 0), "s0-guest", "the same with S0's own initiator, open-iscsi: it collapses"),
        _row(of.claim("s0-guest", 1), "s0-guest", "the same in steady state: a plain socket keeps its speed"),
        _row(of.claim("s0-guest", 2), "s0-guest", "the same conjecture with open-iscsi, where no buffer was set by us"),
        Row(
            "future work: where the limit of open-iscsi's buffer is decided",
            ANSWERED,
            "in iscsid: `node.conn[0].tcp.window_size` (512 KiB) becomes SO_SNDBUF, so the kernel no longer sizes the buffer itself; the kernel cuts it to "
            "`net.core.wmem_max` (208 KiB unless set) and counts it twice: 1 MiB at most, the paper's “at most 1 MB in flight”. With bursts of 4 MiB at RTT "
            f"{at} ms: {common.rate(bursts)} as installed, {common.rate(doubled)} with wmem_max out of the way, {common.rate(wide)} with 4 MiB in the setting",
            "s0-guest",
        ),
    ]


def _bbr(loss: Curves) -> float | None:
    """Auto in the panel where bbr may be chosen."""
    panel = next(name for name in loss.experiment.panels if name != "cubic, forced")
    return loss.get("auto", panel).at(1e-3)


def _least(curve, limit: float) -> str:
    return f"{curve.worst.mbit / limit:.0%}"


def _cause(numbers: Numbers, own_initiator: bool) -> Row:
    stock, held, wide = (numbers.get(stack, "ta_per_rtt", None) for stack in (STOCK, HELD, WIDE))
    share, flight = numbers.get(HELD, "queue_full_share"), numbers.get(HELD, "held_share")
    return Row(
        "conjecture: neither window but the send socket buffer limits",
        CORRECTED,
        f"so where R2Ts are gone and the buffer is held at 1 MiB, which we set: full in {share:.0%} of the samples, all in flight in {flight:.0%}, "
        f"{held:.1f} RTT for 4 MiB and {wide:.1f} with 4 MiB of buffer. Stock iSCSI waits before that, for its R2Ts: one for each 256 KiB, {stock:.1f} RTT for "
        f"4 MiB. {'S0’s own open-iscsi: next row' if own_initiator else 'S0’s own open-iscsi was not run'}",
        "s0-fig8",
    )


def s1(of: Committed) -> list[Row]:
    """Teraoka et al. 2004."""
    lan = {
        name: of.curves("s1-fig11").get(name, s1_fig7.LAN).at(1e-3)
        for name in (common.NFS.label, common.STOCK.label)
    }
    nfs, stock = (common.rate(lan[name]) for name in (common.NFS.label, common.STOCK.label))
    rows = [
        _row(
            of.claim("s1-fig2", 0),
            "s1-fig2",
            "the local disk gives a saw-tooth against the block size, 750 to 960 Mbit/s",
        ),
        _row(of.claim("s1-fig3", 0), "s1-fig3"),
        _row(of.claim("s1-fig5", 0), "s1-fig5"),
        _papers_cause(),
        Row(
            "the same cause here",
            CORRECTED,
            of.claim("s1-fig5", 2).found,
            "s1-fig5",
        ),
        _kernels(of, "s1-guest-rtt", 2, "the same with the kernel's initiator"),
        _row(of.claim("s1-fig7", 0), "s1-fig7", "loss: flat from 0 to 1e-4"),
        _row(of.claim("s1-fig7", 1), "s1-fig7"),
        _kernels(of, "s1-guest-block", 0) or _row(of.claim("s1-fig8", 0), "s1-fig8"),
        _kernels(of, "s1-guest-rtt", 0)
        or _row(
            of.claim("s1-fig10", 0),
            "s1-fig10",
            "below RTT 20 ms NFS is faster (16 ms: NFS about 500 Mbit/s, iSCSI about 40)",
        ),
        _kernels(of, "s1-guest-rtt", 1),
        _kernels(of, "s1-guest-loss", 0)
        or Row(
            "lossy networks favour iSCSI over NFS",
            NOT_MEASURED,
            f"the same order over TCP, {stock} against {nfs} at 1e-3; the paper's reason, UDP, was not run",
            "s1-fig11",
        ),
        _kernels(of, "s1-guest-window", 0, "future work: window scaling and tuning should help")
        or _kernels(of, "s1-window", 0, "future work: window scaling and tuning should help")
        or Row(
            "future work: window scaling and tuning should help",
            NOT_MEASURED,
            "the series without window scaling (s1-window) has not been run",
            "s1-window",
        ),
        _mirror(of.curves("s1-mirror")),
    ]
    return [row for row in rows if row]


def _kernels(of: Committed, figure: str, index: int, says: str = "") -> Row | None:
    """What is committed of a figure that came later than the others, or None."""
    return _row(of.claim(figure, index), figure, says) if of.has(figure) else None


def _papers_cause() -> Row:
    """Arithmetic of the paper's own points: no run of ours."""
    window = [WINDOW_2004_BYTES * 8 / 1e3 / rtt for rtt, _ in (PAPER_NEAR, PAPER_FAR)]
    one = common.one_request([PAPER_NEAR, PAPER_FAR])
    return Row(
        "iSCSI is slow because TCP's window, without scaling, is too small",
        CORRECTED,
        f"by the paper's own points: a window of 64 KB allows {window[0]:.0f} Mbit/s at RTT {PAPER_NEAR[0]:g} ms, where 101 to 104 were seen, and {window[1]:.0f} at "
        f"{PAPER_FAR[0]:g} ms, where about {PAPER_FAR[1]:g} were. One request of {one.request_kib:.0f} KiB for each RTT + {one.more_ms:.1f} ms gives both: the reader waits for each of "
        "its read-aheads",
        "",
        "python -m enkaku_lab findings",
    )


def _mirror(curves: Curves) -> Row:
    parts = []
    for rtt in s1_mirror.RTTS_MS:
        panel, size = s1_mirror.panel(rtt), 256
        local, sync, behind = (
            curves.get(name, panel).at(size)
            for name in ("local only", "mirror, sync", "mirror, async")
        )
        parts.append(
            f"RTT {rtt:g} ms: {common.rate(sync)} synchronously, {common.rate(behind)} asynchronously, {common.rate(local)} on the local disk alone"
        )
    return Row(
        "future work: a mirror of a local and a remote disk; with what performance?",
        ANSWERED,
        f"writes of {size} KiB, one at a time: {'; '.join(parts)}; reads are the local disk's",
        "s1-mirror",
    )


def s2(of: Committed) -> list[Row]:
    """iSCSI-APT 2009, in the paper's simulator."""
    return [
        *(_row(of.study("s2-fig7", index), "s2-fig7") for index in range(3)),
        _row(of.study("s2-fig6", 0), "s2-fig6"),
        _row(of.study("s2-fig10", 0), "s2-fig10"),
        *(_row(of.study("s2-fig11", index), "s2-fig11") for index in range(2)),
        _row(
            of.study("s2-fig12", 0),
            "s2-fig12",
            "connection No. 40 has slightly more throughput than No. 1",
        ),
        _row(of.study("s2-fig14", 0), "s2-fig14", "and a slightly larger window"),
        _row(
            of.study("s2-fig16", 0),
            "s2-fig16",
            "PDU of 1 MB: the read times spread more under APT than with its N fixed",
        ),
        _row(
            of.study("s2-fig18", 0),
            "s2-fig18",
            "PDU of 3 MB: they spread less under APT than with its N fixed",
        ),
        _row(of.study("s2-fig18", 2), "s2-fig18", "and are in two groups, fast and slow"),
    ]


def s3(of: Committed) -> list[Row]:
    """A cluster whose storage network is merged into its front-end network, 2006."""
    return [
        *_on_cluster(of, s3_figures.BTIO, "merging storage and messages into one network costs almost nothing (because that iSCSI was slow, 5.3 MB/s)"),
        *_on_cluster(of, s3_figures.MIXED, "writing and sending overlap: T(k) ≈ max(T_write, k · T_sendrecv)"),
    ]


def _on_cluster(of: Committed, name: str, first: str) -> list[Row]:
    """What is committed of a study on a cluster; `first` is its first statement in the page's words."""
    if judged := of.cluster(name):
        return [_row(claim, name, "" if index else first) for index, claim in enumerate(judged)]
    why = "no results are committed; the study is there ([btio.md](btio.md))"
    return [Row(first, NOT_MEASURED, why, "", _command(name))]


def s4(of: Committed) -> list[Row]:
    """Isamu et al. 2008."""
    return [_row(of.claim("s4-fig3", index), "s4-fig3") for index in range(3)]


PAPERS: Sequence[tuple[str, Callable[[Committed], list[Row]]]] = (
    ("S0: packet transmission in remote iSCSI access (Higa et al. 2009)", s0),
    ("S1: iSCSI over a 43 Gbit/s line (Teraoka et al. 2004)", s1),
    ("S2: iSCSI-APT (2009), in ns-2 as the paper", s2),
    ("S3: the storage network merged into a cluster's front-end network (2006)", s3),
    ("S4: a video file sharing system on iSCSI storage (Isamu et al. 2008)", s4),
)
MORE = {
    s2: "On real TCP the same studies are of 2026-11-23 ([tuner/engines.md](tuner/engines.md), [tuner.md](tuner.md)).",
}


def page(docs: Path = DOCS) -> str:
    """The page, from the CSVs in a folder of documents."""
    of = Committed(docs)
    parts = [HEAD]
    for title, rows in PAPERS:
        lines = [
            "| the paper | | here | figure, command |",
            "|---|---|---|---|",
            *map(str, rows(of)),
        ]
        parts += [
            f"## {title}\n",
            *([f"{MORE[rows]}\n"] if rows in MORE else []),
            "\n".join(lines) + "\n",
        ]
    return "\n".join(parts)


def main(arguments: list[str]) -> None:
    write(arguments, "findings", __doc__, PAGE, page)


def write(arguments: list[str], command: str, about: str | None, name: str, of: Callable[[Path], str]) -> None:
    """What a command does that makes a page of what is committed in a folder of documents."""
    parser = argparse.ArgumentParser(prog=f"enkaku_lab {command}", description=about)
    parser.add_argument("--docs", type=Path, default=DOCS, help="default: %(default)s")
    docs = parser.parse_args(arguments).docs
    if not docs.is_dir():
        raise LabError(f"{docs} is no folder")
    (docs / name).write_text(of(docs))
    print(f"Report: {docs / name}")
