//! A device in memory for the tests of the front ends: sparse, with delay, faults and counts.

#![allow(dead_code)] // each test binary uses a part

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use block::{
    BlockDevice, BlockError, Buf, Bytes, DeviceInfo, Extent, Io, Result, WriteFlags, ZeroFlags,
};

const PAGE: u64 = 65536;

/// A sparse device. Absent pages are holes.
pub(crate) struct TestDevice {
    pub(crate) info: DeviceInfo,
    pub(crate) delay: Option<Duration>,
    pub(crate) fail_reads: AtomicBool,
    pub(crate) fail_writes: AtomicBool,
    pub(crate) flushes: AtomicU64,
    pub(crate) writes: AtomicU64,
    pages: Arc<Mutex<BTreeMap<u64, Vec<u8>>>>,
}

impl TestDevice {
    pub(crate) fn new(size: u64, block_size: u32) -> Self {
        let mut info = DeviceInfo::new(size, block_size);
        info.can_fua = true;
        info.can_trim = true;
        info.trim_zeroes = true;
        info.can_zero = true;
        info.can_extents = true;
        Self {
            info,
            delay: None,
            fail_reads: AtomicBool::new(false),
            fail_writes: AtomicBool::new(false),
            flushes: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            pages: Arc::default(),
        }
    }

    pub(crate) fn delayed(mut self, delay: Duration) -> Self {
        self.delay = Some(delay);
        self
    }

    pub(crate) fn peek(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        read_pages(&self.pages.lock().unwrap(), offset, &mut out);
        out
    }

    pub(crate) fn allocated(&self) -> u64 {
        self.pages.lock().unwrap().len() as u64 * PAGE
    }

    fn run<T: Send + Unpin + 'static>(
        &self,
        operation: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Io<T> {
        match self.delay {
            None => Io::done(operation()),
            Some(delay) => {
                let sleep = tokio::time::sleep(delay);
                Io::later(async move {
                    sleep.await;
                    operation()
                })
            }
        }
    }
}

fn read_pages(pages: &BTreeMap<u64, Vec<u8>>, offset: u64, out: &mut [u8]) {
    for_pages(offset, out.len() as u64, |page, within, at| {
        let part = &mut out[at.clone()];
        match pages.get(&page) {
            Some(data) => part.copy_from_slice(&data[within..within + at.len()]),
            None => part.fill(0),
        }
    });
}

fn for_pages(offset: u64, len: u64, mut each: impl FnMut(u64, usize, std::ops::Range<usize>)) {
    let mut at = 0;
    while at < len {
        let position = offset + at;
        let within = position % PAGE;
        let count = (PAGE - within).min(len - at);
        each(position / PAGE, within as usize, at as usize..(at + count) as usize);
        at += count;
    }
}

fn zero_pages(pages: &mut BTreeMap<u64, Vec<u8>>, offset: u64, len: u64) {
    for_pages(offset, len, |page, within, at| {
        if at.len() as u64 == PAGE {
            pages.remove(&page);
        } else if let Some(data) = pages.get_mut(&page) {
            data[within..within + at.len()].fill(0);
        }
    });
}

impl BlockDevice for TestDevice {
    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }

    fn read(&self, offset: u64, mut buf: Buf) -> Io<Buf> {
        if self.fail_reads.load(Ordering::Relaxed) {
            return Io::err(std::io::Error::other("injected"));
        }
        if let Err(error) = self.info.check(offset, buf.len() as u64) {
            return Io::err(error);
        }
        let pages = Arc::clone(&self.pages);
        self.run(move || {
            read_pages(&pages.lock().unwrap(), offset, &mut buf);
            Ok(buf)
        })
    }

    fn write(&self, offset: u64, data: Bytes, flags: WriteFlags) -> Io<()> {
        if self.fail_writes.load(Ordering::Relaxed) {
            return Io::err(BlockError::NoSpace);
        }
        if let Err(error) = self.info.check_write(offset, data.len() as u64) {
            return Io::err(error);
        }
        assert!(self.info.can_fua || !flags.fua, "FUA asked of a device without");
        self.writes.fetch_add(1, Ordering::Relaxed);
        let pages = Arc::clone(&self.pages);
        self.run(move || {
            let mut pages = pages.lock().unwrap();
            for_pages(offset, data.len() as u64, |page, within, at| {
                let target = pages.entry(page).or_insert_with(|| vec![0; PAGE as usize]);
                target[within..within + at.len()].copy_from_slice(&data[at]);
            });
            Ok(())
        })
    }

    fn flush(&self) -> Io<()> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        self.run(|| Ok(()))
    }

    fn trim(&self, offset: u64, len: u64) -> Io<()> {
        self.zero(offset, len, ZeroFlags::new(false, true))
    }

    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Io<()> {
        assert!(self.info.can_zero, "zero asked of a device without");
        assert!(self.info.can_fua || !flags.fua, "FUA asked of a device without");
        if let Err(error) = self.info.check_write(offset, len) {
            return Io::err(error);
        }
        let pages = Arc::clone(&self.pages);
        self.run(move || {
            zero_pages(&mut pages.lock().unwrap(), offset, len);
            Ok(())
        })
    }

    fn extents(&self, offset: u64, len: u64) -> Io<Vec<Extent>> {
        if let Err(error) = self.info.check(offset, len) {
            return Io::err(error);
        }
        let pages = Arc::clone(&self.pages);
        self.run(move || {
            let pages = pages.lock().unwrap();
            let mut extents: Vec<Extent> = Vec::new();
            for_pages(offset, len, |page, _, at| {
                let hole = !pages.contains_key(&page);
                let (start, len) = (offset + at.start as u64, at.len() as u64);
                match extents.last_mut() {
                    Some(last) if last.hole == hole => last.len += len,
                    _ => extents.push(Extent { offset: start, len, hole }),
                }
            });
            Ok(extents)
        })
    }
}

/// Whether a program is there; otherwise says that the test is skipped.
pub(crate) fn have(test: &str, programs: &[&str]) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<_> = std::env::split_paths(&path).collect();
    folders.extend(["/usr/sbin".into(), "/sbin".into()]);
    for program in programs {
        if !folders.iter().any(|folder| folder.join(program).exists()) {
            eprintln!("SKIPPED {test}: {program} is not installed");
            return false;
        }
    }
    true
}

/// Runs a program and returns its output; its failure is the test's.
pub(crate) async fn run(program: &str, args: &[&str]) -> String {
    let output = tokio::process::Command::new(program).args(args).output().await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{program} {args:?}: {}\n{}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stdout)
}

/// Reproducible bytes that no page of which is zero.
pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(len);
    out
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
