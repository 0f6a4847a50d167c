"""libiscsi's tools: iscsi-perf as the stock client, the others as independent witnesses."""

import re
from dataclasses import dataclass

from enkaku_lab.peers import Measurement, NotSupported, Workload, need
from enkaku_lab.process import Completed, LabError, run

SKIPPED = re.compile(r"\[SKIPPED\] *(.*)")
VERDICT = re.compile(r"passed|FAILED$", re.MULTILINE)


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


def compliance_suites() -> list[str]:
    """The suites of iscsi-test-cu, each with its family: `ALL.Read10`, …"""
    listed = run([need("iscsi-test-cu"), "--list"]).stdout.split()
    return [name for name in listed if name.startswith("ALL.") and name.count(".") == 1]


@dataclass(frozen=True)
class SuiteResult:
    """One suite of iscsi-test-cu: which tests ran, which failed, why which were skipped."""

    tests: list[str]
    failed: list[str]
    skipped: dict[str, str]
    output: str


def compliance_suite(suite: str, *urls: str) -> SuiteResult:
    """Runs one suite by itself; destructive tests are allowed. A second URL is a second path.

    In one run of everything, CompareAndWrite.InvalidDataOutSize leaves a hook on that fails later
    tests falsely. The tool counts a skipped test as passed, so skips are picked from its output.
    """
    options = ["--fail", "--verbose"]
    done = run(
        [need("iscsi-test-cu"), "--dataloss", "--allow-sanitize", *options, "--test", suite, *urls],
        check=False,
        timeout_s=300,
    )
    if "Run Summary" not in done.stdout:
        raise LabError(f"iscsi-test-cu {suite} did not run:\n{done.stdout}{done.stderr}")
    _, *tests = re.split(r"^  Test: ", done.stdout.split("Run Summary")[0], flags=re.MULTILINE)
    by_name = {text.split(" ", 1)[0]: text for text in tests}
    skips = {
        # What follows the verdict belongs to the suite's own cleaning up.
        name: skip[1]
        for name, text in by_name.items()
        if (skip := re.search(SKIPPED, re.split(VERDICT, text)[0]))
    }
    failed = [name for name, text in by_name.items() if re.search(r"FAILED$", text, re.MULTILINE)]
    if done.code != 0 and not failed:
        raise LabError(f"iscsi-test-cu {suite} ended with {done.code}:\n{done.stdout}{done.stderr}")
    return SuiteResult(list(by_name), failed, skips, done.stdout)
