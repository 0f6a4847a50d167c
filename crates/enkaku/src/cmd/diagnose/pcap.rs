//! The verdict of a capture file.

use std::path::Path;

use super::print::Answer;
use crate::cmd::monitor::report::{analyse_file, complain_of_damage};

/// Analyses the file; damage in it is told on stderr. Why there was nothing to judge if so.
pub(super) fn answer(path: &Path, port: Option<u16>) -> anyhow::Result<Result<Answer, String>> {
    let report = analyse_file(path, port)?;
    complain_of_damage(&report);
    let nothing = "no iSCSI command that moves data was seen: there is nothing to judge";
    Ok(report.verdict.map_or(Err(nothing.to_owned()), |judgement| Ok(Answer::of(judgement))))
}
