"""Between initiator and target: a proxy's URL, the far end of an emulated line, faults beside a run."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from enkaku_lab.peers import enkaku
from enkaku_lab.proxy import Proxy

FAR = "10.77.0.2"
"""The lab's far end (crates/wanlab)."""
LAB = pytest.mark.needs("root", "/dev/net/tun")


def url_through(proxy: Proxy, lun: int = 0) -> str:
    return f"iscsi://127.0.0.1:{proxy.port}/{enkaku.IQN}/{lun}"


@contextmanager
def beside(action, every_s: float) -> Iterator[list]:
    """Does something again and again, as long as the block runs; yields what it returned."""
    done, over = [], threading.Event()

    def work():
        while not over.wait(every_s):
            done.append(action())

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield done
    finally:
        over.set()
        thread.join()
