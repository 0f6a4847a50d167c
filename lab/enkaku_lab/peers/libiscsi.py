"""libiscsi's tools: iscsi-perf as the stock client, the others as independent witnesses."""

import re

from enkaku_lab.peers import Measurement, NotSupported, Workload, need
from enkaku_lab.process import Completed, LabError, run

SECTOR_BYTES = 512


def perf(url: str, workload: Workload, seconds: int) -> Measurement:
    """iscsi-perf for about so many whole seconds. It only reads, and reports no percentiles."""
    if workload.write:
        raise NotSupported("iscsi-perf only reads")
    done = run(
        [
            need("iscsi-perf"),
            *("-m", workload.depth),
            *("-b", workload.block_bytes // _block_bytes(url)),
            *("-t", seconds),
            *(["-r"] if workload.random else []),
            url,
        ],
        timeout_s=seconds + 60,
    )
    averages = re.findall(r"iops average (\d+)", done.stdout)
    if not averages or int(averages[-1]) == 0:
        raise LabError(f"iscsi-perf {url} reported no rate:\n{done.stdout[-500:]}")
    commands = int(averages[-1]) * seconds
    return Measurement(commands * workload.block_bytes, seconds, done.cpu_s)


def _block_bytes(url: str) -> int:
    """The LUN's logical block size, in whose units iscsi-perf counts."""
    return int(re.search(r"BLOCK LENGTH IN BYTES:(\d+)", readcapacity16(url).stdout)[1])


def ls(portal: str) -> Completed:
    """Targets and LUNs behind a portal."""
    return run([need("iscsi-ls"), "-s", f"iscsi://{portal}"])


def inq(url: str, page: int | None = None) -> Completed:
    """Standard INQUIRY data, or a vital product data page."""
    vpd = ["-e", "1", "-c", str(page)] if page is not None else []
    return run([need("iscsi-inq"), *vpd, url])


def readcapacity16(url: str) -> Completed:
    return run([need("iscsi-readcapacity16"), url])


def test_suites() -> list[str]:
    """The suites of iscsi-test-cu, each with its family: `ALL.Read10`, …"""
    listed = run([need("iscsi-test-cu"), "--list"]).stdout.split()
    return [name for name in listed if name.startswith("ALL.") and name.count(".") == 1]


def test_suite(suite: str, url: str) -> Completed:
    """One suite of iscsi-test-cu by itself; destructive tests are allowed. Code 0: none failed."""
    return run(
        [need("iscsi-test-cu"), "--dataloss", "--fail", "--verbose", "--test", suite, url],
        check=False,
        timeout_s=300,
    )
