"""A load by the Python package, in an interpreter that has it and nothing of this repository: `wheel_bench` runs this file.
Arguments: URL, CALL (pread, preadinto or pwrite), bytes of a block, threads, seconds, connections. Prints one JSON object."""

import itertools
import json
import sys
import threading
import time

import enkaku


def main(url: str, call: str, block: int, threads: int, seconds: float, connections: int) -> None:
    mode = "r+" if call == "pwrite" else "r"
    with enkaku.open(url, mode, connections=connections, cache="none") as volume:
        blocks = volume.size // block
        turns = itertools.count()
        done = [0] * threads
        end = time.monotonic() + seconds

        def work(number: int) -> None:
            buffer = bytearray(block)
            operation = {
                "pread": lambda at: volume.pread(block, at),
                "preadinto": lambda at: volume.preadinto(buffer, at),
                "pwrite": lambda at: volume.pwrite(buffer, at),
            }[call]
            while time.monotonic() < end:
                operation(next(turns) % blocks * block)
                done[number] += block

        begin = time.monotonic()
        workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        took_s = time.monotonic() - begin
    print(json.dumps({"bytes": sum(done), "seconds": took_s, "version": enkaku.__version__}))


if __name__ == "__main__":
    URL, CALL, BLOCK, THREADS, SECONDS, CONNECTIONS = sys.argv[1:]
    main(URL, CALL, int(BLOCK), int(THREADS), float(SECONDS), int(CONNECTIONS))
