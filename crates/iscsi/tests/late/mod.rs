//! Storage whose writes land late: not before it is told to, and whether or not anybody waits for
//! them. Nobody can call a write back from it.

#![allow(clippy::unwrap_used, unreachable_pub)] // in a test a panic is the result

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use block::backend::MemoryDevice;
use block::{BlockDevice, Buf, Bytes, DeviceInfo, Extent, Io, WriteFlags, ZeroFlags};
use tokio::sync::watch;

/// A disk of 16 MiB whose writes land when it is told to.
pub struct Late {
    memory: Arc<MemoryDevice>,
    is_open: watch::Sender<bool>,
    /// Writes that came and have not landed.
    pending: Arc<AtomicU32>,
    log: Arc<Mutex<Vec<Event>>>,
}

/// What the disk has seen, by the offset of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Came(u64),
    Landed(u64),
    Flushed,
}

impl Late {
    pub fn new() -> Self {
        let memory = Arc::new(MemoryDevice::new(16 << 20, 512).unwrap());
        let (is_open, _) = watch::channel(true);
        Self { memory, is_open, pending: Arc::default(), log: Arc::default() }
    }

    /// Writes that came and have not landed.
    #[allow(dead_code)] // not every user of this module asks
    pub fn pending(&self) -> u32 {
        self.pending.load(Ordering::Acquire)
    }

    /// What is on it.
    #[allow(dead_code)] // not every user of this module asks
    pub async fn content(&self, len: usize) -> Buf {
        self.memory.read(0, Buf::new(len)).await.unwrap()
    }

    /// Waits until there are so many of them.
    #[allow(dead_code)] // not every user of this module asks
    pub async fn until_pending(&self, count: u32) {
        while self.pending() < count {
            tokio::task::yield_now().await;
        }
    }

    /// What has happened so far.
    #[allow(dead_code)] // not every user of this module asks
    pub fn log(&self) -> Vec<Event> {
        self.log.lock().unwrap().clone()
    }

    /// From now on no write lands.
    #[allow(dead_code)] // not every user of this module asks
    pub fn shut(&self) {
        self.is_open.send_replace(false);
    }

    /// All of them land.
    #[allow(dead_code)] // not every user of this module asks
    pub fn open(&self) {
        self.is_open.send_replace(true);
    }
}

impl BlockDevice for Late {
    fn info(&self) -> DeviceInfo {
        self.memory.info()
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Buf> {
        self.memory.read(offset, buf)
    }

    fn write(&self, offset: u64, data: Bytes, flags: WriteFlags) -> Io<()> {
        self.pending.fetch_add(1, Ordering::AcqRel);
        let (memory, pending, log) = (self.memory.clone(), self.pending.clone(), self.log.clone());
        log.lock().unwrap().push(Event::Came(offset));
        let mut is_open = self.is_open.subscribe();
        let landing = tokio::spawn(async move {
            is_open.wait_for(|open| *open).await.unwrap();
            let written = memory.write(offset, data, flags).await;
            log.lock().unwrap().push(Event::Landed(offset));
            pending.fetch_sub(1, Ordering::AcqRel);
            written
        });
        Io::later(async move { landing.await.unwrap() })
    }

    fn flush(&self) -> Io<()> {
        self.log.lock().unwrap().push(Event::Flushed);
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
