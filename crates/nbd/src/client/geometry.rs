//! Sizes: what an export is as a block device, and how ranges are cut.

use block::{DeviceInfo, Extent};

use super::Config;
use super::error::ConnectError;
use super::handshake::Agreed;
use super::reply::Status;
use crate::wire::TransmissionFlags;

/// Smallest block of a block device in bytes; NBD's may be smaller.
const BLOCK_SIZE_MIN: u32 = 512;

/// Largest best unit of I/O that is passed on, in bytes: more is no block, but a transfer.
const PREFERRED_MAX: u32 = 64 << 10;

/// Longest range of one WRITE_ZEROES, TRIM or BLOCK_STATUS in bytes: below the 32 bits of a length,
/// a multiple of every block size.
pub(super) const ZERO_LEN_MAX: u64 = 1 << 30;

/// The export as a block device.
pub(super) fn device_info(agreed: &Agreed, config: &Config) -> Result<DeviceInfo, ConnectError> {
    let can = |flag| agreed.flags.contains(flag);
    let block_size = agreed.block_size_minimum.max(BLOCK_SIZE_MIN);
    if i64::try_from(agreed.size).is_err() {
        return Err(ConnectError::TooLarge(agreed.size));
    }
    if !agreed.size.is_multiple_of(block_size.into()) {
        return Err(ConnectError::Size { size: agreed.size, block_size });
    }
    let read_only = config.read_only || can(TransmissionFlags::READ_ONLY);
    let mut info = DeviceInfo::new(agreed.size, block_size);
    info.preferred_block_size =
        agreed.block_size_preferred.clamp(4096, PREFERRED_MAX).max(block_size);
    info.read_only = read_only;
    info.can_flush = can(TransmissionFlags::SEND_FLUSH);
    info.can_fua = can(TransmissionFlags::SEND_FUA) && !read_only;
    info.volatile_cache = can(TransmissionFlags::SEND_FLUSH) && !read_only;
    info.can_trim = can(TransmissionFlags::SEND_TRIM) && !read_only;
    info.can_zero = can(TransmissionFlags::SEND_WRITE_ZEROES) && !read_only;
    info.can_extents = agreed.allocation_context.is_some();
    // A flush covers all connections that there are: one, or several of a server that says so.
    info.can_multi_conn = true;
    Ok(info)
}

/// A range cut into pieces of at most `step` bytes.
pub(super) fn pieces(offset: u64, len: u64, step: u64) -> impl Iterator<Item = (u64, u64)> {
    let step = step.max(1);
    (0..len.div_ceil(step)).map(move |n| {
        let at = offset + n * step;
        (at, step.min(offset + len - at))
    })
}

/// Extents of a device out of a server's, which follow each other from `offset` on and may end
/// anywhere: holes of whole blocks, cut at `end`; whatever is not told is data.
pub(super) struct Extents {
    found: Vec<Extent>,
    block: u64,
    begin: u64,
    at: u64,
    end: u64,
}

impl Extents {
    pub(super) fn new(offset: u64, len: u64, block_size: u32) -> Self {
        let block = block_size.into();
        Self { found: Vec::new(), block, begin: offset, at: offset, end: offset + len }
    }

    /// Where the next one begins; `None` when the range is covered.
    pub(super) fn next(&self) -> Option<u64> {
        (self.at < self.end).then_some(self.at)
    }

    /// What a server says from there on.
    pub(super) fn push(&mut self, extent: Status) {
        let stop = self.at.saturating_add(extent.len).min(self.end);
        self.add(stop, extent.hole);
    }

    /// The range, covered without gaps.
    pub(super) fn finish(mut self) -> Vec<Extent> {
        let end = self.end;
        self.add(end, false);
        self.found
    }

    fn add(&mut self, stop: u64, hole: bool) {
        let from = self.at;
        self.at = stop;
        if !hole {
            return self.put(stop, false);
        }
        let (start, stop) = (from.next_multiple_of(self.block), stop / self.block * self.block);
        if start < stop {
            self.put(start, false);
            self.put(stop, true);
        }
    }

    /// Up to here it is of this kind.
    fn put(&mut self, stop: u64, hole: bool) {
        let offset = match self.found.last() {
            Some(last) => last.offset + last.len,
            None => self.begin,
        };
        let Some(len) = stop.checked_sub(offset).filter(|len| *len > 0) else { return };
        match self.found.last_mut() {
            Some(last) if last.hole == hole => last.len += len,
            _ => self.found.push(Extent { offset, len, hole }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::handshake::PAYLOAD_LEN_MAX;

    fn agreed(size: u64, minimum: u32, flags: TransmissionFlags) -> Agreed {
        Agreed {
            size,
            flags,
            block_size_minimum: minimum,
            block_size_preferred: 1 << 20,
            payload_len_max: PAYLOAD_LEN_MAX,
            structured_replies: true,
            allocation_context: None,
        }
    }

    #[test]
    fn an_export_that_is_no_disk_is_refused() {
        let none = TransmissionFlags::HAS_FLAGS;
        let info = |size, minimum| device_info(&agreed(size, minimum, none), &Config::default());
        assert_eq!(info(1024, 1).unwrap().block_size, 512);
        assert_eq!(info(8192, 4096).unwrap().preferred_block_size, PREFERRED_MAX);
        assert!(matches!(info(1000, 1), Err(ConnectError::Size { block_size: 512, .. })));
        assert!(matches!(info(4096, 8192), Err(ConnectError::Size { .. })));
        assert!(matches!(info(u64::MAX, 1), Err(ConnectError::TooLarge(_))));
    }

    #[test]
    fn what_is_read_only_offers_no_change() {
        let flags = TransmissionFlags::SEND_FUA
            .with(TransmissionFlags::SEND_TRIM)
            .with(TransmissionFlags::SEND_WRITE_ZEROES);
        let config = Config { read_only: true, ..Config::default() };
        let info = device_info(&agreed(1024, 1, flags), &config).unwrap();
        assert!(info.read_only && !info.can_fua && !info.can_trim && !info.can_zero);
        assert!(!info.can_flush);
    }

    #[test]
    fn pieces_cover_the_range_exactly() {
        assert_eq!(pieces(10, 25, 10).collect::<Vec<_>>(), [(10, 10), (20, 10), (30, 5)]);
        assert_eq!(pieces(0, 0, 10).count(), 0);
    }

    #[test]
    fn holes_are_of_whole_blocks_and_nothing_is_left_out() {
        let mut extents = Extents::new(512, 4096, 512);
        for (len, hole) in [(100, false), (1000, true), (1000, true), (30, false), (9999, true)] {
            if extents.next().is_some() {
                extents.push(Status { len, hole });
            }
        }
        assert_eq!(extents.next(), None);
        let found: Vec<_> = extents.finish().iter().map(|e| (e.offset, e.len, e.hole)).collect();
        assert_eq!(
            found,
            [
                (512, 512, false),
                (1024, 512, true),
                (1536, 512, false),
                (2048, 512, true),
                (2560, 512, false),
                (3072, 1536, true),
            ]
        );
        assert_eq!(
            Extents::new(0, 1024, 512).finish(),
            [Extent { offset: 0, len: 1024, hole: false }]
        );
    }
}
