//! The verdict of a capture file.

use std::path::Path;

use tcpmon::verdict::Verdict;

use crate::cmd::monitor::report::{analyse_file, complain_of_damage};

/// Analyses the file; damage in it is told on stderr.
pub(super) fn verdict(path: &Path, port: Option<u16>) -> anyhow::Result<Option<Verdict>> {
    let report = analyse_file(path, port)?;
    complain_of_damage(&report);
    Ok(report.verdict)
}
