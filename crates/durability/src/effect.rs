//! What success of a command means for what is kept. It decides nothing.

use super::Content;

/// What success of a command means for what is acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    None,
    /// This content is at this offset now, in a volatile cache if the unit has one.
    Volatile(u64, Content),
    /// This range (offset, length) is undefined now: nothing of it is to be written again.
    Undefined(u64, u64),
    /// A write with FUA: this range (offset, length) is stable.
    Stable(u64, u64),
    /// A flush: everything acknowledged before it was sent is stable.
    Flushed,
}

impl Effect {
    /// The range that the command changes: offset and length in bytes.
    pub fn range(&self) -> Option<(u64, u64)> {
        match self {
            Self::None | Self::Flushed => None,
            Self::Volatile(offset, content) => Some((*offset, content.len())),
            Self::Undefined(offset, len) | Self::Stable(offset, len) => Some((*offset, *len)),
        }
    }

    /// It may be told of a failure that is not its own.
    pub(super) const fn is_teller(&self) -> bool {
        matches!(self, Self::Stable(..) | Self::Flushed)
    }
}
