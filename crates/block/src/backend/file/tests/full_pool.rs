//! Storage that is promised and not there (a thin pool that is full), with the real kernel: ext4 on
//! a loop device whose file lies on a tmpfs that is too small.

use std::path::Path;
use std::process::Command;

use super::*;

/// Bytes behind the pool, and what the file system on it believes to have.
const POOL_BYTES: u64 = 24 << 20;
const PROMISED_BYTES: u64 = 256 << 20;

/// The front of the device is full of plain writes; those with FUA go behind it.
const FUA_FROM: u64 = 16 << 20;

type Outcome<T> = std::result::Result<T, String>;

struct Pool {
    folder: tempfile::TempDir,
    _parts: (Unmount, Detach, Unmount),
}

fn run(program: &str, args: &[&dyn AsRef<std::ffi::OsStr>]) -> Outcome<String> {
    let output = Command::new(program).args(args.iter().map(|arg| arg.as_ref())).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        false => Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}

impl Pool {
    fn new() -> Outcome<Self> {
        let folder = folder();
        let (below, above) = (folder.path().join("below"), folder.path().join("above"));
        std::fs::create_dir(&below).unwrap();
        std::fs::create_dir(&above).unwrap();
        let size = format!("size={POOL_BYTES}");
        run("mount", &[&"-t", &"tmpfs", &"-o", &size, &"tmpfs", &below])?;
        let lower = Unmount(below.clone());
        let backing = below.join("backing");
        File::create(&backing).unwrap().set_len(PROMISED_BYTES).unwrap();
        let device = run("losetup", &[&"--find", &"--show", &backing])?;
        let detach = Detach(device.clone());
        let options = "nodiscard,lazy_itable_init=0";
        run("mkfs.ext4", &[&"-q", &"-E", &options, &"-O", &"^has_journal", &device])?;
        run("mount", &[&device, &above])?;
        // Dropped in this order.
        Ok(Self { folder, _parts: (Unmount(above), detach, lower) })
    }

    /// Somebody else takes all that is left.
    fn fill(&self) {
        let _allocated = run("sync", &[&"-f", &self.mounted()]);
        let mut filler = File::create(self.folder.path().join("below/filler")).unwrap();
        while std::io::Write::write(&mut filler, &[1; 4096]).is_ok() {}
    }

    fn mounted(&self) -> std::path::PathBuf {
        self.folder.path().join("above")
    }
}

/// What is there once nothing is remembered in memory.
fn stored(path: &Path, block: u64) -> Vec<u8> {
    let options = FileOptions::default().with_direct(true).with_block_size(4096);
    let device = FileDevice::open(path, &options.with_read_only(true)).unwrap();
    let Ok(Ok(buf)) = device.read(block * 4096, Buf::new(4096)).try_ready() else {
        return Vec::new();
    };
    buf.to_vec()
}

/// A device on a pool that is full of plain writes, all acknowledged, whose write-back has failed.
fn full() -> Outcome<(Pool, PathBuf, FileDevice)> {
    let pool = Pool::new()?;
    let path = pool.mounted().join("disk");
    // What the file system itself has to write is written while there is room.
    run("fallocate", &[&"-l", &"64M", &path])?;
    let device = open(&path);
    assert!(done(device.write(0, testing::pattern(4096, 1), WriteFlags::FUA)));
    pool.fill();
    let mib = 1u64 << 20;
    for at in 0..FUA_FROM / mib {
        let write = device.write(at * mib, testing::pattern(1 << 20, 3), WriteFlags::NONE);
        assert!(matches!(write.try_ready(), Ok(Ok(()))), "plain write {at}");
    }
    // Write-back, as it comes after some seconds by itself; its outcome is told to another.
    let _fails = run("sync", &[&"-f", &pool.mounted()]);
    Ok((pool, path, device))
}

fn skip(why: &str) {
    eprintln!("skipped: needs root, loop devices and ext4: {why}");
}

fn done(io: Io<()>) -> bool {
    matches!(io.try_ready(), Ok(Ok(())))
}

/// Finding D3: the write with FUA is told of the failure, and flushes must not be GOOD after it.
#[test]
fn a_failed_fua_write_leaves_the_error_to_the_flush() {
    let (_pool, _path, device) = match full() {
        Ok(full) => full,
        Err(why) => return skip(&why),
    };
    let fua = device.write(FUA_FROM, testing::pattern(4096, 9), WriteFlags::FUA);
    assert!(!done(fua), "FUA is GOOD");
    for again in 0..2 {
        assert!(!done(device.flush()), "flush {again} is GOOD over writes that are lost");
    }
}

/// Each of several FUA writes that fail in write-back is told.
#[test]
fn of_concurrent_fua_writes_to_a_full_pool_none_is_good_and_lost() {
    let (_pool, path, device) = match full() {
        Ok(full) => full,
        Err(why) => return skip(&why),
    };
    let write = &|writer: u64, n: u64| {
        let at = FUA_FROM + (8 * n + writer) * 4096;
        done(device.write(at, testing::pattern(4096, 9), WriteFlags::FUA)).then_some(at / 4096)
    };
    let good: Vec<u64> = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..8)
            .map(|writer| scope.spawn(move || (0..32).filter_map(|n| write(writer, n)).collect()))
            .collect();
        writers.into_iter().flat_map(|writer| -> Vec<u64> { writer.join().unwrap() }).collect()
    });
    assert!(!done(device.flush()), "a flush is GOOD over writes that are lost");
    drop(device);
    for block in good {
        assert!(stored(&path, block)[..] == testing::pattern(4096, 9)[..], "FUA block {block}");
    }
}
