"""`python -m enkaku_lab COMMAND`: where the lab begins. Without a command it lists them."""

import sys

from enkaku_lab import (
    attacks,
    background,
    bench,
    board,
    bottlenecks,
    commands,
    demo,
    few,
    findings,
    gateway_bench,
    many,
    mirror_lag,
    mirror_outage,
    mirror_peers,
    monitor_cost,
    packets,
    path_gate,
    rbd_bench,
    review,
    s3_beyond,
    s3_btio,
    s3_limits,
    s3_mixed,
    stale,
    steps,
    tuner_cost,
    wheel_bench,
)
from enkaku_lab.in_guest import senders, udp
from enkaku_lab.media import commands as media
from enkaku_lab.ns2 import commands as s2
from enkaku_lab.plans import check as plan_check
from enkaku_lab.process import LabError

COMMANDS = {
    "attacks": attacks.main,
    "demo": demo.main,
    "bench": bench.main,
    "board": board.main,
    "bottlenecks": bottlenecks.main,
    "packets": packets.main,
    "list": commands.main_list,
    "run": commands.main_run,
    "report": commands.main_report,
    "stale": stale.main,
    "findings": findings.main,
    "review": review.main,
    "kernel-log": senders.main,
    "nfs-udp": udp.main,
    "s2": s2.main,
    "plan-check": plan_check.main,
    "monitor-cost": monitor_cost.main,
    "steps": steps.main,
    "tuner-cost": tuner_cost.main,
    "path-gate": path_gate.main,
    "background": background.main,
    "many": many.main,
    "few": few.main,
    "media-start": media.main,
    "mirror-lag": mirror_lag.main,
    "mirror-outage": mirror_outage.main,
    "mirror-peers": mirror_peers.main,
    "gateway-bench": gateway_bench.main,
    "rbd-bench": rbd_bench.main,
    "s3-beyond": s3_beyond.main,
    "s3-btio": s3_btio.main,
    "s3-limits": s3_limits.main,
    "s3-mixed": s3_mixed.main,
    "wheel-bench": wheel_bench.main,
}


def main() -> int:
    name, *arguments = sys.argv[1:] or [""]
    if name not in COMMANDS:
        print(f"usage: python -m enkaku_lab {'|'.join(COMMANDS)} [options]", file=sys.stderr)
        return 2
    try:
        COMMANDS[name](arguments)
    except LabError as error:
        print(f"\nenkaku_lab: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
