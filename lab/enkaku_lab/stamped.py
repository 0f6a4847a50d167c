"""A disk under numbers: what a program wrote there one after the other (peers/stamper.c), and whether an
image of it is one that the disk had at some moment.

Each write is stable before the next one begins. So the images that the disk had are those after n writes,
for every n, and no other one.
"""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

from enkaku_lab.peers import built

BLOCK = 4096
STEP = 40503
"""As in stamper.c."""
SOURCE = Path(__file__).parent / "peers" / "stamper.c"


def stamper() -> Path:
    """The program, compiled once for each version of its source."""
    return built.program(SOURCE)


@dataclass(frozen=True)
class Found:
    """What an image shows."""

    newest: int
    """The highest number that is there; 0 where there is none."""
    wrong: int
    """Blocks that have something else than after that many writes."""

    @property
    def legal(self) -> bool:
        return self.wrong == 0


def look(image: Path, blocks: int) -> Found:
    """The first blocks of an image, which the stamper was told of."""
    stamps = _stamps(image, blocks)
    whole = [stamp for stamp in stamps if stamp is not None]
    newest = max(whole, default=0)
    wrong = sum(stamps[place] != number for place, number in expected(newest, blocks).items())
    return Found(newest, wrong)


def expected(newest: int, blocks: int) -> dict[int, int]:
    """Block → the number that it has after so many writes; 0 where nothing was written."""
    places = dict.fromkeys(range(blocks), 0)
    for number in range(max(newest - blocks, 0) + 1, newest + 1):
        places[number * STEP % blocks] = number
    return places


def _stamps(image: Path, blocks: int) -> list[int | None]:
    """Of each block; None where a block has more than one."""
    found: list[int | None] = []
    with image.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as content:
        for block in range(blocks):
            page = content[block * BLOCK : (block + 1) * BLOCK]
            found.append(struct.unpack_from("<Q", page)[0] if page == page[:8] * 512 else None)
    return found
