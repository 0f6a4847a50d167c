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

/// The device as a new stream reads from it, with a question for so many bytes, [`EACH`].
pub(crate) fn escorted(
    device: Device,
    marks: &Arc<Marks>,
    escort: &Arc<Escort>,
    each: u64,
) -> Device {
    let (marks, escort, bytes) = (Arc::clone(marks), Arc::clone(escort), AtomicU64::new(0));
    Arc::new(ReadOnlyLayer::new(Escorted { device, marks, escort, each, bytes }))
}

struct Escorted {
    device: Device,
    marks: Arc<Marks>,
    escort: Arc<Escort>,
    each: u64,
    /// Read so far.
    bytes: AtomicU64,
}

impl Reads for Escorted {
    fn info(&self) -> DeviceInfo {
        self.device.info()
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Buf> {
        let len = buf.len() as u64;
        let before = self.bytes.fetch_add(len, Ordering::Relaxed);
        let read = self.device.read(offset, buf);
        let is_next = before == 0 || before / self.each < (before + len) / self.each;
        if is_next && before < BYTES {
            self.marks.ask_behind(&self.escort);
        }
        read
    }

    fn extents(&self, offset: u64, len: u64) -> Io<Vec<Extent>> {
        self.device.extents(offset, len)
    }
}
