//! Changes and flushes in the asynchronous mode: a change is carried out by the local device, and
//! the epoch log has it before it is begun. The legs get it from there.

use std::sync::Arc;

use super::super::BLOCK_BYTES;
use super::super::config::Mode;
use super::super::epoch::Content;
use super::change::{CHANGE_BYTES_MAX, Change, What, settle};
use super::go_on::{self, Asked};
use super::legs::{self, LoggedChange};
use super::shared::Shared;
use crate::Result;
use crate::range_lock::held;

/// The log is to have room for so many of the largest changes.
const CHANGES_IN_LAG: u64 = 4;

/// Bytes of one change at most.
pub(crate) fn change_bytes_max(shared: &Shared) -> u64 {
    match shared.config().mode {
        Mode::Sync => CHANGE_BYTES_MAX,
        Mode::Async => {
            let part = shared.config().lag.bytes / CHANGES_IN_LAG;
            (part / BLOCK_BYTES * BLOCK_BYTES).clamp(BLOCK_BYTES, CHANGE_BYTES_MAX)
        }
    }
}

/// Carries a change out here, and has it sent to the legs that get the log.
pub(crate) async fn carry_out(shared: &Arc<Shared>, change: Change) -> Result<()> {
    let _under_way = shared.admit()?;
    let content = match &change.what {
        What::Write(data) => Content::Data(data.clone()),
        What::Zero { .. } | What::Trim => Content::Zero(change.len),
    };
    // Before anything is held that a sender or a copy may need.
    let room = legs::enter(shared, content.data_bytes()).await?;
    let lock = held(shared.locks().exclusive(change.bytes())).await;
    let entered = shared.books().enter(change.bytes()).await?;
    let logged = LoggedChange { offset: change.offset, content, heals: None };
    let (parts, epoch) = shared.legs().begin_logged(&logged);
    drop(room);
    let local = shared.local().change(|device| change.apply(device)).await;
    let local = go_on::outcome(shared, Asked::Change, local).await;
    shared.legs().end_logged(&logged.blocks(), local.is_ok());
    if change.fua && local.is_ok() {
        shared.legs().close_epoch(epoch);
    }
    drop(entered);
    drop(lock);
    settle(shared, parts.into_iter().map(|part| (part, false)).collect()).await?;
    shared.count_written(change.len);
    local
}

/// A flush that covers the epochs through `covered` is about to be told complete.
pub(crate) fn flushed(shared: &Arc<Shared>, covered: u64, result: &Result<()>) {
    if shared.config().mode == Mode::Async && result.is_ok() {
        shared.legs().close_epoch(covered);
    }
}

/// Ends when the legs that can be reached have all that was written.
pub(crate) async fn drained(shared: &Arc<Shared>) {
    loop {
        let change = shared.legs().log_changed();
        if shared.legs().is_drained() {
            return;
        }
        change.await;
    }
}
