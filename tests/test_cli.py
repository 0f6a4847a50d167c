"""The command line: bad input, nothing overwritten unasked, a full disk, the JSON contract."""

import json
import os
import shutil
from pathlib import Path

import pytest
from conftest import MIB, empty, noise, sha256
from support.storage import Storage

from enkaku_lab.peers import Target, Workload, enkaku, need, qemu
from enkaku_lab.process import CommandFailed, free_port, peer, run

SIZE = 16 * MIB
URL = "iscsi://127.0.0.1:1/iqn.2026-01.lab.enkaku:none/0"


@pytest.fixture
def target(tmp_path: Path):
    disk = empty(tmp_path / "lun0.img", SIZE)
    with enkaku.serve([disk], tmp_path) as serving:
        yield serving


MANUAL = {**os.environ, "MANWIDTH": "100", "LC_ALL": "C.UTF-8"}
SERVE = ["serve", "--listen", "127.0.0.1:0"]
BENCH = ["bench", URL, "--time", "1s"]
BAD_INPUT = {
    "unknown command": (["frobnicate"], "frobnicate"),
    "serve without a LUN": (SERVE, "--lun"),
    "serve, file missing": ([*SERVE, "--lun", "/nowhere/disk.img"], "/nowhere/disk.img"),
    "serve, bad size": ([*SERVE, "--lun", "mem:12parsecs"], "12parsecs"),
    "serve, empty memory": ([*SERVE, "--lun", "mem:0"], "mem:0"),
    "serve, bad address": (["serve", "--listen", "here", "--lun", "mem:1M"], "here"),
    "serve, bad name": ([*SERVE, "--lun", "mem:1M", "--iqn", "my target"], "my target"),
    "serve, user alone": ([*SERVE, "--lun", "mem:1M", "--chap-user", "u"], "--chap-password-file"),
    "copy without a destination": (["copy", URL], "DST"),
    "copy, source missing": (["copy", "/nowhere/file", URL], "/nowhere/file"),
    "copy, no connections": (["copy", URL, "-", "--connections", "0"], "--connections"),
    "bench, bad order": ([*BENCH, "--rw", "sideways"], "sideways"),
    "bench, bad block": ([*BENCH, "--bs", "4furlongs"], "4furlongs"),
    "bench, no depth": ([*BENCH, "--depth", "0"], "--depth"),
    "bench, polls for too long": ([*BENCH, "--poll", "1s"], "up to 10ms"),
    "bench, negative time": (["bench", URL, "--time=-1s"], "-1s"),
    "info, other scheme": (["info", "http://127.0.0.1/x/0"], "http://127.0.0.1/x/0"),
    "info, no LUN": (["info", "iscsi://127.0.0.1/iqn.2026-01.a:b"], "iqn.2026-01.a:b"),
    "info, bad LUN": (["info", "iscsi://127.0.0.1/iqn.2026-01.a:b/first"], "first"),
    "attach to nothing": (["attach", URL], "--fuse"),
    "wan, bad rate": (["wan", "run", "--rate", "fast", "--rtt", "1ms", "--", "true"], "fast"),
    "wan, negative RTT": (["wan", "run", "--rate", "1gbit", "--rtt=-1ms", "--", "true"], "-1ms"),
    "wan, loss above 1": (
        ["wan", "run", "--rate", "1gbit", "--rtt", "1ms", "--loss", "2", "--", "true"],
        "2",
    ),
}


@pytest.mark.parametrize("words, named", BAD_INPUT.values(), ids=BAD_INPUT.keys())
def test_bad_input_gets_one_clear_line_and_code_2(words: list[str], named: str):
    done = enkaku.command(*words, check=False, timeout_s=20)
    assert done.code == 2, done
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert named in lines[0]
    assert "panicked" not in lines[0] and not done.stdout


def test_help_names_every_command():
    text = enkaku.command("--help").stdout
    for name in ("serve", "discover", "info", "copy", "bench", "attach", "wan"):
        assert name in text
        assert enkaku.command(name, "--help").code == 0


def test_nobody_there_is_one_line_but_not_bad_input():
    url = f"iscsi://127.0.0.1:{free_port()}/iqn.2026-01.lab.enkaku:none/0"
    done = enkaku.command("info", url, check=False, timeout_s=60)
    assert done.code not in (0, 2)
    assert len(done.stderr.splitlines()) == 1


def test_unknown_target_and_lun_are_refused(target: Target):
    for url in (target.url().replace(target.iqn, "iqn.2026-01.lab:other"), target.url(7)):
        done = enkaku.command("info", url, check=False, timeout_s=60)
        assert done.code not in (0, 2) and len(done.stderr.splitlines()) == 1, done


def test_port_in_use_is_said(target: Target):
    listen = ["--listen", target.portal, "--lun", "mem:1M"]
    done = enkaku.command("serve", *listen, check=False, timeout_s=20)
    assert done.code != 0 and target.portal in done.stderr


@pytest.mark.parametrize(
    "listen, options, warned",
    [
        ("0.0.0.0:0", [], "read and overwrite"),
        ("[::]:0", ["--read-only"], "can read these"),
        ("127.0.0.1:0", [], None),
        ("0.0.0.0:0", ["chap"], None),
    ],
)
def test_serve_says_that_everybody_may_come_in(
    listen: str, options: list[object], warned: str | None, tmp_path: Path
):
    if options == ["chap"]:
        secret = tmp_path / "secret"
        secret.write_text("correct-horse-77\n")
        secret.chmod(0o600)
        options = ["--chap-user", "operator", "--chap-password-file", secret]
    argv = [enkaku.binary(), "serve", "--lun", "mem:1M", "--listen", listen, *options]
    with peer(argv, tmp_path / "serve.log") as serving:
        serving.wait_for_output("listening on")
        if warned:
            serving.wait_for_output("warning: everybody who reaches")
            assert warned in serving.output() and "--chap-user" in serving.output()
    assert ("warning" in serving.output()) == bool(warned), serving.output()


def test_memory_beyond_the_machine_is_served_when_that_is_meant(tmp_path: Path):
    serve = [enkaku.binary(), *SERVE, "--lun", "mem:2T"]
    done = run(serve, check=False, timeout_s=20)
    assert done.code == 2 and "of this machine" in done.stderr and "--overcommit" in done.stderr
    with peer([*serve, "--overcommit"], tmp_path / "serve.log") as serving:
        serving.wait_for_output("listening on")


def test_existing_file_is_not_overwritten_unless_forced(target: Target, tmp_path: Path):
    precious = tmp_path / "precious"
    precious.write_text("do not lose")
    done = enkaku.command("copy", target.url(), precious, check=False)
    assert done.code == 2 and str(precious) in done.stderr
    assert precious.read_text() == "do not lose"
    enkaku.command("copy", target.url(), precious, "--force")
    assert precious.stat().st_size == SIZE


def test_source_larger_than_the_volume_changes_nothing(target: Target, tmp_path: Path):
    done = enkaku.command(
        "copy", noise(tmp_path / "big", SIZE + MIB), target.url(), check=False
    )
    assert done.code != 0 and len(done.stderr.splitlines()) == 1
    assert sha256(tmp_path / "lun0.img") == sha256(empty(tmp_path / "zeroes", SIZE))


def test_copy_through_pipes(target: Target, tmp_path: Path):
    source = noise(tmp_path / "source", SIZE)
    enkaku.command("copy", "-", target.url(), stdin=source)
    assert sha256(tmp_path / "lun0.img") == sha256(source)
    shell = f"'{enkaku.binary()}' copy '{target.url()}' - | sha256sum"
    assert run(["sh", "-c", shell]).stdout.split()[0] == sha256(source)


def test_copy_keeps_holes(tmp_path: Path):
    source = empty(tmp_path / "source", 64 * MIB)
    with source.open("r+b") as file:
        file.seek(32 * MIB)
        file.write(b"data" * 1024)
    disk = empty(tmp_path / "lun0.img", 64 * MIB)
    with enkaku.serve([disk], tmp_path) as target:
        enkaku.command("copy", source, target.url())
        enkaku.command("copy", target.url(), tmp_path / "back")
    for copy in (disk, tmp_path / "back"):
        assert sha256(copy) == sha256(source)
        assert copy.stat().st_blocks * 512 <= 2 * MIB


@pytest.fixture
def small_disk(tmp_path: Path):
    """A file system of 16 MiB with a sparse file of 64 MiB on it: it promises too much."""
    folder = tmp_path / "small"
    folder.mkdir()
    run([need("mount"), "-t", "tmpfs", "-o", "size=16m", "tmpfs", folder])
    try:
        yield empty(folder / "lun0.img", 64 * MIB)
    finally:
        run([need("umount"), folder])


@pytest.mark.needs("root", "qemu-img")
@pytest.mark.parametrize("client", ["enkaku", "qemu-img"])
def test_full_disk_under_a_lun_is_an_error_never_a_loss(
    small_disk: Path, tmp_path: Path, client: str
):
    head = noise(tmp_path / "head", 4 * MIB)
    with enkaku.serve([small_disk], tmp_path) as target:
        enkaku.command("copy", head, target.url(), "--verify")
        big = tmp_path / "big"
        shutil.copyfile(head, big)
        with big.open("ab") as file:
            file.write(noise(tmp_path / "more", 44 * MIB, seed=2).read_bytes())
        with pytest.raises(CommandFailed) as refused:
            if client == "enkaku":
                enkaku.command("copy", big, target.url(), "--force")
            else:
                qemu.convert(big, target.url())
        assert "space" in refused.value.stderr.lower(), refused.value.stderr
        assert target.peer.running()
        enkaku.command("copy", target.url(), tmp_path / "back")
    with (tmp_path / "back").open("rb") as back:
        assert back.read(4 * MIB) == head.read_bytes()


def test_bench_json_contract(target: Target):
    load = ["--rw", "randread", "--bs", "4k", "--depth", 4, "--time", "1s", "--connections", 2]
    said = enkaku.report("bench", target.url(), *load)
    did = [said[name] for name in ("rw", "block_size", "depth", "connections")]
    assert did == ["randread", 4096, 4, 2]
    assert said["bytes"] > 0 and said["bytes"] % 4096 == 0
    assert said["bytes_per_s"] == pytest.approx(said["bytes"] / said["seconds"], rel=0.01)
    assert said["iops"] == pytest.approx(said["bytes_per_s"] / 4096, rel=0.01)
    latencies = [said["lat_us"][name] for name in ("p50", "p95", "p99", "p999", "max")]
    assert latencies == sorted(latencies) and latencies[0] > 0
    assert said["cpu_s"]["user"] >= 0 and said["cpu_s"]["sys"] >= 0


def test_both_ends_poll_when_told_to_and_say_what_it_cost(tmp_path: Path):
    lun = noise(tmp_path / "lun.img", SIZE)
    load = ["--rw", "randread", "--bs", "4k", "--depth", 1, "--time", "1s", "--connections", 1]
    with enkaku.serve([lun], tmp_path, options=["--poll", "1ms"]) as polling:
        said = enkaku.report("bench", polling.url(), *load, "--poll", "1ms")
        assert said["bytes"] > 0 and said["poll_s"] > 0
        assert "poll_s" not in enkaku.report("bench", polling.url(), *load)
        enkaku.command("copy", polling.url(), tmp_path / "back")
    assert sha256(tmp_path / "back") == sha256(lun)


def test_copy_json_contract(target: Target, tmp_path: Path):
    source = noise(tmp_path / "source", SIZE)
    said = enkaku.report("copy", source, target.url(), "--verify", "--connections", 2)
    assert (said["bytes"], said["connections"], said["verified"]) == (SIZE, 2, True)
    assert said["bytes_per_s"] == pytest.approx(said["bytes"] / said["seconds"], rel=0.01)


def test_bench_writes_only_what_it_says(target: Target, tmp_path: Path):
    noise(tmp_path / "lun0.img", SIZE)
    before = sha256(tmp_path / "lun0.img")
    enkaku.bench(target.url(), Workload(False, True, 4096, 8), seconds=0.5)
    assert sha256(tmp_path / "lun0.img") == before


def test_password_is_not_printed(tmp_path: Path):
    url = URL.replace("iscsi://", "iscsi://operator%top-secret-value@")
    done = enkaku.command("info", url, check=False, timeout_s=60)
    assert "top-secret-value" not in done.stderr + done.stdout
    assert "--chap-password-file" in done.stderr and "LIBISCSI_CHAP_PASSWORD" in done.stderr
    password = tmp_path / "password"
    password.write_text("top-secret-value\n")
    for mode, warned in ((0o644, "everybody"), (0o640, "its group"), (0o600, None)):
        password.chmod(mode)
        words = ["info", URL.replace("iscsi://", "iscsi://operator@")]
        words += ["--chap-password-file", password]
        said = enkaku.command(*words, check=False, timeout_s=60).stderr
        assert "top-secret-value" not in said
        assert (f"can be read by {warned}" in said) if warned else ("chmod" not in said)


def test_credentials_mean_authentication_or_nothing(target: Target, tmp_path: Path):
    """A target that wants no proof may be somebody else: it is taken only if the user says so."""
    password = tmp_path / "password"
    password.write_text("correct-horse-77\n")
    password.chmod(0o600)
    url = target.url().replace("iscsi://", "iscsi://operator@")
    words = ["info", url, "--chap-password-file", password]
    refused = enkaku.command(*words, check=False, timeout_s=60)
    assert refused.code == 1 and "AUTHENTICATION_FAILURE" in refused.stderr, refused.stderr
    assert "--chap-optional" in refused.stderr, refused.stderr
    assert enkaku.command(*words, "--chap-optional").code == 0


def test_created_images_are_their_owners(tmp_path: Path):
    with enkaku.serve([tmp_path / "new.img"], tmp_path, options=["--create", "1M"]):
        pass
    source = noise(tmp_path / "source", 1 << 20)
    with enkaku.serve([source], tmp_path) as serving:
        enkaku.command("copy", serving.url(), tmp_path / "copied.img")
    for name in ("new.img", "copied.img"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600, name


@pytest.mark.needs("cc")
def test_a_file_that_was_made_is_in_its_folder(target: Target, tmp_path: Path):
    """Without a sync of the folder a power cut may leave the data and take the name."""
    storage = Storage(tmp_path, 4096)  # its disk is in the folder that is watched
    enkaku.command("copy", target.url(), tmp_path / "new.img", env=storage.env)
    assert storage.count("folder_syncs") == 1
    enkaku.command("copy", target.url(), tmp_path / "new.img", "--force", env=storage.env)
    assert storage.count("folder_syncs") == 1, "its name was there before"
    storage.close()


def test_json_is_one_object(target: Target):
    for words in (["info", target.url()], ["discover", target.portal]):
        json.loads(enkaku.command(*words, "--json").stdout)


GROUPS = {
    "Use a volume:": ("discover", "info", "attach", "copy", "ls", "cat", "bench", "mirror"),
    "Serve volumes:": ("serve", "target"),
    "Watch and judge:": ("monitor", "diagnose"),
    "Try in a lab:": ("wan", "plan", "tune"),
}


def test_commands_are_shown_by_use():
    alone, asked = enkaku.command(check=False), enkaku.command("--help")
    assert (alone.code, alone.stdout) == (2, "") and alone.stderr == asked.stdout
    for heading, names in GROUPS.items():
        group = asked.stdout.split(heading)[1].split("\n\n")[0]
        shown = [line.split()[0] for line in group.splitlines() if line[2:3].strip()]
        assert set(names) <= set(shown), (heading, shown)
    for words in (["help", "--help"], ["target", "help", "-h"]):
        assert "help of the given subcommand" in enkaku.command(*words).stdout


def test_sizes_rates_and_times_may_be_written_as_elsewhere(target: Target):
    quick = ["bench", target.url(), "--json", "--connections", 1]
    for size, rate, seconds in (("4kb", "1G/s", "0.2"), ("4KiB", "500m", "200ms"), ("4096", "1gbit", ".2")):
        words = ["--bs", size, "--max-rate", rate, "--time", seconds]
        told = json.loads(enkaku.command(*quick, *words).stdout)
        assert told["bytes"] > 0 and 0.1 < told["seconds"] < 5, words


def test_the_version_tells_what_was_built():
    short, long = enkaku.command("-V").stdout, enkaku.command("--version").stdout
    assert long.startswith(short) and len(short.splitlines()) == 1
    facts = dict(line.split(maxsplit=1) for line in long.splitlines())
    assert set(facts) == {"enkaku", "commit", "date", "target", "features"}
    assert "-linux-" in facts["target"] and "eBPF" in facts["features"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_take_the_completions(shell: str, tmp_path: Path):
    script = tmp_path / "script"
    script.write_text(enkaku.command("completions", shell).stdout)
    assert "changed-since" in script.read_text()
    if shutil.which(shell):
        run([shell, "-n", script])


def test_every_command_has_its_manual_page(tmp_path: Path):
    enkaku.command("man", tmp_path)
    names = {page.name for page in tmp_path.iterdir()}
    assert {"enkaku.1", "enkaku-copy.1", "enkaku-target-run.1", "enkaku-mirror-promote.1"} <= names
    if shutil.which("man"):
        done = run(["man", "--warnings", "-l", tmp_path / "enkaku-copy.1"], env=MANUAL)
        assert "--changed-since" in done.stdout and not done.stderr, done.stderr
    done = enkaku.command("man", tmp_path / "nowhere", check=False)
    assert done.code == 2 and "make it first" in done.stderr
