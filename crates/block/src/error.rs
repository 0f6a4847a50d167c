//! What can go wrong with a block device, by cause: the caller's request, the medium, or the way
//! there.

use std::io;

/// Result of a block operation.
pub type Result<T> = std::result::Result<T, BlockError>;

/// Why a block operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BlockError {
    /// The range lies outside the device.
    #[error("range {offset}+{len} is outside the device of {size} bytes")]
    OutOfRange {
        /// First byte asked for.
        offset: u64,
        /// Bytes asked for.
        len: u64,
        /// Capacity in bytes.
        size: u64,
    },
    /// Offset or length is not a multiple of the block size.
    #[error("range {offset}+{len} is not a multiple of the block size {block_size}")]
    Misaligned {
        /// First byte asked for.
        offset: u64,
        /// Bytes asked for.
        len: u64,
        /// Block size in bytes.
        block_size: u32,
    },
    /// A change was asked of a read-only device.
    #[error("the device is read-only")]
    ReadOnly,
    /// No storage left for this write (ENOSPC, EDQUOT).
    #[error("no space left on the device's storage")]
    NoSpace,
    /// The device cannot do this at all.
    #[error("{0} is not supported by this device")]
    Unsupported(&'static str),
    /// The medium failed; the range may be damaged.
    #[error("medium error: {0}")]
    Medium(#[source] io::Error),
    /// Somebody else has taken the device for themselves (SCSI: RESERVATION CONFLICT).
    #[error("the device is reserved by somebody else")]
    Fenced,
    /// The device is out of reach and did not come back within its time limit.
    #[error("device unreachable: {0}")]
    Unreachable(String),
}

impl From<io::Error> for BlockError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoSpace,
            io::ErrorKind::ReadOnlyFilesystem => Self::ReadOnly,
            _ => Self::Medium(error),
        }
    }
}
