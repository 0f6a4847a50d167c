"""An image of a disk as an input of the fuzz case `files`: sectors that are not zero, with their numbers.

    python tests/support/sparse_disk.py disk.img fuzz/corpus/files/NAME
"""

import sys
from pathlib import Path

SECTOR = 512


def sparse_disk(image: bytes) -> bytes:
    """`u32` sectors of the disk, then `u24` sector, `u16` bytes and the bytes, big-endian."""
    parts = [(len(image) // SECTOR).to_bytes(4, "big")]
    for number in range(len(image) // SECTOR):
        sector = image[number * SECTOR : (number + 1) * SECTOR].rstrip(b"\0")
        if sector:
            parts += [number.to_bytes(3, "big"), len(sector).to_bytes(2, "big"), sector]
    return b"".join(parts)


if __name__ == "__main__":
    Path(sys.argv[2]).write_bytes(sparse_disk(Path(sys.argv[1]).read_bytes()))
