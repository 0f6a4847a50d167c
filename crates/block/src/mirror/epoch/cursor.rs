//! Where a leg stands in the log.

use std::ops::Range;
use std::time::Duration;

/// Where a leg stands in the log.
#[derive(Clone, Debug)]
pub(super) struct Cursor {
    /// The stamp that is known to be durable at the leg.
    pub(super) stamp: u64,
    /// All epochs through this one are stable there, or hold nothing for it.
    pub(super) stable: u64,
    /// All epochs through this one were given out.
    pub(super) sent: u64,
    /// Memory of the epochs behind `stable`.
    pub(super) held_bytes: u64,
}

impl Cursor {
    /// Of a leg that has `stamp` and gets what comes after the epoch `base`.
    pub(super) fn new(stamp: u64, base: u64) -> Self {
        Self { stamp, stable: base, sent: base, held_bytes: 0 }
    }
}

/// How far a leg is behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Memory of the writes that are not known to be stable there.
    pub bytes: u64,
    /// Age of the oldest of these writes.
    pub age: Duration,
    /// Epochs with such writes.
    pub epochs: u64,
}

/// What comes of connecting a leg anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resume {
    /// It goes on after its stamp. These blocks are now known to be the same there as here.
    From(Vec<Range<u64>>),
    /// The leg has an older stamp than was known to be durable: it was put back to an earlier
    /// state, or does not keep what it says it does. Only a copy helps.
    Older {
        /// The stamp that was read.
        found: u64,
        /// The stamp that was durable.
        known: u64,
    },
    /// The leg has a stamp of an epoch that was never sent: somebody else has written to it.
    Ahead {
        /// The stamp that was read.
        found: u64,
        /// The last epoch that was sent.
        sent: u64,
    },
    /// The leg gets nothing of the log.
    NotFollowing,
}
