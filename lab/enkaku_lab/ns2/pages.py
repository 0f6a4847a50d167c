"""S2 as it is committed: a page of Markdown, small figures and their numbers beside it; both
engines side by side, or the simulator alone."""

from pathlib import Path

from enkaku_lab import machine
from enkaku_lab.docs import keep
from enkaku_lab.ns2 import study
from enkaku_lab.ns2.study import Pace, Study
from enkaku_lab.process import LabError

PAGE, SIMULATED, FACTS = "engines.md", "ns2.md", "engines.csv"
QUIET_LOAD = 3.0
"""Load average up to which nothing else need have been at work: target, initiator and emulator have
a little more than one core, in some threads."""


def write(studies: list[Study], pace: Pace, folder: Path, docs: Path, note: str = "") -> Path:
    """DOCS/engines.md, and the figures beside it."""
    performed = study.compare(studies, pace, folder)
    if not performed:
        raise LabError("nothing was run by both engines yet: --engine both")
    docs.mkdir(parents=True, exist_ok=True)
    parts = [*_head(studies, pace, folder), *([note] if note else [])]
    for one, svg, said in performed:
        kept = _keep(svg, docs)
        parts += [*_begin(one, kept), said]
    facts = folder / f"facts-{pace.name}.csv"
    (docs / FACTS).write_bytes(facts.read_bytes())
    page = docs / PAGE
    page.write_text("\n\n".join(parts) + "\n")
    return page


def _begin(one: Study, kept: str) -> list[str]:
    """What both pages say first of a study."""
    return [
        f"## {one.name}: {one.title}",
        f"The paper ({one.source}): {one.paper}.",
        f"![{one.title}]({kept})",
    ]


def write_simulated(
    performed: study.Performed, pace: Pace, docs: Path, note: str = ""
) -> Path:
    """DOCS/ns2.md, and the figures beside it: what ns-2 alone says."""
    parts = [
        "# iSCSI-APT (S2) in ns-2",
        f"Made by `python -m enkaku_lab s2 --docs DIR`{' with `--quick`' if pace.quick else ''}; do not edit. The model and its "
        "parameters: [../tuner.md](../tuner.md). A run is a function of its parameters and its seed, so how busy a machine is changes nothing.",
        *(["**A quick run:** it shows that everything works; draw no conclusions from it."] if pace.quick else []),
        *([note] if note else []),
    ]
    for one, svg, said in performed:
        kept = _keep(svg, docs)
        parts += [
            *_begin(one, kept),
            f"[What was drawn]({svg.stem}.csv), with the runs behind it." if (docs / f"{svg.stem}.csv").exists() else "",
            said,
        ]
    page = docs / SIMULATED
    page.write_text("\n\n".join(part for part in parts if part) + "\n")
    return page


def _keep(svg: Path, docs: Path) -> str:
    """A figure and its numbers; the name of the former."""
    kept = keep(svg, docs)
    table = svg.with_suffix(".csv")
    (docs / table.name).write_bytes(table.read_bytes())
    # A figure is committed in one of its forms.
    for other in {".svg", ".png"} - {Path(kept).suffix}:
        (docs / svg.with_suffix(other).name).unlink(missing_ok=True)
    return kept


def _head(studies: list[Study], pace: Pace, folder: Path) -> list[str]:
    heads = _heads(studies, pace, folder)
    first = heads[0]["machine"]
    loads = [load for head in heads for load in head["load_average"]]
    parts = [
        "# iSCSI-APT (S2): ns-2 and real TCP side by side",
        f"Made by `python -m enkaku_lab s2 --engine both --docs DIR`{' with `--quick`' if pace.quick else ''}; "
        "do not edit. What is the same and what is not: [../tuner.md](../tuner.md); the numbers of the tables: "
        f"[{FACTS}]({FACTS}).",
        f"Real TCP: {machine.summary(first)}, {len(heads)} runs, load average {min(loads):.1f} to "
        f"{max(loads):.1f}. Numbers agree when they lie within the tolerance in the tables.",
    ]
    if pace.quick:
        parts.append("**A quick run:** it shows that everything works; draw no conclusions from it.")
    if max(loads) > QUIET_LOAD:
        parts.append(
            "**The machine was not quiet:** something else was at work beside these runs, and what "
            "real TCP reached is an example."
        )
    return parts


def _heads(studies: list[Study], pace: Pace, folder: Path) -> list[dict]:
    """Of every real run, once."""
    mine = Pace(pace.name, "real")
    found = {}
    for one in studies:
        if "real" in one.engines:
            results = study.ENGINES["real"].stored(one.runs(mine), folder / "real") or {}
            found.update({run: result.head for run, result in results.items()})
    return list(found.values())
