"""S1's future work: what window scaling and tuning bring. The TCP of 2004 beside today's, RTT 0 to 100 ms."""

from enkaku_lab.claims import Claim, judged
from enkaku_lab.curves import Curves
from enkaku_lab.experiment import Axis, Experiment, Load, Series
from enkaku_lab.experiments.common import (
    PIPELINED,
    READ_NOTE,
    SHRUNK,
    STOCK,
    STOCK_2004,
    TCP_1,
    nearest,
    rate,
    share,
    times,
)

UNSCALED = {"window_scaling": False}
TCP_2004 = Series("tcp", "plain TCP, no window scaling", link=UNSCALED, load={"connections": 1}, line="-.", marker="+")
MANY_2004 = Series(
    "enkaku-pipelined", "enkaku copy, no window scaling", link=UNSCALED, load=PIPELINED, line="-.", marker="D"
)
AT_MS = 16


def sentence(curves: Curves) -> str:
    (at, old), (_, new), (_, tcp) = (nearest(curves.get(one.label), AT_MS) for one in (STOCK_2004, STOCK, TCP_1))
    return (
        f"At {at:g} ms tgt + libiscsi has {rate(old)} without window scaling and {rate(new)} with it ({times(new, old)}); plain TCP "
        f"{rate(curves.get(TCP_2004.label).at(at))} and {rate(tcp)}."
    )


def claims(curves: Curves) -> list[Claim]:
    """The paper expects that a larger window is enough."""
    old, new, bare, tcp, many = (curves.get(one.label) for one in (STOCK_2004, STOCK, TCP_2004, TCP_1, MANY_2004))
    at, before = nearest(old, AT_MS)
    after = new.at(at)
    said = ""
    if before and after:
        said = f"at {at:g} ms tgt + libiscsi has {rate(before)} without and {rate(after)} with it, {times(after, before)}"
        if bare.at(at) and tcp.at(at):
            said += f"; plain TCP {rate(bare.at(at))} and {rate(tcp.at(at))}, {times(tcp.at(at), bare.at(at))}"
        if many.at(at):
            said += (
                f". Without it more connections do the same: enkaku copy has {rate(many.at(at))}, "
                f"{share(many.at(at), curves.limit_mbit)} of the line"
            )
    return [judged("window scaling and tuning should help", after > 1.5 * before if before and after else None, said)]


EXPERIMENT = Experiment(
    name="s1-window",
    title="Window scaling: sequential read against RTT",
    source="Teraoka et al. 2004, section 6 (future work)",
    paper="window scaling and tuning are expected to help; the paper's TCP has no window scaling, so at most 64 KB under way",
    x=Axis("RTT (ms)", "rtt_ms", [2, 8, 16, 40, 100], [16], "log"),
    load=Load(),
    series=[STOCK_2004, STOCK, TCP_2004, TCP_1, MANY_2004],
    sentence=sentence,
    claims=claims,
    shrunk=SHRUNK,
    repeat_max=2,
    note=READ_NOTE + " Block size of the calls 64 KiB; `tcp_window_scaling=0` at both ends, where it says so.",
)
