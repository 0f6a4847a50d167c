//! The FUSE file against the kernel and real tools: dd, cp, fallocate, loop devices, ext4.

#![allow(clippy::unwrap_used)] // a failure is the test's

mod common;

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use block::Buf;
use common::{TestDevice, have, pattern, text};
use export::fuse::{FuseConfig, Mount, MountError, UnmountError, mount};
use tokio::runtime::Runtime;

const MIB: u64 = 1 << 20;

/// A device mounted in a folder of its own.
struct Mounted {
    device: Arc<TestDevice>,
    mount: Option<Mount>,
    folder: tempfile::TempDir,
    runtime: Runtime,
}

impl Mounted {
    /// None, with a word why, where this machine has no FUSE for us.
    fn new(test: &str, device: TestDevice, config: FuseConfig) -> Option<Self> {
        if let Err(error) = OpenOptions::new().read(true).write(true).open("/dev/fuse") {
            eprintln!("SKIPPED {test}: /dev/fuse: {error}");
            return None;
        }
        let runtime = Runtime::new().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let device = Arc::new(device);
        let handle = runtime.handle().clone();
        match mount(device.clone(), folder.path(), config, handle) {
            Ok(mount) => Some(Self { device, mount: Some(mount), folder, runtime }),
            Err(MountError::Mount { source, .. })
                if source.kind() == ErrorKind::PermissionDenied =>
            {
                eprintln!("SKIPPED {test}: {source}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn file(&self) -> PathBuf {
        self.mount.as_ref().unwrap().file().to_path_buf()
    }

    fn open(&self, flags: i32) -> File {
        OpenOptions::new().read(true).write(true).custom_flags(flags).open(self.file()).unwrap()
    }

    fn try_unmount(&mut self) -> Result<(), UnmountError> {
        self.runtime.block_on(self.mount.as_mut().unwrap().unmount())
    }

    /// Unmounts as soon as nobody uses the file: processes that other tests are just starting have
    /// our descriptors between fork and exec.
    fn unmount(&mut self) -> Result<(), UnmountError> {
        let patience = Instant::now() + Duration::from_secs(20);
        loop {
            match self.try_unmount() {
                Err(UnmountError::Busy(_)) if Instant::now() < patience => {
                    std::thread::yield_now();
                }
                result => return result,
            }
        }
    }
}

fn sh(script: &str) -> String {
    let output = Command::new("sh").args(["-euc", script]).output().unwrap();
    let (out, err) = (output.stdout, output.stderr);
    let (out, err) = (String::from_utf8_lossy(&out), String::from_utf8_lossy(&err));
    assert!(output.status.success(), "{script}: {}\n{out}{err}", output.status);
    out.into_owned()
}

fn root(test: &str) -> bool {
    let root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
    if !root {
        eprintln!("SKIPPED {test}: needs root");
    }
    root
}

#[test]
fn dd_in_and_out_direct_and_buffered() {
    let device = TestDevice::new(16 * MIB, 4096);
    let Some(mut mounted) =
        Mounted::new("dd_in_and_out_direct_and_buffered", device, FuseConfig::default())
    else {
        return;
    };
    let data = pattern(16 * MIB as usize, 5);
    let image = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(image.path(), &data).unwrap();
    let (image, file) = (text(image.path()), mounted.file());
    let file = text(&file);
    for (flags, block) in [("oflag=direct", "1M"), ("", "4M"), ("", "5000"), ("oflag=sync", "64k")]
    {
        sh(&format!("dd if=/dev/zero of={file} bs=4M count=4 conv=fsync,notrunc status=none"));
        // Without conv=notrunc: opening with O_TRUNC must not change the size.
        sh(&format!("dd if={image} of={file} bs={block} {flags} conv=fsync status=none"));
        assert!(mounted.device.peek(0, data.len()) == data, "{flags} {block}");
    }
    sh(&format!("dd if={file} bs=1M iflag=direct status=none | cmp - {image}"));
    sh(&format!("dd if={file} bs=64k status=none | cmp - {image}"));
    sh(&format!("cp {image} {file} && cmp {image} {file}"));
    let past = Command::new("dd")
        .args(["if=/dev/zero", &format!("of={file}"), "bs=1M", "conv=notrunc"])
        .output()
        .unwrap();
    let past = String::from_utf8_lossy(&past.stderr).into_owned();
    assert!(past.contains("No space left") && past.contains("16+0 records out"), "{past}");
    let flushes = mounted.device.flushes.load(Ordering::Relaxed);
    assert!(flushes >= 8, "fsync reaches the device: {flushes}");
    mounted.unmount().unwrap();
    assert!(mounted.device.flushes.load(Ordering::Relaxed) > flushes);
}

#[test]
fn the_kernel_gathers_writes_if_it_may() {
    let test = "the_kernel_gathers_writes_if_it_may";
    let size = 16 * MIB;
    let config = FuseConfig::default().kernel_write_back(true);
    let Some(mut mounted) = Mounted::new(test, TestDevice::new(size, 4096), config) else { return };
    let write = |file: &File, data: &[u8], begin: u64| {
        for (offset, piece) in (begin..).step_by(4096).zip(data.chunks(4096)) {
            file.write_all_at(piece, offset).unwrap();
        }
    };
    let synced = |file: &File| file.sync_all().map_err(|error| error.raw_os_error().unwrap());
    let file = mounted.open(0);
    let data = pattern(8 * MIB as usize, 3);
    write(&file, &data, 0);
    assert_eq!(synced(&file), Ok(()));
    assert!(mounted.device.peek(0, data.len()) == data);
    let writes = mounted.device.writes.load(Ordering::Relaxed);
    assert!(writes <= 8 * MIB / 4096 / 8, "{writes} writes");
    assert!(mounted.device.flushes.load(Ordering::Relaxed) >= 1);
    // A device that refuses is told of by fsync, once.
    mounted.device.fail_writes.store(true, Ordering::Relaxed);
    write(&file, &data[..8192], 5 * MIB);
    assert_eq!(synced(&file), Err(libc::ENOSPC));
    mounted.device.fail_writes.store(false, Ordering::Relaxed);
    assert_eq!(synced(&file), Ok(()));
    // Opening with O_TRUNC changes nothing here either.
    drop(OpenOptions::new().write(true).truncate(true).open(mounted.file()).unwrap());
    assert_eq!(file.metadata().unwrap().len(), size);
    // So is a write across the end: what is before the end is written, the rest is an error.
    write(&file, &data[..MIB as usize], size - MIB / 2);
    assert_eq!(synced(&file), Err(libc::ENOSPC));
    assert!(mounted.device.peek(size - MIB / 2, MIB as usize / 2) == data[..MIB as usize / 2]);
    drop(file);
    mounted.unmount().unwrap();
}

#[test]
fn unaligned_writes_match_a_model() {
    let kinds = [(0, 4096, false), (0, 4096, true), (libc::O_DIRECT, 4096, false)];
    for (flags, block_size, gathered) in kinds.into_iter().chain([(libc::O_DIRECT, 512, true)]) {
        let device = TestDevice::new(MIB, block_size);
        let test = "unaligned_writes_match_a_model";
        let config = FuseConfig::default().kernel_write_back(gathered);
        let Some(mut mounted) = Mounted::new(test, device, config) else { return };
        let mut model = vec![0; MIB as usize];
        let file = mounted.open(flags);
        let random = pattern(16 * 300, 77);
        for (step, random) in random.chunks_exact(16).enumerate() {
            let number = |at: usize| u64::from_le_bytes(random[at..at + 8].try_into().unwrap());
            let offset = number(0) % MIB;
            let len = (number(8) % 20_000).min(MIB - offset) as usize;
            // O_DIRECT may ask for aligned memory, not for aligned offsets.
            let data = Buf::copy_from(&pattern(len, step as u64 + 1));
            file.write_all_at(&data, offset).unwrap();
            model[offset as usize..][..len].copy_from_slice(&data);
            let mut back = Buf::new(len);
            file.read_exact_at(&mut back, offset).unwrap();
            assert!(*back == *data, "step {step}");
        }
        file.sync_all().unwrap();
        assert!(mounted.device.peek(0, model.len()) == model);
        drop(file);
        mounted.unmount().unwrap();
    }
}

#[test]
fn concurrent_writers_of_one_block_lose_nothing() {
    let device = TestDevice::new(MIB, 4096).delayed(Duration::from_millis(1));
    let test = "concurrent_writers_of_one_block_lose_nothing";
    let Some(mut mounted) = Mounted::new(test, device, FuseConfig::default()) else { return };
    std::thread::scope(|scope| {
        for writer in 0..8u8 {
            let file = mounted.open(libc::O_DIRECT);
            scope.spawn(move || {
                let data = Buf::copy_from(&[writer + 1; 100]);
                for round in 0..20 {
                    file.write_all_at(&data, round * 800 + u64::from(writer) * 100).unwrap();
                }
            });
        }
    });
    let expected: Vec<u8> = (0..16_000).map(|i| (i / 100 % 8) as u8 + 1).collect();
    assert!(mounted.device.peek(0, 16_000) == expected);
    mounted.unmount().unwrap();
}

#[test]
fn holes_are_punched_found_and_kept() {
    let test = "holes_are_punched_found_and_kept";
    let device = TestDevice::new(8 * MIB, 4096);
    let Some(mut mounted) = Mounted::new(test, device, FuseConfig::default()) else { return };
    if !have(test, &["fallocate"]) {
        return;
    }
    let path = mounted.file();
    let file = text(&path);
    let mut model = pattern(8 * MIB as usize, 8);
    std::fs::write(&path, &model).unwrap();
    sh(&format!("fallocate --punch-hole --offset 1M --length 2M {file}"));
    model[MIB as usize..3 * MIB as usize].fill(0);
    assert_eq!(mounted.device.allocated(), 6 * MIB);
    // Neither end on a block: the parts of blocks are zeroed, and nothing around them.
    sh(&format!("fallocate --zero-range --offset 5000001 --length 300000 {file}"));
    model[5_000_001..5_300_001].fill(0);
    sh(&format!("fallocate --punch-hole --offset 4194305 --length 7 {file}"));
    model[4_194_305..4_194_312].fill(0);
    assert!(mounted.device.peek(0, model.len()) == model);
    assert!(std::fs::read(&path).unwrap() == model);

    let handle = mounted.open(0);
    let seek = |offset: i64, whence| {
        // SAFETY: lseek touches no memory, and the descriptor is open.
        match unsafe { libc::lseek(handle.as_raw_fd(), offset, whence) } {
            -1 => Err(std::io::Error::last_os_error().raw_os_error().unwrap()),
            found => Ok(found as u64),
        }
    };
    assert_eq!(seek(0, libc::SEEK_HOLE), Ok(MIB));
    assert_eq!(seek(MIB as i64, libc::SEEK_DATA), Ok(3 * MIB));
    assert_eq!(seek(7 * MIB as i64, libc::SEEK_HOLE), Ok(8 * MIB));
    assert_eq!(seek(8 * MIB as i64, libc::SEEK_DATA), Err(libc::ENXIO));
    assert_eq!(handle.set_len(4096).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    drop(handle);
    let copy = tempfile::NamedTempFile::new().unwrap();
    sh(&format!("cp --sparse=auto {file} {} && cmp {0} {file}", text(copy.path())));
    mounted.unmount().unwrap();
}

#[test]
fn many_requests_take_one_delay() {
    let test = "many_requests_take_one_delay";
    let delay = Duration::from_millis(100);
    let device = TestDevice::new(64 * MIB, 512).delayed(delay);
    let Some(mut mounted) = Mounted::new(test, device, FuseConfig::default()) else { return };
    // One large direct request becomes many at once,
    let file = mounted.open(libc::O_DIRECT);
    let begin = Instant::now();
    file.read_exact_at(&mut Buf::new(32 * MIB as usize), 0).unwrap();
    let reading = begin.elapsed();
    assert!(reading < 10 * delay, "32 x 1 MiB took {reading:?}");
    let begin = Instant::now();
    file.write_all_at(&Buf::zeroed(32 * MIB as usize), 0).unwrap();
    let writing = begin.elapsed();
    assert!(writing < 10 * delay, "32 x 1 MiB took {writing:?}");
    // and so do those of many readers.
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for reader in 0..64 {
            let file = &file;
            scope.spawn(move || {
                file.read_exact_at(&mut Buf::new(4096), reader * 4096).unwrap();
            });
        }
    });
    let elapsed = begin.elapsed();
    assert!(elapsed >= delay && elapsed < 10 * delay, "64 readers took {elapsed:?}");
    drop(file);
    mounted.unmount().unwrap();
}

#[test]
fn many_direct_writers_take_one_delay_where_asked_for() {
    let test = "many_direct_writers_take_one_delay_where_asked_for";
    let delay = Duration::from_millis(100);
    let device = TestDevice::new(64 * MIB, 4096).delayed(delay);
    let config = FuseConfig::default().parallel_direct_writes(true);
    let Some(mut mounted) = Mounted::new(test, device, config) else { return };
    let file = mounted.open(libc::O_DIRECT);
    let begin = Instant::now();
    // Two writers per block: the parts of a block must not lose each other.
    std::thread::scope(|scope| {
        for writer in 0..32u8 {
            let file = &file;
            scope.spawn(move || {
                let data = Buf::copy_from(&[writer + 1; 2048]);
                file.write_all_at(&data, u64::from(writer) * 2048).unwrap();
            });
        }
    });
    let elapsed = begin.elapsed();
    // Each block: two reads and two writes.
    assert!(elapsed < 12 * delay, "32 writers took {elapsed:?}");
    let expected: Vec<u8> = (0..32 * 2048).map(|i| (i / 2048) as u8 + 1).collect();
    assert!(mounted.device.peek(0, expected.len()) == expected);
    drop(file);
    mounted.unmount().unwrap();
}

/// Detaches and unmounts whatever a failed test leaves behind.
struct Loop {
    device: String,
    dir: tempfile::TempDir,
}

impl Loop {
    fn attach(file: &Path) -> Self {
        let device = sh(&format!("losetup --find --show --direct-io=on {}", text(file)));
        Self { device: device.trim().into(), dir: tempfile::tempdir().unwrap() }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let dir = text(self.dir.path());
        let _ = Command::new("sh")
            .args(["-c", &format!("umount {dir}; losetup -d {}", self.device)])
            .output();
    }
}

#[test]
fn ext4_on_a_loop_device_survives_remounting() {
    let test = "ext4_on_a_loop_device_survives_remounting";
    if !root(test) || !have(test, &["losetup", "mkfs.ext4", "e2fsck"]) {
        return;
    }
    let probe = Command::new("losetup").arg("--find").output().unwrap();
    if !probe.status.success() {
        eprintln!("SKIPPED {test}: {}", String::from_utf8_lossy(&probe.stderr).trim());
        return;
    }
    let device = TestDevice::new(128 * MIB, 512).delayed(Duration::from_millis(1));
    let Some(mut mounted) = Mounted::new(test, device, FuseConfig::default()) else { return };
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let sums =
        |dir: &Path| sh(&format!("cd {} && find . -type f | sort | xargs sha256sum", text(dir)));
    {
        let disk = Loop::attach(&mounted.file());
        let (device, dir) = (&disk.device, text(disk.dir.path()));
        sh(&format!("mkfs.ext4 -q {device} && mount {device} {dir}"));
        sh(&format!("cp -r {} {dir}/tree && head -c 9M /dev/urandom > {dir}/random", text(&tree)));
        sh(&format!("cp {dir}/random {dir}/copy && rm {dir}/random && fstrim {dir}"));
        sh(&format!("umount {dir} && e2fsck -fn {device} && mount {device} {dir}"));
        assert_eq!(sums(&disk.dir.path().join("tree")), sums(&tree));
        assert!(
            matches!(mounted.try_unmount(), Err(UnmountError::Busy(_))),
            "in use, still mounted"
        );
        assert!(mounted.file().exists());
    }
    let wrote = mounted.device.flushes.load(Ordering::Relaxed);
    assert!(wrote > 0, "the file system's flushes reach the device");
    mounted.unmount().unwrap();
    // The same device in a new mount: nothing was only in a cache.
    let (runtime, folder) = (Runtime::new().unwrap(), tempfile::tempdir().unwrap());
    let config = FuseConfig::default().file_name("disk.img").read_only(true);
    let handle = runtime.handle().clone();
    let mut again = mount(mounted.device.clone(), folder.path(), config, handle).unwrap();
    sh(&format!("e2fsck -fn {}", text(again.file())));
    runtime.block_on(again.unmount()).unwrap();
}

#[test]
fn the_directory_is_as_it_is() {
    let device = TestDevice::new(MIB, 4096);
    let config = FuseConfig::default().file_name("disk.img");
    let Some(mut mounted) = Mounted::new("the_directory_is_as_it_is", device, config) else {
        return;
    };
    let dir = mounted.folder.path();
    let names: Vec<_> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["disk.img"]);
    let metadata = std::fs::metadata(mounted.file()).unwrap();
    assert_eq!((metadata.mode() & 0o7777, metadata.len()), (0o600, MIB));
    assert!(File::create(dir.join("other")).is_err());
    assert!(std::fs::remove_file(mounted.file()).is_err());
    assert!(std::fs::create_dir(dir.join("other")).is_err());
    assert!(std::fs::rename(mounted.file(), dir.join("other")).is_err());
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    let line = mounts.lines().find(|line| line.contains(text(dir))).unwrap();
    assert!(line.starts_with("enkaku ") && line.contains("noatime"), "{line}");
    // The mount hides nothing and takes no second one.
    let handle = mounted.runtime.handle().clone();
    let second = mount(mounted.device.clone(), dir, FuseConfig::default(), handle);
    assert!(matches!(second, Err(MountError::NotEmpty(_))));
    mounted.unmount().unwrap();
    assert!(mounted.folder.path().read_dir().unwrap().next().is_none());
}

#[test]
fn errors_become_errnos() {
    let test = "errors_become_errnos";
    let device = TestDevice::new(MIB, 4096);
    let Some(mut mounted) = Mounted::new(test, device, FuseConfig::default()) else { return };
    let file = mounted.open(libc::O_DIRECT);
    let code = |result: std::io::Result<()>| result.unwrap_err().raw_os_error().unwrap();
    mounted.device.fail_reads.store(true, Ordering::Relaxed);
    mounted.device.fail_writes.store(true, Ordering::Relaxed);
    assert_eq!(code(file.read_exact_at(&mut Buf::new(4096), 0)), libc::EIO);
    assert_eq!(code(file.write_all_at(&Buf::zeroed(4096), 0)), libc::ENOSPC);
    mounted.device.fail_writes.store(false, Ordering::Relaxed);
    assert_eq!(code(file.write_all_at(&Buf::zeroed(4096), MIB)), libc::ENOSPC);
    drop(file);
    mounted.unmount().unwrap();

    let config = FuseConfig::default().read_only(true);
    let Some(mut mounted) = Mounted::new(test, TestDevice::new(MIB, 4096), config) else { return };
    let refused = OpenOptions::new().write(true).open(mounted.file()).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    let mut all = Vec::new();
    File::open(mounted.file()).unwrap().read_to_end(&mut all).unwrap();
    assert_eq!(all.len() as u64, MIB);
    mounted.unmount().unwrap();
}

#[test]
fn mount_points_that_will_not_do_are_named() {
    let runtime = Runtime::new().unwrap();
    let device = Arc::new(TestDevice::new(MIB, 4096));
    let try_mount = |dir: &Path, config| {
        mount(device.clone(), dir, config, runtime.handle().clone()).err().unwrap()
    };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    File::create(&file).unwrap().write_all(b"x").unwrap();
    let config = FuseConfig::default;
    assert!(matches!(try_mount(folder.path(), config()), MountError::NotEmpty(_)));
    assert!(matches!(try_mount(&file, config()), MountError::NotADirectory(_)));
    let missing = try_mount(&folder.path().join("missing"), config());
    assert!(matches!(missing, MountError::NoMountPoint(_)));
    std::fs::remove_file(&file).unwrap();
    for name in ["", "..", "a/b"] {
        let error = try_mount(folder.path(), config().file_name(name));
        assert!(matches!(error, MountError::FileName(_)), "{name:?}");
    }
}

#[test]
fn the_end_is_seen_whoever_unmounts() {
    let test = "the_end_is_seen_whoever_unmounts";
    let device = TestDevice::new(MIB, 4096);
    let Some(mut mounted) = Mounted::new(test, device, FuseConfig::default()) else { return };
    let mut mount = mounted.mount.take().unwrap();
    fn can_be_spawned<T: Send>(future: T) -> T {
        future
    }
    let dir = text(mounted.folder.path()).to_owned();
    let unmounting = std::thread::spawn(move || sh(&format!("fusermount3 -u {dir}")));
    mounted.runtime.block_on(can_be_spawned(mount.wait_unmounted())).unwrap();
    unmounting.join().unwrap();
    assert_eq!(mounted.device.flushes.load(Ordering::Relaxed), 1);
    // Dropped while in use: gone from the directory, alive for who has the file.
    let Some(mut mounted) = Mounted::new(test, TestDevice::new(MIB, 4096), FuseConfig::default())
    else {
        return;
    };
    let file = mounted.open(0);
    drop(mounted.mount.take());
    assert!(mounted.folder.path().read_dir().unwrap().next().is_none());
    file.write_all_at(&[7; 100], 50).unwrap();
    assert_eq!(mounted.device.peek(50, 100), [7; 100]);
}
