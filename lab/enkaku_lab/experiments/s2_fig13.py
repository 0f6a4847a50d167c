"""S2, figure 13: congestion window of the first connection."""

from enkaku_lab.ns2 import pairs
from enkaku_lab.ns2.study import Study

STUDY = Study(
    name="s2-fig13",
    title="Congestion window of the first connection under golden",
    source="iSCSI-APT 2009, figure 13",
    paper="congestion window of connection No. 1; that of No. 40 is slightly larger than that of No. 1",
    runs=pairs.runs,
    draw=lambda axes, found, pace: pairs.draw_window(axes[0], found, pace, pairs.FIRST),
    sentence=lambda found, pace: pairs.window_sentence(found, pace, pairs.FIRST),
    facts=lambda found, pace: pairs.window_facts(found, pace, pairs.FIRST),
    claims=lambda found, pace: pairs.claims(found, pace, "cwnd", "segments"),
)
