"""The lab: runs enkaku and its peers as black boxes, measures them and draws the figures.

It never links product code. Peers are real programs, started on free ports and stopped by
process id; `peers/` holds one adapter per program.
"""

import os
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
OUT = (REPOSITORY if (REPOSITORY / "Cargo.toml").exists() else Path.cwd()) / "out"
"""Everything that the lab writes (ignored by git); below the working directory where the lab was
installed elsewhere."""

# What is measured begins as on a new path, whatever ran before.
os.environ.setdefault("ENKAKU_PATH_MEMORY", "off")
