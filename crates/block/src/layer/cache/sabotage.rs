//! Deliberate mistakes of the cache, to see that its model sees them. Outside the tests there are
//! none: every question is answered with no, at no cost.

/// What is done wrong, on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sabotage {
    /// A flush does not flush the device.
    FlushSkipsDevice,
    /// A flush does not wait for what is being written.
    FlushIgnoresFlights,
    /// A flush does not wait for what has not been sent.
    FlushIgnoresPending,
    /// The data of a write that failed are dropped.
    ForgetFailedData,
    /// A failed write that a second attempt cured is not reported.
    ForgetError,
    /// What failed is put back over what is newer.
    OldOverNew,
    /// A read does not see what waits to be written.
    ReadPastPending,
    /// A write leaves in memory what was read ahead of its range.
    KeepStaleChunks,
    /// What is read ahead lacks the pending writes.
    LoadWithoutPending,
    /// A forced write, a zeroing or a trim leaves in memory what was read ahead.
    KeepChunksPastExclusive,
    /// Later writes overtake a forced write, a zeroing or a trim of their range.
    NoHold,
    /// A forced write, a zeroing or a trim overtakes the pending writes of its range.
    OvertakePending,
    /// Nor does it wait for those that are under way.
    OvertakeFlights,
    /// Writes that had failed come back over the zeroing or the trim after them.
    KeepReplaced,
    /// A forced write is treated as any other.
    FuaIsBehind,
    /// Two writes of one chunk are under way together.
    TwoFlights,
    /// The end of an older write is lost where a newer one covers its middle.
    LoseTail,
    /// Memory of what was written is not given back.
    KeepRoom,
    /// Writes do not wait for memory.
    NoRoomNeeded,
}

#[cfg(test)]
impl Sabotage {
    /// All kinds.
    pub(super) const ALL: [Self; 19] = [
        Self::FlushSkipsDevice,
        Self::FlushIgnoresFlights,
        Self::FlushIgnoresPending,
        Self::ForgetFailedData,
        Self::ForgetError,
        Self::OldOverNew,
        Self::ReadPastPending,
        Self::KeepStaleChunks,
        Self::LoadWithoutPending,
        Self::KeepChunksPastExclusive,
        Self::NoHold,
        Self::OvertakePending,
        Self::OvertakeFlights,
        Self::KeepReplaced,
        Self::FuaIsBehind,
        Self::TwoFlights,
        Self::LoseTail,
        Self::KeepRoom,
        Self::NoRoomNeeded,
    ];
}

/// The mistake that a cache makes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mistakes {
    #[cfg(test)]
    pub(super) made: Option<Sabotage>,
}

impl Mistakes {
    /// This one is made.
    pub(super) fn has(self, which: Sabotage) -> bool {
        #[cfg(test)]
        return self.made == Some(which);
        #[cfg(not(test))]
        {
            let _ = which;
            false
        }
    }
}
