//! The task of a leg: reaches it, finds out what it is, brings it what it lacks, watches it while
//! it follows, and decides what its loss means. What runs beside it are the user's operations,
//! which are sent to the leg by themselves.

use std::sync::Arc;
use std::time::Duration;

use super::super::config::Mode;
use super::super::leg::LegEvent;
use super::super::link::OpenLeg;
use super::super::promote::SIGN_EVERY;
use super::super::status::Guard;
use super::batch;
use super::before;
use super::catch_up;
use super::change;
use super::guard;
use super::handshake::{self, Found, Refused};
use super::legs::{Resumed, UNFLUSHED_BLOCKS_MAX};
use super::sender;
use super::session::Session;
use super::shared::{Phase, Shared};
use super::signal::{Either, either};
use super::signs;
use crate::{BlockError, Result};

/// Pause between looks at a leg in sync: whether somebody has taken it over, and whether there is
/// something to flush. Each is a sign of life as well.
const LOOK_EVERY: Duration = SIGN_EVERY;

/// Why an attempt has ended.
enum Ended {
    /// The leg is not to be used now; another attempt may be worth it.
    Lost,
    /// The mirror is being closed, and the leg has all that it can have.
    Closing,
}

/// Runs until the mirror is closed.
pub(crate) async fn run(shared: Arc<Shared>, leg: usize) {
    let _task = shared.task();
    let mut pause = shared.config().retry.0;
    loop {
        let change = shared.legs().changed();
        if shared.phase() == Phase::Ending {
            return;
        }
        if !shared.legs().state(leg).is_tried() {
            change.await;
            continue;
        }
        let since = shared.host().now();
        if let Ended::Closing = attempt(&shared, leg).await {
            return;
        }
        // A leg that was of use for a while is worth another attempt soon.
        if shared.host().now().saturating_sub(since) > shared.config().retry.1 {
            pause = shared.config().retry.0;
        }
        if let Some(refusals) = shared.legs().take_refusals(leg) {
            wait_for_retry(&shared, leg, before::pause(refusals)).await;
            continue;
        }
        wait_for_retry(&shared, leg, pause).await;
        pause = (pause * 2).min(shared.config().retry.1);
    }
}

/// Ends early when a person wants something of the leg, or the mirror is closed.
async fn wait_for_retry(shared: &Arc<Shared>, leg: usize, pause: Duration) {
    let mut over = shared.host().sleep(pause);
    loop {
        let change = shared.legs().changed();
        let wanted = shared.legs().state(leg).is_tried();
        if !wanted || shared.phase() == Phase::Ending || shared.legs().take_hurry(leg) {
            return;
        }
        if let Either::Left(()) = either(&mut over, change).await {
            return;
        }
    }
}

async fn attempt(shared: &Arc<Shared>, leg: usize) -> Ended {
    let Some(open) = connect(shared, leg).await else { return Ended::Lost };
    let timeout = shared.config().remote_timeout;
    let session = Session::new(open, shared.host().clone(), timeout);
    let ended = session.watched(use_leg(shared, leg, &session)).await;
    // Whoever holds the session still is told that it is over.
    session.end("the use of the leg has ended");
    ended
}

/// An attempt to reach a leg may take so many times the time after which a leg is lost: it may have
/// to wait until the far side has let go of an earlier session.
const PATIENCE: u32 = 6;

/// Opens the leg. After `remote_timeout` nobody waits for that any more, but the attempt goes on.
async fn connect(shared: &Arc<Shared>, leg: usize) -> Option<OpenLeg> {
    let timeout = shared.config().remote_timeout;
    let mut connecting = shared.source(leg).connect();
    let mut late = shared.host().sleep(timeout);
    let mut noted = false;
    loop {
        let change = shared.legs().changed();
        if !shared.legs().state(leg).is_tried() || shared.phase() == Phase::Ending {
            return None;
        }
        match either(&mut connecting, either(&mut late, change)).await {
            Either::Left(Ok(open)) => return Some(open),
            Either::Left(Err(error)) => {
                let event = match error {
                    BlockError::Fenced => LegEvent::TakenOver,
                    _ => LegEvent::Lost,
                };
                shared.legs().end_use(leg, None, event, error.to_string());
                return None;
            }
            Either::Right(Either::Left(())) => {
                let message = format!("not reached within {:.1} s", timeout.as_secs_f64());
                shared.legs().end_use(leg, None, LegEvent::Lost, message);
                if noted {
                    return None;
                }
                noted = true;
                late = shared.host().sleep(timeout * (PATIENCE - 1));
            }
            Either::Right(Either::Right(())) => {}
        }
    }
}

async fn use_leg(shared: &Arc<Shared>, leg: usize, session: &Arc<Session>) -> Ended {
    let mut found = match handshake::look(shared, leg, session).await {
        Ok(found) => found,
        Err(Refused { event, message }) => {
            shared.legs().end_use(leg, None, event, message);
            return Ended::Lost;
        }
    };
    let held = match hold(shared, leg, session, &mut found).await {
        Ok(()) => handshake::settle(shared, leg, session, &mut found).await,
        refused => refused,
    };
    if let Err(Refused { event, message }) = held {
        shared.legs().end_use(leg, None, event, message);
        return Ended::Lost;
    }
    if let Err(error) = sign(shared, leg, session, &mut found).await {
        shared.legs().end_use(leg, None, LegEvent::Lost, error.to_string());
        return Ended::Lost;
    }
    match resume(shared, leg, session, &mut found) {
        Resumed::Yes => return follow(shared, leg, session, &mut found).await,
        Resumed::NotWanted => return Ended::Lost,
        Resumed::No(_) | Resumed::NotKept => {}
    }
    if found.whole {
        // Durable before it is told anything: that makes it look as if it had never been away. The
        // bits come first, since pages are written under their new name as they are then.
        shared.legs().all_differ(leg);
        if let Err(error) = shared.books().all_differ(leg, &**shared.host()).await {
            shared.legs().end_use(leg, None, LegEvent::Lost, error.to_string());
            return Ended::Lost;
        }
    }
    let Ok(true) = catch_up::bring(shared, leg, session, &mut found).await else {
        return Ended::Lost;
    };
    follow(shared, leg, session, &mut found).await
}

/// Keeps others from writing to a leg, before anything is written to it. Whoever took it over
/// between our look at its superblock and the reservation has told it since.
async fn hold(
    shared: &Arc<Shared>,
    leg: usize,
    session: &Arc<Session>,
    found: &mut Found,
) -> std::result::Result<(), Refused> {
    let guard = guard::hold(session, shared.books().uuid(), found.leg()).await?;
    shared.legs().note_guard(leg, guard);
    if guard != Guard::Reservation {
        return Ok(());
    }
    handshake::check(shared, session, found).await
}

/// Counts the superblock of a leg up that is about to go on with the log, before it gets anything:
/// one that is put back to what it was in an earlier session is known by that. Any other leg is
/// told something in any case.
async fn sign(
    shared: &Arc<Shared>,
    leg: usize,
    session: &Arc<Session>,
    found: &mut Found,
) -> Result<()> {
    let goes_on = shared.legs().stamp(leg).is_some_and(|known| found.stamp() >= known);
    if goes_on && !found.whole {
        handshake::beat(shared, leg, session, found).await
    } else {
        Ok(())
    }
}

/// Takes the log up again where it was kept for the leg. If that cannot be, everything is to be
/// copied.
fn resume(shared: &Arc<Shared>, leg: usize, session: &Arc<Session>, found: &mut Found) -> Resumed {
    if found.whole {
        return Resumed::NotKept;
    }
    let resumed = shared.legs().resume_log(leg, session, found.stamp());
    match &resumed {
        Resumed::Yes => sender::start(shared, leg, session, found.layout()),
        Resumed::No(why) => {
            tracing::warn!(leg, %why, "everything is copied to a leg");
            found.whole = true;
        }
        Resumed::NotKept | Resumed::NotWanted => {}
    }
    resumed
}

/// Watches a leg that has been caught up with until it is lost or the mirror is closed.
async fn follow(
    shared: &Arc<Shared>,
    leg: usize,
    session: &Arc<Session>,
    found: &mut Found,
) -> Ended {
    shared.legs().is_attended(leg, session);
    loop {
        let change = shared.legs().changed();
        if let Some(why) = session.why_ended() {
            // Whoever waited for it in vain may have been a verification, which tells nobody.
            if shared.legs().uses(leg, session) {
                shared.leg_failed(leg, session, &BlockError::Unreachable(why));
            }
            return Ended::Lost;
        }
        if shared.phase() == Phase::Ending {
            // Without it a promotion looks for signs of life for a while, and that is all.
            drop(handshake::take_leave(shared, leg, session, found).await);
            return Ended::Closing;
        }
        if let Err(error) = keep_up(shared, leg, session, found).await {
            shared.leg_failed(leg, session, &error);
            return Ended::Lost;
        }
        if shared.host().now() >= found.looked_at() + LOOK_EVERY
            && let Err(Refused { event, message }) = look(shared, leg, session, found).await
        {
            shared.legs().end_use(leg, Some(session), event, message);
            return Ended::Lost;
        }
        if shared.legs().wants_batch(leg) {
            match batch::send(shared, leg, session, found).await {
                Ok(sent) => shared.legs().batch_ended(leg, sent),
                Err(error) => {
                    shared.leg_failed(leg, session, &error);
                    return Ended::Lost;
                }
            }
            continue;
        }
        let look_at = found.looked_at() + LOOK_EVERY;
        let pause = look_at.saturating_sub(shared.host().now());
        either(either(change, session.over()), shared.host().sleep(pause)).await;
    }
}

/// Looks after a leg in sync now and then: whether it is ours still, and what is not stable there.
async fn look(
    shared: &Arc<Shared>,
    leg: usize,
    session: &Arc<Session>,
    found: &mut Found,
) -> std::result::Result<(), Refused> {
    handshake::check(shared, session, found).await?;
    if shared.legs().unflushed(leg) > 0 {
        drop(change::flush_leg(shared, leg).await);
    }
    handshake::beat(shared, leg, session, found).await?;
    Ok(())
}

/// What a leg that has been caught up with may have to be told or brought.
async fn keep_up(
    shared: &Arc<Shared>,
    leg: usize,
    session: &Arc<Session>,
    found: &mut Found,
) -> Result<()> {
    if shared.legs().has_neared(leg) {
        catch_up::follows(shared, leg, session).await?;
    }
    if shared.books().generation() != found.generation() || !found.is_consistent() {
        handshake::tell(shared, leg, session, found).await?;
    }
    if shared.legs().owed(leg) > 0 {
        // A change that failed here, or a block that was found to differ: the image there is a
        // legal one all the same, as a change that failed may or may not be there.
        match shared.config().mode {
            Mode::Sync => {
                let copied = catch_up::copy_owed(shared, leg, session);
                signs::beside(shared, leg, session, found, copied).await?;
            }
            Mode::Async => {
                let logged = catch_up::log_owed(shared, leg, session);
                signs::beside(shared, leg, session, found, logged).await?;
            }
        }
        shared.legs().healed(leg, session);
    }
    if shared.legs().unflushed(leg) >= UNFLUSHED_BLOCKS_MAX {
        drop(change::flush_leg(shared, leg).await);
    }
    Ok(())
}
