"""S4, figure 3: iSCSI against SMB at 100 Mbit/s, 32 KiB per call, small receive windows."""

from enkaku_lab.curves import Curves
from enkaku_lab.experiment import KIB, Axis, Experiment, Link, Load, Series
from enkaku_lab.experiments.common import ATTACH, STOCK, falls, last_x, rate, share, times

SMALL, LARGE = "receive window 64 KB", "receive window 128 KB"
SMB = "SMB, libsmbclient"


def sentence(curves: Curves) -> str:
    smb, stock, attach = (curves.get(name, SMALL) for name in (SMB, STOCK.label, ATTACH.label))
    last = last_x(curves)
    word = "wins" if (stock.at(last) or 0) > (smb.at(last) or 0) else "loses"
    return (
        f"In the paper iSCSI wins over SMB at every delay, because it asks for 64 KB at a time; "
        f"here iSCSI (tgt + libiscsi) {word}: at RTT {last:g} ms and the 64 KB window it has "
        f"{rate(stock.at(last))}, SMB {rate(smb.at(last))} "
        f"({times(stock.at(last), smb.at(last))}), enkaku attach {rate(attach.at(last))} "
        f"({share(attach.at(last), curves.limit_mbit)} of the line). {falls(smb, 8)}; "
        f"{falls(stock, 8)}."
    )


EXPERIMENT = Experiment(
    name="s4-fig3",
    title="iSCSI and SMB at 100 Mbit/s: sequential read against RTT",
    source="Isamu et al. 2008, figure 3",
    paper="512 MB in calls of 32 KB, delay 0 to 24 ms each way; iSCSI wins",
    x=Axis("RTT (ms)", "rtt_ms", [0, 8, 16, 24, 32, 48], [0, 16, 48], "linear"),
    link=Link(rate="100mbit"),
    load=Load(block_bytes=32 * KIB),
    panels={
        # Linux advertises half of the buffer (tcp_adv_win_scale 1).
        SMALL: {"rmem": "4k 128k 128k"},
        LARGE: {"rmem": "4k 256k 256k"},
    },
    series=[
        Series("smb", SMB),
        STOCK,
        ATTACH,
        Series("tcp", "plain TCP, 1 connection", load={"connections": 1}),
    ],
    sentence=sentence,
    log_y=False,
    repeat_max=2,
    seconds_more=1,
    note=(
        "A file of 512 MiB is read in calls of 32 KiB, each byte compared with what was written, "
        "and the run ended early (below). The receive windows are set as tcp_rmem "
        "of both ends (128k and 256k, of which Linux advertises half). libsmbclient sends a "
        "request per call; iSCSI is read through the kernel's read-ahead, which asks for more than 64 KB. "
        "enkaku attach has several connections, each with a receive window of its own; all others "
        "have one."
    ),
)
