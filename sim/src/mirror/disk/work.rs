//! What is asked of a disk, and in whose session.

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

/// Who asks. A way is a host's path to the disk; a host that has taken a leg over as its own disk
/// stays on the way on which it was logged in to it before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Session {
    /// Over a link, which may be lost: what was asked for is carried out or not, even later.
    Login { way: u64, number: u64 },
    /// One start of the host whose own disk it is.
    Start { way: u64, number: u64 },
}

impl Session {
    pub(crate) fn way(self) -> u64 {
        match self {
            Self::Login { way, .. } | Self::Start { way, .. } => way,
        }
    }

    /// It is one over the link of this way.
    pub(super) fn is_login_on(self, over: u64) -> bool {
        matches!(self, Self::Login { way, .. } if way == over)
    }

    /// The one login came before the other on the same way.
    pub(super) fn is_older(self, than: Self) -> bool {
        match (self, than) {
            (Self::Login { way, number }, Self::Login { way: on, number: next }) => {
                way == on && number < next
            }
            _ => false,
        }
    }
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
