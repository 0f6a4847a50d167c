//! Signs of life, and looks, at a leg that no reservation keeps for us: while something is done to
//! it that takes long, its superblock is read and counted up as often as that of a leg in sync.
//! Without, whoever promotes it would take this mirror for gone, and neither would learn of the
//! other in time.
//!
//! What the superblock says of the image stays as it is, the time included: it is no sign that the
//! image is newer.

use std::future::Future;
use std::sync::Arc;

use futures_util::future::join;

use super::super::promote::{SIGN_EVERY, WAY_MAX};
use super::super::status::Guard;
use super::handshake::{self, Found, Refused};
use super::session::Session;
use super::shared::Shared;
use super::signal::{Change, Either, Signal, either};
use crate::{BlockError, Result};

/// Does `work`, which leaves the superblock of the leg alone, and gives signs of life meanwhile.
/// Where somebody else is found to have written it, the use of the leg ends, and so does the work.
pub(super) async fn beside<T: Send>(
    shared: &Arc<Shared>,
    leg: usize,
    session: &Arc<Session>,
    found: &mut Found,
    work: impl Future<Output = T> + Send,
) -> T {
    if shared.legs().guard(leg) == Guard::Reservation {
        return work.await; // The target refuses what we write to a leg that was taken over.
    }
    let done = Arc::<Signal>::default();
    let over = done.next();
    let work = async {
        let output = work.await;
        done.raise();
        output
    };
    // A superblock that is on its way is waited for: the next one takes its place.
    join(work, give(shared, leg, session, found, over)).await.0
}

/// Before an image is changed that is a legal one, and in another way than in the order in which
/// it was written here. Whoever was promoting the leg while it had no sign of us, and had read the
/// superblock before this one is there, writes his own within [`WAY_MAX`]: then it is his.
///
/// # Errors
/// The use of the leg has ended: the leg's error, or somebody has taken it over.
pub(super) async fn first(
    shared: &Arc<Shared>,
    leg: usize,
    session: &Arc<Session>,
    found: &mut Found,
) -> Result<()> {
    let legs = shared.legs();
    if legs.guard(leg) == Guard::Reservation || !found.is_consistent() {
        return Ok(());
    }
    // Since a sign that is not older, nobody has had time to watch it for as long as a promotion
    // does. The sign of this session is none if there was a silence before.
    let recent = |told| shared.host().now().saturating_sub(told) < SIGN_EVERY;
    if !legs.told_at(leg).is_some_and(recent) {
        handshake::count_up(shared, leg, session, found).await?;
    }
    let Some(safe_at) = legs.claimed_at(leg).map(|claimed| claimed + WAY_MAX) else {
        return Ok(());
    };
    if found.looked_at() >= safe_at {
        return Ok(());
    }
    let pause = safe_at.saturating_sub(shared.host().now());
    either(shared.host().sleep(pause), session.over()).await;
    session.check()?;
    one(shared, leg, session, found).await
}

async fn give(
    shared: &Arc<Shared>,
    leg: usize,
    session: &Arc<Session>,
    found: &mut Found,
    mut over: Change,
) {
    loop {
        let due = found.looked_at() + SIGN_EVERY;
        let pause = due.saturating_sub(shared.host().now());
        let ended = either(&mut over, session.over());
        match either(ended, shared.host().sleep(pause)).await {
            Either::Left(_) => return,
            Either::Right(()) => {}
        }
        if one(shared, leg, session, found).await.is_err() {
            return;
        }
    }
}

/// A look and a sign. Where that cannot be, the use of the leg has ended.
async fn one(
    shared: &Arc<Shared>,
    leg: usize,
    session: &Arc<Session>,
    found: &mut Found,
) -> Result<()> {
    let signed = async {
        handshake::check(shared, session, found).await?;
        handshake::count_up(shared, leg, session, found).await?;
        Ok(())
    };
    let Err(Refused { event, message }) = signed.await else { return Ok(()) };
    shared.legs().end_use(leg, Some(session), event, message.clone());
    session.end(&message);
    Err(BlockError::Unreachable(message))
}
