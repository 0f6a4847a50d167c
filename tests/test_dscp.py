"""Marks of packets, as they are captured in a network namespace of the test's own."""

import signal
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import MIB, noise
from support.daemon import NAME_A, Daemon, target
from support.networks import Namespace
from support.processes import until

from enkaku_lab.peers import enkaku, need
from enkaku_lab.process import Peer, free_port, run

pytestmark = pytest.mark.needs("root", "tcpdump", "nsenter", "unshare", "ip")
AF21, EF, LE = 18, 46, 1
ETHERNET_LEN, V4, V6 = 14, 0x0800, 0x86DD
SYN, ACK = 0x02, 0x10
ECT_0 = 2
"""ECN's bits of data that may be marked by the network."""


@pytest.fixture
def network() -> Iterator[Namespace]:
    made = Namespace()
    yield made
    made.end()


@contextmanager
def captured(network: Namespace, folder: Path, port: int) -> Iterator[Path]:
    """All TCP packets from and to a port, in a file that is complete when the block is left."""
    path = folder / f"{port}.pcap"
    argv = [need("tcpdump"), "-i", "lo", "-U", "--immediate-mode", "-s", 128, "-Z", "root"]
    tcpdump = Peer(network.exec([*argv, "-w", path, "tcp", "port", port]), folder / "tcpdump.log")
    try:
        tcpdump.wait_for_output("listening on")
        yield path
        size = [-1]

        def is_still() -> bool:
            size.append(path.stat().st_size)
            return size[-1] == size[-2]

        until(is_still, 10)
    finally:
        tcpdump.signal(signal.SIGINT)
        tcpdump.wait(10)
        tcpdump.stop()


def packets(path: Path, port: int) -> Iterator[tuple[bool, int, int, int]]:
    """Of each: was it sent by the target, its TCP flags, its DSCP, its ECN bits."""
    data = path.read_bytes()
    at = 24
    while at + 16 <= len(data):
        length, _ = struct.unpack_from("<II", data, at + 8)
        packet = data[at + 16 : at + 16 + length]
        at += 16 + length
        (kind,) = struct.unpack_from(">H", packet, 12)
        ip = packet[ETHERNET_LEN:]
        if kind == V4:
            mark, tcp = ip[1], ip[(ip[0] & 15) * 4 :]
        else:
            assert kind == V6
            mark, tcp = (ip[0] & 15) << 4 | ip[1] >> 4, ip[40:]
        source, _ = struct.unpack_from(">HH", tcp)
        yield source == port, tcp[13], mark >> 2, mark & 3


@pytest.mark.parametrize("address", ["127.0.0.1", "[::1]"])
@pytest.mark.parametrize("ecn", [0, 1])
def test_both_ends_mark_every_packet_from_the_first_on(
    address: str, ecn: int, network: Namespace, tmp_path: Path
):
    network.set("ipv4/tcp_ecn", ecn)
    source, port = noise(tmp_path / "source", 4 * MIB), free_port()
    words = ["serve", "--listen", f"{address}:{port}", "--lun", "mem:4M", "--dscp", "af21"]
    serving = Peer(network.exec([enkaku.binary(), *words]), tmp_path / "serve.log")
    url = f"iscsi://{address}:{port}/iqn.2026-11.io.enkaku:target/0"
    copy = ["copy", source, url, "--force", "--verify", "--connections", 2, "--dscp", "EF"]
    try:
        serving.wait_for_output("listening on")
        with captured(network, tmp_path, port) as capture:
            run(network.exec([enkaku.binary(), *copy]))
    finally:
        serving.stop()
    seen = list(packets(capture, port))
    assert len([1 for _, flags, *_ in seen if flags & (SYN | ACK) == SYN]) >= 2
    assert {dscp for sent, _, dscp, _ in seen if sent} == {AF21}
    # What comes when nobody owns a socket any more (RST) is the kernel's own.
    assert {dscp for sent, _, dscp, _ in seen if not sent} == {EF}
    data = {bits for _, flags, _, bits in seen if not flags & SYN}
    assert (ECT_0 in data) == bool(ecn), "ECN is TCP's to decide"


def test_a_portal_of_all_addresses_marks_both_families(network: Namespace, tmp_path: Path):
    port = free_port()
    words = ["serve", "--listen", f"[::]:{port}", "--lun", "mem:4M", "--dscp", "18"]
    serving = Peer(network.exec([enkaku.binary(), *words]), tmp_path / "serve.log")
    try:
        serving.wait_for_output("listening on")
        with captured(network, tmp_path, port) as capture:
            for host in ("127.0.0.1", "[::1]"):
                url = f"iscsi://{host}:{port}/iqn.2026-11.io.enkaku:target/0"
                run(network.exec([enkaku.binary(), "info", url]))
    finally:
        serving.stop()
    seen = list(packets(capture, port))
    assert {dscp for sent, _, dscp, _ in seen if sent} == {AF21}
    assert {dscp for sent, _, dscp, _ in seen if not sent} == {0}, "not asked for"


def test_a_reload_marks_connections_that_come_later(daemon: Daemon, network: Namespace, tmp_path: Path):
    daemon.write(target(NAME_A, "mem:4M"))
    argv = [enkaku.binary(), "target", "run", "--config", daemon.config]
    daemon.peer = Peer(network.exec(argv), tmp_path / "daemon.log")
    daemon.peer.wait_for_output("metrics on")
    info = network.exec([enkaku.binary(), "info", daemon.url()])

    def marks() -> set[int]:
        with captured(network, tmp_path, daemon.port) as capture:
            run(info)
        return {dscp for sent, _, dscp, _ in packets(capture, daemon.port) if sent}

    assert marks() == {0}
    plain = daemon.head()
    for key, said, value in (('dscp = "le"', "marked le", LE), ("dscp = 46", "marked ef", EF), ("", "not marked", 0)):
        daemon.config.write_text(plain + key + "\n" + target(NAME_A, "mem:4M"))
        assert f"portal lan: new connections are {said}" in daemon.reload()
        assert marks() == {value}


def test_what_is_no_mark_is_refused_in_one_line():
    url = "iscsi://127.0.0.1/iqn.2026-11.org.example:a/0"
    bad = enkaku.command("info", url, "--dscp", "af44", check=False)
    assert bad.code == 2 and "cs0 to cs7, af11 to af43" in bad.stderr
