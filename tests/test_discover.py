"""`enkaku discover` and `enkaku info`: from an address to a URL that works, and what is there."""

import json
from pathlib import Path

import pytest
from conftest import MIB, empty

from enkaku_lab.peers import enkaku, tgt

SIZE = 16 * MIB
PASSWORD = "correct-horse-77"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.write_text(PASSWORD + "\n")
    file.chmod(0o600)
    return file


def _discover(*words: object) -> list[dict]:
    return json.loads(enkaku.command("discover", *words, "--json").stdout)


def test_what_discover_prints_is_what_info_takes(tmp_path: Path):
    with enkaku.serve([empty(tmp_path / "a.img", SIZE), "mem:1G"], tmp_path) as target:
        text = enkaku.command("discover", target.portal).stdout
        words = [line.split() for line in text.splitlines()]
        assert words[0] == [target.iqn, f"{target.portal},1"]
        assert [word[:3] for word in words[1:]] == [
            [target.url(0), "16.8", "MB"], [target.url(1), "1.1", "GB"],
        ]
        for word, size in zip(words[1:], (SIZE, 1024 * MIB), strict=True):
            assert enkaku.report("info", word[0])["size"] == size
        # A URL is a place to ask as well.
        assert enkaku.command("discover", target.url(1)).stdout == text
        found = _discover(target.portal)[0]["luns"]
        assert [(lun["lun"], lun["size"], lun["block_size"]) for lun in found] == [
            (0, SIZE, 512), (1, 1024 * MIB, 512),
        ]
        assert _discover(target.portal, "--no-luns") == [
            {"target": target.iqn, "portals": [f"{target.portal},1"]}
        ]


def test_a_password_is_used_for_the_volumes_too(tmp_path: Path, secret: Path):
    options = ["--chap-user", "operator", "--chap-password-file", secret]
    with enkaku.serve(["mem:1M"], tmp_path, options=options) as target:
        asked = [f"operator@{target.portal}", "--chap-password-file", secret]
        [volume] = _discover(*asked)[0]["luns"]
        assert volume["url"] == target.url().replace("iscsi://", "iscsi://operator@")
        told = enkaku.report("info", volume["url"], "--chap-password-file", secret)
        assert told["chap"] == "SHA3-256" and not told["chap_mutual"]


@pytest.mark.needs("tgtd", "tgtadm", "root")
def test_of_tgt_the_controller_is_told_from_the_disk(tmp_path: Path, secret: Path):
    disk = empty(tmp_path / "lun.img", SIZE)
    with tgt.serve([disk], tmp_path) as target:
        text = enkaku.command("discover", target.portal).stdout
        assert f"{target.url(-1)}  controller  IET" in text
        assert f"{target.url()}     16.8 MB  IET" in text
        told = enkaku.report("info", target.url())
        assert (told["sessions"], told["connections"], told["chap"]) == (1, 1, None)
    with tgt.serve([disk], tmp_path, credentials=("operator", PASSWORD)) as target:
        [found] = _discover(target.portal)
        assert "luns" not in found and "AUTHENTICATION_FAILURE" in found["error"]
        text = enkaku.command("discover", target.portal).stdout
        assert "  not asked for volumes: " in text and "--chap-password-file" in text
        asked = [f"operator@{target.portal}", "--chap-password-file", secret]
        assert [lun["device_type"] for lun in _discover(*asked)[0]["luns"]] == [0x0C, 0]


def test_info_is_for_a_person(tmp_path: Path):
    with enkaku.serve([empty(tmp_path / "a.img", SIZE)], tmp_path) as target:
        told = enkaku.report("info", target.url())
        assert (told["connections"], told["sessions"], told["portal"]) == (1, 1, target.portal)
        assert 0 < told["rtt_us"] < 1_000_000
        assert told["negotiated"]["MaxConnections"] > 1
        lines = dict(
            line.split(maxsplit=1)
            for line in enkaku.command("info", target.url()).stdout.splitlines()
            if line != "negotiated"
        )
        assert lines["size"] == f"16.8 MB ({SIZE} bytes)"
        assert lines["portal"].startswith(f"{target.portal}, RTT 0.")
        assert lines["login"] == "without CHAP" and lines["session"] == "1 connection"
        assert lines["name"].startswith("naa.3")
        # Who asks for more gets more.
        assert enkaku.report("info", target.url(), "--connections", 3)["connections"] == 3
