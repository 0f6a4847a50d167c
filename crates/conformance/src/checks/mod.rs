//! The checks, one topic per file, and how one is run.

mod async_message;
mod attention;
mod connections;
mod data_in;
mod data_out;
mod digest;
mod level1;
mod level2;
mod login_keys;
mod login_stages;
mod logout;
mod nop;
mod order;
mod reinstatement;
mod reject;
mod task_management;
mod text;
mod unsolicited;
mod write_error;

use std::time::Instant;

use crate::context::Context;
use crate::offer::Offer;
use crate::report::{CheckReport, Outcome};
use crate::scratch;
use crate::session::Session;
use crate::verdict::{Stop, Verdict, require};

/// One thing that a target must do.
pub struct Check {
    /// `topic.what`.
    pub name: &'static str,
    /// Section of RFC 7143, or standard and section of SCSI.
    pub rfc: &'static str,
    /// It writes to the scratch area at the end of the volume.
    pub writes: bool,
    run: fn(&Context) -> Verdict,
}

const fn check(name: &'static str, rfc: &'static str, run: fn(&Context) -> Verdict) -> Check {
    Check { name, rfc, writes: false, run }
}

const fn writing(name: &'static str, rfc: &'static str, run: fn(&Context) -> Verdict) -> Check {
    Check { name, rfc, writes: true, run }
}

/// All checks, in the order they run. Those after which a target may be in trouble come last.
pub fn all() -> impl Iterator<Item = &'static Check> {
    [
        login_stages::CHECKS,
        login_keys::CHECKS,
        text::CHECKS,
        nop::CHECKS,
        data_in::CHECKS,
        data_out::CHECKS,
        unsolicited::CHECKS,
        order::CHECKS,
        connections::CHECKS,
        reinstatement::CHECKS,
        attention::CHECKS,
        task_management::CHECKS,
        logout::CHECKS,
        reject::CHECKS,
        digest::CHECKS,
        async_message::CHECKS,
        level1::CHECKS,
        level2::CHECKS,
        write_error::CHECKS,
    ]
    .into_iter()
    .flatten()
}

/// Runs one check; a check that writes leaves the scratch area as it was.
pub(crate) fn run(check: &Check, context: &Context) -> CheckReport {
    let begun = Instant::now();
    let verdict = if check.writes { run_writing(check, context) } else { (check.run)(context) };
    let (result, detail) = match verdict {
        Ok(detail) => (Outcome::Passed, detail),
        Err(Stop::Failed(detail)) => (Outcome::Failed, detail),
        Err(Stop::Skipped(reason)) => (Outcome::Skipped, reason),
    };
    let seconds = begun.elapsed().as_secs_f64();
    CheckReport { name: check.name, rfc: check.rfc, result, detail, seconds }
}

fn run_writing(check: &Check, context: &Context) -> Verdict {
    if let Some(reason) = context.no_writes() {
        return Err(Stop::Skipped(reason.into()));
    }
    let saved = scratch::save(context)?;
    let verdict = (check.run)(context);
    // That content is lost matters more than what the check found.
    scratch::restore(context, saved)?;
    verdict
}

/// A session with so many connections, CIDs from 0.
fn session_of<'a>(context: &'a Context, count: u16, offer: Offer) -> Result<Session<'a>, Stop> {
    require(context.max_connections >= u32::from(count), || {
        format!("MaxConnections: {} granted, {count} needed", context.max_connections)
    })?;
    let mut session = Session::open(context, offer.with("MaxConnections", count))?;
    let granted = session.agreed.max_connections;
    require(granted >= u32::from(count), || {
        format!("MaxConnections: {granted} granted, {count} needed")
    })?;
    for cid in 1..count {
        session.add(cid)?;
    }
    Ok(session)
}

/// A session of one connection that another may join.
fn growing(context: &Context, offer: Offer) -> Result<Session<'_>, Stop> {
    let session = Session::open(context, offer.with("MaxConnections", 2))?;
    require(session.agreed.max_connections > 1, || "MaxConnections: 1 granted, 2 needed".into())?;
    Ok(session)
}

/// Skips unless the target grants this error recovery level when asked for 2.
fn require_level(context: &Context, level: u32) -> Result<(), Stop> {
    require(context.level >= level, || {
        format!("ErrorRecoveryLevel: {} granted, {level} needed", context.level)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_have_a_topic() {
        let names: BTreeSet<_> = all().map(|check| check.name).collect();
        assert_eq!(names.len(), all().count());
        assert!(names.iter().all(|name| name.split('.').filter(|p| !p.is_empty()).count() == 2));
    }

    #[test]
    fn every_section_is_one_of_rfc_7143() {
        let scsi = |check: &&Check| ["SAM-5 ", "SBC-3 "].iter().any(|s| check.rfc.starts_with(s));
        for check in all().filter(|check| !scsi(check)) {
            let first = check.rfc.split('.').next().and_then(|n| n.parse::<u32>().ok());
            assert!(
                matches!(first, Some(4..=13)) || check.rfc.starts_with("Appendix"),
                "{}",
                check.rfc
            );
        }
    }
}
