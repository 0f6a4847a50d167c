//! What the metadata say of the verifications of a leg.

use zerocopy::byteorder::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::WallMs;

/// The last verification of a leg, and how far the present one is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// When the last one had ended; before the first, when one began to be waited for.
    pub at: WallMs,
    /// Bytes that it compared; 0: none has ended yet.
    pub bytes: u64,
    /// Blocks that it found to differ.
    pub mismatches: u64,
    /// The present one goes on with this block; 0: there is none.
    pub next_block: u64,
    /// What the present one has compared, and found.
    pub so_far: (u64, u64),
}

/// [`Verified`].
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawVerified {
    at_ms: U64,
    bytes: U64,
    mismatches: U64,
    next_block: U64,
    part_bytes: U64,
    part_mismatches: U64,
}

impl RawVerified {
    pub(super) fn from_parsed(parsed: &Verified) -> Self {
        Self {
            at_ms: parsed.at.0.into(),
            bytes: parsed.bytes.into(),
            mismatches: parsed.mismatches.into(),
            next_block: parsed.next_block.into(),
            part_bytes: parsed.so_far.0.into(),
            part_mismatches: parsed.so_far.1.into(),
        }
    }

    /// For people and as a place to go on at: whatever stands there is possible.
    pub(super) fn parse(&self) -> Verified {
        Verified {
            at: WallMs(self.at_ms.get()),
            bytes: self.bytes.get(),
            mismatches: self.mismatches.get(),
            next_block: self.next_block.get(),
            so_far: (self.part_bytes.get(), self.part_mismatches.get()),
        }
    }
}

/// For the page that describes the format.
#[cfg(test)]
pub(super) fn places() -> Vec<crate::mirror::format_doc::Place> {
    use crate::mirror::format_doc::places;
    places!(RawVerified, 0, at_ms, bytes, mismatches, next_block, part_bytes, part_mismatches)
}
