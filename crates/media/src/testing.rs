//! For tests: a disk whose reads are counted, and come when they are allowed to.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use block::layer::{ReadOnlyLayer, Reads};
use block::{BlockError, Buf, Device, DeviceInfo, Extent, Io};
use tokio::sync::Semaphore;

/// A disk of a GiB; each byte tells where it is.
pub(crate) struct Disk {
    pub(crate) device: Device,
    /// As many reads as this has permits come, in the order in which they were asked for.
    pub(crate) turns: Arc<Semaphore>,
    pub(crate) counts: Arc<Counts>,
}

/// What was asked of it.
#[derive(Default)]
pub(crate) struct Counts {
    bytes: AtomicU64,
    under_way: AtomicU64,
    fails: AtomicBool,
}

impl Counts {
    /// Bytes that were asked for.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(SeqCst)
    }

    /// Reads that were asked for, have not come, and were not given up.
    pub(crate) fn under_way(&self) -> u64 {
        self.under_way.load(SeqCst)
    }

    /// Whether reads fail that come from now on.
    pub(crate) fn set_fails(&self, fails: bool) {
        self.fails.store(fails, SeqCst);
    }
}

/// The byte there.
pub(crate) fn byte_at(offset: u64) -> u8 {
    (offset / 509 % 251) as u8
}

impl Disk {
    pub(crate) fn new(turns: usize) -> Self {
        let (turns, counts) = (Arc::new(Semaphore::new(turns)), Arc::<Counts>::default());
        let counted = Counted { turns: Arc::clone(&turns), counts: Arc::clone(&counts) };
        Self { device: Arc::new(ReadOnlyLayer::new(counted)), turns, counts }
    }
}

struct Counted {
    turns: Arc<Semaphore>,
    counts: Arc<Counts>,
}

struct UnderWay(Arc<Counts>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, SeqCst);
    }
}

impl Reads for Counted {
    fn info(&self) -> DeviceInfo {
        DeviceInfo::new(1 << 30, 512)
    }

    fn read(&self, offset: u64, mut buf: Buf) -> Io<Buf> {
        let (turns, counts) = (Arc::clone(&self.turns), Arc::clone(&self.counts));
        Io::later(async move {
            counts.bytes.fetch_add(buf.len() as u64, SeqCst);
            counts.under_way.fetch_add(1, SeqCst);
            let _under_way = UnderWay(Arc::clone(&counts));
            let turn = turns.acquire().await;
            turn.map_err(|_| BlockError::Unreachable("gone".into()))?.forget();
            if counts.fails.load(SeqCst) {
                return Err(BlockError::Medium(io::Error::other("scratched")));
            }
            for (place, byte) in buf.iter_mut().enumerate() {
                *byte = byte_at(offset + place as u64);
            }
            Ok(buf)
        })
    }

    fn extents(&self, _: u64, _: u64) -> Io<Vec<Extent>> {
        Io::err(BlockError::ReadOnly)
    }
}
