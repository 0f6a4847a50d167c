//! Copies a device again and again, and sends only what has changed since the last time: the state
//! file holds a hash of each block that the destination is known to hold (`enkaku copy
//! --changed-since`, docs/copy.md).
//!
//! [`update`] makes the destination equal to the source, [`verify`] reads the destination and
//! compares it with the hashes, [`learn`] reads it where nothing is known. All of them may be
//! killed at any moment: what is in the file is true then (`books`), and what is not there is sent
//! the next time. It does not make the source stand still: what is written to the source meanwhile
//! may be in the copy or not, block by block. Whoever needs an image of one moment copies a
//! snapshot.

mod books;
pub mod format;
pub mod hash;
mod pass;
mod scan;
mod state;
#[cfg(test)]
mod tests;

use std::ops::RangeInclusive;

pub use format::{Fault, Pair, Phase, file_bytes};
pub use hash::Salt;
pub use pass::{learn, learn_holes, update, verify};
pub use state::{NewState, State, StateError};

use crate::copy::CopyError;

/// Bytes that a block with a hash may have. Small ones find small changes, and need 16 bytes each:
/// 4 GiB for a TiB in blocks of 4 KiB, 256 MiB in blocks of 64 KiB.
pub const BLOCK_SIZES: RangeInclusive<u32> = 4096..=65536;

/// Bytes of the largest source.
pub const LENGTH_MAX: u64 = 1 << 50;

/// Offsets of blocks that differ, at most: a few for people to look at.
const OFFSETS_MAX: usize = 16;

/// How to do it.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Bytes per transfer: a multiple of the blocks.
    pub transfer_size: u32,
    /// Transfers under way at once.
    pub depth: usize,
    /// Bytes that are written between two flushes of the destination: beside what is under way, as
    /// much is sent again after a kill.
    pub checkpoint_bytes: u64,
}

impl Default for Options {
    /// As [`CopyOptions`](crate::copy::CopyOptions): a path of 1 Gbit/s and 130 ms stays full, also
    /// over a checkpoint, which waits for a round trip while more is written.
    fn default() -> Self {
        Self { transfer_size: 256 << 10, depth: 64, checkpoint_bytes: 16 << 20 }
    }
}

/// Which blocks of the source are looked at. What is known from elsewhere to be unchanged, as from
/// a bitmap of what was written since the last run, would be left out here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Among {
    /// All of them.
    All,
    /// Those of which the state file says nothing.
    Unknown,
}

/// What an [`update`] did, in bytes of the source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Updated {
    /// Read.
    pub read_bytes: u64,
    /// Known to be there already, holes among them.
    pub same_bytes: u64,
    /// Sent as data.
    pub sent_bytes: u64,
    /// Made zero by a command.
    pub zero_bytes: u64,
    /// Pages of the state file that were damaged: all of their blocks were sent.
    pub damaged_pages: u64,
}

/// What [`verify`] or [`learn`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Bytes of the destination that were looked at, holes among them.
    pub bytes: u64,
    /// Blocks that do not hold what they are known to. Nothing is known of them any more.
    pub mismatches: u64,
    /// Where the first of them are, in bytes.
    pub offsets: Vec<u64>,
}

/// Why it failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IncrementalError {
    /// Reading or writing either side.
    #[error(transparent)]
    Copy(#[from] CopyError),
    /// The state file.
    #[error(transparent)]
    State(#[from] StateError),
}
