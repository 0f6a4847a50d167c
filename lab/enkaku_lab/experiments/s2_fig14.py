"""S2, figure 14: congestion window of a connection that was added later."""

from enkaku_lab.ns2 import pairs
from enkaku_lab.ns2.study import Study

STUDY = Study(
    name="s2-fig14",
    title="Congestion window of a connection that was added later under golden",
    source="iSCSI-APT 2009, figure 14",
    paper="the window of a connection that was added later grows under losses",
    runs=pairs.runs,
    draw=lambda found, _pace: pairs.draw_window(found, pairs.LATER),
    sentence=lambda found, _pace: pairs.window_sentence(found, pairs.LATER),
)
