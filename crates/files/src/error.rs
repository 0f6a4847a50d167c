//! [`Error`]: why a file cannot be had, with what and where.

use std::fmt::Display;

use block::BlockError;

use crate::{FileSystem, Found, Name};

/// Result of whatever reads a disk.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a file, a folder or a file system cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device below failed.
    #[error("reading {what} at byte {offset}: {source}")]
    Device {
        /// What was to be read.
        what: &'static str,
        /// Where on the device, in bytes.
        offset: u64,
        /// What the device said.
        source: BlockError,
    },
    /// What is on the disk contradicts itself.
    #[error("{place}: {problem}")]
    Damaged {
        /// Structure and place.
        place: String,
        /// What is wrong with it.
        problem: String,
    },
    /// It is in order, but needs something that is not there.
    #[error("{place}: {what} cannot be read")]
    Unsupported {
        /// Structure and place.
        place: String,
        /// What it needs.
        what: String,
    },
    /// More than one of the [limits](crate::limits).
    #[error("{place}: more than {max} {what}")]
    TooMuch {
        /// Structure and place.
        place: String,
        /// What there is too much of.
        what: &'static str,
        /// How much would be taken.
        max: u64,
    },
    /// Something else is there, or nothing.
    #[error("{found} cannot be read; {} can", FileSystem::NAMES)]
    NoFileSystem {
        /// What is there.
        found: Found,
    },
    /// There is no such file or folder.
    #[error("{path}: no such file or folder")]
    NotFound {
        /// Up to and with the name that is missing.
        path: Name,
    },
    /// A folder was expected.
    #[error("{path} is not a folder")]
    NotAFolder {
        /// What is none.
        path: Name,
    },
    /// A file was expected.
    #[error("{path} is {kind}, not a file")]
    NotAFile {
        /// What is none.
        path: Name,
        /// What it is.
        kind: &'static str,
    },
    /// A symbolic link stands in the path.
    #[error("{path} is a symbolic link to {target}; links are not followed")]
    Link {
        /// The link.
        path: Name,
        /// Where it points to.
        target: Name,
    },
    /// Not a path.
    #[error("path {path}: {problem}")]
    Path {
        /// What was given.
        path: Name,
        /// What is wrong with it, and what is allowed.
        problem: String,
    },
    /// A part of a file that it does not have.
    #[error("bytes {offset}+{len} are outside the file of {size} bytes")]
    OutOfRange {
        /// First byte.
        offset: u64,
        /// Bytes asked for.
        len: u64,
        /// Bytes of the file.
        size: u64,
    },
}

impl Error {
    pub(crate) fn damaged(place: impl Display, problem: impl Display) -> Self {
        Self::Damaged { place: place.to_string(), problem: problem.to_string() }
    }

    pub(crate) fn unsupported(place: impl Display, what: impl Display) -> Self {
        Self::Unsupported { place: place.to_string(), what: what.to_string() }
    }

    pub(crate) fn too_much(place: impl Display, what: &'static str, max: u64) -> Self {
        Self::TooMuch { place: place.to_string(), what, max }
    }
}
