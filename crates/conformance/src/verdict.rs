//! How a check ends early, and the small words that checks are written with.

use std::fmt::Display;

/// Why a check went no further.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The target did not do what the section asks for.
    Failed(String),
    /// The target did not grant what the check needs.
    Skipped(String),
}

/// What a check comes to: what was seen, or why not.
pub(crate) type Verdict = Result<String, Stop>;

/// Fails with these words.
pub(crate) fn failed<T>(detail: impl Display) -> Result<T, Stop> {
    Err(Stop::Failed(detail.to_string()))
}

/// Skips with this reason.
pub(crate) fn skipped<T>(reason: impl Display) -> Result<T, Stop> {
    Err(Stop::Skipped(reason.to_string()))
}

/// Fails unless the condition holds.
pub(crate) fn ensure(holds: bool, detail: impl FnOnce() -> String) -> Result<(), Stop> {
    if holds { Ok(()) } else { Err(Stop::Failed(detail())) }
}

/// Skips unless the condition holds.
pub(crate) fn require(holds: bool, reason: impl FnOnce() -> String) -> Result<(), Stop> {
    if holds { Ok(()) } else { Err(Stop::Skipped(reason())) }
}

/// Says during what something failed.
pub(crate) fn during<T>(what: &str, result: Result<T, Stop>) -> Result<T, Stop> {
    result.map_err(|stop| match stop {
        Stop::Failed(detail) => Stop::Failed(format!("{what}: {detail}")),
        skipped @ Stop::Skipped(_) => skipped,
    })
}
