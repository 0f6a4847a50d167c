//! Failures as exceptions of Python: `OSError` with an errno, which makes it `TimeoutError`,
//! `PermissionError` and the like by itself, and `ValueError` for what was asked wrongly. Every one
//! says which volume, what was to be done, and why not.

use std::fmt::Display;

use backends::OpenError;
use block::BlockError;
use iscsi::initiator::ConnectError;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;

/// errno(3) of Linux.
mod errno {
    pub(super) const EIO: i32 = 5;
    pub(super) const EACCES: i32 = 13;
    pub(super) const EBUSY: i32 = 16;
    pub(super) const ENOSPC: i32 = 28;
    pub(super) const EROFS: i32 = 30;
    pub(super) const EOPNOTSUPP: i32 = 95;
    pub(super) const ETIMEDOUT: i32 = 110;
    pub(super) const ECONNREFUSED: i32 = 111;
    pub(super) const EHOSTUNREACH: i32 = 113;
}

/// An argument that cannot be.
pub(crate) fn argument(what: impl Display) -> PyErr {
    PyValueError::new_err(what.to_string())
}

/// An operation on a volume failed.
pub(crate) fn operation(volume: &str, what: &str, error: &BlockError) -> PyErr {
    let message = format!("{volume}: {what}: {error}");
    let number = match error {
        BlockError::OutOfRange { .. } | BlockError::Misaligned { .. } => {
            return PyValueError::new_err(message);
        }
        BlockError::ReadOnly => errno::EROFS,
        BlockError::NoSpace => errno::ENOSPC,
        BlockError::Unsupported(_) => errno::EOPNOTSUPP,
        BlockError::Fenced => errno::EBUSY,
        BlockError::Unreachable(_) => errno::ETIMEDOUT,
        _ => errno::EIO,
    };
    PyOSError::new_err((number, message))
}

/// A volume could not be opened.
pub(crate) fn opening(volume: &str, error: &OpenError) -> PyErr {
    let number = match error {
        OpenError::Iscsi(ConnectError::Resolve { .. }) => errno::EHOSTUNREACH,
        OpenError::Iscsi(ConnectError::Connect { source, .. }) => {
            source.raw_os_error().unwrap_or(errno::ECONNREFUSED)
        }
        OpenError::Iscsi(ConnectError::Login { .. }) => errno::EACCES,
        OpenError::Iscsi(ConnectError::TimedOut { .. }) => errno::ETIMEDOUT,
        _ => errno::EIO,
    };
    PyOSError::new_err((number, format!("{volume}: {error}")))
}
