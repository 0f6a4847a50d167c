//! [`escorted`]: the first reads of a stream, with questions right behind them. Somebody waits for
//! them, who has clicked or looks for another place; later ones come before they are needed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use block::layer::{ReadOnlyLayer, Reads};
use block::{Buf, Device, DeviceInfo, Extent, Io};

use crate::writers::{Escort, Marks};

/// Bytes of a stream that are read so: what a player wants before it shows a frame, a group of
/// pictures of 4 s at 8 Mbit/s.
const BYTES: u64 = 4 << 20;

/// Bytes that are read for each question; shorter reads share one.
pub(crate) const EACH: u64 = 256 << 10;

/// The device as a new stream reads from it, with its questions.
pub(crate) fn escorted(device: Device, questions: &Arc<Questions>) -> Device {
    Arc::new(ReadOnlyLayer::new(Escorted { device, questions: Arc::clone(questions) }))
}

/// The questions of a stream: one for so many bytes, [`EACH`].
pub(crate) struct Questions {
    marks: Arc<Marks>,
    escort: Arc<Escort>,
    each: u64,
    /// Read so far.
    bytes: AtomicU64,
}

struct Escorted {
    device: Device,
    questions: Arc<Questions>,
}

impl Questions {
    pub(crate) fn new(marks: &Arc<Marks>, escort: &Arc<Escort>, each: u64) -> Arc<Self> {
        let (marks, escort) = (Arc::clone(marks), Arc::clone(escort));
        Arc::new(Self { marks, escort, each, bytes: AtomicU64::new(0) })
    }

    /// So much more is being read.
    fn read(&self, len: u64) {
        let before = self.bytes.fetch_add(len, Ordering::Relaxed);
        let is_next = before == 0 || before / self.each < (before + len) / self.each;
        if is_next && before < BYTES {
            self.marks.ask_behind(&self.escort);
        }
    }

    /// So much is wanted, and somebody else has begun to read it before.
    pub(crate) fn met(&self, len: u64) {
        if self.bytes.fetch_add(len, Ordering::Relaxed) == 0 {
            self.marks.ask_behind(&self.escort);
        }
    }
}

impl Reads for Escorted {
    fn info(&self) -> DeviceInfo {
        self.device.info()
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Buf> {
        let len = buf.len() as u64;
        let read = self.device.read(offset, buf);
        self.questions.read(len);
        read
    }

    fn extents(&self, offset: u64, len: u64) -> Io<Vec<Extent>> {
        self.device.extents(offset, len)
    }
}
