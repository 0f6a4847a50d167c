//! What is in the epoch log or in a redo log, put at its place at a leg.

use super::super::epoch::{Content, Piece};
use crate::{BlockDevice, Io, WriteFlags, ZeroFlags};

/// Asks for it. Nothing is forced.
pub(crate) fn put(device: &dyn BlockDevice, piece: Piece) -> Io<()> {
    match piece.content {
        Content::Data(data) => device.write(piece.offset, data, WriteFlags::NONE),
        Content::Zero(len) => device.zero(piece.offset, len, ZeroFlags::new(false, true)),
    }
}
