"""S2, figure 6: how long it takes to measure, against the reads that are measured over."""

from enkaku_lab.claims import Claim, judged
from enkaku_lab.ns2 import charts
from enkaku_lab.ns2.engine import Run
from enkaku_lab.ns2.study import Fact, Facts, Pace, Results, Study

NUMBERS = (4, 16, 50)
CHUNKS = (1, 2, 5, 10, 20, 50, 100, 200, 500)
COMPARED = 20
TM_MAX_S = 5.0
"""What the paper concludes: a minute for 12 moves of the search."""
CHUNK_OF_PAPER = (100, 200)


def runs(pace: Pace) -> list[Run]:
    if pace.real:
        return fixed_real(pace)
    seconds = 6.0 if pace.quick else 30.0
    return [Run(n=n, seconds=seconds, reads=True) for n in NUMBERS]


def fixed_real(pace: Pace) -> list[Run]:
    """One set of runs for all that is about a fixed number: real seconds are dear."""
    return [Run(n=n, seconds=4.0 if pace.quick else 40.0, reads=True) for n in NUMBERS]


def spans(ends: list[float], chunk: int) -> list[float]:
    """Seconds that pass over each chunk of so many reads, one chunk after the other."""
    return [ends[i + chunk] - ends[i] for i in range(0, len(ends) - chunk, chunk)]


def measured(found: Results) -> dict[int, dict[int, list[float]]]:
    """N → chunk → seconds; the first second is left out (slow start)."""
    table = {}
    for run, result in found.items():
        ends = [read["t_s"] for read in result.reads if read["t_s"] > 1]
        table[run.n] = {chunk: some for chunk in CHUNKS if (some := spans(ends, chunk))}
    return table


def draw(all_axes: list, found: Results, pace: Pace) -> None:
    (axes,) = all_axes
    for index, (n, by_chunk) in enumerate(measured(found).items()):
        values = [[max(s, 1e-4) for s in some] for some in by_chunk.values()]
        charts.band(axes, list(by_chunk), values, f"N = {n}", index)
    axes.axhline(TM_MAX_S, color=charts.RED, linestyle="--", label="60 s / 12 moves: 5 s")
    axes.set(xscale="log", yscale="log", xlabel="reads (PDUs of 1 MB) in a chunk")
    axes.set_ylabel("measuring time (s)")
    charts.legend(axes)


def facts(found: Results, pace: Pace) -> Facts:
    """The time of the largest chunk that a short run has, too."""
    table = {}
    for n, by_chunk in measured(found).items():
        some = by_chunk.get(COMPARED)
        if some:
            name = f"the time of {COMPARED} reads at N = {n}"
            table[name] = Fact(sorted(some)[len(some) // 2], "s", 0.1)
    return table


def reads_in(found: Results, seconds: float = TM_MAX_S) -> dict[int, float]:
    """N → reads that end in so many seconds: the throughput over the run without its first second.
    """
    table = {}
    for run, result in found.items():
        ends = [read["t_s"] for read in result.reads if read["t_s"] > 1]
        if len(ends) > 1:
            table[run.n] = seconds * (len(ends) - 1) / (ends[-1] - ends[0])
    return table


def claims(found: Results, pace: Pace) -> list[Claim]:
    counted = reads_in(found)
    low, high = CHUNK_OF_PAPER
    said = ", ".join(f"{reads:.0f} reads at N = {n}" for n, reads in counted.items())
    holds = all(low <= reads <= high for reads in counted.values()) if counted else None
    return [
        judged(
            f"a search of 12 moves in 60 s leaves 5 s for each, which is {low} to {high} PDUs",
            holds,
            f"in {TM_MAX_S:g} s {said}: one number of PDUs is not one time",
        )
    ]


def sentence(found: Results, pace: Pace) -> str:
    said = []
    for n, by_chunk in measured(found).items():
        chunk = max(by_chunk)
        some = by_chunk[chunk]
        middle = sorted(some)[len(some) // 2]
        said.append(f"N = {n}: {chunk} reads take {middle:.2f} s")
    return (
        "The time grows in proportion to the chunk, and below about one read per connection it "
        f"says nothing of the throughput, because reads end in groups. {'; '.join(said)}."
    )


STUDY = Study(
    name="s2-fig6",
    title="Measuring time against PDUs in a chunk (median; band: all chunks)",
    source="iSCSI-APT 2009, figure 6",
    paper="the time that a measurement takes, against the PDUs that it counts, by N; 60 s / 12 moves leave "
    "at most 5 s for one, so 100 to 200 PDUs",
    runs=runs,
    draw=draw,
    sentence=sentence,
    facts=facts,
    claims=claims,
)
