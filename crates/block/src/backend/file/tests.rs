//! Tests of the file backend.

mod full_pool;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::*;
use crate::testing;

fn sparse(folder: &tempfile::TempDir, name: &str, size: u64) -> PathBuf {
    let path = folder.path().join(name);
    File::create(&path).unwrap().set_len(size).unwrap();
    path
}

fn open(path: &Path) -> FileDevice {
    FileDevice::open(path, &FileOptions::default()).unwrap()
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

#[tokio::test]
async fn conforms() {
    let folder = folder();
    for block_size in [512, 4096, 65536] {
        let path = sparse(&folder, "disk", 4 << 20);
        let options = FileOptions::default().with_block_size(block_size);
        testing::conformance(&FileDevice::open(&path, &options).unwrap()).await;
    }
}

#[tokio::test]
async fn conforms_with_direct_io() {
    let folder = folder();
    let path = sparse(&folder, "disk", 4 << 20);
    let options = FileOptions::default().with_direct(true).with_block_size(4096);
    match FileDevice::open(&path, &options) {
        Ok(device) => testing::conformance(&device).await,
        Err(OpenError::Direct { .. }) => eprintln!("skipped: no direct I/O on this file system"),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_file_gets_another_size() {
    let folder = folder();
    let path = sparse(&folder, "disk", 1 << 20);
    let device = open(&path);
    device.resize(2 << 20).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().size(), 2 << 20);
    assert_eq!(device.info().size, 1 << 20, "served when somebody says so");
    assert!(device.grow().unwrap());
    assert_eq!(device.info().size, 2 << 20);
    device.resize(4096).unwrap();
    assert_eq!((device.info().size, device.size_now().unwrap()), (4096, 4096));
    for wrong in [0, 1000] {
        assert!(device.resize(wrong).is_err(), "{wrong}");
    }
    assert_eq!(device.info().size, 4096);
    drop(device);
    let reading = FileDevice::open(&path, &FileOptions::default().with_read_only(true)).unwrap();
    assert!(matches!(reading.resize(8192), Err(BlockError::ReadOnly)));
}

#[test]
fn a_snapshot_is_there_whole_or_not_at_all() {
    let folder = folder();
    let path = sparse(&folder, "disk", 1 << 20);
    std::fs::write(&path, vec![7; 1 << 20]).unwrap();
    let device = open(&path);
    let copy = folder.path().join("copy");
    match device.snapshot(&copy) {
        Ok(()) => {
            device.resize(4096).unwrap();
            assert_eq!(std::fs::read(&copy).unwrap(), vec![7; 1 << 20]);
            assert!(matches!(device.snapshot(&copy), Err(SnapshotError::Exists)));
        }
        Err(SnapshotError::NoReflinks) => assert!(!copy.exists()),
        Err(error) => panic!("{error}"),
    }
    let nowhere = folder.path().join("no/where");
    assert!(matches!(device.snapshot(&nowhere), Err(SnapshotError::Io(_))));
}

#[test]
fn equals_the_model() {
    let folder = folder();
    let number = std::cell::Cell::new(0);
    testing::random_operations(|| {
        number.set(number.get() + 1);
        open(&sparse(&folder, &number.get().to_string(), 1 << 20))
    });
}

#[test]
fn works_outside_a_runtime() {
    let folder = folder();
    let device = open(&sparse(&folder, "disk", 1 << 20));
    let write = device.write(4096, Bytes::from(vec![5; 4096]), WriteFlags::FUA);
    assert!(matches!(write.try_ready(), Ok(Ok(()))));
    let Ok(Ok(buf)) = device.read(4096, Buf::new(4096)).try_ready() else { panic!("no data") };
    assert!(buf.iter().all(|b| *b == 5));
}

/// The same content, whichever way the writes take.
#[tokio::test]
async fn writes_after_a_stall_go_through_the_writer() {
    let folder = folder();
    let device = open(&sparse(&folder, "disk", 1 << 20));
    device.buffered.file.nowait.store(false, Ordering::Relaxed);
    let now = Instant::now();
    device.buffered.file.stalls.record(now - std::time::Duration::from_secs(1), now);
    let writes: Vec<_> = (0..64u8)
        .map(|page| {
            let data = Bytes::from(vec![page; 4096]);
            device.write(u64::from(page) * 4096, data, WriteFlags::NONE)
        })
        .collect();
    assert!(writes.iter().all(|write| matches!(write, Io::Later(_))), "in the caller's thread");
    for write in writes {
        write.await.unwrap();
    }
    let back = device.read(0, Buf::new(64 * 4096)).await.unwrap();
    assert!(back.iter().enumerate().all(|(at, byte)| usize::from(*byte) == at / 4096));
}

/// Long writes from several threads, which leave them with each other (`turns`).
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_long_writes_all_arrive() {
    const LEN: usize = turns::LONG_BYTES;
    let folder = folder();
    let device = Arc::new(open(&sparse(&folder, "disk", 64 * LEN as u64)));
    let writers = [0, 1, 2, 3].map(|writer| {
        let device = device.clone();
        tokio::spawn(async move {
            for round in 0..2 {
                for index in (writer..64).step_by(4) {
                    let data = testing::pattern(LEN, (64 * round + index) as u8);
                    device.write((index * LEN) as u64, data, WriteFlags::NONE).await.unwrap();
                }
            }
        })
    });
    for writer in writers {
        writer.await.unwrap();
    }
    for index in 0..64 {
        let back = device.read((index * LEN) as u64, Buf::new(LEN)).await.unwrap();
        assert!(back[..] == testing::pattern(LEN, 64 + index as u8)[..], "write {index}");
    }
}

#[tokio::test]
async fn a_cached_read_crosses_no_thread() {
    let folder = folder();
    let device = open(&sparse(&folder, "disk", 1 << 20));
    device.write(0, Bytes::from(vec![1; 65536]), WriteFlags::NONE).await.unwrap();
    let read = device.read(0, Buf::new(65536));
    if device.inner.nowait_read.load(Ordering::Relaxed) {
        assert!(read.try_ready().is_ok(), "just written, so in the page cache");
    } else {
        eprintln!("skipped: this file system has no RWF_NOWAIT");
    }
}

#[tokio::test]
async fn trim_releases_storage_and_keeps_the_size() {
    let folder = folder();
    let path = sparse(&folder, "disk", 4 << 20);
    let device = open(&path);
    if !device.info().can_trim {
        eprintln!("skipped: this file system knows no holes");
        return;
    }
    device.write(0, Bytes::from(vec![1; 4 << 20]), WriteFlags::FUA).await.unwrap();
    let full = std::fs::metadata(&path).unwrap().blocks();
    device.trim(1 << 20, 2 << 20).await.unwrap();
    device.flush().await.unwrap();
    let after = std::fs::metadata(&path).unwrap();
    assert!(after.blocks() < full, "{} of {full} blocks left", after.blocks());
    assert_eq!(after.len(), 4 << 20);
    let extents = device.extents(0, 4 << 20).await.unwrap();
    assert!(extents.contains(&Extent { offset: 1 << 20, len: 2 << 20, hole: true }), "{extents:?}");
}

#[tokio::test]
async fn a_truncated_file_is_a_medium_error() {
    let folder = folder();
    let path = sparse(&folder, "disk", 1 << 20);
    let device = open(&path);
    File::options().write(true).open(&path).unwrap().set_len(4096).unwrap();
    let result = device.read(8192, Buf::new(4096)).await;
    assert!(matches!(result, Err(BlockError::Medium(_))), "{result:?}");
    let extents = device.extents(8192, 4096).await;
    assert!(matches!(extents, Err(BlockError::Medium(_))), "what is gone is no hole: {extents:?}");
}

#[test]
fn locks_keep_writers_apart() {
    let folder = folder();
    let path = sparse(&folder, "disk", 1 << 20);
    let read_only = FileOptions::default().with_read_only(true);
    let readers = [0, 1].map(|_| FileDevice::open(&path, &read_only).unwrap());
    let refused = FileDevice::open(&path, &FileOptions::default()).err().unwrap();
    assert!(matches!(refused, OpenError::InUse { .. }), "{refused}");
    drop(readers);
    let writer = open(&path);
    let refused = FileDevice::open(&path, &read_only).err().unwrap();
    assert!(matches!(refused, OpenError::InUse { .. }), "{refused}");
    drop(writer);
    open(&path);
}

#[tokio::test]
async fn read_only_means_read_only() {
    let folder = folder();
    let path = sparse(&folder, "disk", 1 << 20);
    let device = FileDevice::open(&path, &FileOptions::default().with_read_only(true)).unwrap();
    let data = Bytes::from(vec![0; 512]);
    assert!(matches!(device.write(0, data, WriteFlags::NONE).await, Err(BlockError::ReadOnly)));
    assert!(matches!(device.trim(0, 512).await, Err(BlockError::ReadOnly)));
    assert!(matches!(device.zero(0, 512, ZeroFlags::default()).await, Err(BlockError::ReadOnly)));
    device.flush().await.unwrap();
}

/// Whatever the umask: what is on a volume is for its owner.
#[test]
fn what_is_created_is_its_owners_only() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new");
    FileDevice::open(&path, &FileOptions::default().with_create(1 << 20)).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn created_sparse_and_never_overwritten() {
    let folder = folder();
    let path = folder.path().join("new");
    let options = FileOptions::default().with_create(1 << 40);
    let device = FileDevice::open(&path, &options).unwrap();
    assert_eq!(device.info().size, 1 << 40);
    assert!(std::fs::metadata(&path).unwrap().blocks() < 64);
    drop(device);
    let device = FileDevice::open(&path, &FileOptions::default().with_create(4096)).unwrap();
    assert_eq!(device.info().size, 1 << 40, "an existing file keeps its size");
}

#[test]
fn refusals_say_what_is_allowed() {
    let folder = folder();
    let refusal = |path: &Path, options: &FileOptions| {
        FileDevice::open(path, options).err().map(|error| error.to_string()).unwrap_or_default()
    };
    let options = FileOptions::default();
    let odd = sparse(&folder, "odd", 1000);
    let cases = [
        (folder.path().join("absent"), options.clone(), "no such file"),
        (folder.path().into(), options.clone(), "is a directory; a regular file or a block device"),
        ("/dev/null".into(), options.clone(), "is a character device"),
        (odd.clone(), options.clone(), "not a multiple of the block size 512; 1024 bytes would be"),
        (odd, options.clone().with_block_size(1000), "a power of two from 512 to 65536"),
        (sparse(&folder, "empty", 0), options.clone(), "is empty"),
        (folder.path().join("new"), options.with_create(1000), "1024 bytes would be"),
    ];
    for (path, options, expected) in cases {
        let message = refusal(&path, &options);
        assert!(message.contains(expected), "{message:?} lacks {expected:?}");
        assert!(message.contains(&path.display().to_string()), "{message}");
    }
    assert!(!folder.path().join("new").exists(), "nothing is left of a refused creation");
}

/// A file system of 1 MiB: the file is larger than what can be stored.
#[tokio::test]
async fn a_full_file_system_is_no_space() {
    let folder = folder();
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"])
        .arg(folder.path())
        .output();
    if !mounted.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: mounting a tmpfs needs root");
        return;
    }
    let _mount = Unmount(folder.path().into());
    let device = open(&sparse(&folder, "disk", 8 << 20));
    let mut results = Vec::new();
    for offset in (0..4u64 << 20).step_by(65536) {
        results.push(device.write(offset, testing::pattern(65536, 3), WriteFlags::NONE).await);
    }
    let refused = results.iter().position(Result::is_err).unwrap();
    assert!(results[refused..].iter().all(|r| matches!(r, Err(BlockError::NoSpace))));
    for index in 0..refused as u64 {
        let back = device.read(index * 65536, Buf::new(65536)).await.unwrap();
        assert!(back[..] == testing::pattern(65536, 3)[..], "acknowledged write {index} is lost");
    }
    device.flush().await.unwrap();
    device.trim(0, 65536).await.unwrap();
    device.write(4 << 20, testing::pattern(32768, 4), WriteFlags::NONE).await.unwrap();
}

struct Unmount(PathBuf);

impl Drop for Unmount {
    fn drop(&mut self) {
        let _best_effort = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[tokio::test]
async fn conforms_on_a_block_device() {
    let folder = folder();
    let path = sparse(&folder, "disk", 4 << 20);
    let output =
        std::process::Command::new("losetup").args(["--find", "--show"]).arg(&path).output();
    let Some(output) = output.ok().filter(|output| output.status.success()) else {
        eprintln!("skipped: no loop devices here");
        return;
    };
    let name = String::from_utf8(output.stdout).unwrap().trim().to_owned();
    let _detach = Detach(name.clone());
    let device = FileDevice::open(&name, &FileOptions::default()).unwrap();
    assert_eq!(device.info().size, 4 << 20);
    testing::conformance(&device).await;
    let second = FileDevice::open(&name, &FileOptions::default()).err();
    assert!(matches!(second, Some(OpenError::InUse { .. })), "{second:?}");
}

struct Detach(String);

impl Drop for Detach {
    fn drop(&mut self) {
        let _best_effort = std::process::Command::new("losetup").args(["-d", &self.0]).status();
    }
}
