"""`enkaku ls` and `enkaku cat`: file systems that others have made, compared byte by byte with what was
put into them, from an image and through our target."""

import json
import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import filesystems as fs
from support.volume import loop_device, mounted

from enkaku_lab.peers import enkaku
from enkaku_lab.process import run

KIB, MIB = 1 << 10, 1 << 20
with_fat = pytest.mark.needs("mkfs.fat", "mcopy")
with_exfat = pytest.mark.needs("root", "/dev/fuse", "mkfs.exfat", "mount.exfat-fuse")
EXT = {
    "ext4": ["-b", "4096"],
    "ext4-1k": ["-b", "1024"],
    "ext4-64k": ["-b", "65536"],
    "ext4-no-checksums": ["-O", "^metadata_csum,^64bit"],
    "ext4-no-filetype": ["-O", "^filetype"],
    "ext4-meta_bg": ["-b", "1024", "-g", "1024", "-O", "meta_bg,^resize_inode"],
    "ext4-inline": ["-O", "inline_data", "-I", "512"],
    "ext4-bigalloc": ["-O", "bigalloc", "-C", "16384"],
    "ext4-seed": ["-O", "metadata_csum_seed", "-U", "random"],
    "ext3": ["-t", "ext3", "-b", "1024"],
    "ext2": ["-t", "ext2"],
    "ext2-small-inodes": ["-t", "ext2", "-I", "128", "-b", "2048"],
}
FAT = {
    "fat12": (8 * MIB, ["-F", "12", "-s", "8"]),
    "fat16": (64 * MIB, ["-F", "16"]),
    "fat32": (128 * MIB, ["-F", "32", "-s", "1"]),
    "fat32-4k-sectors": (512 * MIB, ["-F", "32", "-S", "4096", "-s", "1"]),
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    return folder


def ls(disk: object, path: str = "/", *options: object) -> dict[str, dict]:
    report = enkaku.report("ls", disk, path, *options)
    return {entry["name"]: entry for entry in report["entries"]}


def cat(disk: object, path: str, *options: object) -> bytes:
    words = [str(word) for word in (enkaku.binary(), "cat", disk, path, *options)]
    done = subprocess.run(words, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def walk(disk: object, *options: object, at: str = "") -> Iterator[tuple[str, dict]]:
    for name, entry in ls(disk, at or "/", *options).items():
        path = f"{at}/{name}".lstrip("/")
        yield path, entry
        if entry["kind"] == "folder":
            yield from walk(disk, *options, at=path)


def same(disk: object, files: dict[str, bytes], *options: object, sample: int = 40) -> None:
    """All names and sizes, and the content of all but the many small ones, of which it is a sample."""
    found = dict(walk(disk, *options))
    found = {path: entry for path, entry in found.items() if not path.startswith("lost+found")}
    sizes = {path: entry["size"] for path, entry in found.items() if entry["kind"] == "file"}
    assert sizes == {path: len(data) for path, data in files.items()}
    folders = {path for path, entry in found.items() if entry["kind"] == "folder"}
    parents = {str(parent) for path in files for parent in Path(path).parents} - {"."}
    assert parents <= folders
    many = [path for path in files if path.startswith("many/")]
    read = (files.keys() - many) | set(random.Random(7).sample(many, min(sample, len(many))))
    for path in sorted(read):
        assert cat(disk, path, *options) == files[path], path


def refused(*words: object) -> str:
    done = enkaku.command(*words, check=False)
    assert done.code in (1, 2), done
    assert "panicked" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if "warning" not in line]
    assert len(lines) == 1, done.stderr
    return lines[0]


@pytest.mark.needs("mke2fs")
@pytest.mark.parametrize("variant", EXT)
def test_ext_is_read_as_it_was_filled(variant: str, source: Path, tmp_path: Path):
    # With inline_data, mke2fs 1.47 itself loses holes at the end of files.
    files = fs.tree(source, scattered=variant != "ext4-inline")
    (source / "link").symlink_to("large.bin")
    (source / "long link").symlink_to("/" + "a/" * 100)
    os.mkfifo(source / "pipe")
    disk = fs.ext(tmp_path / "disk.img", 96 * MIB, source, "-L", "Films", *EXT[variant])
    same(disk, files)
    root = ls(disk)
    assert root["link"]["target"] == "large.bin"
    assert root["long link"]["target"] == "/" + "a/" * 100
    assert root["pipe"]["kind"] == "special"
    label = enkaku.report("ls", disk)["file_system"]
    uuid = run(["blkid", "-o", "value", "-s", "UUID", disk]).stdout.strip()
    assert (label["label"], label["id"]) == ("Films", uuid)
    assert label["kind"] == variant.split("-")[0]


@pytest.mark.needs("mke2fs", "e2fsck")
@pytest.mark.parametrize("checksums", ["metadata_csum", "^metadata_csum"])
def test_a_folder_with_an_index_is_whole(checksums: str, source: Path, tmp_path: Path):
    # Some 220 blocks, of which a root of 1 KiB names about half: the index has two levels.
    files = {f"a rather long name of a file {i}": b"" for i in range(5000)}
    for name in files:
        (source / name).touch()
    options = ["-O", checksums, "-N", "8192", "-b", "1024"]
    disk = fs.ext(tmp_path / "disk.img", 64 * MIB, source, *options)
    run(["e2fsck", "-f", "-y", "-D", disk], check=False, timeout_s=180)
    flags = run(["debugfs", "-R", "stat /", disk]).stdout
    assert "Flags: 0x1000" in flags or "Flags: 0x81000" in flags, "it has an index"
    assert set(ls(disk)) == files.keys() | {"lost+found"}
    assert cat(disk, "a rather long name of a file 4999") == b""


@pytest.mark.needs("mke2fs", "debugfs")
@pytest.mark.parametrize("variant", ["ext4-1k", "ext4-no-checksums", "ext3"])
def test_a_file_in_thousands_of_pieces(variant: str, source: Path, tmp_path: Path):
    (source / "small").write_bytes(fs.content(1024, 1))
    options = [*EXT[variant], "-N", "8192"]
    disk = fs.ext(tmp_path / "disk.img", 24 * MIB, source, *options)
    count = 5000
    commands = ["cd /", "mkdir f", "cd f"]
    commands += [f"write {source / 'small'} {i}" for i in range(count)]
    commands += [f"rm {i}" for i in range(0, count, 2)]
    fs.debugfs(disk, commands, tmp_path)
    fragmented = fs.content(count // 2 * KIB - 100, 3)
    (tmp_path / "fragmented").write_bytes(fragmented)
    fs.debugfs(disk, [f"write {tmp_path / 'fragmented'} fragmented"], tmp_path)
    extents = enkaku.report("ls", disk, "fragmented", "--extents")["extents"]
    assert len(extents) > 900
    assert sum(extent["length"] for extent in extents) == len(fragmented)
    assert cat(disk, "fragmented") == fragmented
    # The extents are where the bytes are.
    with disk.open("rb") as raw:
        for extent in random.Random(1).sample(extents, 50):
            raw.seek(extent["at"])
            begin = extent["offset"]
            assert raw.read(extent["length"]) == fragmented[begin : begin + extent["length"]]


@pytest.mark.needs("root", "mkfs.ext4", "losetup", "mount")
@pytest.mark.parametrize("kind", ["ext4", "ext3", "ext2"])
def test_what_a_kernel_has_written(kind: str, source: Path, tmp_path: Path):
    files = fs.tree(source, many=3000)
    disk = fs.image(tmp_path / "disk.img", 128 * MIB)
    run([f"/usr/sbin/mkfs.{kind}", "-q", "-F", "-b", "1024", disk])
    with loop_device(disk) as device, mounted(device, tmp_path / "mnt") as folder:
        fs.fill(folder, source)
        pieces = bytearray(4 * MIB)
        with (folder / "pieces").open("wb", buffering=0) as one, (folder / "other").open(
            "wb", buffering=0
        ) as other:
            # Two files that grow by turns, each with a flush, share no run of blocks.
            for begin in range(0, len(pieces), 8 * KIB):
                data = fs.content(3 * KIB, begin)
                pieces[begin : begin + len(data)] = data
                for file in (one, other):
                    file.seek(begin)
                    file.write(data)
                    os.fdatasync(file.fileno())
            one.truncate(len(pieces))
            other.truncate(len(pieces))
        if kind == "ext4":
            with (folder / "reserved").open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, MIB)
                file.seek(300_000)
                file.write(b"here")
            reserved = bytearray(MIB)
            reserved[300_000:300_004] = b"here"
            files["reserved"] = bytes(reserved)
    files["pieces"] = files["other"] = bytes(pieces)
    same(disk, files)
    extents = enkaku.report("ls", disk, "pieces", "--extents")["extents"]
    assert len(extents) > 500
    assert any(extent["at"] is None for extent in extents)


@with_fat
@pytest.mark.parametrize("kind", FAT)
def test_fat_is_read_as_it_was_filled(kind: str, source: Path, tmp_path: Path):
    size, options = FAT[kind]
    files = fs.tree(source, scattered=False)
    (source / "UPPER.TXT").write_bytes(b"upper")
    files["UPPER.TXT"] = b"upper"
    # mtools cannot write what needs two units of UTF-16.
    (source / "names" / fs.UNICODE[0]).unlink()
    del files[f"names/{fs.UNICODE[0]}"]
    disk = fs.fat(tmp_path / "disk.img", size, source, "-n", "FILMS", "-i", "1234abcd", *options)
    same(disk, files)
    identity = enkaku.report("ls", disk)["file_system"]
    assert (identity["id"], identity["label"]) == ("1234-ABCD", "FILMS")
    assert identity["kind"] == kind.split("-")[0].upper()
    # The case of letters does not matter, and the short name does as well.
    assert cat(disk, "upper.txt") == cat(disk, "/UPPER.txt") == b"upper"
    assert cat(disk, "NAMES/ÇA ÉTÉ LÀ.MP4") == files["names/Ça été là.mp4"]
    assert cat(disk, "INLINE.TXT") == files["inline.txt"]


@with_fat
@pytest.mark.parametrize("kind", ["fat12", "fat16", "fat32"])
def test_a_chain_in_thousands_of_pieces(kind: str, source: Path, tmp_path: Path):
    size, options = FAT[kind]
    cluster = 4096 if kind == "fat12" else 2048 if kind == "fat16" else 512
    count = 1000 if kind == "fat12" else 6000
    (source / "d").mkdir()
    for i in range(count):
        (source / "d" / f"{i:04}").write_bytes(b"x")
    disk = fs.fat(tmp_path / "disk.img", size, source, *options)
    # Nothing else is free, so that it has to be in pieces.
    (tmp_path / "rest").write_bytes(bytes(fs.fat_free(disk)))
    fs.mtools(["mcopy", "-i", disk, tmp_path / "rest", "::/rest"])
    odd = [f"::/d/{i:04}" for i in range(1, count, 2)]
    for begin in range(0, len(odd), 500):
        fs.mtools(["mdel", "-i", disk, *odd[begin : begin + 500]])
    data = fs.content(count // 2 * cluster, 9)
    (tmp_path / "pieces").write_bytes(data)
    fs.mtools(["mcopy", "-i", disk, tmp_path / "pieces", "::/pieces"])
    extents = enkaku.report("ls", disk, "pieces", "--extents")["extents"]
    assert len(extents) > count // 5
    assert cat(disk, "pieces") == data


@with_exfat
@pytest.mark.parametrize("cluster", ["4k", "128k"])
def test_exfat_is_read_as_it_was_filled(cluster: str, source: Path, tmp_path: Path):
    files = fs.tree(source, scattered=False)
    disk = tmp_path / "disk.img"
    with fs.exfat(disk, 256 * MIB, tmp_path / "mnt", "-c", cluster, "-L", "Films") as folder:
        fs.fill(folder, source)
        pieces = b""
        with (folder / "pieces").open("wb") as one, (folder / "other").open("wb") as other:
            for i in range(300):
                pieces += (data := fs.content(5000, i))
                for file in (one, other):
                    file.write(data)
                    file.flush()
        # Space that is reserved and not written reads as zeroes.
        with (folder / "reserved").open("wb") as file:
            file.truncate(MIB)
    files |= {"pieces": pieces, "other": pieces, "reserved": bytes(MIB)}
    same(disk, files)
    identity = enkaku.report("ls", disk)["file_system"]
    assert (identity["kind"], identity["label"]) == ("exFAT", "Films")
    assert cat(disk, "NAMES/ça été là.MP4") == files["names/Ça été là.mp4"]
    extents = enkaku.report("ls", disk, "pieces", "--extents")["extents"]
    assert len(extents) > (100 if cluster == "4k" else 5)


def parts(tmp_path: Path, source: Path) -> tuple[Path, Path]:
    """Two small file systems with a file each."""
    (source / "film.mp4").write_bytes(fs.content(100_000, 1))
    ext = fs.ext(tmp_path / "ext.img", 8 * MIB, source, "-L", "home")
    fat = fs.fat(tmp_path / "fat.img", 4 * MIB, source, "-n", "CARD")
    return ext, fat


GPT = """label: gpt
start=2048, size=16384, type=L, name="Films and more"
start=20480, size=8192, type=uefi
start=30720, size=8192, type=swap
"""
MBR = """label: dos
2048,8192,c
12288,+,5
14336,16384,83
32768,8192,82
43008,8192,c
"""


@with_fat
@pytest.mark.needs("mke2fs", "sfdisk")
@pytest.mark.parametrize("kind", ["gpt", "mbr"])
def test_partitions_are_found(kind: str, source: Path, tmp_path: Path):
    ext, fat = parts(tmp_path, source)
    script, places = (GPT, {2048: ext, 20480: fat}) if kind == "gpt" else (
        MBR,
        {2048: fat, 14336: ext, 43008: fat},
    )
    disk = fs.disk(tmp_path / "disk.img", 64 * MIB, script, places)
    report = enkaku.report("ls", disk, "--partitions")
    assert report["table"] == kind
    stock = json.loads(run(["sfdisk", "--json", disk]).stdout)["partitiontable"]["partitions"]
    stock = [part for part in stock if part["type"] != "5"]
    theirs = [(part["start"] * 512, part["size"] * 512) for part in stock]
    assert [(part["start"], part["length"]) for part in report["partitions"]] == theirs
    numbers = [int(part["node"].removeprefix(str(disk))) for part in stock]
    assert [part["number"] for part in report["partitions"]] == numbers
    for part in report["partitions"]:
        if part["readable"]:
            data = cat(disk, "film.mp4", "--partition", part["number"])
            assert data == (source / "film.mp4").read_bytes()
    assert sum(part["readable"] for part in report["partitions"]) == len(places)
    assert "which --partition? There are" in refused("cat", disk, "film.mp4")
    # The list of partitions, since there is no path.
    assert enkaku.report("ls", disk) == report
    if kind == "gpt":
        assert report["partitions"][0]["name"] == "Films and more"
        assert report["partitions"][0]["id"] == stock[0]["uuid"].lower()


@with_fat
@pytest.mark.needs("mke2fs", "sfdisk")
def test_a_damaged_gpt_is_read_from_its_copy(source: Path, tmp_path: Path):
    ext, fat = parts(tmp_path, source)
    disk = fs.disk(tmp_path / "disk.img", 64 * MIB, GPT, {2048: ext, 20480: fat})
    good = enkaku.report("ls", disk, "--partitions")["partitions"]
    whole = disk.read_bytes()
    for offset in (512 + 60, 1024 + 40, 512):
        disk.write_bytes(whole)
        fs.put(disk, offset, b"\xff" * 8)
        report = enkaku.report("ls", disk, "--partitions")
        assert report["partitions"] == good
        assert "its copy at the end of the disk is used" in report["warnings"][0]
    fs.put(disk, 512, b"EFI PART")
    fs.put(disk, 512 + 60, b"\xff" * 8)
    fs.put(disk, 64 * MIB - 512 + 60, b"\xff" * 8)
    assert "GPT in sector 1: its checksum is wrong" in refused("ls", disk)


@with_fat
@pytest.mark.needs("mke2fs", "sfdisk")
def test_over_iscsi_it_is_the_same(source: Path, tmp_path: Path):
    files = fs.tree(source, many=100)
    part = fs.ext(tmp_path / "ext.img", 64 * MIB, source)
    disk = fs.disk(tmp_path / "disk.img", 80 * MIB, "label: gpt\nstart=2048, size=131072\n", {2048: part})
    before = disk.read_bytes()
    with enkaku.serve([disk], tmp_path) as target:
        same(target.url(0), files, sample=5)
        large = files["large.bin"]
        assert cat(target.url(0), "large.bin", "--offset", 3 * MIB) == large[3 * MIB :]
        part = cat(target.url(0), "large.bin", "--offset", "1M", "--length", 70_001)
        assert part == large[MIB : MIB + 70_001]
        assert cat(target.url(0), "large.bin", "--offset", len(large)) == b""
        assert "no such file" in refused("cat", target.url(0), "names/nothing")
    assert disk.read_bytes() == before, "nothing is written"


@pytest.mark.needs("mke2fs", "debugfs")
def test_what_is_not_in_order_is_said(source: Path, tmp_path: Path):
    (source / "a").write_bytes(b"content")
    disk = fs.ext(tmp_path / "disk.img", 16 * MIB, source, "-t", "ext4")
    fs.debugfs(disk, ["feature needs_recovery"], tmp_path)
    done = enkaku.command("cat", disk, "a")
    assert done.stdout == "content"
    assert "enkaku: warning: ext4: it was not unmounted" in done.stderr
    assert "journal" in enkaku.report("ls", disk)["warnings"][0]


@pytest.mark.needs("mke2fs")
def test_names_do_a_terminal_no_harm(source: Path, tmp_path: Path):
    nasty = [b"esc \x1b[2J", b"new\nline", b"back\\slash", b"\xff\xfe", "abc\u202egpm".encode()]
    for i, name in enumerate(nasty):
        with open(os.fsencode(source) + b"/" + name, "wb") as file:
            file.write(b"%d" % i)
    disk = fs.ext(tmp_path / "disk.img", 16 * MIB, source)
    lines = enkaku.command("ls", disk).stdout.splitlines()
    shown = [r"esc \x1b[2J", r"new\x0aline", r"back\x5cslash", r"\xff\xfe", r"abc\xe2\x80\xaegpm"]
    assert sorted(lines) == sorted([*shown, "lost+found/"])
    entries = enkaku.report("ls", disk)["entries"]
    names = {bytes.fromhex(e["name_hex"]) if "name_hex" in e else e["name"].encode() for e in entries}
    assert names == {*nasty, b"lost+found"}
    for i, name in enumerate(nasty):
        done = run([enkaku.binary(), "cat", disk, os.fsdecode(name)])
        assert done.stdout == str(i)


@pytest.mark.needs("mke2fs")
def test_a_link_is_named_and_not_followed(source: Path, tmp_path: Path):
    (source / "folder").mkdir()
    (source / "folder" / "file").write_bytes(b"x")
    (source / "link").symlink_to("folder")
    (source / "outside").symlink_to("/etc/passwd")
    disk = fs.ext(tmp_path / "disk.img", 16 * MIB, source)
    assert "/link is a symbolic link to folder; links are not" in refused("cat", disk, "link/file")
    assert "is a symbolic link, not a file" in refused("cat", disk, "outside")
    assert "is a folder, not a file" in refused("cat", disk, "folder")
    assert "/folder/file is not a folder" in refused("ls", disk, "folder/file/x")
    assert enkaku.command("ls", disk, "-l", "outside").stdout.endswith("outside -> /etc/passwd\n")
    assert cat(disk, "/folder/../link/../folder//./file") == b"x"


@pytest.mark.needs("mke2fs", "debugfs")
def test_hostile_ext_is_an_error(source: Path, tmp_path: Path):
    data = fs.sparse(100, 4 * KIB)
    fs.write(source / "sparse", data)
    options = ["-O", "^metadata_csum", "-b", "1024"]
    disk = fs.ext(tmp_path / "disk.img", 16 * MIB, source, *options)
    stat = run(["debugfs", "-R", "imap /sparse", disk]).stdout
    # "Inode 12 is part of block group 0\n located at block 84, offset 0x0b00"
    words = stat.replace(",", "").split()
    inode = int(words[words.index("block", 10) + 1]) * 1024 + int(words[-1], 16)
    good = disk.read_bytes()
    root = int.from_bytes(good[inode + 0x38 : inode + 0x3C], "little")
    assert good[inode + 0x2E] == 1, "a tree of one level"

    def with_number(offset: int, form: str, value: int) -> str:
        disk.write_bytes(good)
        fs.put_number(disk, offset, form, value)
        return refused("cat", disk, "sparse")

    assert "a tree of 9 levels" in with_number(inode + 0x2E, "<H", 9)
    assert "level 1 instead of 0" in with_number(root * 1024 + 6, "<H", 1)
    assert "entries in room for" in with_number(inode + 0x2A, "<H", 60_000)
    assert "outside" in with_number(inode + 0x38, "<I", 2**32 - 1)
    assert "has magic" in with_number(inode + 0x38, "<I", 2)
    assert "a size of" in with_number(inode + 0x6C, "<I", 2**31)
    first = int.from_bytes(good[root * 1024 + 20 : root * 1024 + 24], "little")
    assert "of the disk is in it twice" in with_number(root * 1024 + 32, "<I", first)
    assert "the map has byte" in with_number(root * 1024 + 24, "<I", 0)


@with_fat
def test_hostile_fat_is_an_error(source: Path, tmp_path: Path):
    (source / "file").write_bytes(fs.content(20 * KIB, 1))
    disk = fs.fat(tmp_path / "disk.img", 16 * MIB, source, "-F", "16", "-s", "2", "-f", "1")
    good = disk.read_bytes()
    table = 512 * int.from_bytes(good[0x0E:0x10], "little")
    first = next(
        int.from_bytes(good[at + 26 : at + 28], "little")
        for at in range(0, len(good), 32)
        if good[at : at + 11] == b"FILE       "
    )

    def with_entry(value: int) -> str:
        disk.write_bytes(good)
        fs.put_number(disk, table + 2 * (first + 3), "<H", value)
        return refused("cat", disk, "file")

    assert "of the disk is in it twice" in with_entry(first)
    assert "its chain ends after" in with_entry(0xFFFF)
    assert "its chain goes to cluster 0 after 4" in with_entry(0)
    assert "its chain goes to cluster 65000" in with_entry(65_000)


def test_what_is_no_file_system_has_a_name(tmp_path: Path):
    disk = fs.image(tmp_path / "disk.img", MIB)
    readable = "cannot be read; ext2, ext3, ext4, FAT and exFAT can"
    assert f"nothing but zeroes at the start {readable}" in refused("ls", disk)
    fs.put(disk, 3, b"NTFS    ")
    assert f"NTFS {readable}" in refused("ls", disk)
    fs.put(disk, 0, os.urandom(4096))
    assert f"something unknown {readable}" in refused("cat", disk, "a")
    os.truncate(disk, 0)
    refused("ls", disk)
