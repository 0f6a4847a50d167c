//! Going on without the local device: whether there is a leg to go on with, and what has to be
//! noted before anything completes that the local device does not have.

use std::sync::Arc;

use super::super::config::{Mode, OnLoss};
use super::local::is_failure;
use super::shared::Shared;
use crate::{BlockError, Result};

/// What was asked of the local device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// A change.
    Change,
    /// To make changes stable.
    Flush,
}

/// What the end of a change or a flush at the local device means for the user.
///
/// # Errors
/// The device's, where the legs cannot go on without it.
pub(crate) async fn outcome(shared: &Arc<Shared>, asked: Asked, result: Result<()>) -> Result<()> {
    let error = match result {
        Err(error) if is_failure(&error) => error,
        other => return other,
    };
    if shared.local().is_replaced() {
        return Ok(()); // Asked for before that.
    }
    // In the asynchronous mode no leg has all that was told complete: nobody goes on with it.
    let may = shared.config().mode == Mode::Sync && shared.config().on_loss == OnLoss::Continue;
    if may && replace(shared, &error).await? {
        tracing::error!(%error, "the local device has failed; the legs go on without it");
        return Ok(());
    }
    if asked == Asked::Flush {
        shared.local().set_broken(&error);
    }
    Err(error)
}

/// The legs that take part take the place of the local device. False if there is none.
///
/// # Errors
/// It could not be noted.
async fn replace(shared: &Arc<Shared>, why: &BlockError) -> Result<bool> {
    let replaced = shared.books().replace_local(shared.legs(), &**shared.host(), || {
        shared.local().set_replaced(why);
    });
    replaced.await
}

/// Whether the image can be had from somewhere.
///
/// # Errors
/// The local device has failed, and no leg takes part.
pub(crate) fn check_image(shared: &Shared) -> Result<()> {
    match shared.local().failure() {
        Some(why) if shared.local().is_replaced() && !shared.legs().any_takes_part() => {
            let what = format!("the local device has failed ({why}), and no leg is in sync");
            Err(BlockError::Unreachable(what))
        }
        _ => Ok(()),
    }
}

/// Ends when every leg that takes part says itself that its image is the present one. Before that,
/// nothing may complete that is only there: whoever started the old local device again would not
/// be told that it is old.
///
/// # Errors
/// No leg takes part any more.
pub(crate) async fn told(shared: &Shared) -> Result<()> {
    if !shared.local().is_replaced() {
        return Ok(());
    }
    loop {
        let change = shared.legs().changed();
        shared.check_usable()?;
        check_image(shared)?;
        let untold = |leg: &usize| {
            shared.legs().takes_part(*leg)
                && shared.books().leg(*leg).map(|leg| leg.base) != Some(shared.books().generation())
        };
        if !(0..shared.legs().count()).any(|leg| untold(&leg)) {
            return Ok(());
        }
        change.await;
    }
}
