//! Changes of the user: writes, zeroes and trims. Each runs as a task of its own, so that it is
//! carried through whatever becomes of the caller: a write that was dropped half way could land at
//! a leg behind a later one.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::{join, join_all};

use super::super::BLOCK_BYTES;
use super::super::config::Mode;
use super::go_on::{self, Asked};
use super::legs::{Outcome, Part};
use super::logged;
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
    pub(crate) fn pieces(self, bytes_max: u64) -> impl Iterator<Item = Self> {
        let bytes_max = bytes_max.min(CHANGE_BYTES_MAX);
        let starts = (0..self.len).step_by(bytes_max as usize);
        starts.map(move |start| {
            let len = bytes_max.min(self.len - start);
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
    pub(super) fn bytes(&self) -> Range<u64> {
        let end = (self.offset + self.len).next_multiple_of(BLOCK_BYTES);
        self.offset / BLOCK_BYTES * BLOCK_BYTES..end
    }

    fn blocks(&self) -> Range<u64> {
        let bytes = self.bytes();
        bytes.start / BLOCK_BYTES..bytes.end / BLOCK_BYTES
    }

    /// What is known of its blocks at a leg, when both sides have ended. As long as the local
    /// device may lose the change, a bit stays: after a power cut here the leg could be the newer
    /// one.
    fn outcomes(&self, local: &Result<()>, remote: &Result<()>) -> Vec<(Range<u64>, Outcome)> {
        let blocks = self.blocks();
        if local.is_err() || remote.is_err() {
            return vec![(blocks, Outcome::Unknown)];
        }
        if !self.fua {
            return vec![(blocks, Outcome::Written)];
        }
        // What was forced is stable. In a block of which that is only a part, the rest may have
        // been answered before and not flushed.
        let start = self.offset.div_ceil(BLOCK_BYTES);
        let end = ((self.offset + self.len) / BLOCK_BYTES).max(start);
        let (start, end) = (start.min(blocks.end), end.min(blocks.end));
        let parts = [
            (blocks.start..start, Outcome::Written),
            (start..end, Outcome::Stable),
            (end..blocks.end, Outcome::Written),
        ];
        parts.into_iter().filter(|(blocks, _)| !blocks.is_empty()).collect()
    }

    /// Does it to one device.
    pub(super) fn apply(&self, device: &Device) -> Io<()> {
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
    if shared.config().mode == Mode::Async {
        return logged::carry_out(shared, change).await;
    }
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
    let local = go_on::outcome(shared, Asked::Change, local).await;
    let mut answers = answers.into_iter();
    let mut open = Vec::new();
    for part in parts {
        let answer = part.session.is_some().then(|| answers.next()).flatten();
        let well = answer.is_some_and(|(session, result)| {
            for (blocks, outcome) in change.outcomes(&local, &result) {
                shared.legs().answered(part.leg, &session, blocks, outcome);
            }
            note_failure(shared, part.leg, &session, result)
        });
        open.push((part, well));
    }
    // What waits for a leg now does not keep a copy to that leg from these blocks.
    drop(entered);
    drop(lock);
    // A leg that takes part and was owed these blocks has got them by a copy, which forces nothing.
    let copied =
        |(part, _): &(Part, bool)| part.session.is_none() && shared.legs().takes_part(part.leg);
    let force = change.fua && open.iter().any(copied);
    settle(shared, open).await?;
    if force {
        let (forced, open) = flush_parts(shared, shared.legs().begin_flush(None)).await;
        settle(shared, open).await?;
        forced?;
    }
    shared.count_written(change.len);
    local
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
    let covered = shared.legs().covered();
    let parts = shared.legs().begin_flush(None);
    let (result, open) = flush_parts(shared, parts).await;
    logged::flushed(shared, covered, &result);
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

/// Flushes here alone, for what is stable at a leg already.
pub(crate) async fn flush_local(shared: &Arc<Shared>) -> Result<()> {
    let local = shared.local().change(|device| device.flush()).await;
    go_on::outcome(shared, Asked::Flush, local).await
}

async fn flush_parts(shared: &Arc<Shared>, parts: Vec<Part>) -> (Result<()>, Vec<(Part, bool)>) {
    let local = shared.local().change(|device| device.flush());
    let sent = parts.iter().filter_map(|part| {
        let session = part.session.clone()?;
        let operation = session.flush();
        Some(async move { (session, operation.await) })
    });
    let sent: Vec<_> = sent.collect();
    let (local, answers) = join(local, join_all(sent)).await;
    let local = go_on::outcome(shared, Asked::Flush, local).await;
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
        if part.session.is_none() && local.is_ok() {
            shared.legs().flushed(&part);
        }
        open.push((part, well));
    }
    (local, open)
}

/// Waits until the operation may be told complete without the legs where it has not ended well.
pub(super) async fn settle(shared: &Arc<Shared>, open: Vec<(Part, bool)>) -> Result<()> {
    let since = shared.host().now();
    for (part, well) in &open {
        loop {
            let change = shared.legs().changed();
            if shared.legs().is_settled(part, *well) {
                break;
            }
            shared.check_usable()?;
            go_on::check_image(shared)?;
            if shared.legs().may_exclude(part.leg, shared.config().on_loss) {
                let on_loss = shared.config().on_loss;
                shared.books().exclude(shared.legs(), on_loss, &**shared.host()).await?;
            } else {
                change.await;
            }
        }
    }
    go_on::told(shared).await?;
    shared.count_wait(shared.host().now().saturating_sub(since));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forced_write_makes_stable_only_the_blocks_that_it_covers() {
        let outcomes = |offset, len| {
            let what = What::Zero { may_trim: false };
            Change { offset, len, what, fua: true }.outcomes(&Ok(()), &Ok(()))
        };
        use Outcome::{Stable, Written};
        assert_eq!(outcomes(4096, 8192), [(1..3, Stable)]);
        assert_eq!(outcomes(512, 512), [(0..1, Written)]);
        assert_eq!(outcomes(512, 4096), [(0..1, Written), (1..2, Written)]);
        assert_eq!(outcomes(512, 8192), [(0..1, Written), (1..2, Stable), (2..3, Written)]);
    }

    #[test]
    fn pieces_are_all_of_it() {
        let len = 2 * CHANGE_BYTES_MAX + 512;
        let change = Change { offset: 512, len, what: What::Trim, fua: false };
        let pieces: Vec<_> =
            change.pieces(u64::MAX).map(|piece| (piece.offset, piece.len)).collect();
        let third = 512 + 2 * CHANGE_BYTES_MAX;
        let second = 512 + CHANGE_BYTES_MAX;
        assert_eq!(pieces, [(512, CHANGE_BYTES_MAX), (second, CHANGE_BYTES_MAX), (third, 512)]);
    }
}
