//! Before a copy writes over the image at a leg in place, whoever may want to keep that image is
//! asked ([`LegSource::before_overwrite`]). It may take minutes: the leg counts as lost meanwhile,
//! so that nobody waits for it. Refused, it is asked again later.
//!
//! [`LegSource::before_overwrite`]: super::super::link::LegSource::before_overwrite

use std::sync::Arc;
use std::time::Duration;

use super::super::BLOCK_BYTES;
use super::handshake::{self, Found, Refused};
use super::session::Session;
use super::shared::{Phase, Shared};
use super::signal::{Either, either};
use crate::{BlockError, Result};

/// Pause behind a refusal, at first and at most: what has no room for a snapshot has none a moment
/// later, and a command that fails half way may leave something behind each time.
const PAUSES: (Duration, Duration) = (Duration::from_secs(15), Duration::from_secs(600));

/// Pause behind the last of `refusals` in a row.
pub(crate) fn pause(refusals: u32) -> Duration {
    let doubled = 1_u32.checked_shl(refusals.saturating_sub(1)).unwrap_or(u32::MAX);
    PAUSES.0.saturating_mul(doubled).min(PAUSES.1)
}

/// Whether the image at a leg may be written over, once that is known. False: it may not be, and
/// the leg's state says why.
///
/// # Errors
/// The leg is not in use any more.
pub(crate) async fn ask(
    shared: &Arc<Shared>,
    leg: usize,
    session: &Arc<Session>,
    found: &mut Found,
) -> Result<bool> {
    if !found.is_consistent() || shared.legs().was_kept(leg) {
        return Ok(true);
    }
    let why = why(shared, leg, found);
    let Some(mut asked) = shared.source(leg).before_overwrite(&why) else { return Ok(true) };
    let message = format!("its image is kept by before_resync before it is written over ({why})");
    shared.legs().waits_to_be_kept(leg, message);
    // Neither is its superblock written meanwhile, which tells the time of its image, nor is the
    // leg given up where it does not answer, as while its target makes a snapshot: nobody changes
    // the image, so that the answer counts for the next attempt as well.
    loop {
        let change = shared.legs().changed();
        if shared.phase() == Phase::Ending || !shared.legs().state(leg).is_tried() {
            return Err(gone());
        }
        match either(&mut asked, change).await {
            Either::Left(Ok(())) => break,
            Either::Left(Err(why)) => {
                refused(shared, leg, &why);
                return Ok(false);
            }
            Either::Right(()) => {}
        }
    }
    shared.legs().is_kept(leg);
    // It may have been taken over since it was looked at.
    if let Err(Refused { event, message }) = handshake::check(shared, session, found).await {
        shared.legs().end_use(leg, None, event, message.clone());
        return Err(BlockError::Unreachable(message));
    }
    Ok(true)
}

fn gone() -> BlockError {
    BlockError::Unreachable("the leg is not wanted now".to_owned())
}

fn refused(shared: &Arc<Shared>, leg: usize, why: &str) {
    shared.legs().is_not_kept(leg, |refusals| {
        let again = pause(refusals).as_secs();
        format!(
            "{why}; its image stays as it is, and the next attempt is made in {again} s (`enkaku \
             mirror resync` makes it at once)"
        )
    });
}

/// Why a copy goes in place.
fn why(shared: &Arc<Shared>, leg: usize, found: &Found) -> String {
    let owed = shared.legs().owed(leg) * BLOCK_BYTES;
    match found.redo_bytes() {
        _ if shared.legs().compares(leg) => format!("{owed} bytes are compared and copied"),
        0 => format!("{owed} bytes differ, and it has no redo log"),
        log => format!("{owed} bytes differ, and do not fit its redo log of {log} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_further_and_further_apart() {
        let seconds: Vec<u64> = (1..=8).map(|times| pause(times).as_secs()).collect();
        assert_eq!(seconds, [15, 30, 60, 120, 240, 480, 600, 600]);
        assert_eq!(pause(u32::MAX).as_secs(), 600);
    }
}
