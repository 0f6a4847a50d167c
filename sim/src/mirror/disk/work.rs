//! What is asked of a disk, and on which way it came.

use std::ops::Range;
use std::sync::Arc;

use super::super::content::Content;
use super::store::Act;

/// What is asked of a disk. Ranges are in sectors.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    Read(Range<u64>),
    Write {
        first: u64,
        contents: Arc<[Content]>,
        fua: bool,
    },
    Zero {
        range: Range<u64>,
        fua: bool,
    },
    Flush,
    /// A flush that is a barrier (SAM-5 §8.2, ORDERED).
    Barrier,
    Reserve(Act),
}

/// Where a session comes from: a host's path to the disk.
pub(crate) fn way_of(session: u64) -> u64 {
    session >> 32
}

/// The session of a way with this number.
pub(crate) fn session_of(way: u64, number: u64) -> u64 {
    way << 32 | number
}

impl Work {
    /// The first sector that it writes, if it does.
    pub(crate) fn writes_at(&self) -> Option<u64> {
        match self {
            Self::Zero { range, .. } => Some(range.start),
            Self::Write { first, .. } => Some(*first),
            Self::Read(_) | Self::Flush | Self::Barrier | Self::Reserve(_) => None,
        }
    }

    /// In a few words, for the story of a run.
    pub(crate) fn told(&self) -> String {
        match self {
            Self::Read(range) => format!("read {range:?}"),
            Self::Flush => "flush".into(),
            Self::Barrier => "barrier".into(),
            Self::Reserve(act) => format!("{act:?}"),
            Self::Zero { range, fua } => format!("zero {range:?} fua {fua}"),
            Self::Write { first, contents, fua } => {
                let end = first + contents.len() as u64;
                let first_content = contents.first().map(|content| match content {
                    Content::Raw(_) => "metadata".into(),
                    other => format!("{other:?}"),
                });
                format!("write {first}..{end} {first_content:?} fua {fua}")
            }
        }
    }
}

/// The one session came before the other on the same way.
pub(super) fn is_older(session: u64, than: u64) -> bool {
    way_of(session) == way_of(than) && session < than
}
