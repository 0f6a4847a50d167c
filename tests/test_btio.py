"""lab/btio: its norms are NPB's, its subtypes write one file, what is wrong in a file is found.

`mixed`: what it says it did is what it did.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from conftest import sha256

from enkaku_lab.peers import btio, openmpi
from enkaku_lab.peers.btio import Done, Work
from enkaku_lab.process import CommandFailed, run

pytestmark = pytest.mark.needs(*openmpi.PROGRAMS)
DOUBLE, POINT = 8, 40
S_BYTES, S_DUMPS = 12**3 * POINT, 12
OF_ONE_FILE = ("full", "simple", "fortran")
REPORTED = 1e-8


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return btio.build(tmp_path_factory.mktemp("btio"))


def test_nodes_find_what_was_built_in_a_relative_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    assert btio.build(Path("out")) == tmp_path / "out" / "btio"


@pytest.fixture(scope="module")
def written(program: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
    """A file of class S, by one rank, and what the run said."""
    folder = tmp_path_factory.mktemp("written")
    done = btio.run_here(program, 1, Work("S", "simple", folder / "dumps"), folder)
    assert done.verified, done
    return folder / "dumps", done


@pytest.fixture
def copy(written: tuple[Path, Done], tmp_path: Path) -> Path:
    """That file, to be damaged."""
    path = tmp_path / "copy"
    path.write_bytes(written[0].read_bytes())
    return path


@pytest.mark.parametrize("ranks", [1, 4, 9])
def test_every_subtype_is_right_and_three_of_them_write_one_file(
    ranks: int, program: Path, written: tuple[Path, Done], tmp_path: Path
):
    reference, before = written
    for subtype in btio.SUBTYPES:
        file = tmp_path / subtype
        done = btio.run_here(program, ranks, Work("S", subtype, file), tmp_path)
        assert done.verified, (subtype, done)
        assert done.report["ranks"] == ranks and done.report["read_is_written"]
        assert done.report["checksum"] == before.report["checksum"], subtype
        if subtype in OF_ONE_FILE:
            assert sha256(file) == sha256(reference), subtype
        else:
            assert len(list(tmp_path.glob("epio.*"))) == ranks


def test_norms_are_the_references_digit_by_digit(written: tuple[Path, Done]):
    """The program's own word is not enough: the report has both."""
    norms = written[1].report["norms"]
    for kind in ("residual", "error"):
        assert norms["computed"][kind] == pytest.approx(norms["reference"][kind], rel=REPORTED)
    for kind in ("residual", "error", "dumps"):
        assert norms["read"][kind] == pytest.approx(norms["reference"][kind], rel=REPORTED)
    assert norms["reference"]["residual"][0] == pytest.approx(0.17034283709541311, rel=1e-15)


@pytest.mark.parametrize("mpi_io", ["OMPIO", "ROMIO"])
def test_both_implementations_of_mpi_io_write_it(
    mpi_io: str, program: Path, written: tuple[Path, Done], tmp_path: Path
):
    if mpi_io not in openmpi.installed().io:
        pytest.skip(f"this Open MPI has no {mpi_io}")
    for subtype in ("full", "simple"):
        work = Work("S", subtype, tmp_path / subtype, hints={"cb_nodes": 2}, sync=True)
        done = btio.run_here(program, 4, work, tmp_path, mpi_io)
        assert done.verified, (subtype, done)
        assert done.report["mpi_io"] == openmpi.installed().io[mpi_io]
        assert done.report["hints"] == {"cb_nodes": "2"}
        assert sha256(tmp_path / subtype) == sha256(written[0])


def test_class_w_is_right_and_its_rates_follow_from_its_times(program: Path, tmp_path: Path):
    done = btio.run_here(program, 4, Work("W", "full", tmp_path / "dumps"), tmp_path)
    assert done.verified, done
    report = done.report
    gop = 200 * (3478.8 * 24**3 - 17655.7 * 24**2 + 28023.7 * 24) / 1e9
    assert report["mop_per_s"] == pytest.approx(1e3 * gop / report["seconds"]["max"])
    assert report["io"]["mb"] == pytest.approx(22.1184)
    assert report["io"]["mb_per_s"] == pytest.approx(22.1184 / report["io"]["seconds"])
    assert (tmp_path / "dumps").stat().st_size == 22_118_400
    assert 0 < report["seconds"]["mean"] <= report["seconds"]["max"]
    assert report["io"]["write_s"]["max"] > 0 and report["io"]["read_s"]["max"] > 0


@pytest.mark.parametrize(("ranks", "subtype"), [(1, "full"), (4, "fortran"), (9, "simple")])
def test_a_file_is_verified_by_others_than_its_writers(
    ranks: int, subtype: str, program: Path, written: tuple[Path, Done], tmp_path: Path
):
    checksum = written[1].report["checksum"]
    work = Work("S", subtype, written[0], verify_only=True, checksum=checksum)
    done = btio.run_here(program, ranks, work, tmp_path)
    assert done.verified and done.report["mode"] == "verify", done
    assert "computed" not in done.report["norms"] and "mop_per_s" not in done.report


def _flip(path: Path, offset: int, bits: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ bits]))


@pytest.mark.parametrize("dump", [0, 5, S_DUMPS - 1])
def test_a_wrong_number_in_any_dump_is_found(dump: int, program: Path, copy: Path, tmp_path: Path):
    # Sign and exponent of a density in the middle of the grid.
    _flip(copy, dump * S_BYTES + S_BYTES // 2 // POINT * POINT + DOUBLE - 1, 0x80)
    work = Work("S", "full", copy, verify_only=True)
    done = btio.run_here(program, 4, work, tmp_path)
    assert done.code == btio.NOT_VERIFIED and done.report["verified"] is False, done


def test_the_last_bit_is_found_by_the_checksum_alone(
    program: Path, written: tuple[Path, Done], copy: Path, tmp_path: Path
):
    _flip(copy, 3 * S_BYTES + 100 * DOUBLE, 0x01)
    work = Work("S", "simple", copy, verify_only=True)
    assert btio.run_here(program, 1, work, tmp_path).verified
    work = Work("S", "simple", copy, True, written[1].report["checksum"])
    done = btio.run_here(program, 1, work, tmp_path)
    assert done.code == btio.NOT_VERIFIED, done


@pytest.mark.parametrize("subtype", OF_ONE_FILE)
def test_a_short_file_is_told(subtype: str, program: Path, copy: Path, tmp_path: Path):
    with copy.open("r+b") as file:
        file.truncate(S_BYTES * S_DUMPS - POINT)
    done = btio.run_here(program, 1, Work("S", subtype, copy, verify_only=True), tmp_path)
    assert done.code == btio.REFUSED and not done.report, done
    assert "btio: rank 0: " in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("ranks", "words", "said"),
    [
        (2, [], "2 ranks: allowed are squares"),
        (1, ["--class", "Q"], "allowed are S, W, A, B and C"),
        (1, ["--subtype", "half"], "allowed are none, full, simple, fortran and epio"),
        (1, ["--hint", "cb_nodes"], "must be KEY=VALUE"),
        (1, ["--verify-only"], "needs the --subtype"),
        (1, ["--fast", "1"], "--fast: unknown"),
        (1, ["--file"], "a value is missing"),
    ],
)
def test_what_is_not_allowed_is_said_once(ranks: int, words: list, said: str, program: Path):
    argv = [*openmpi.installed().local(ranks), program, *words]
    with pytest.raises(CommandFailed) as failed:
        run(argv, env=openmpi.ENVIRONMENT)
    assert failed.value.code == btio.REFUSED
    assert failed.value.stderr.count(said) == 1, failed.value.stderr


BLOCK = 1 << 16


@pytest.mark.parametrize(
    ("words", "writes", "syncs", "sends"),
    [
        (["--messages", 3], 20, 1, 60),
        (["--messages", 0, "--fsync", "block"], 20, 20, 0),
        (["--messages", 1, "--direct", "--fsync", "never"], 20, 0, 20),
    ],
)
def test_mixed_counts_blocks_flushes_and_messages(
    words: list, writes: int, syncs: int, sends: int, program: Path
):
    # Not in /tmp, where a file system in memory may have no O_DIRECT.
    with TemporaryDirectory(dir="/var/tmp") as name:
        folder = Path(name)
        sizes = ["--blocks", 20, "--block-bytes", BLOCK, "--message-bytes", 4096]
        file = folder / "blocks"
        done = btio.mixed_here(program, [*words, "--file", file, *sizes], folder)
        assert done.code == 0 and done.report["right"], done
        assert file.stat().st_size == 20 * BLOCK
        assert file.read_bytes()[-BLOCK:] == (20).to_bytes(8, "little") * (BLOCK // 8)
    report = done.report
    assert [report[what]["count"] for what in ("write", "sync", "send")] == [writes, syncs, sends]
    phases = sum(report[what]["total_s"] for what in ("write", "sync", "send"))
    assert 0 < phases <= report["total_s"]
    write = report["write"]
    assert write["min_us"] <= write["p50_us"] <= write["p99_us"] <= write["max_us"]


def test_mixed_counts_round_trips_for_as_long_as_was_asked(program: Path, tmp_path: Path):
    done = btio.mixed_here(program, ["--latency", 1], tmp_path)
    assert done.code == 0 and done.report["right"], done
    trips = done.report["round_trip"]
    assert trips["count"] > 10
    assert trips["min_us"] <= trips["p50_us"] <= trips["p99_us"] <= trips["p99_9_us"]
    assert done.report["total_s"] >= 1.0
    assert trips["total_s"] <= done.report["total_s"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "either --messages or --latency"),
        (["--messages", 1], "--messages needs a --file"),
        (["--messages", "x", "--file", "f"], "must be a whole number"),
        (["--messages", 1, "--file", "f", "--fsync", "now"], "allowed are never, end and block"),
        (["--messages", 1, "--file", "f", "--direct", "--block-bytes", 1000], "multiples of 4096"),
    ],
)
def test_mixed_refuses_what_makes_no_sense(words: list, said: str, program: Path, tmp_path: Path):
    done = btio.mixed_here(program, words, tmp_path)
    assert done.code == btio.REFUSED and done.stderr.count(said) == 1, done
