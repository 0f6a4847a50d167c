//! Features stacked on any device. One file, one feature, its test beside it.

pub mod cache;
pub mod delay;
pub mod failures;
pub mod fault;
pub mod log;
pub mod read_only;
pub mod stats;
pub mod thick;
pub mod write_through;

pub use cache::{CacheConfig, CacheLayer, CacheMode, CacheStats};
pub use delay::{Delay, DelayLayer, Delays, Queueing};
pub use failures::{Failures, FailuresLayer};
pub use fault::{Fault, FaultLayer};
pub use log::{Choice, Cut, Log, LogLayer};
pub use read_only::{ReadOnlyLayer, Reads};
pub use stats::{OpStats, Stats, StatsLayer};
pub use thick::ThickLayer;
pub use write_through::WriteThroughLayer;

/// The operations of a [`BlockDevice`](crate::BlockDevice).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpKind {
    /// `read`.
    Read,
    /// `write`.
    Write,
    /// `flush`.
    Flush,
    /// `trim`.
    Trim,
    /// `zero`.
    Zero,
    /// `extents`.
    Extents,
}

impl OpKind {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 6] =
        [Self::Read, Self::Write, Self::Flush, Self::Trim, Self::Zero, Self::Extents];

    /// Lower-case name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Trim => "trim",
            Self::Zero => "zero",
            Self::Extents => "extents",
        }
    }
}

/// Deterministic pseudo-random numbers (SplitMix64): the same seed gives the same run.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A number below `limit`, which is not 0. The bias is below 2⁻³² for limits below 2³².
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}
