//! A disk that answers everything except writes to its last quarter: those wait, without holding a
//! thread, until the storage "comes back". What hung storage is to whoever serves it.

#![allow(clippy::unwrap_used, dead_code, unreachable_pub)] // in a test a panic is the result

use std::sync::atomic::{AtomicUsize, Ordering};

use block::backend::MemoryDevice;
use block::{BlockDevice, Buf, Bytes, DeviceInfo, Extent, Io, WriteFlags, ZeroFlags};
use tokio::sync::watch;

/// Bytes of the disk.
pub const LEN: u64 = 16 << 20;
/// Writes from here on hang.
pub const HANGS_FROM: u64 = 12 << 20;

pub struct Hung {
    memory: MemoryDevice,
    is_back: watch::Sender<bool>,
    hanging: AtomicUsize,
}

impl Hung {
    pub fn new() -> Self {
        let memory = MemoryDevice::new(LEN, 512).unwrap();
        Self { memory, is_back: watch::channel(false).0, hanging: AtomicUsize::new(0) }
    }

    /// Writes that came and had to wait.
    pub fn hanging(&self) -> usize {
        self.hanging.load(Ordering::Acquire)
    }

    /// From now on nothing hangs any more.
    pub fn come_back(&self) {
        self.is_back.send_replace(true);
    }
}

impl BlockDevice for Hung {
    fn info(&self) -> DeviceInfo {
        self.memory.info()
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Buf> {
        self.memory.read(offset, buf)
    }

    fn write(&self, offset: u64, data: Bytes, flags: WriteFlags) -> Io<()> {
        let written = self.memory.write(offset, data, flags);
        if offset < HANGS_FROM || *self.is_back.borrow() {
            return written;
        }
        self.hanging.fetch_add(1, Ordering::AcqRel);
        let mut is_back = self.is_back.subscribe();
        Io::later(async move {
            is_back.wait_for(|back| *back).await.unwrap();
            written.await
        })
    }

    fn flush(&self) -> Io<()> {
        self.memory.flush()
    }

    fn trim(&self, offset: u64, len: u64) -> Io<()> {
        self.memory.trim(offset, len)
    }

    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Io<()> {
        self.memory.zero(offset, len, flags)
    }

    fn extents(&self, offset: u64, len: u64) -> Io<Vec<Extent>> {
        self.memory.extents(offset, len)
    }
}
