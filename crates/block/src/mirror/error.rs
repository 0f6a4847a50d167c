//! Why a mirror cannot do what was asked: what was found, what was expected, and which command
//! decides.

use super::store::StoreError;
use crate::BlockError;

/// Why something asked of a mirror was not done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MirrorError {
    /// A device failed.
    #[error("{what}: {source}")]
    Device {
        /// What was being done, with the name of the device.
        what: String,
        /// What it said.
        source: BlockError,
    },
    /// What the metadata says cannot be used: damaged, foreign, or of a newer version.
    #[error("{what}: {found}")]
    Metadata {
        /// Whose metadata.
        what: String,
        /// What was found there, and what was expected.
        found: String,
    },
    /// There is a mirror already, which would be lost.
    #[error(
        "{place} already holds {found}; `--force` overwrites it, `enkaku mirror inspect` shows it"
    )]
    Exists {
        /// The device.
        place: String,
        /// What is there.
        found: String,
    },
    /// The legs given are not those that the mirror was created with.
    #[error("{found} legs were given, the mirror has {expected}: {hint}")]
    Legs {
        /// So many were given.
        found: usize,
        /// So many belong to the mirror.
        expected: usize,
        /// What to do.
        hint: &'static str,
    },
    /// There is no leg of this number.
    #[error("there is no leg {leg}; the mirror has {legs}, counted from 0")]
    NoSuchLeg {
        /// The number asked for.
        leg: usize,
        /// Legs of the mirror.
        legs: usize,
    },
    /// A leg is not in a state in which this can be done.
    #[error("{name} is {state}; {hint}")]
    State {
        /// The leg.
        name: String,
        /// Its state.
        state: String,
        /// What can be done.
        hint: &'static str,
    },
    /// The local device cannot be given back.
    #[error("the local disk cannot be given back: {found}")]
    NotToBeGivenBack {
        /// Why not, and what can be done.
        found: String,
    },
    /// Another host has reserved a leg.
    #[error(
        "{name} is reserved by another host, which may be writing to it; `--force` takes it over"
    )]
    Reserved {
        /// The leg.
        name: String,
    },
    /// The image is no legal one, or may not be the newest.
    #[error("{found}; `--force` uses it nevertheless")]
    NotPromotable {
        /// What was found.
        found: String,
    },
    /// Somebody else has written to a leg that was being promoted, and that nothing keeps others
    /// away from.
    #[error(
        "the leg is not promoted: {who} wrote its superblock while it was taken over, and it has no \
         reservation that would keep others from writing; end that mirror or cut it off, then \
         promote again"
    )]
    WrittenMeanwhile {
        /// As far as the superblock tells.
        who: String,
    },
    /// The mirror was closed.
    #[error("the mirror is closed")]
    Closed,
    /// This version cannot do it.
    #[error("{0} is not possible yet")]
    Unsupported(&'static str),
}

impl MirrorError {
    /// What was found at `what` cannot be used.
    pub fn metadata(what: impl Into<String>, found: &dyn std::fmt::Display) -> Self {
        Self::Metadata { what: what.into(), found: found.to_string() }
    }

    /// The metadata at `what` cannot be used.
    pub fn store(what: impl Into<String>, error: StoreError) -> Self {
        match error {
            StoreError::Device(source) => Self::device(what, source),
            other => Self::metadata(what, &other),
        }
    }

    /// `source` happened while `what` was done.
    pub fn device(what: impl Into<String>, source: BlockError) -> Self {
        Self::Device { what: what.into(), source }
    }
}
