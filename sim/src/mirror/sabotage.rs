//! Mistakes made on purpose, to see that the oracle sees them.

use std::ops::Range;

use block::mirror::host::Mistake;
use block::mirror::layout::LocalLayout;

use super::content::SECTOR_BYTES;

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
    /// The guest's flush does not reach the mirror.
    FlushNotPassedOn,
    /// The guest's FUA does not reach the mirror.
    FuaNotPassedOn,
    /// The engine does this wrong in its asynchronous mode.
    Engine(Mistake),
}

/// Mistakes of the engine's asynchronous mode.
const MISTAKES: [Mistake; 13] = [
    Mistake::FlushEndsNothing,
    Mistake::EndAfterTold,
    Mistake::ForcedEndsNothing,
    Mistake::NoFlushBetween,
    Mistake::NoWaitForFlush,
    Mistake::FlushBeforeAnswers,
    Mistake::StampWithStep,
    Mistake::StampNotRead,
    Mistake::StepLeftOut,
    Mistake::OldStepAgain,
    Mistake::NoBound,
    Mistake::NoBoundary,
    Mistake::LostNotOwed,
];

impl Sabotage {
    /// All kinds.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::OF_DEVICES.into_iter().chain(MISTAKES.map(Self::Engine))
    }

    /// It can be seen in the asynchronous mode alone.
    pub(crate) fn mistake(self) -> Option<Mistake> {
        if let Self::Engine(mistake) = self { Some(mistake) } else { None }
    }

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
            Self::LegLosesSuperblocks => Lie::LosesSome { first: tail, end: tail + 16 },
            _ => return None,
        })
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
