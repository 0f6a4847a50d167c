//! A conformance suite for any iSCSI target (RFC 7143): login, several connections in a session,
//! reinstatement, data transfer, task management, digests and every error recovery level.
//!
//! It speaks PDUs over sockets of its own, because a check must be able to do the wrong thing: a
//! CmdSN outside the window, a damaged digest, a connection that dies in mid-command. It is
//! neither of the product's roles, and uses only the codec of `iscsi-proto`.
//!
//! A check is one function. It passes, fails with what was seen in place of what the section asks
//! for, or is skipped because the target did not grant its precondition. Every wait has a limit,
//! and every check logs in anew: what one has broken is not the next one's trouble.

#![forbid(unsafe_code)]

mod checks;
mod context;
mod io;
mod login;
mod offer;
mod report;
mod scratch;
mod selection;
mod session;
mod verdict;
mod wire;

pub use checks::{Check, all};
pub use context::{Config, Writes};
pub use report::{CheckReport, Outcome, Report};
pub use selection::Selection;

use context::Context;

/// Runs the selected checks in order; `done` hears of each as it ends.
///
/// # Errors
/// One line if not even an ordinary login works, so that no check would say anything.
pub fn run(
    config: Config,
    selection: &Selection,
    mut done: impl FnMut(&CheckReport),
) -> Result<Report, String> {
    let context = Context::probe(config)?;
    let mut report = Report::default();
    for check in all().filter(|check| selection.includes(check.name)) {
        let result = checks::run(check, &context);
        done(&result);
        report.add(result);
    }
    Ok(report)
}
