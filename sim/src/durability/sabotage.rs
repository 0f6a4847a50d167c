//! Mistakes in the rules of durability, made on purpose outside the product's code, to see that the
//! oracle sees them.

/// What is done wrong, on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Sabotage {
    /// The storage takes a write with FUA as any other.
    FuaIgnored,
    /// A flush does nothing.
    FlushDoesNothing,
    /// A flush leaves one sector out.
    FlushMissesOne,
    /// A flush that failed says that it did not.
    FlushHidesFailure,
    /// A write-back that failed is told to nobody.
    WriteBackFailsInSilence,
    /// The target answers a flush before it is done.
    FlushAnsweredEarly,
    /// The target answers a write before it is done.
    WriteAnsweredEarly,
    /// The target tells a port of a lost nexus that was never told of the power-on.
    PowerOnTakenBack,
    /// The target says that it has no volatile cache, and has one.
    CacheDenied,
    /// The target executes a write of a lost session after it has let in the next one.
    WriteOutlivesItsSession,
    /// The initiator writes nothing again after a loss.
    NoReplay,
    /// The initiator replays only if this very incarnation was told of a power-on.
    ReplayOnlyIfTold,
    /// The initiator forgets what it has written again without flushing it.
    ReplayNotFlushed,
    /// The initiator drops what it kept when the unit says that it has no volatile cache.
    LogDroppedWithoutCache,
    /// The initiator forgets that a FUA write that failed may have taken the storage's one report
    /// of a failed write-back.
    FailedFuaForgotten,
    /// The initiator takes a write that was under way when a failure was told for a later one.
    DoubtForgotten,
    /// The initiator takes GOOD of a flush or FUA write at its word while others are under way.
    GoodNotHeld,
    /// The initiator tells nobody that a flush of its own has failed.
    OwnFailureSwallowed,
    /// The initiator takes a flush to cover what was acknowledged while it was under way.
    MarkTakenLate,
    /// The initiator lets the application's commands go before it has written everything again.
    ReplayBehindUsers,
    /// A write with FUA leaves what it replaces in the initiator's log.
    FuaLeavesOlder,
    /// A replay that is interrupted counts as done.
    ReplayCutShort,
    /// A flush whose connection is lost counts as done.
    LostFlushIsGood,
    /// A write whose connection is lost counts as done.
    LostWriteIsGood,
}

impl Sabotage {
    /// All kinds.
    pub const ALL: [Self; 24] = [
        Self::FuaIgnored,
        Self::FlushDoesNothing,
        Self::FlushMissesOne,
        Self::FlushHidesFailure,
        Self::WriteBackFailsInSilence,
        Self::FlushAnsweredEarly,
        Self::WriteAnsweredEarly,
        Self::PowerOnTakenBack,
        Self::CacheDenied,
        Self::WriteOutlivesItsSession,
        Self::NoReplay,
        Self::ReplayOnlyIfTold,
        Self::ReplayNotFlushed,
        Self::LogDroppedWithoutCache,
        Self::FailedFuaForgotten,
        Self::DoubtForgotten,
        Self::GoodNotHeld,
        Self::OwnFailureSwallowed,
        Self::MarkTakenLate,
        Self::ReplayBehindUsers,
        Self::FuaLeavesOlder,
        Self::ReplayCutShort,
        Self::LostFlushIsGood,
        Self::LostWriteIsGood,
    ];
}
