"""What the fault tests take for a file system that has recovered, and what not."""

import os
from pathlib import Path

import pytest
from conftest import MIB
from support.volume import loop_device, make_ext4, mounted, recover_ext4

from enkaku_lab.peers import need
from enkaku_lab.process import LabError, run

SIZE = 96 * MIB
pytestmark = pytest.mark.needs("root", "/dev/loop-control", "mkfs.ext4", "e2fsck", "losetup")


def crashed(folder: Path, has_error: bool) -> Path:
    """An image from the moment when a file was open that has no name any more."""
    image, moment = folder / "disk", folder / "moment"
    image.touch()
    os.truncate(image, SIZE)
    with loop_device(image) as device:
        make_ext4(device, ["-b", 4096])
        with mounted(device, folder / "volume") as volume:
            (volume / "kept").write_bytes(bytes(range(256)) * 4096)
            with (volume / "gone").open("wb") as file:
                file.write(bytes(range(256)) * 4096)
                file.flush()
                (volume / "gone").unlink()
                os.sync()
                if has_error:
                    told = Path("/sys/fs/ext4") / Path(device).name / "trigger_fs_error"
                    told.write_text("1")
                    os.sync()
                run([need("cp"), "--sparse=always", image, moment])
    return moment


@pytest.mark.parametrize("has_error", [False, True])
def test_a_file_that_had_no_name_when_the_power_went_is_no_damage(has_error: bool, tmp_path: Path):
    with loop_device(crashed(tmp_path, has_error)) as device:
        recover_ext4(device, tmp_path / "copy")
        with mounted(device, tmp_path / "copy") as folder:
            assert (folder / "kept").read_bytes() == bytes(range(256)) * 4096


@pytest.mark.parametrize("has_error", [False, True])
def test_a_block_of_the_file_system_that_is_lost_is_damage(has_error: bool, tmp_path: Path):
    image = crashed(tmp_path, has_error)
    with loop_device(image) as device, mounted(device, tmp_path / "copy"):
        pass  # what the journal has would take the place of what is lost
    block = int(run([need("debugfs"), "-R", "blocks /", image]).stdout)
    with image.open("r+b") as file:
        os.pwrite(file.fileno(), bytes(4096), block * 4096)
    with loop_device(image) as device, pytest.raises((LabError, AssertionError), match="(?i)inconsisten|still has errors"):
        recover_ext4(device, tmp_path / "copy")
