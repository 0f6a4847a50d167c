"""Command lines as a new user gets them wrong, and every answer, in one file:
tests/golden/mistyped.txt.

An answer is one line (the configuration's: one for each mistake) that says what is wrong, where,
and what is allowed or what to do. Exit code 2: the command line is wrong; 1: something else is.
After a change of words, `ENKAKU_GOLDEN=write pytest tests/test_mistyped.py` writes the file anew:
read it as that user before it is committed.
"""

import difflib
import os
import re
import shlex
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from conftest import MIB, empty, noise

from enkaku_lab.peers import enkaku, need
from enkaku_lab.process import run

GOLDEN = Path(__file__).with_name("golden") / "mistyped.txt"
IQN = enkaku.IQN
LINES_MAX = 2
CHARACTERS_MAX = 330
CONFIG = """[server]
admin_socket = "$TMP/admin.sock"
state_dir = "$TMP"
[limits]
login_timeout = 15
memory = "1M"
[[portal]]
listen = "3260"
[[target]]
name = "ign.2026-11.org.example:disks"
[[target.lun]]
number = 0
path = "$TMP"
[[target.lun]]
number = 1
path = "mem:1000"
block_size = 8192
"""
STORAGE = """[server]
admin_socket = "$TMP/admin.sock"
[[portal]]
listen = "127.0.0.1:0"
[[target]]
name = "iqn.2026-11.org.example:disks"
anyone = true
[[target.lun]]
number = 0
path = "$TMP/nowhere.img"
[[target.lun]]
number = 1
path = "/dev/null"
"""
VIDEOS = """[[home]]
name = "attic"
volume = "$TMP/blank.img"
[[video]]
title = "A Film"
home = "cellar"
path = "/film.mp4"
"""
LONG = "a-folder-whose-name-is-long/" * 5
COMMANDS = f"""
(nothing at all)

serv --lun mem:1M
serve
serve --lun disk.img
serve --lun $TMP
serve --lun /dev/null
serve --lun mem:
serve --lun mem:12parsecs
serve --lun mem:1000
serve --lun mem:1000T
serve --lun rbd://storage/disk
serve --lun nbd://storage:x/disk
serve --lun $TMP/blank.img --lun $TMP/blank.img
serve --lun mem:1M --listen here
serve --lun mem:1M --listen 127.0.0.1:99999
serve --lun mem:1M --listen 127.0.0.1:$PORT
serve --lun mem:1M --listen 127.0.0.1:0 --iqn my-disk
serve --lun mem:1M --listen 127.0.0.1:0 --block-size 1024
serve --lun mem:1M --listen 127.0.0.1:0 --chap-user operator
serve --lun mem:1M --chap-user operator --chap-password-file $TMP/nowhere
serve --lun mem:1M --chap-user operator --chap-password-file $TMP/short
serve --lun mem:1M --congestion-control vegsa
serve --lun $TMP/nowhere/new.img --create 1G

info
info http://127.0.0.1:$PORT/{IQN}/0
info 127.0.0.1:$PORT
info iscsi://127.0.0.1:$PORT
info iscsi://127.0.0.1:$PORT/{IQN}
info iscsi://127.0.0.1:$PORT/{IQN}/first
info iscsi://127.0.0.1:$PORT/ign.2026-01.lab.enkaku:serve/0
info iscsi://127.0.0.1:port/{IQN}/0
info iscsi://127.0.0.1:$NOBODY/{IQN}/0
info iscsi://no-such-host.invalid/{IQN}/0
info iscsi://127.0.0.1:$PORT/iqn.2026-01.lab.enkaku:other/0
info iscsi://127.0.0.1:$PORT/{IQN}/7
info iscsi://127.0.0.1:$CHAP/{IQN}/0
info iscsi://operator%wrong-password-1@127.0.0.1:$CHAP/{IQN}/0
info iscsi://operator@127.0.0.1:$CHAP/{IQN}/0
info iscsi://127.0.0.1:$PORT/{IQN}/0 --initiator-name me
discover 127.0.0.1:$NOBODY
discover iscsi://127.0.0.1:$NOBODY
discover isns://
discover @127.0.0.1:$PORT

copy $TMP/image
copy $TMP/nowhere iscsi://127.0.0.1:$PORT/{IQN}/0
copy - -
copy $TMP/image iscsi://127.0.0.1:$PORT/{IQN}/0
copy $TMP/image iscsi://127.0.0.1:$PORT/{IQN}/1
copy $TMP/image iscsi://127.0.0.1:$READONLY/{IQN}/0 --force
copy iscsi://127.0.0.1:$PORT/{IQN}/0 $TMP/image
copy $TMP/image $TMP/image --force
copy iscsi://127.0.0.1:$PORT/{IQN}/0 $TMP/nowhere/new.img
copy $TMP/image iscsi://127.0.0.1:$PORT/{IQN}/0 --connections 0
copy $TMP/image iscsi://127.0.0.1:$PORT/{IQN}/0 --overwrite

ls
ls $TMP/nowhere
ls $TMP/image
ls $TMP
ls iscsi://127.0.0.1:$PORT/{IQN}/0 /films
ls iscsi://127.0.0.1:$PORT/{IQN}/0 --partition 2
ls iscsi://127.0.0.1:$PORT/{IQN}/0 --extents
ls iscsi://127.0.0.1:$PORT/{IQN}/0/films
cat iscsi://127.0.0.1:$PORT/{IQN}/0
cat iscsi://127.0.0.1:$PORT/{IQN}/0 /lost+found
cat iscsi://127.0.0.1:$PORT/{IQN}/0 /lost+found/film.mp4
cat iscsi://127.0.0.1:$PORT/{IQN}/0 /film.mp4 --offset 5furlongs
cat iscsi://127.0.0.1:$PORT/{IQN}/1 /film.mp4

media serve
media serve $TMP/nowhere.toml
media serve $TMP/typos.toml
media serve $TMP/videos.toml
media serve $TMP/none.toml --listen films.example
media serve $TMP/none.toml --listen 127.0.0.1:$PORT
media serve $TMP/none.toml --name films.example:80
media serve $TMP/none.toml --streams 0
media serve $TMP/none.toml --listen 0.0.0.0
media serve $TMP/none.toml --tls-cert $TMP/none.toml
media serve $TMP/none.toml --tls-cert $TMP/none.toml --tls-key $TMP/long
media serve $TMP/none.toml --uplink films.example
media uplink key
media uplink host-key $TMP/short
media uplink add attic 1e --catalogue $TMP/none.toml
media uplink add "The Shed" 0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f --catalogue $TMP/none.toml
media uplink remove shed --catalogue $TMP/none.toml
media user add anna
media user add anna --catalogue $TMP/nowhere.toml --password-file $TMP/long
media user add anna --catalogue $TMP/none.toml
media user add "an na" --catalogue $TMP/none.toml --password-file $TMP/long
media user passwd anna --catalogue $TMP/none.toml --password-file $TMP/long
media share Kyoto --catalogue $TMP/none.toml
media share Kyoto --for 3d --catalogue $TMP/none.toml
media share --revoke 17 --catalogue $TMP/none.toml
media publish iscsi://127.0.0.1:$PORT/{IQN}/0 --catalogue $TMP/new.toml
media publish iscsi://127.0.0.1:$PORT/{IQN}/0 /films
media publish iscsi://127.0.0.1:$NOBODY/{IQN}/0 / --catalogue $TMP/new.toml
media publish iscsi://u%secret-word-12@127.0.0.1:$PORT/{IQN}/0 / --catalogue $TMP/new.toml
media publish $TMP/full.img / --catalogue $TMP/videos.toml
media publish $TMP/full.img / --catalogue $TMP/new.toml --password-file $TMP/long

bench iscsi://127.0.0.1:$PORT/{IQN}/0 --bs 4furlongs
bench iscsi://127.0.0.1:$PORT/{IQN}/0 --bs 1000
bench iscsi://127.0.0.1:$PORT/{IQN}/0 --time 10x
bench iscsi://127.0.0.1:$PORT/{IQN}/0 --rw sideways
bench iscsi://127.0.0.1:$PORT/{IQN}/0 --first-burst 16M
bench iscsi://127.0.0.1:$PORT/{IQN}/0 --first-burst 128k --max-burst 64k
bench iscsi://127.0.0.1:$PORT/{IQN}/0 --immediate-data maybe
bench iscsi://127.0.0.1:$PORT/{IQN}/0 --max-outstanding-r2t 0
bench iscsi://127.0.0.1:$PORT/{IQN}/0 --rw write --time 1s
bench iscsi://127.0.0.1:$PORT/{IQN}/0 --max-rate 500
bench iscsi://127.0.0.1:$PORT/{IQN}/0 --max-rate 500MB/s
bench iscsi://127.0.0.1:$PORT/{IQN}/0 --max-rate 500mbit --share 0.5
bench iscsi://127.0.0.1:$PORT/{IQN}/0 --congestion-control vegsa

attach iscsi://127.0.0.1:$PORT/{IQN}/0
attach iscsi://127.0.0.1:$PORT/{IQN}/0 --fuse $TMP/nowhere
attach iscsi://127.0.0.1:$PORT/{IQN}/0 --fuse $TMP
attach iscsi://127.0.0.1:$PORT/{IQN}/0 --fuse $TMP/image
attach iscsi://127.0.0.1:$PORT/{IQN}/0 --nbd $TMP/{LONG}nbd.sock
attach iscsi://127.0.0.1:$PORT/{IQN}/0 --nbd $TMP/nowhere/nbd.sock
attach iscsi://127.0.0.1:$PORT/{IQN}/0 --nbd 127.0.0.1:$PORT
attach iscsi://127.0.0.1:$PORT/{IQN}/0 --nbd $TMP/image
attach iscsi://127.0.0.1:$PORT/{IQN}/0 --nbd-device --nbd $TMP/nbd.sock
attach iscsi://127.0.0.1:$PORT/{IQN}/0 --nbd-device --cache write-back
attach iscsi://127.0.0.1:$PORT/{IQN}/0 --nbd $TMP/nbd.sock --successor-timeout 10s
attach iscsi://127.0.0.1:$PORT/{IQN}/0 --list
attach iscsi://127.0.0.1:$PORT/{IQN}/0 --nbd $TMP/nbd.sock --owner=steal
attach iscsi://127.0.0.1:$PORT/{IQN}/0 --nbd $TMP/nbd.sock --owner --read-only
attach nbd://127.0.0.1:$PORT/disk --nbd $TMP/nbd.sock --owner
attach --json
detach
detach $TMP/nowhere
detach $TMP/image

target
target check --config $TMP/nowhere.toml
target check --config $TMP/typos.toml
target check --config $TMP/storage.toml
target run --config $TMP/storage.toml
target status --socket $TMP/nowhere.sock
target reload --socket $TMP/nowhere.sock
target lun
target lun add vm1 --socket $TMP/nowhere.sock
target lun add vm1 --path $TMP/image --create 12parsecs
target lun add vm1 --path $TMP/image --socket $TMP/nowhere.sock
target lun resize vm1 --socket $TMP/nowhere.sock
target lun resise vm1 20G
target initiator alow {IQN}
target portal add wan
target portal list --socket $TMP/nowhere.sock

wan run --rate fast --rtt 50ms -- true
wan run --rate 1gbit --rtt 50 -- true
wan run --rate 1gbit -- true
wan run --rate 1gbit --rtt 50ms --classes strict,ef -- true
wan run --rate 1gbit --rtt 50ms --classes weighted,ef,rest=1 -- true
wan run --rate 1gbit --rtt 50ms --ecn 1k -- true
wan up lab --rate 1gbit --rtt 1ms --star 4 --node 3.mtu=9000
doctor storage.example
doctor 127.0.0.1:port
doctor --seconds 0
doctor --line-rate fast
doctor --line-rate 0
monitor --port iscsi
monitor --interval fast
completions tcsh
help serv
target stauts
secret $TMP/image
csi --endpoint unix://$TMP/csi.sock
csi --node --endpoint csi.sock
csi --node --endpoint unix://$TMP/csi.sock --run-folder $TMP/run --node-id "worker one"
csi --controller --endpoint unix://$TMP/csi.sock
csi --controller --endpoint unix://$TMP/csi.sock --portal 192.0.2.1:iscsi --folder $TMP
csi --controller --endpoint unix://$TMP/csi.sock --portal 192.0.2.1 --folder $TMP/none
csi --controller --endpoint unix://$TMP/csi.sock --portal 192.0.2.1 --folder $TMP --target-base volumes
csi --controller --endpoint unix://$TMP/image --portal 192.0.2.1 --folder $TMP
target lun add vm1 --path /srv/vm1.img --new-target
"""
LINES_OF_MANY = ("(nothing at all)", "target check", "target run", "target\n", "target lun\n")
"""These say more than one thing."""


@contextmanager
def _world(folder: Path) -> Iterator[dict[str, str]]:
    """What there is, as the commands call it."""
    blank, full = empty(folder / "blank.img", 8 * MIB), empty(folder / "full.img", 8 * MIB)
    run([need("mkfs.ext4"), "-q", "-F", "-L", "home", full])
    noise(folder / "image", 16 * MIB)
    with (folder / "image").open("r+b") as file:
        file.write(b"\1" * 4096)
    os.truncate(folder / "image", 4 * MIB)
    (folder / "short").write_text("short\n")
    (folder / "long").write_text("correct-horse-77\n")
    for path in (folder / "short", folder / "long"):
        path.chmod(0o600)
    for name, text in {"typos": CONFIG, "storage": STORAGE, "videos": VIDEOS, "none": ""}.items():
        (folder / f"{name}.toml").write_text(text.replace("$TMP", str(folder)))
    chap = ["--chap-user", "operator", "--chap-password-file", folder / "long"]
    with ExitStack() as stack:

        def port(luns: list[str | Path], *options: object) -> str:
            logs = folder.with_name("logs")
            logs.mkdir(exist_ok=True)
            return str(stack.enter_context(enkaku.serve(luns, logs, options=options)).port)

        ports = {
            "$PORT": port([full, "mem:1M"]),
            "$READONLY": port([empty(folder / "other.img", 8 * MIB)], "--read-only"),
            "$CHAP": port([blank.with_name("third.img")], "--create", "8M", *chap),
            # Nobody listens there: the port is a privileged one that this machine does not use.
            "$NOBODY": "1",
        }
        yield {**ports, "$TMP": str(folder)}


def _answer(line: str, world: dict[str, str]) -> str:
    words = [] if line.startswith("(") else shlex.split(line)
    for name, value in world.items():
        words = [word.replace(name, value) for word in words]
    done = enkaku.command(*words, check=False, timeout_s=60)
    said = (done.stdout + done.stderr).rstrip("\n")
    # Another test may have a volume of the same name attached just now, and `attach` says so.
    said = re.sub(r"^.* is in use by another process of this host: .*\n", "", said, flags=re.M)
    for name, value in sorted(world.items(), key=lambda item: -len(item[1])):
        port = rf":{value}\b"
        said = re.sub(port, f":{name}", said) if value.isdigit() else said.replace(value, name)
    if "\n\nUsage: " in said:
        said = said.split("\n\n")[0] + "\n[then the whole help]"
    said = re.sub(r"\d{9,} bytes of this machine", "$MEMORY bytes of this machine", said)
    said = re.sub(r"\d+ bytes; the path", "$N bytes; the path", said)
    said = re.sub(r"\((auto, system|system), [^)]*\)", r"(\1, …)", said)
    return f"$ enkaku {line}\n{said}\n→ {done.code}\n"


@pytest.mark.needs("mkfs.ext4", "/dev/fuse")
def test_every_answer_is_one_to_show_a_customer(tmp_path: Path):
    folder = tmp_path / "t"
    folder.mkdir()
    with _world(folder) as world:
        answers = [_answer(line, world) for line in COMMANDS.splitlines() if line]
    assert len(answers) >= 40
    for answer in answers:
        command, *lines, code = answer.rstrip("\n").split("\n")
        assert code in ("→ 1", "→ 2"), answer
        for sign in ("panicked", "BACKTRACE", "os error", "Some(", "Os {", "Err("):
            assert sign not in answer, answer
        if not command.startswith(tuple(f"$ enkaku {each}".rstrip() for each in LINES_OF_MANY)):
            assert 1 <= len(lines) <= LINES_MAX, answer
        assert all(len(line) <= CHARACTERS_MAX for line in lines), answer
    text = "\n".join(answers)
    if os.environ.get("ENKAKU_GOLDEN") == "write":
        GOLDEN.write_text(text)
    golden = GOLDEN.read_text() if GOLDEN.exists() else ""
    changed = difflib.unified_diff(golden.splitlines(), text.splitlines(), lineterm="", n=2)
    assert text == golden, "\n".join(changed)
