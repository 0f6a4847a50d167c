//! The redo log of a leg: what is to be changed there at once, although it is many writes.
//!
//! A *batch* is a row of records from the begin of the log on, each of them one header block and
//! the data of the pieces that it lists. It counts from the moment at which the leg's superblock
//! names it ([`Committed`]): all of it was flushed before that. Then it is copied home, flushed,
//! and *released* by a superblock that names it no more; whoever finds a batch that is named copies
//! it home himself, again if need be, since that changes nothing. So the leg goes from the image
//! before the batch to the one after it, whatever is cut off when. A batch that is not named is
//! nothing.
//!
//! Here: the codec and the arithmetic, pure. [`replay`] reads and copies home; the engine decides
//! when there is a batch.

pub(super) mod home;
mod record;
pub mod replay;

use bytes::Bytes;

pub use self::record::{PIECES_MAX, RECORD_DATA_BYTES_MAX, Reader, RedoFault};
use super::epoch::Piece;
use super::generation::WallMs;
use super::superblock::{Committed, MirrorId};

#[cfg(test)]
pub(super) use self::record::places;

/// A batch that is being written.
#[derive(Clone, Debug)]
pub struct Writer {
    mirror: MirrorId,
    batch: u64,
    /// Bytes of the log.
    room: u64,
    bytes: u64,
    records: u32,
    checksum: u32,
}

impl Writer {
    /// An empty one, for a log of `room` bytes. `batch` is a number that no other batch has.
    #[must_use]
    pub fn new(mirror: MirrorId, batch: u64, room: u64) -> Self {
        Self { mirror, batch, room, bytes: 0, records: 0, checksum: 0 }
    }

    /// Bytes of the log that are taken.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Pieces of these sizes have room: `pieces` of them, of `data_bytes` together.
    #[must_use]
    pub fn has_room(&self, pieces: u64, data_bytes: u64) -> bool {
        record::bytes_at_most(pieces, data_bytes) <= self.room - self.bytes
    }

    /// The next record: where in the log it is written, and what. `None`: it has no room.
    ///
    /// # Panics
    /// More pieces than [`PIECES_MAX`]: a bug.
    #[must_use]
    pub fn record(&mut self, pieces: &[Piece]) -> Option<(u64, Bytes)> {
        assert!(pieces.len() <= PIECES_MAX, "{} pieces are no record", pieces.len());
        let record = record::encode(self.mirror, self.batch, self.records, pieces);
        let at = self.bytes;
        let end = at + record.len() as u64;
        if end > self.room {
            return None;
        }
        self.checksum = crc32c::crc32c_append(self.checksum, &record[..record::HEADER_BYTES]);
        (self.bytes, self.records) = (end, self.records + 1);
        Some((at, record))
    }

    /// What the superblock says of it, when all of it is stable.
    #[must_use]
    pub fn committed(&self, epoch: u64, closed: WallMs) -> Committed {
        let Self { batch, bytes, records, checksum, .. } = *self;
        Committed { batch, bytes, records, checksum, epoch, closed }
    }
}

/// Gathers pieces into records.
#[derive(Debug, Default)]
pub struct Gather {
    pieces: Vec<Piece>,
    data_bytes: u64,
}

impl Gather {
    /// Adds a piece; returns the pieces before it, where they are a record already.
    pub fn add(&mut self, piece: Piece) -> Option<Vec<Piece>> {
        let bytes = piece.content.data_bytes();
        let full = self.pieces.len() == PIECES_MAX
            || self.data_bytes > 0 && self.data_bytes + bytes > RECORD_DATA_BYTES_MAX;
        let before = full.then(|| self.take());
        self.data_bytes += bytes;
        self.pieces.push(piece);
        before
    }

    /// What is left.
    pub fn take(&mut self) -> Vec<Piece> {
        self.data_bytes = 0;
        std::mem::take(&mut self.pieces)
    }

    /// Nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }
}
