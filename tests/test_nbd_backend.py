"""NBD exports of others as volumes: nbdkit with its filters, qemu-nbd and our own server; killed and
started again under load; what is read at the end is what was written."""

import json
import threading
from pathlib import Path

import pytest
from conftest import MIB, empty, noise, sha256
from support.daemon import NAME_A, Daemon, target
from support.faulty_volume import until

from enkaku_lab.peers import enkaku, nbd, need
from enkaku_lab.process import Completed, free_port, run

SIZE = 32 * MIB
with_nbdkit = pytest.mark.needs("nbdkit")
with_qemu = pytest.mark.needs("qemu-nbd", "qemu-img")


def copy(source: str | Path, destination: str | Path, *more: object, **how) -> Completed:
    return enkaku.command("copy", source, destination, "--force", *more, **how)


class Copying:
    """A copy that goes on beside the test."""

    def __init__(self, *words: object):
        self._done: list[Completed] = []
        self._thread = threading.Thread(
            target=lambda: self._done.append(copy(*words, check=False))
        )
        self._thread.start()

    def goes_on(self) -> bool:
        return self._thread.is_alive()

    def end(self) -> Completed:
        self._thread.join(120)
        assert self._done, "the copy does not end"
        return self._done[0]


def info(url: str, *more: object) -> dict:
    return json.loads(enkaku.command("info", url, "--json", *more).stdout)


@with_nbdkit
def test_what_is_copied_to_an_export_comes_back(tmp_path: Path):
    """And its holes stay holes."""
    image = empty(tmp_path / "image", SIZE)
    with image.open("r+b") as file:
        for at in (0, 5 * MIB, SIZE - 4096):
            file.seek(at)
            file.write(noise(tmp_path / "noise", 4096, seed=at).read_bytes())
    log = tmp_path / "requests.log"
    with nbd.nbdkit(tmp_path, "--filter=log", "memory", SIZE, f"logfile={log}") as server:
        about = info(server.url)
        assert (about["size"], about["block_size"], about["connections"]) == (SIZE, 512, 4)
        assert about["can_extents"] and about["can_fua"] and about["can_zero"]
        report = json.loads(copy(image, server.url, "--verify", "--json").stdout)
        assert report["verified"] and report["zero_bytes"] >= SIZE - 3 * MIB
        requests = log.read_text()
        assert "Flush" in requests and "Zero" in requests
        back = tmp_path / "back"
        copy(server.url, back)
        assert sha256(back) == sha256(image)
        assert back.stat().st_blocks * 512 < 4 * MIB


@with_nbdkit
def test_a_slow_server_with_small_blocks_is_served_in_pieces(tmp_path: Path):
    image = noise(tmp_path / "image", 4 * MIB)
    filters = ["--filter=blocksize-policy", "--filter=delay"]
    policy = ["blocksize-minimum=4096", "blocksize-preferred=4096", "blocksize-maximum=65536"]
    policy += ["blocksize-error-policy=error", "rdelay=20ms", "wdelay=20ms"]
    with nbd.nbdkit(tmp_path, *filters, "memory", 4 * MIB, *policy) as server:
        assert info(server.url)["block_size"] == 4096
        copy(image, server.url, "--verify", "--block-size", "1M")
        assert info(server.url, "--connections", 1)["connections"] == 1


@with_nbdkit
def test_the_errors_of_a_server_are_told(tmp_path: Path):
    image = noise(tmp_path / "image", 4 * MIB)
    faulty = tmp_path / "faulty"
    words = ["--filter=error", "memory", 4 * MIB, "error-pwrite=ENOSPC", "error-pwrite-rate=100%"]
    with nbd.nbdkit(tmp_path, *words, f"error-file={faulty}") as server:
        copy(image, server.url)
        faulty.touch()
        failed = copy(image, server.url, check=False)
        assert failed.code == 1 and "no space left" in failed.stderr
    with nbd.nbdkit(tmp_path, "-r", "memory", 4 * MIB, name="readonly") as server:
        failed = copy(image, server.url, check=False)
        assert failed.code == 2 and "read-only" in failed.stderr


@with_nbdkit
def test_what_a_server_cannot_do_is_refused_by_name(tmp_path: Path):
    with nbd.nbdkit(tmp_path, "memory", 1000) as server:
        failed = enkaku.command("info", server.url, check=False)
        assert failed.code == 1 and "no multiple of the block size 512" in failed.stderr
        failed = enkaku.command("info", server.url, "--max-rate", "1gbit", check=False)
        assert failed.code == 2 and "--max-rate is for iscsi://" in failed.stderr
    gone = f"nbd+unix:///?socket={tmp_path}/nobody"
    failed = enkaku.command("info", gone, check=False)
    assert failed.code == 1 and f"{gone}: cannot connect" in failed.stderr
    failed = enkaku.command("info", "nbds://127.0.0.1/x", check=False)
    assert failed.code == 2 and "TLS is not supported" in failed.stderr


@with_qemu
def test_a_snapshot_of_a_qcow2_image_is_read(tmp_path: Path):
    image, raw = tmp_path / "image.qcow2", noise(tmp_path / "raw", 8 * MIB)
    run([need("qemu-img"), "convert", "-O", "qcow2", raw, image])
    run([need("qemu-img"), "snapshot", "-c", "before", image])
    with nbd.qemu_nbd(tmp_path, image, "-f", "qcow2") as server:
        newer = noise(tmp_path / "newer", 8 * MIB, seed=2)
        copy(newer, server.url, "--verify")
    with nbd.qemu_nbd(tmp_path, image, "-f", "qcow2", "-r", "-l", "before", name="old") as server:
        assert info(server.url)["read_only"]
        copy(server.url, tmp_path / "old")
    assert sha256(tmp_path / "old") == sha256(raw)
    with nbd.qemu_nbd(tmp_path, image, "-f", "qcow2", "-r", name="new") as server:
        copy(server.url, tmp_path / "new")
    assert sha256(tmp_path / "new") == sha256(newer)


def test_our_own_server_over_tcp(tmp_path: Path):
    disk = empty(tmp_path / "lun", SIZE)
    image = noise(tmp_path / "image", SIZE)
    with enkaku.serve([disk], tmp_path) as far:
        where = f"127.0.0.1:{free_port()}"
        with enkaku.attach_nbd(far.url(), where, tmp_path):
            url = f"nbd://{where}/"
            copy(image, url, "--verify")
            report = json.loads(
                enkaku.command("bench", url, "--time", "1s", "--rw", "randread", "--json").stdout
            )
            assert report["bytes"] > 0 and report["connections"] == 4 and "path" not in report
    assert sha256(disk) == sha256(image)


@with_nbdkit
def test_a_server_that_is_killed_and_comes_back_is_ridden_out(tmp_path: Path):
    """Two times while it is written to: the copy ends well, and every byte is there."""
    disk = empty(tmp_path / "disk", SIZE)
    image = noise(tmp_path / "image", SIZE)
    words = ["--filter=delay", "file", disk, "wdelay=40ms", "--threads=4"]
    with nbd.nbdkit(tmp_path, *words) as server:
        copying = Copying(image, server.url, "--verify", "--block-size", "64k", "--depth", "8")
        for part in (1, 2):
            until(lambda part=part: disk.stat().st_blocks * 512 > part * SIZE // 4, "no progress")
            server.kill()
            assert copying.goes_on(), "the copy was done before the server was killed"
            server.restart()
        done = copying.end()
    assert done.code == 0, done
    assert done.stderr.count("connecting again") >= 2
    assert sha256(disk) == sha256(image)


@with_nbdkit
def test_a_server_that_forgets_gets_everything_again(tmp_path: Path):
    """A memory disk is empty after a restart: whatever no flush had covered is written again, so that
    the flush at the end is true of it."""
    image = noise(tmp_path / "image", 8 * MIB)
    log = tmp_path / "log"
    words = ["--filter=delay", "--filter=log", "memory", 8 * MIB, "wdelay=40ms", "--threads=4"]
    with nbd.nbdkit(tmp_path, *words, f"logfile={log}", "logappend=true") as server:
        copying = Copying(image, server.url, "--block-size", "64k", "--depth", "8")
        until(lambda: writes_in(log) > 40, "nothing was written")
        server.kill()
        assert copying.goes_on() and "Flush" not in log.read_text()
        server.restart()
        done = copying.end()
        assert done.code == 0, done
        copy(server.url, tmp_path / "back")
    assert sha256(tmp_path / "back") == sha256(image)


@with_nbdkit
def test_an_outage_that_is_too_long_is_an_error(tmp_path: Path):
    image = noise(tmp_path / "image", 8 * MIB)
    log = tmp_path / "log"
    words = ["--filter=delay", "--filter=log", "memory", 8 * MIB, "wdelay=40ms", "--threads=1"]
    with nbd.nbdkit(tmp_path, *words, f"logfile={log}") as server:
        limit = ("--replacement-timeout", "1s")
        copying = Copying(image, server.url, "--block-size", "64k", "--depth", "4", *limit)
        until(lambda: writes_in(log) > 4, "nothing was written")
        server.kill()
        done = copying.end()
    assert done.code == 1 and "was gone for 1s" in done.stderr


def writes_in(log: Path) -> int:
    """Writes that have been answered, by nbdkit's log filter."""
    return log.read_text().count("...Write") if log.exists() else 0


@with_nbdkit
def test_a_unit_of_a_target_may_be_an_export(tmp_path: Path):
    image = noise(tmp_path / "image", 8 * MIB)
    with (
        nbd.nbdkit(tmp_path, "memory", 8 * MIB) as server,
        enkaku.serve([server.url, "mem:1M"], tmp_path) as serving,
    ):
        copy(image, serving.url(), "--verify")
        copy(server.url, tmp_path / "back")
        assert sha256(tmp_path / "back") == sha256(image)
        again = enkaku.command(
            "serve", "--listen", "127.0.0.1:0", "--lun", server.url, "--lun", server.url, check=False
        )
        assert again.code == 2 and "the same volume" in again.stderr


@with_nbdkit
def test_the_daemon_starts_a_server_and_stops_it(daemon: Daemon, tmp_path: Path):
    image = noise(tmp_path / "image", 8 * MIB)
    command = json.dumps(["nbdkit", "--filter=log", "memory", "8M", f"logfile={tmp_path}/log"])
    lun = f"[[target.lun]]\nnumber = 0\ncommand = {command}\n"
    daemon.write(target(NAME_A) + lun)
    daemon.start()
    copy(image, daemon.url(), "--verify")
    assert "Connect" in (tmp_path / "log").read_text()
    servers = children(daemon.peer.pid)
    assert len(servers) == 1
    daemon.peer.stop()
    until(lambda: not Path(f"/proc/{servers[0]}").exists(), "the server was left behind")


@with_nbdkit
def test_the_daemon_serves_urls_and_says_what_is_not_there(daemon: Daemon, tmp_path: Path):
    with nbd.nbdkit(tmp_path, "memory", 8 * MIB) as server:
        daemon.write(target(NAME_A, server.url, f"nbd+unix:///?socket={tmp_path}/nobody"))
        daemon.start()
        assert info(daemon.url())["size"] == 8 * MIB
        code, health = daemon.page("/health")
        assert code != 200 and "LUN 1: not served" in health and "cannot connect" in health
        server.kill()
        until(lambda: "is not connected" in daemon.page("/health")[1], "nobody notices")
    daemon.write(target(NAME_A, "nbd://h/x?y=1"))
    wrong = daemon.ask("reload", check=False)
    assert wrong.code != 0 and "takes no parameters" in wrong.stdout + wrong.stderr


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(word) for task in tasks for word in task.read_text().split()]
