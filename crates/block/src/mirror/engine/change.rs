//! Changes of the user: writes, zeroes and trims. Each runs as a task of its own, so that it is
//! carried through whatever becomes of the caller: a write that was dropped half way could land at
//! a leg behind a later one.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::{join, join_all};

use super::super::BLOCK_BYTES;
use super::legs::{Outcome, Part};
use super::session::Session;
use super::shared::Shared;
use crate::range_lock::held;
use crate::{BlockError, Device, Io, Result, WriteFlags, ZeroFlags};

/// Bytes of one change at most; longer ones are carried out piece by piece, since each piece holds
/// its range and its extents of the activity log until all have answered.
pub(crate) const CHANGE_BYTES_MAX: u64 = 32 << 20;

/// What is done to a range.
#[derive(Clone)]
pub(crate) enum What {
    /// It gets this content.
    Write(Bytes),
    /// It reads as zeroes; `may_trim` as in [`ZeroFlags`].
    Zero {
        /// It may become a hole.
        may_trim: bool,
    },
    /// It is no longer needed, and reads as zeroes.
    Trim,
}

/// A change that the user asked for.
#[derive(Clone)]
pub(crate) struct Change {
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) what: What,
    /// It is stable when it completes.
    pub(crate) fua: bool,
}

impl Change {
    /// The pieces in which it is carried out.
    pub(crate) fn pieces(self) -> impl Iterator<Item = Self> {
        let starts = (0..self.len).step_by(CHANGE_BYTES_MAX as usize);
        starts.map(move |start| {
            let len = CHANGE_BYTES_MAX.min(self.len - start);
            let what = match &self.what {
                What::Write(data) => {
                    What::Write(data.slice(start as usize..(start + len) as usize))
                }
                other => other.clone(),
            };
            Self { offset: self.offset + start, len, what, fua: self.fua }
        })
    }

    /// Its bytes, in whole blocks of the metadata.
    fn bytes(&self) -> Range<u64> {
        let end = (self.offset + self.len).next_multiple_of(BLOCK_BYTES);
        self.offset / BLOCK_BYTES * BLOCK_BYTES..end
    }

    fn blocks(&self) -> Range<u64> {
        let bytes = self.bytes();
        bytes.start / BLOCK_BYTES..bytes.end / BLOCK_BYTES
    }

    /// Does it to one device.
    fn apply(&self, device: &Device) -> Io<()> {
        let info = device.info();
        let forced = self.fua && info.can_fua;
        let done = match &self.what {
            What::Write(data) => {
                device.write(self.offset, data.clone(), WriteFlags { fua: forced })
            }
            What::Trim if info.can_trim && info.trim_zeroes => device.trim(self.offset, self.len),
            What::Trim => device.zero(self.offset, self.len, ZeroFlags::new(forced, true)),
            What::Zero { may_trim } => {
                device.zero(self.offset, self.len, ZeroFlags::new(forced, *may_trim))
            }
        };
        if !self.fua || forced {
            return done;
        }
        let device = device.clone();
        Io::later(async move {
            done.await?;
            device.flush().await
        })
    }
}

/// Carries a change out: here and at every leg that can take it, then waits for what has to be
/// decided about the others.
pub(crate) async fn carry_out(shared: &Arc<Shared>, change: Change) -> Result<()> {
    let _under_way = shared.admit()?;
    let blocks = change.blocks();
    let lock = held(shared.locks().exclusive(change.bytes())).await;
    let entered = shared.books().enter(change.bytes()).await?;
    let parts = shared.legs().begin_change(blocks.clone());
    let local = shared.local().change(|device| change.apply(device));
    let sent = parts.iter().filter_map(|part| {
        let session = part.session.clone()?;
        let operation = session.run(|device| change.apply(device));
        Some(async move { (session, operation.await) })
    });
    // All of them have been asked by now: joining only waits.
    let sent: Vec<_> = sent.collect();
    let (local, answers) = join(local, join_all(sent)).await;
    let mut answers = answers.into_iter();
    let mut open = Vec::new();
    for part in parts {
        let answer = part.session.is_some().then(|| answers.next()).flatten();
        let well = answer.is_some_and(|(session, result)| {
            let outcome = outcome(&local, &result, change.fua);
            shared.legs().answered(part.leg, &session, blocks.clone(), outcome);
            note_failure(shared, part.leg, &session, result)
        });
        open.push((part, well));
    }
    // What waits for a leg now does not keep a copy to that leg from these blocks.
    drop(entered);
    drop(lock);
    let result = shared.local().outcome(shared, local).await;
    settle(shared, open).await?;
    shared.count_written(change.len);
    result
}

/// What is known of the blocks at a leg. As long as the local device may lose the change, its bit
/// stays: after a power cut here the leg could be the newer one.
fn outcome(local: &Result<()>, remote: &Result<()>, fua: bool) -> Outcome {
    match (local, remote) {
        (Ok(()), Ok(())) if fua => Outcome::Stable,
        (Ok(()), Ok(())) => Outcome::Written,
        _ => Outcome::Unknown,
    }
}

/// Ends the use of a leg where an operation failed. True if it went well.
pub(crate) fn note_failure(
    shared: &Arc<Shared>,
    leg: usize,
    session: &Arc<Session>,
    result: Result<()>,
) -> bool {
    match result {
        Ok(()) => true,
        Err(error) => {
            shared.leg_failed(leg, session, &error);
            false
        }
    }
}

/// Flushes here and at every leg that takes part.
pub(crate) async fn flush(shared: &Arc<Shared>) -> Result<()> {
    let _under_way = shared.admit()?;
    let parts = shared.legs().begin_flush(None);
    let (result, open) = flush_parts(shared, parts).await;
    settle(shared, open).await?;
    result
}

/// Flushes here and where anything can be flushed, for the end of the mirror.
pub(crate) async fn flush_all(shared: &Arc<Shared>) -> Result<()> {
    let parts = shared.legs().begin_flush(None);
    flush_parts(shared, parts).await.0
}

/// Flushes here and at one leg, whether it takes part or not.
pub(crate) async fn flush_leg(shared: &Arc<Shared>, leg: usize) -> Result<()> {
    let parts = shared.legs().begin_flush(Some(leg));
    let (result, open) = flush_parts(shared, parts).await;
    match open.first() {
        Some((_, true)) => result,
        _ => Err(BlockError::Unreachable("the flush there failed".into())),
    }
}

async fn flush_parts(shared: &Arc<Shared>, parts: Vec<Part>) -> (Result<()>, Vec<(Part, bool)>) {
    let local = shared.local().change(|device| device.flush());
    let sent = parts.iter().filter_map(|part| {
        let session = part.session.clone()?;
        let operation = session.run(|device| device.flush());
        Some(async move { (session, operation.await) })
    });
    let sent: Vec<_> = sent.collect();
    let (local, answers) = join(local, join_all(sent)).await;
    let mut answers = answers.into_iter();
    let mut open = Vec::new();
    for part in parts {
        let answer = part.session.is_some().then(|| answers.next()).flatten();
        let well = answer.is_some_and(|(session, result)| {
            if local.is_ok() && result.is_ok() {
                shared.legs().flushed(&part);
            }
            note_failure(shared, part.leg, &session, result)
        });
        open.push((part, well));
    }
    (shared.local().outcome(shared, local).await, open)
}

/// Waits until the operation may be told complete without the legs where it has not ended well.
async fn settle(shared: &Arc<Shared>, open: Vec<(Part, bool)>) -> Result<()> {
    let since = shared.host().now();
    for (part, well) in &open {
        loop {
            let change = shared.legs().changed();
            if shared.legs().is_settled(part, *well) {
                break;
            }
            shared.check_usable()?;
            if shared.legs().may_exclude(part.leg, shared.config().on_loss) {
                let on_loss = shared.config().on_loss;
                shared.books().exclude(shared.legs(), on_loss, &**shared.host()).await?;
            } else {
                change.await;
            }
        }
    }
    shared.count_wait(shared.host().now().saturating_sub(since));
    Ok(())
}
