//! A person's decision where a leg was written to by somebody else: what was written there is given
//! up, and the leg gets the image anew. Only a leg of this mirror is ever taken back.

use std::sync::Arc;

use super::super::error::MirrorError;
use super::super::leg::LegEvent;
use super::super::status::LegState;
use super::handshake;
use super::session::Session;
use super::shared::Shared;
use super::signal::{Either, either};
use crate::BlockError;

/// Takes a leg back.
pub(super) async fn discard_leg(shared: &Arc<Shared>, leg: usize) -> Result<(), MirrorError> {
    let name = shared.source(leg).name();
    let state = shared.legs().state(leg);
    if !matches!(state, LegState::Diverged | LegState::Fenced) {
        let hint = "only a leg that somebody else has written to can be taken back";
        return Err(MirrorError::State { name, state: format!("{state:?}"), hint });
    }
    // Its task leaves it alone meanwhile, and nothing waits for it.
    let message = "what was written there is being given up".to_owned();
    shared.legs().end_use(leg, None, LegEvent::Pause, message);
    let device = |source| MirrorError::device(&name, source);
    let excluded = shared.books().exclude(shared.legs(), shared.config().on_loss, &**shared.host());
    excluded.await.map_err(device)?;
    let session = reach(shared, leg).await.map_err(device)?;
    let taken = session.watched(handshake::take_back(shared, leg, &session)).await;
    session.end("the leg was taken back");
    taken.map_err(|found| MirrorError::Metadata { what: name, found })?;
    shared.legs().resume(leg);
    Ok(())
}

async fn reach(shared: &Arc<Shared>, leg: usize) -> crate::Result<Arc<Session>> {
    let timeout = shared.config().remote_timeout;
    let late = shared.host().sleep(timeout);
    match either(shared.source(leg).connect(), late).await {
        Either::Left(open) => Ok(Session::new(open?, shared.host().clone(), timeout)),
        Either::Right(()) => {
            let why = format!("not reached within {:.1} s", timeout.as_secs_f64());
            Err(BlockError::Unreachable(why))
        }
    }
}
