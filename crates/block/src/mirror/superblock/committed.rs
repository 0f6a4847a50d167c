//! What a leg's superblock says of a batch in its redo log that is committed, and may not be home.

use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{BLOCK_BYTES, WallMs};

/// A batch that is committed: all of it is stable in the redo log, and it goes home before anything
/// else is written to the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Committed {
    /// Its name, a random number: what an earlier batch has left in the log has another one.
    pub batch: u64,
    /// Bytes of the log that it takes, from the begin of the log on.
    pub bytes: u64,
    /// Records in it.
    pub records: u32,
    /// CRC32C of the header blocks of all of them, in their order.
    pub checksum: u32,
    /// When it is home, all epochs up to this one are stable at the leg; 0: the mirror has none.
    pub epoch: u64,
    /// The moment whose image it makes.
    #[serde(skip)]
    pub closed: WallMs,
}

/// [`Committed`], zeroes without one.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawCommitted {
    batch: U64,
    bytes: U64,
    records: U32,
    checksum: U32,
    epoch: U64,
    closed_ms: U64,
}

impl RawCommitted {
    pub(super) fn from_parsed(parsed: &Committed) -> Self {
        Self {
            batch: parsed.batch.into(),
            bytes: parsed.bytes.into(),
            records: parsed.records.into(),
            checksum: parsed.checksum.into(),
            epoch: parsed.epoch.into(),
            closed_ms: parsed.closed.0.into(),
        }
    }

    /// The batch, if it can lie in a log of `redo_bytes`; else the length that it claims.
    pub(super) fn parse(&self, redo_bytes: u64) -> Result<Committed, u64> {
        let bytes = self.bytes.get();
        let records = u64::from(self.records.get());
        // Each record has a header block at least.
        let whole = bytes.is_multiple_of(BLOCK_BYTES) && records <= bytes / BLOCK_BYTES;
        if !whole || bytes > redo_bytes {
            return Err(bytes);
        }
        Ok(Committed {
            batch: self.batch.get(),
            bytes,
            records: self.records.get(),
            checksum: self.checksum.get(),
            epoch: self.epoch.get(),
            closed: WallMs(self.closed_ms.get()),
        })
    }
}

/// For the page that describes the format.
#[cfg(test)]
pub(super) fn places() -> Vec<crate::mirror::format_doc::Place> {
    crate::mirror::format_doc::places!(
        RawCommitted,
        0,
        batch,
        bytes,
        records,
        checksum,
        epoch,
        closed_ms
    )
}
