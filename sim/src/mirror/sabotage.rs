//! Mistakes made on purpose, to see that the oracle sees them.

use std::ops::Range;

use block::mirror::Mode;
use block::mirror::layout::LocalLayout;

use super::content::SECTOR_BYTES;
use super::line::Wrong;
use super::scenario::DATA_BYTES;

/// How often something was done wrong, among the counts of a run.
pub(crate) const MADE: &str = "mistakes made";

/// What a disk does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lie {
    /// A flush is answered and does nothing.
    IgnoresFlush,
    /// A flush leaves out what was written last.
    FlushMissesOne,
    /// A write with FUA is one without.
    IgnoresFua,
    /// Nothing is stable before its time: neither flush nor FUA does anything.
    NeverStable,
    /// One write in twenty is answered and not carried out.
    LosesWrites,
    /// One write in three of those that begin at these sectors is answered and not carried out.
    LosesSome { first: u64, end: u64 },
    /// A power cut takes it back to what it was when this began.
    GoesBack,
    /// A read does not see what is not stable.
    ReadsStale,
    /// A read of what is before this sector does not see what is not stable.
    ReadsSomeStale { end: u64 },
    /// A write that failed is answered as if it had not.
    HidesErrors,
    /// Commands of a lost session go on after `connect` has returned.
    DoesNotQuiesce,
    /// A power cut ends no session.
    HidesPowerCut,
    /// A flush is answered before it is done.
    AnswersFlushEarly,
    /// A write is answered before it is done.
    AnswersWritesEarly,
    /// A barrier is a flush and no more.
    BarrierIsSimple,
    /// A barrier orders, and makes nothing stable.
    BarrierOnlyOrders,
    /// A barrier does not wait for the writes before it.
    BarrierOvertakesWrites,
    /// A barrier does not wait for the stamp before it.
    BarrierOvertakesStamps,
    /// A stamp does not wait for the barrier before it.
    StampOvertakes,
    /// What is behind something that fails is carried out.
    GoesOnBehindFailure,
}

/// What is done wrong, on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Sabotage {
    /// A leg's flush does nothing.
    LegIgnoresFlush,
    /// A leg's flush leaves out the newest write.
    LegFlushMissesOne,
    /// A leg ignores FUA.
    LegIgnoresFua,
    /// A leg loses writes.
    LegLosesWrites,
    /// A leg does not tell of errors.
    LegHidesErrors,
    /// A leg carries out commands of a session that is gone.
    LegDoesNotQuiesce,
    /// A leg does not tell that its power was gone.
    LegHidesPowerCut,
    /// A leg answers a flush before it is done.
    LegAnswersFlushEarly,
    /// A leg answers a write before it is done.
    LegAnswersWritesEarly,
    /// A leg takes a barrier for a flush.
    BarrierIsSimple,
    /// A leg's barrier makes nothing stable.
    BarrierOnlyOrders,
    /// A leg's barrier goes ahead of writes, as where their data come later.
    BarrierOvertakesWrites,
    /// A leg's barrier goes ahead of the stamp, so that two steps may be behind it.
    BarrierOvertakesStamps,
    /// A stamp is there before what it tells of.
    StampOvertakes,
    /// A leg goes on behind a write that has failed.
    GoesOnBehindFailure,
    /// The local disk's flush does nothing.
    LocalIgnoresFlush,
    /// The local disk's flush leaves out the newest write.
    LocalFlushMissesOne,
    /// The local disk ignores FUA.
    LocalIgnoresFua,
    /// The local disk loses writes.
    LocalLosesWrites,
    /// The metadata's disk makes nothing stable.
    MetadataNeverStable,
    /// The metadata's disk loses writes.
    MetadataLosesWrites,
    /// The metadata's disk loses some records of the activity log.
    MetadataLosesRecords,
    /// The metadata's disk loses some pages of bitmaps.
    MetadataLosesBits,
    /// The metadata's disk loses some superblocks.
    MetadataLosesSuperblocks,
    /// The metadata's disk goes back to an old content when the power fails.
    MetadataGoesBack,
    /// A leg loses some superblocks.
    LegLosesSuperblocks,
    /// The local disk reads old content.
    LocalReadsStale,
    /// A verification reads at a leg what was there before the last flush, and takes for a
    /// difference what is merely under way.
    VerifiedTooEarly,
    /// The guest's flush does not reach the mirror.
    FlushNotPassedOn,
    /// The guest's FUA does not reach the mirror.
    FuaNotPassedOn,
    /// The guest's flush makes its own disk stable, and the asynchronous mirror hears nothing of
    /// it.
    FlushToDiskOnly,
    /// The guest's flush is told complete before the asynchronous mirror hears of it.
    FlushPassedOnLate,
    /// The guest's FUA makes its own disk stable, and the asynchronous mirror hears nothing of it.
    ForcedToDiskOnly,
    /// What passes between the engine and its legs is changed.
    OnTheWay(Wrong),
    /// A leg that is caught up calls itself a legal image before the end of the epoch is there.
    CalledLegalEarly,
    /// The mirror does not keep to the lag that was promised.
    LagUnbounded,
    /// A leg lets a host write whose reservation was taken from it.
    FenceNotKept,
    /// A leg is taken over from a mirror that lives, and nothing keeps that from writing.
    SignsOfLifeIgnored,
    /// Whoever takes a leg over does not look again whether it is his.
    PromotionNotReadAgain,
    /// What is said to differ at a disk that is given back is lost.
    HandOverBitsLost,
    /// The copy to a disk that was given back leaves something out.
    FailBackLeavesOut,
    /// The old host works on with a disk that it has given back.
    OldSiteWorksOn,
}

impl Sabotage {
    /// All kinds.
    pub fn all() -> impl Iterator<Item = Self> {
        let of_legs = Self::OF_DEVICES.into_iter().chain(Self::OF_STREAM);
        let of_modes = of_legs.chain(Self::OF_ASYNC).chain(Self::OF_REDO);
        of_modes.chain(Self::OF_TAKEOVER).chain([Self::VerifiedTooEarly])
    }

    /// The mode that it is a mistake of, if it is one of one mode.
    pub(crate) fn mode(self) -> Option<Mode> {
        (Self::OF_ASYNC.contains(&self) || self.is_of_stream()).then_some(Mode::Async)
    }

    /// It can be seen at legs with barriers alone.
    pub(crate) fn is_of_stream(self) -> bool {
        Self::OF_STREAM.contains(&self)
    }

    /// It is one of taking over and giving back.
    pub(crate) fn takes_over(self) -> bool {
        Self::OF_TAKEOVER.contains(&self)
    }

    const OF_TAKEOVER: [Self; 6] = [
        Self::FenceNotKept,
        Self::SignsOfLifeIgnored,
        Self::PromotionNotReadAgain,
        Self::HandOverBitsLost,
        Self::FailBackLeavesOut,
        Self::OldSiteWorksOn,
    ];

    const OF_ASYNC: [Self; 13] = [
        Self::FlushToDiskOnly,
        Self::FlushPassedOnLate,
        Self::ForcedToDiskOnly,
        Self::OnTheWay(Wrong::StepNotFlushed),
        Self::OnTheWay(Wrong::StepFlushNotAwaited),
        Self::OnTheWay(Wrong::StepFlushedEarly),
        Self::OnTheWay(Wrong::StampedWithStep),
        Self::OnTheWay(Wrong::StampReadAhead),
        Self::OnTheWay(Wrong::StepLeftOut),
        Self::OnTheWay(Wrong::OldStepAgain),
        Self::OnTheWay(Wrong::CopyLeftOut),
        Self::CalledLegalEarly,
        Self::LagUnbounded,
    ];

    const OF_REDO: [Self; 9] = [
        Self::OnTheWay(Wrong::RecordLeftOut),
        Self::OnTheWay(Wrong::RecordsNotFlushed),
        Self::OnTheWay(Wrong::CommitNotAwaited),
        Self::OnTheWay(Wrong::HomeLeftOut),
        Self::OnTheWay(Wrong::HomeNotAwaited),
        Self::OnTheWay(Wrong::HomeNotFlushed),
        Self::OnTheWay(Wrong::ReleaseNotAwaited),
        Self::OnTheWay(Wrong::ReleaseLeftOut),
        Self::OnTheWay(Wrong::OldBatchAgain),
    ];

    const OF_STREAM: [Self; 6] = [
        Self::BarrierIsSimple,
        Self::BarrierOnlyOrders,
        Self::BarrierOvertakesWrites,
        Self::BarrierOvertakesStamps,
        Self::StampOvertakes,
        Self::GoesOnBehindFailure,
    ];

    const OF_DEVICES: [Self; 23] = [
        Self::LegIgnoresFlush,
        Self::LegFlushMissesOne,
        Self::LegIgnoresFua,
        Self::LegLosesWrites,
        Self::LegHidesErrors,
        Self::LegDoesNotQuiesce,
        Self::LegHidesPowerCut,
        Self::LegAnswersFlushEarly,
        Self::LegAnswersWritesEarly,
        Self::LocalIgnoresFlush,
        Self::LocalFlushMissesOne,
        Self::LocalIgnoresFua,
        Self::LocalLosesWrites,
        Self::MetadataNeverStable,
        Self::MetadataLosesWrites,
        Self::MetadataLosesRecords,
        Self::MetadataLosesBits,
        Self::MetadataLosesSuperblocks,
        Self::MetadataGoesBack,
        Self::LegLosesSuperblocks,
        Self::LocalReadsStale,
        Self::FlushNotPassedOn,
        Self::FuaNotPassedOn,
    ];

    /// Of the legs, whose data end and whose metadata begin at a sector.
    pub(crate) fn of_legs(self, tail: u64) -> Option<Lie> {
        Some(match self {
            Self::LegIgnoresFlush => Lie::IgnoresFlush,
            Self::LegFlushMissesOne => Lie::FlushMissesOne,
            Self::LegIgnoresFua => Lie::IgnoresFua,
            Self::LegLosesWrites => Lie::LosesWrites,
            Self::LegHidesErrors => Lie::HidesErrors,
            Self::LegDoesNotQuiesce => Lie::DoesNotQuiesce,
            Self::LegHidesPowerCut => Lie::HidesPowerCut,
            Self::LegAnswersFlushEarly => Lie::AnswersFlushEarly,
            Self::LegAnswersWritesEarly => Lie::AnswersWritesEarly,
            Self::BarrierIsSimple => Lie::BarrierIsSimple,
            Self::BarrierOnlyOrders => Lie::BarrierOnlyOrders,
            Self::BarrierOvertakesWrites => Lie::BarrierOvertakesWrites,
            Self::BarrierOvertakesStamps => Lie::BarrierOvertakesStamps,
            Self::StampOvertakes => Lie::StampOvertakes,
            Self::GoesOnBehindFailure => Lie::GoesOnBehindFailure,
            Self::VerifiedTooEarly => Lie::ReadsSomeStale { end: DATA_BYTES / SECTOR_BYTES },
            Self::LegLosesSuperblocks => Lie::LosesSome { first: tail, end: tail + 16 },
            _ => return None,
        })
    }

    /// Of what passes between the engine and its legs.
    pub(crate) fn of_line(self) -> Option<Wrong> {
        let Self::OnTheWay(wrong) = self else { return None };
        Some(wrong)
    }

    pub(crate) fn of_local(self) -> Option<Lie> {
        Some(match self {
            Self::LocalIgnoresFlush => Lie::IgnoresFlush,
            Self::LocalFlushMissesOne => Lie::FlushMissesOne,
            Self::LocalIgnoresFua => Lie::IgnoresFua,
            Self::LocalLosesWrites => Lie::LosesWrites,
            Self::LocalReadsStale => Lie::ReadsStale,
            _ => return None,
        })
    }

    pub(crate) fn of_metadata(self) -> Option<Lie> {
        let ring = LocalLayout::ring();
        let loses = |bytes: Range<u64>| Lie::LosesSome {
            first: bytes.start / SECTOR_BYTES,
            end: bytes.end / SECTOR_BYTES,
        };
        Some(match self {
            Self::MetadataNeverStable => Lie::NeverStable,
            Self::MetadataLosesWrites => Lie::LosesWrites,
            Self::MetadataGoesBack => Lie::GoesBack,
            Self::MetadataLosesSuperblocks => loses(0..ring.start),
            Self::MetadataLosesRecords => loses(ring),
            Self::MetadataLosesBits => loses(ring.end..u64::MAX),
            _ => return None,
        })
    }
}
