//! A failure that is told later than it happened, and perhaps to several callers: what the core
//! (`iscsi_proto::initiator::durability`) keeps until a flush asks.

use std::io;

use block::BlockError;

/// What went wrong, so that it can be told more than once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    cause: Cause,
    text: String,
}

/// As which error it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    NoSpace,
    Fenced,
    Medium(io::ErrorKind),
}

impl Failure {
    /// `what` failed with `error`.
    pub(super) fn new(what: &str, error: &BlockError) -> Self {
        let cause = match error {
            BlockError::NoSpace => Cause::NoSpace,
            BlockError::Fenced => Cause::Fenced,
            BlockError::Medium(error) => Cause::Medium(error.kind()),
            _ => Cause::Medium(io::ErrorKind::Other),
        };
        Self { cause, text: format!("{what}: {error}") }
    }

    /// So many bytes were lost with the target's cache, and must not be written again.
    pub(super) fn lost(bytes: u64) -> Self {
        let text = format!(
            "the target was powered on and has lost about {bytes} bytes that were not flushed; \
             others write to this volume, so they were not written again"
        );
        Self { cause: Cause::Medium(io::ErrorKind::Other), text }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<Failure> for BlockError {
    fn from(failure: Failure) -> Self {
        match failure.cause {
            Cause::NoSpace => Self::NoSpace,
            Cause::Fenced => Self::Fenced,
            Cause::Medium(kind) => Self::Medium(io::Error::new(kind, failure.text)),
        }
    }
}
