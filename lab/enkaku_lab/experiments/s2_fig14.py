"""S2, figure 14: congestion window of a connection that was added later."""

from enkaku_lab.ns2 import pairs
from enkaku_lab.ns2.study import Study

STUDY = Study(
    name="s2-fig14",
    title="Congestion window of a connection that was added later under golden",
    source="iSCSI-APT 2009, figure 14",
    paper="congestion window of connection No. 40; that of No. 40 is slightly larger than that of No. 1",
    runs=pairs.runs,
    draw=lambda axes, found, pace: pairs.draw_window(axes[0], found, pace, pairs.LATER),
    sentence=lambda found, pace: pairs.window_sentence(found, pace, pairs.LATER),
    facts=lambda found, pace: pairs.window_facts(found, pace, pairs.LATER),
    claims=lambda found, pace: pairs.claims(found, pace, "cwnd", "segments"),
)
