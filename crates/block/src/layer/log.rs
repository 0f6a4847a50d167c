//! [`LogLayer`]: writes down what is done to a device, and tells what its medium may hold when the
//! power is cut: the role of dm-log-writes and CrashMonkey (Mohan et al., OSDI 2018) here.
//!
//! Every operation that changes the device or makes it stable has a number, and its begin and its
//! end are *moments*, counted from 1. A [`Cut`] is what is left when the power goes just after a
//! moment. Then, sector by sector, the medium holds one of the contents that were written to it:
//! * everything that ended well is there, if it was forced (FUA) or if a flush began after its end
//!   and ended well before the cut; then nothing older is there any more;
//! * of all the rest anything may be there or not, also of what was under way. Sectors are written
//!   whole and in any order, so a long write may be torn between any two.
//!
//! Operations that overlap in time have no order. What failed may be there. What is kept is all
//! that was written: this is for tests.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::Random;
use crate::{BlockDevice, Buf, Device, DeviceInfo, Extent, Io, Result, WriteFlags, ZeroFlags};

/// What was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Data was written at an offset in bytes.
    Write(u64, Bytes),
    /// A range, offset and length in bytes, was zeroed.
    Zero(u64, u64),
    /// A range, offset and length in bytes, was trimmed; where that does not zero, it means
    /// nothing for what may be read.
    Trim(u64, u64),
    /// What ended before was made stable.
    Flush,
}

/// An operation and when it was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What was done.
    pub change: Change,
    /// It was to be stable at its end.
    pub fua: bool,
    /// The moment of its begin.
    pub begin: u64,
    /// The moment of its end, with its success. `None`: still under way.
    pub end: Option<(u64, bool)>,
}

impl Entry {
    fn ended_well_by(&self, cut: u64) -> bool {
        self.end.is_some_and(|(end, well)| well && end <= cut)
    }

    /// Ended, either way, before `moment`.
    fn ended_before(&self, moment: u64, cut: u64) -> bool {
        self.end.is_some_and(|(end, _)| end <= cut && end < moment)
    }

    fn range(&self) -> (u64, u64) {
        match &self.change {
            Change::Write(offset, data) => (*offset, data.len() as u64),
            Change::Zero(offset, len) | Change::Trim(offset, len) => (*offset, *len),
            Change::Flush => (0, 0),
        }
    }
}

#[derive(Debug, Default)]
struct Record {
    entries: Vec<Entry>,
    moments: u64,
}

/// The log of a [`LogLayer`]. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Log {
    record: Arc<Mutex<Record>>,
}

impl Log {
    /// Moments so far: the power can be cut after each, and before the first (after moment 0).
    pub fn moments(&self) -> u64 {
        self.lock().moments
    }

    /// All operations, in the order in which they began. Reads are not among them.
    pub fn entries(&self) -> Vec<Entry> {
        self.lock().entries.clone()
    }

    /// What may be left of it all when the power is cut after the moment `after`. A sector of
    /// `sector_bytes` is written whole or not at all.
    ///
    /// # Panics
    /// When operations are not whole sectors, or `sector_bytes` is 0.
    pub fn cut(&self, after: u64, sector_bytes: u64) -> Cut {
        Cut::new(&self.lock().entries, after, sector_bytes)
    }

    fn begin(&self, change: Change, fua: bool) -> usize {
        let mut record = self.lock();
        record.moments += 1;
        let begin = record.moments;
        record.entries.push(Entry { change, fua, begin, end: None });
        record.entries.len() - 1
    }

    fn end(&self, index: usize, well: bool) {
        let mut record = self.lock();
        record.moments += 1;
        let end = record.moments;
        record.entries[index].end = Some((end, well));
    }

    fn lock(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a sector may hold.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Content {
    /// What it held before the log began.
    Before,
    Zeroes,
    Data(Bytes),
}

/// The images that may be left after a power cut.
#[derive(Clone, Debug)]
pub struct Cut {
    sector_bytes: u64,
    /// By number of the sector; the newest last. One that has a single content has it for certain.
    sectors: BTreeMap<u64, Vec<Content>>,
}

impl Cut {
    fn new(entries: &[Entry], after: u64, sector_bytes: u64) -> Self {
        let begun: Vec<&Entry> = entries.iter().filter(|entry| entry.begin <= after).collect();
        let is_flush = |entry: &&&Entry| entry.change == Change::Flush;
        // The flush that began last covers most of those that ended in time.
        let flushes = begun.iter().filter(is_flush).filter(|flush| flush.ended_well_by(after));
        let flushed = flushes.map(|flush| flush.begin).max().unwrap_or(0);
        let stable = |entry: &Entry| {
            entry.ended_well_by(after) && (entry.fua || entry.ended_before(flushed, after))
        };
        let mut touched: BTreeMap<u64, Vec<&Entry>> = BTreeMap::new();
        for entry in begun {
            let (offset, len) = entry.range();
            assert!((offset | len).is_multiple_of(sector_bytes), "{entry:?} is not whole sectors");
            for sector in offset / sector_bytes..(offset + len) / sector_bytes {
                touched.entry(sector).or_default().push(entry);
            }
        }
        let contents = |(sector, entries): (u64, Vec<&Entry>)| {
            // The begin of the last one that is there for certain: what ended before it is not.
            let certain = entries.iter().filter(|entry| stable(entry)).map(|entry| entry.begin);
            let certain = certain.max();
            let replaced =
                |entry: &Entry| certain.is_some_and(|begin| entry.ended_before(begin, after));
            let before = certain.is_none().then_some(Content::Before);
            let written = entries.iter().filter(|entry| !replaced(entry));
            let written = written.map(|entry| entry.content(sector, sector_bytes));
            let mut contents: Vec<Content> = Vec::new();
            for content in before.into_iter().chain(written) {
                contents.retain(|known| *known != content);
                contents.push(content);
            }
            (sector, contents)
        };
        Self { sector_bytes, sectors: touched.into_iter().map(contents).collect() }
    }

    /// How many images there are; `None` when they are more than 64 bits can count.
    pub fn count(&self) -> Option<u64> {
        self.sectors
            .values()
            .try_fold(1u64, |count, contents| count.checked_mul(contents.len() as u64))
    }

    /// Numbers for [`image`](Self::image): all images if they are not more than `max`, else the one
    /// with nothing that may be missing, the one with all, and others drawn from `seed`.
    pub fn choose(&self, max: usize, seed: u64) -> Vec<Choice> {
        if let Some(count) = self.count().filter(|count| *count <= max as u64) {
            return (0..count).map(Choice::Number).collect();
        }
        let drawn = (0..max as u64).map(|n| match n {
            0 => Choice::Oldest,
            1 => Choice::Newest,
            n => Choice::Drawn(seed.wrapping_mul(0x1_0000).wrapping_add(n)),
        });
        drawn.collect()
    }

    /// Changes `image`, which holds what the device did before the log began, into one that may be
    /// left.
    ///
    /// # Panics
    /// When `image` is shorter than the device.
    pub fn image(&self, choice: Choice, image: &mut [u8]) {
        let mut random = Random(match choice {
            Choice::Drawn(seed) => seed,
            _ => 0,
        });
        // As many images with little missing as with much.
        let eighths = random.below(9);
        let mut rest = match choice {
            Choice::Number(number) => number,
            _ => 0,
        };
        for (sector, contents) in &self.sectors {
            let count = contents.len() as u64;
            let index = match choice {
                Choice::Number(_) => {
                    let index = rest % count;
                    rest /= count;
                    index
                }
                Choice::Oldest => 0,
                Choice::Newest => count - 1,
                Choice::Drawn(_) if random.below(8) < eighths => count - 1,
                Choice::Drawn(_) => random.below(count),
            };
            let at = (sector * self.sector_bytes) as usize;
            let target = &mut image[at..at + self.sector_bytes as usize];
            match &contents[index as usize] {
                Content::Before => {}
                Content::Zeroes => target.fill(0),
                Content::Data(data) => target.copy_from_slice(data),
            }
        }
    }
}

/// One of the images of a [`Cut`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// This one, below [`Cut::count`].
    Number(u64),
    /// In each sector the oldest content that may be left.
    Oldest,
    /// In each sector the newest.
    Newest,
    /// Drawn from this seed.
    Drawn(u64),
}

impl Entry {
    fn content(&self, sector: u64, sector_bytes: u64) -> Content {
        match &self.change {
            Change::Write(offset, data) => {
                let at = (sector * sector_bytes - offset) as usize;
                Content::Data(data.slice(at..at + sector_bytes as usize))
            }
            _ => Content::Zeroes,
        }
    }
}

/// A device whose changes are written down.
pub struct LogLayer {
    device: Device,
    log: Log,
}

impl LogLayer {
    /// `device`, with what is done to it from now on in a [`log`](Self::log).
    pub fn new(device: Device) -> Self {
        Self { device, log: Log::default() }
    }

    /// The log.
    pub fn log(&self) -> Log {
        self.log.clone()
    }

    fn record(
        &self,
        change: Change,
        fua: bool,
        operation: impl FnOnce(&Device) -> Io<()>,
    ) -> Io<()> {
        let index = self.log.begin(change, fua);
        match operation(&self.device).try_ready() {
            Ok(result) => Io::done(self.ended(index, result)),
            Err(io) => {
                let log = self.log.clone();
                Io::later(async move {
                    let result = io.await;
                    log.end(index, result.is_ok());
                    result
                })
            }
        }
    }

    fn ended(&self, index: usize, result: Result<()>) -> Result<()> {
        self.log.end(index, result.is_ok());
        result
    }
}

impl BlockDevice for LogLayer {
    fn info(&self) -> DeviceInfo {
        DeviceInfo { can_compare_and_write: false, ..self.device.info() }
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Buf> {
        self.device.read(offset, buf)
    }

    fn write(&self, offset: u64, data: Bytes, flags: WriteFlags) -> Io<()> {
        let change = Change::Write(offset, data.clone());
        self.record(change, flags.fua, |device| device.write(offset, data, flags))
    }

    fn flush(&self) -> Io<()> {
        self.record(Change::Flush, false, |device| device.flush())
    }

    fn trim(&self, offset: u64, len: u64) -> Io<()> {
        if !self.info().trim_zeroes {
            return self.device.trim(offset, len);
        }
        self.record(Change::Trim(offset, len), false, |device| device.trim(offset, len))
    }

    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Io<()> {
        let change = Change::Zero(offset, len);
        self.record(change, flags.fua, |device| device.zero(offset, len, flags))
    }

    fn extents(&self, offset: u64, len: u64) -> Io<Vec<Extent>> {
        self.device.extents(offset, len)
    }
}

#[cfg(test)]
mod tests;
