//! [`escorted`]: the first reads of a stream, with questions right behind them. Somebody waits for
//! them, who has clicked or looks for another place; later ones come before they are needed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use block::layer::{ReadOnlyLayer, Reads};
use block::{Buf, Device, DeviceInfo, Extent, Io};

use crate::recent::Reader;
use crate::writers::{Escort, Marks};

/// Bytes of a stream that are read so: what a player wants before it shows a frame, a group of
/// pictures of 4 s at 8 Mbit/s.
const BYTES: u64 = 4 << 20;

/// Bytes that are read for each question; shorter reads share one.
pub(crate) const EACH: u64 = 256 << 10;

/// Reads that are asked for together are asked for within this time: then there is a question
/// behind the last of them, too.
const TOGETHER: Duration = Duration::from_millis(1);

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
    /// There is a read without a question behind it, which is going to be asked.
    is_due: AtomicBool,
}

struct Escorted {
    device: Device,
    questions: Arc<Questions>,
}

impl Questions {
    pub(crate) fn new(marks: &Arc<Marks>, escort: &Arc<Escort>, each: u64) -> Arc<Self> {
        let (marks, escort) = (Arc::clone(marks), Arc::clone(escort));
        let (bytes, is_due) = (AtomicU64::new(0), AtomicBool::new(false));
        Arc::new(Self { marks, escort, each, bytes, is_due })
    }

    /// The stream begins to read `len` more bytes: a question goes behind them, if it is time.
    fn read(self: &Arc<Self>, len: u64) {
        let before = self.bytes.fetch_add(len, Ordering::Relaxed);
        if before >= BYTES {
            return;
        }
        if before == 0 || before / self.each < (before + len) / self.each {
            self.is_due.store(false, Ordering::Relaxed);
            self.marks.ask_behind(&self.escort);
        } else if !self.is_due.swap(true, Ordering::Relaxed) {
            let questions = Arc::clone(self);
            tokio::spawn(async move {
                tokio::time::sleep(TOGETHER).await;
                if questions.is_due.swap(false, Ordering::Relaxed) {
                    questions.marks.ask_behind(&questions.escort);
                }
            });
        }
    }
}

impl Reader for Questions {
    fn met(&self, len: u64) {
        if self.bytes.fetch_add(len, Ordering::Relaxed) == 0 {
            self.marks.ask_behind(&self.escort);
        }
    }

    fn place(&self) -> u64 {
        self.marks.reads_ended()
    }

    fn came(&self, place: u64) {
        self.escort.came(place);
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
