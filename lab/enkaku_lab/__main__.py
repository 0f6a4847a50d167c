"""`python -m enkaku_lab demo|bench|list|run|report|monitor-cost`: the entry point of the lab."""

import sys

from enkaku_lab import bench, commands, demo, monitor_cost
from enkaku_lab.process import LabError

COMMANDS = {
    "demo": demo.main,
    "bench": bench.main,
    "list": commands.main_list,
    "run": commands.main_run,
    "report": commands.main_report,
    "monitor-cost": monitor_cost.main,
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
