//! A mirror that runs compares its legs by itself from time to time, one after the other: slowly,
//! with little of the image held at once, and not while any leg gets a copy. What differs is told
//! and left as it is.
//!
//! When the last one had ended and how far the present one is stand in the metadata: a mirror that
//! is opened again goes on with it.

use std::sync::Arc;
use std::time::Duration;

use super::super::BLOCK_BYTES;
use super::super::config::VerifyEvery;
use super::super::generation::WallMs;
use super::super::status::{LegState, Status, Verdict};
use super::super::superblock::Verified;
use super::VerifyReport;
use super::session::Session;
use super::shared::{Phase, Shared};
use super::signal::{Either, either};
use super::verify::{Plan, compare_all};

/// Parts under way: 1 MiB, for which changes may have to wait, and 20 MB/s over 50 ms.
const PARTS: usize = 4;

/// How far it is, is written down so often: what is compared again where it was cut off.
const NOTE_EVERY: Duration = Duration::from_secs(60);

/// The time of day may be changed meanwhile.
const LOOK_EVERY: Duration = Duration::from_secs(3600);

/// Pause behind one that could not go on.
const PAUSE: Duration = Duration::from_secs(10);

/// What is to be done.
enum Next {
    Verify(usize),
    /// Nothing is to be done before this time has passed, or a leg has changed.
    Wait(Duration),
}

/// Runs until the mirror is closed.
pub(crate) async fn run(shared: Arc<Shared>, wish: VerifyEvery) {
    let _task = shared.task();
    loop {
        let change = shared.legs().changed();
        if shared.phase() != Phase::Open {
            return;
        }
        let wait = match next(&shared, wish).await {
            Next::Verify(leg) => match go_on(&shared, leg, wish).await {
                true => continue,
                false => PAUSE,
            },
            Next::Wait(time) => time,
        };
        either(change, shared.host().sleep(wait)).await;
    }
}

async fn next(shared: &Arc<Shared>, wish: VerifyEvery) -> Next {
    if copies(shared) {
        return Next::Wait(LOOK_EVERY);
    }
    let now = WallMs::from(shared.host().wall_clock());
    let mut wait = LOOK_EVERY;
    for leg in 0..shared.legs().count() {
        let Some(record) = shared.books().leg(leg) else { continue };
        if shared.legs().state(leg) != LegState::InSync {
            continue;
        }
        let mut verified = record.verified;
        if verified.at == WallMs(0) {
            verified.at = now;
            if shared.books().verified(leg, Some(record.verified), verified).await.is_err() {
                return Next::Wait(LOOK_EVERY); // Nothing is written to this mirror any more.
            }
        }
        let gone = Duration::from_millis(now.0.saturating_sub(verified.at.0));
        if verified.next_block > 0 || gone >= wish.every {
            return Next::Verify(leg);
        }
        wait = wait.min(wish.every - gone);
    }
    Next::Wait(wait)
}

/// A leg gets a copy: the line is for that.
fn copies(shared: &Shared) -> bool {
    let mut legs = 0..shared.legs().count();
    legs.any(|leg| matches!(shared.legs().state(leg), LegState::Copying | LegState::CatchingUp))
}

/// Begins a verification, or goes on with it. False: it could not be brought to its end now.
async fn go_on(shared: &Arc<Shared>, leg: usize, wish: VerifyEvery) -> bool {
    let Some(session) = shared.legs().session(leg) else { return false };
    loop {
        let Some(record) = shared.books().leg(leg) else { return false };
        let before = record.verified;
        let (after, went_on) = part(shared, leg, &session, wish, before).await;
        if after != before {
            match shared.books().verified(leg, Some(before), after).await {
                Ok(true) => {}
                // A person had all of it compared meanwhile: that is the last one, then.
                Ok(false) => return true,
                Err(_) => return false,
            }
        }
        if after.next_block == 0 || !went_on {
            return went_on;
        }
    }
}

/// Compares for a while. Returns what is known then, and whether it may go on.
async fn part(
    shared: &Arc<Shared>,
    leg: usize,
    session: &Arc<Session>,
    wish: VerifyEvery,
    before: Verified,
) -> (Verified, bool) {
    // A mirror does not get smaller; what stands there may be anything.
    let goes_on = before.next_block > 0 && before.next_block < shared.blocks();
    let (from, so_far) = if goes_on { (before.next_block, before.so_far) } else { (0, (0, 0)) };
    let sum = |report: &VerifyReport| (so_far.0 + report.bytes, so_far.1 + report.mismatches);
    let until = shared.host().now() + NOTE_EVERY;
    let mut after = before;
    let plan = Plan { from, rate: wish.rate, heal: false, parts: PARTS };
    let compared = compare_all(shared, leg, session, plan, |next, report| {
        (after.next_block, after.so_far) = (next, sum(report));
        shared.host().now() < until
    });
    // At a low rate its next part may be far away: copies, and the end, do not wait for that.
    let compared = match either(compared, unwanted(shared, leg)).await {
        Either::Left(compared) => compared,
        Either::Right(()) => return (after, false),
    };
    match compared {
        Ok((report, stops)) => {
            if report.mismatches > 0 {
                let (blocks, offsets) = (report.mismatches, &report.offsets);
                tracing::warn!(leg, blocks, ?offsets, "a leg differs from the local device");
            }
            if stops.is_none() {
                after = done(shared, sum(&report));
                let Verified { bytes, mismatches, .. } = after;
                tracing::info!(leg, bytes, mismatches, "a leg was compared with the local device");
                return (after, true);
            }
            (after, true)
        }
        Err(error) => {
            tracing::info!(leg, %error, "a verification is interrupted");
            (after, false)
        }
    }
}

/// Ends when it must not go on now.
async fn unwanted(shared: &Arc<Shared>, leg: usize) {
    loop {
        let change = shared.legs().changed();
        let is_open = shared.phase() == Phase::Open;
        if !is_open || shared.legs().state(leg) != LegState::InSync || copies(shared) {
            return;
        }
        change.await;
    }
}

/// One has come to its end.
fn done(shared: &Shared, (bytes, mismatches): (u64, u64)) -> Verified {
    let at = WallMs::from(shared.host().wall_clock());
    Verified { at, bytes, mismatches, ..Verified::default() }
}

/// A person had all of a leg compared: that counts, too.
///
/// # Errors
/// The metadata cannot be written.
pub(crate) async fn note(
    shared: &Arc<Shared>,
    leg: usize,
    report: &VerifyReport,
) -> crate::Result<()> {
    let verified = done(shared, (report.bytes, report.mismatches - report.healed));
    shared.books().verified(leg, None, verified).await.map(|_| ())
}

/// What is told of it.
pub(crate) fn tell(shared: &Shared, status: &mut Status) {
    for (number, leg) in status.legs.iter_mut().enumerate() {
        let Some(record) = shared.books().leg(number) else { continue };
        let Verified { at, bytes, mismatches, next_block, .. } = record.verified;
        leg.verified = (bytes > 0).then(|| Verdict { at: at.into(), bytes, mismatches });
        leg.verifying = (next_block > 0).then(|| next_block * BLOCK_BYTES);
    }
}
