"""`enkaku doctor`: a saved host with open-iscsi's defaults 50 ms away, a session of our own on an
emulated line before and after its advice, nothing to judge, and the page for a ticket.

After a change of words, `ENKAKU_GOLDEN=write pytest tests/test_doctor.py` writes the text anew:
read it as somebody whose disk is slow before it is committed.
"""

import json
import os
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from enkaku_lab import wan
from enkaku_lab.experiment import Link
from enkaku_lab.peers import enkaku
from enkaku_lab.process import free_port, peer, run

GOLDEN = Path(__file__).with_name("golden") / "doctor.txt"
NOTHING = 3
KIB = 1024
COLUMNS = 80
IQN = "iqn.2003-01.org.linux-iscsi.filer.x8664:sn.1"
SESSION = "sys/class/iscsi_session/session1"
CONNECTION = "sys/class/iscsi_connection/connection1:0"
HOST = {
    f"{SESSION}/targetname": IQN,
    f"{SESSION}/state": "LOGGED_IN",
    f"{SESSION}/initiatorname": "iqn.1993-08.org.debian:01:a3c1d5e7f9",
    f"{SESSION}/ifacename": "default",
    f"{SESSION}/first_burst_len": "65536",
    f"{SESSION}/max_burst_len": "262144",
    f"{SESSION}/max_outstanding_r2t": "1",
    f"{SESSION}/initial_r2t": "0",
    f"{SESSION}/immediate_data": "1",
    f"{SESSION}/data_pdu_in_order": "1",
    f"{SESSION}/data_seq_in_order": "1",
    f"{SESSION}/erl": "0",
    f"{SESSION}/tpgt": "1",
    f"{SESSION}/recovery_tmo": "120",
    f"{SESSION}/username": "(null)",
    f"{SESSION}/device/target2:0:0/2:0:0:0/block/sdb/size": "209715200",
    f"{CONNECTION}/address": "192.0.2.10",
    f"{CONNECTION}/port": "3260",
    f"{CONNECTION}/persistent_address": "192.0.2.10",
    f"{CONNECTION}/persistent_port": "3260",
    f"{CONNECTION}/header_digest": "0",
    f"{CONNECTION}/data_digest": "0",
    f"{CONNECTION}/max_recv_dlength": "262144",
    f"{CONNECTION}/max_xmit_dlength": "262144",
    "sys/class/scsi_host/host2/can_queue": "128",
    "sys/block/sdb/device/queue_depth": "32",
    "sys/block/sdb/queue/read_ahead_kb": "128",
    "sys/block/sdb/queue/max_sectors_kb": "1280",
    "sys/block/sdb/queue/max_hw_sectors_kb": "32767",
    "sys/block/sdb/queue/nr_requests": "128",
    "sys/block/sdb/queue/scheduler": "[mq-deadline] none",
    "sys/block/sdb/stat": " 150 12 17840 900 3 0 24 60 0 800 960 0 0 0 0 0 0",
    "sys/class/net/lo/mtu": "65536",
    "sys/class/net/eth0/speed": "1000",
    "sys/class/net/eth0/duplex": "full",
    "sys/class/net/eth0/mtu": "1500",
    "proc/cpuinfo": "processor\t: 0\nflags\t\t: fpu sse4_2 avx2",
    "proc/sys/net/core/default_qdisc": "fq_codel",
    "proc/sys/net/core/rmem_max": "212992",
    "proc/sys/net/core/wmem_max": "212992",
    "proc/sys/net/ipv4/tcp_rmem": "4096\t131072\t6291456",
    "proc/sys/net/ipv4/tcp_wmem": "4096\t16384\t4194304",
    "proc/sys/net/ipv4/tcp_window_scaling": "1",
    "proc/sys/net/ipv4/tcp_sack": "1",
    "proc/sys/net/ipv4/tcp_congestion_control": "cubic",
    "proc/sys/net/ipv4/tcp_available_congestion_control": "reno cubic",
    "ss": (
        "State Recv-Q Send-Q Local Address:Port Peer Address:Port\n"
        "ESTAB 0 0 192.0.2.5:49152 192.0.2.10:3260\n"
        "\t skmem:(r0,rb425984,t0,tb425984,f0,w0,o0,bl0,d0) ts sack cubic wscale:7,7 rto:252"
        " rtt:50.2/0.4 ato:40 mss:1448 pmtu:1500 rcvmss:1448 advmss:1448 cwnd:44"
        " data_segs_out:2100 retrans:0/0 rcv_space:14480 minrtt:50"
    ),
    "tc": '[{"kind":"fq_codel","handle":"0:","dev":"eth0","root":true,"refcnt":2}]',
}
"""open-iscsi 2.1.8 and LIO as they come, on Linux 6.1: names and values of their sysfs."""


def _host(folder: Path, **changed: str) -> Path:
    root = folder / "host"
    for name, text in (HOST | changed).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    driver = root / "sys/class/net/eth0/device/driver"
    driver.parent.mkdir(parents=True, exist_ok=True)
    if not driver.is_symlink():
        driver.symlink_to("../../../../bus/pci/drivers/igb")
    return root


def _commands(finding: dict) -> list[str]:
    return [change["command"] for change in finding["changes"]]


def test_defaults_at_50_ms_are_named_with_commands_and_rates(tmp_path: Path):
    found = enkaku.report("doctor", "--root", _host(tmp_path))
    (session,), (diagnosis,) = found["sessions"], found["diagnoses"]
    assert session["initiator"] == "open_iscsi" and session["target"] == IQN
    assert (session["device"], session["commands_max"]) == ("eth0", 128)
    assert found["host"]["devices"][0]["qdisc"] == "fq_codel"
    reads, writes = diagnosis["parts"]
    ahead, window = reads["findings"]
    assert [ahead["cause"], window["cause"]] == ["read_ahead", "receive_window"]
    assert ahead["limit_bytes_per_s"] == pytest.approx(128 * KIB / 0.05)
    assert _commands(ahead) == ["blockdev --setra 16384 /dev/sdb"]
    # What open-iscsi asks for is cut to rmem_max, and half of the doubled buffer is window.
    assert ahead["expected_bytes_per_s"] == pytest.approx(212_992 / 0.05, rel=0.01)
    node = f"iscsiadm -m node -T {IQN} -p 192.0.2.10:3260"
    assert _commands(window) == [
        "sysctl -w net.core.rmem_max=8388608",
        f"{node} -o update -n 'node.conn[0].tcp.window_size' -v 8388608",
        f"{node} --logout",
        f"{node} --login",
    ]
    assert reads["expected_bytes_per_s"] > 100e6
    assert writes["findings"][0]["cause"] == "send_buffer"
    # A slower line needs less: the depth, the windows and the promise follow it.
    slow = enkaku.report("doctor", "--root", _host(tmp_path), "--line-rate", "100mbit")
    reads = slow["diagnoses"][0]["parts"][0]
    assert reads["findings"][0]["wanted"] == {"name": "read_ahead_kib", "value": 1024}
    assert 11e6 < reads["expected_bytes_per_s"] < 12e6


def test_a_shallow_queue_and_r2ts_are_named(tmp_path: Path):
    shallow = {
        "sys/block/sdb/device/queue_depth": "4",
        "sys/block/sdb/queue/read_ahead_kb": "32768",
        "proc/sys/net/core/rmem_max": "33554432",
        "proc/sys/net/core/wmem_max": "33554432",
        "ss": HOST["ss"].replace("425984", "33554432"),
    }
    root = _host(tmp_path, **shallow)
    reads, writes = enkaku.report("doctor", "--root", root)["diagnoses"][0]["parts"]
    assert [one["cause"] for one in reads["findings"]] == ["queue_depth"]
    wanted = reads["findings"][0]["wanted"]["value"]
    assert 5 <= wanted <= 7
    said = _commands(reads["findings"][0])
    assert said[0] == f"echo {wanted:.0f} > /sys/block/sdb/device/queue_depth"
    assert said[1].endswith(f"-o update -n node.session.queue_depth -v {wanted:.0f}")
    assert [one["cause"] for one in writes["findings"]] == ["r2t", "queue_depth"]
    assert any("FirstBurstLength -v 2097152" in line for line in _commands(writes["findings"][0]))


def test_the_text_is_one_to_send_to_a_customer(tmp_path: Path):
    text = enkaku.command("doctor", "--root", _host(tmp_path)).stdout
    assert all(len(line) <= COLUMNS for line in text.splitlines()), text
    if os.environ.get("ENKAKU_GOLDEN") == "write":
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()
    # A command that goes on in a second line is still one for a shell.
    script = text.replace("\\\n", " ")
    updates = [one for one in script.splitlines() if "-o update" in one]
    assert updates and all(one.split()[-2] == "-v" for one in updates), updates


class _Page(HTMLParser):
    """What is open, and what points elsewhere."""

    EMPTY = {"meta", "br", "rect"}

    def __init__(self):
        super().__init__()
        self.open, self.outside, self.tags = [], [], set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.outside += [value for name, value in attrs if name in ("src", "href", "action", "data")]
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_whole_by_itself_and_escapes_what_a_target_calls_itself(tmp_path: Path):
    hostile = "iqn.2026-11.x:<script>alert(1)</script>'\"&\x1b[2J$(reboot)"
    root = _host(tmp_path, **{f"{SESSION}/targetname": hostile})
    path = tmp_path / "ticket.html"
    text = enkaku.command("doctor", "--root", root, "--report", path).stdout
    page = path.read_text()
    read = _Page()
    read.feed(page)
    assert read.open == [] and read.outside == [] and {"svg", "table", "pre"} <= read.tags
    assert "script" not in read.tags and "url(" not in page and "://" not in page
    assert "&lt;script&gt;alert(1)" in page and "default-src 'none'" in page
    assert "\x1b" not in page and "\x1b" not in text
    assert "tcp_rmem" in page
    # The shell takes the name for one word, and runs nothing in it.
    (line,) = {one for one in text.replace("\\\n", "").splitlines() if one.endswith("--logout")}
    words = subprocess.run(
        ["sh", "-c", f'set -- {line.strip()}; printf "%s\\n" "$5"'], capture_output=True, text=True
    ).stdout
    assert words.rstrip("\n") == hostile.replace("\x1b", "\ufffd")


def test_no_session_says_where_it_looked_and_how_to_point_at_one(tmp_path: Path):
    (tmp_path / "bare").mkdir()
    bare = enkaku.command("doctor", "--root", tmp_path / "bare", check=False)
    assert bare.code == NOTHING and bare.stdout == ""
    assert "/sys/class/iscsi_session" in bare.stderr and "enkaku doctor ADDR:PORT" in bare.stderr
    assert len(bare.stderr.splitlines()) == 1
    page = tmp_path / "none.html"
    port = free_port()
    words = ["doctor", f"127.0.0.1:{port}", "--seconds", 1, "--report", page]
    nobody = enkaku.command(*words, check=False)
    assert nobody.code == NOTHING and f"127.0.0.1:{port}" in nobody.stderr and not page.exists()


def test_a_session_of_this_host_is_found_by_its_process(tmp_path: Path):
    with enkaku.serve(["mem:64M"], tmp_path) as target:
        argv = [enkaku.binary(), "bench", target.url(), "--rw", "read", "--bs", "64k"]
        argv += ["--depth", 4, "--time", "60s", "--connections", 2]
        with peer(argv, tmp_path / "bench.log") as client:
            client.wait_until(lambda: _sockets(target.port) >= 4, "it has not connected")
            found = enkaku.report("doctor", "--seconds", 1)
            page = tmp_path / "ticket.html"
            enkaku.command("doctor", f"127.0.0.1:{target.port}", "--seconds", 1, "--report", page)
    own = [one for one in found["sessions"] if one["portal"] == f"127.0.0.1:{target.port}"]
    (session,) = own
    assert (session["initiator"], session["role"]) == ("enkaku", "initiator")
    assert session["processes"] == ["enkaku"] and len(session["sockets"]) == 2
    assert session["transfer"]["writes"] is False and session["transfer"]["bytes_per_s"] > 1e6
    curve = session["curves"]["bytes_per_s"]
    assert len(curve) == len(session["curves"]["rtt_us"]) == 100
    mean = sum(curve) / len(curve)
    assert mean == pytest.approx(session["transfer"]["bytes_per_s"], rel=0.2)
    read = _Page()
    read.feed(page.read_text())
    assert read.open == [] and "polyline" in read.tags


def _sockets(port: int) -> int:
    words = ["monitor", "--port", port, "--interval", "200ms", "--count", 1]
    return len(enkaku.report(*words)["connections"])


LINE = Link(rate="100mbit", rtt_ms=50, queue_packets=2000)
LINE_BYTES_PER_S = LINE.payload_bits_per_s / 8


@pytest.mark.serial
@pytest.mark.needs("root", "/dev/net/tun")
def test_what_it_says_makes_our_own_session_three_times_as_fast(tmp_path: Path):
    with wan.up(LINE, tmp_path) as lab:
        lab.set(LINE)
        serving = [enkaku.binary(), "serve", "--listen", f"{wan.FAR}:3260", "--iqn", enkaku.IQN]
        with peer(lab.exec("far", [*serving, "--lun", "mem:256M"]), tmp_path / "serve.log") as far:
            far.wait_for_output("listening on")
            before = _bench(lab, 1, seconds=4)
            found = _asked_while_it_runs(lab, tmp_path)
            (session,), (diagnosis,) = found["sessions"], found["diagnoses"]
            assert session["initiator"] == "enkaku" and session["portal"] == f"{wan.FAR}:3260"
            (part,) = diagnosis["parts"]
            first = part["findings"][0]
            assert (first["cause"], first["measured"]) == ("depth", True), found
            # 64 KiB a round trip, less what a busy host takes for itself.
            assert first["limit_bytes_per_s"] <= 1.05 * 64 * KIB / 0.05
            assert first["limit_bytes_per_s"] == pytest.approx(before, rel=0.6)
            assert 0.8 < first["expected_bytes_per_s"] / LINE_BYTES_PER_S <= 1
            # What fills 94 Mbit/s × the round trip that was measured, and one more.
            depth = round(first["wanted"]["value"])
            product = LINE_BYTES_PER_S * diagnosis["rtt_s"]
            assert depth == pytest.approx(product / (64 * KIB) + 1.5, abs=1)
            assert 0.045 < diagnosis["rtt_s"] < 0.09
            assert any(f"--depth {depth}" in command for command in _commands(first))
            after = _bench(lab, depth, seconds=4)
    assert after >= 3 * before, (before, after, depth)
    assert after <= 1.2 * first["expected_bytes_per_s"], (after, first)


def _load(depth: int, seconds: int) -> list[object]:
    url = f"iscsi://{wan.FAR}:3260/{enkaku.IQN}/0"
    argv = [enkaku.binary(), "bench", url, "--rw", "read", "--bs", "64k", "--depth", depth]
    return [*argv, "--connections", 1, "--one-command", "--ramp", "2s", "--time", f"{seconds}s"]


def _bench(lab: wan.Lab, depth: int, seconds: int) -> float:
    done = run(lab.exec("near", [*_load(depth, seconds), "--json"]), timeout_s=60)
    return json.loads(done.stdout)["bytes_per_s"]


def _asked_while_it_runs(lab: wan.Lab, folder: Path) -> dict:
    with peer(lab.exec("near", _load(1, 60)), folder / "bench.log") as load:
        monitor = [enkaku.binary(), "monitor", "--port", 3260, "--interval", "200ms", "--count", 1]

        def moves() -> bool:
            seen = json.loads(run(lab.exec("near", [*monitor, "--json"])).stdout)
            return seen["received_bytes_per_s"] > 50_000

        load.wait_until(moves, "nothing is transferred")
        argv = [enkaku.binary(), "doctor", "--seconds", 3, "--line-rate", LINE.rate, "--json"]
        return json.loads(run(lab.exec("near", argv), timeout_s=60).stdout)
