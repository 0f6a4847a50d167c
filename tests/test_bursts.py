"""The keys about bursts as options of both roles, and single commands that are not cut (`bench
--one-command`)."""

from pathlib import Path

import pytest
from conftest import MIB, empty

from enkaku_lab import transfers
from enkaku_lab.packets import segments_of
from enkaku_lab.peers import enkaku, tgt
from enkaku_lab.story import numbers
from enkaku_lab.transfers import HELD, Transfer

CHOSEN = [
    "--first-burst",
    "64k",
    "--max-burst",
    "1M",
    "--initial-r2t",
    "yes",
    "--max-outstanding-r2t",
    2,
]
CHOSEN += ["--immediate-data", "no"]
AGREED = {
    "FirstBurstLength": 65536,
    "MaxBurstLength": MIB,
    "InitialR2T": True,
    "MaxOutstandingR2T": 2,
    "ImmediateData": False,
}


def _negotiated(url: str, *options: object) -> dict:
    return enkaku.report("info", url, *options)["negotiated"]


@pytest.mark.parametrize("who", ["target", "initiator"])
def test_what_either_role_offers_is_what_is_agreed(who: str, tmp_path: Path):
    serving, asking = (CHOSEN, []) if who == "target" else ([], CHOSEN)
    with enkaku.serve(["mem:16M"], tmp_path, options=serving) as target:
        agreed = _negotiated(target.url(), *asking)
        assert {key: agreed[key] for key in AGREED} == AGREED
        # Every write asks for its data, and gets there.
        words = [
            "bench",
            target.url(),
            "--rw",
            "write",
            "--force",
            "--bs",
            "1M",
            "--depth",
            2,
            "--time",
            "0.2s",
        ]
        assert enkaku.report(*words, *asking)["bytes"] > 0


def test_a_longest_burst_alone_takes_the_first_one_with_it(tmp_path: Path):
    with enkaku.serve(["mem:16M"], tmp_path) as target:
        agreed = _negotiated(target.url(), "--max-burst", "64k")
        assert (agreed["FirstBurstLength"], agreed["MaxBurstLength"]) == (65536, 65536)


@pytest.mark.needs("tgtd", "root")
def test_bursts_of_4_mib_are_agreed_with_tgt(tmp_path: Path):
    disk = empty(tmp_path / "lun.img", 16 * MIB)
    with tgt.serve([disk], tmp_path, parameters=transfers.HELD_KEYS) as target:
        assert _negotiated(target.url())["FirstBurstLength"] == 262_144
        agreed = _negotiated(target.url(), "--first-burst", "4M", "--max-burst", "4M")
        assert (agreed["FirstBurstLength"], agreed["MaxBurstLength"]) == (4 * MIB, 4 * MIB)
        assert (agreed["InitialR2T"], agreed["ImmediateData"]) == (False, True)


def test_a_command_that_the_unit_does_not_take_is_refused(tmp_path: Path):
    with enkaku.serve(["mem:256M"], tmp_path) as target:
        words = [
            "bench",
            target.url(),
            "--bs",
            "128M",
            "--depth",
            1,
            "--time",
            "0.2s",
            "--one-command",
        ]
        done = enkaku.command(*words, check=False)
        assert done.code == 2
        assert "--one-command: the unit takes at most" in done.stderr, done.stderr


@pytest.mark.needs("root", "/dev/net/tun", "tgtd", "tcpdump", "ip")
def test_a_write_of_4_mib_over_a_long_path_is_one_command_without_an_r2t(tmp_path: Path):
    seen = transfers.see(Transfer(HELD, 20), tmp_path, quick=True)
    found = numbers([seen], segments_of)
    assert found.get(HELD, "scsi_command_per_write") == pytest.approx(1, abs=0.3)
    assert found.get(HELD, "r2t_per_write") == 0
    # 256 KiB come with the command.
    assert found.get(HELD, "data_out_per_write") == pytest.approx(15, abs=1)
    # It is not run again where it lies.
    assert transfers.see(Transfer(HELD, 20), tmp_path, quick=True).report == seen.report
