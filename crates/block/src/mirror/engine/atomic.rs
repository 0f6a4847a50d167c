//! Brings a leg what it lacks so that its image is a legal one all the time: what is owed goes into
//! the redo log, and from there to its place as one change ([`redo`](super::redo)).
//!
//! While blocks are read, changes here only set bits. Pass after pass reads what is owed; the last
//! one, of little, holds all changes up, so that the batch ends at one moment. In the asynchronous
//! mode what is written from that moment on goes into the epoch log, and is sent when the batch is
//! home. In the synchronous one it sets bits, and another batch brings it; the last batch, a small
//! one, holds changes up until it is home.
//!
//! More than the log holds may be owed and already be there: that is [looked for](super::look)
//! first. Where it cannot be (no log, more that differs than it holds, no end in sight), the leg is
//! caught up [in place](super::catch_up).

use std::sync::Arc;
use std::time::Duration;

use super::super::BLOCK_BYTES;
use super::super::config::Mode;
use super::super::leg::LegEvent;
use super::change;
use super::handshake::{self, Found};
use super::look::look;
use super::piece::Pieces;
use super::redo::Batch;
use super::sender;
use super::session::Session;
use super::shared::Shared;
use super::signs;
use super::span::{self, Reader, gone};
use crate::range_lock::{RangeGuard, held};
use crate::{BlockError, Result};

/// Bytes that are left owed when changes are held up for the last pass: one record, or what the leg
/// has taken so far within this time. What is written here while a pass waits for the line is the
/// next pass, and gets no smaller than that.
const LAST_PASS_BYTES: u64 = 256 << 10;
const LAST_PASS_TIME: Duration = Duration::from_millis(50);

/// Bytes of a batch for which changes are held up until it is home, in the synchronous mode,
/// whatever is known of the leg: at 20 Mbit/s less than half a second, beside its round trips.
const LAST_BATCH_BYTES: u64 = 1 << 20;

/// Longest time for which changes are held up by a larger batch: one that went home before, and was
/// no smaller, took no longer.
const LAST_BATCH_TIME: Duration = Duration::from_secs(1);

/// Passes of a batch, and batches, after which what is written here is taken to be more than what
/// gets there.
const PASSES_MAX: u32 = 8;
const BATCHES_MAX: u32 = 8;

/// What is owed may take this part of the log to begin with, in percent: the rest is for what is
/// written meanwhile.
const OWED_PERCENT: u64 = 75;

/// Whether a leg to which so many blocks are owed is brought them by a redo log of so many bytes.
fn fits(owed_blocks: u64, redo_bytes: u64) -> bool {
    owed_blocks <= owed_max(redo_bytes)
}

/// The most blocks that may be owed to a leg which is brought them by a redo log of `redo_bytes`.
fn owed_max(redo_bytes: u64) -> u64 {
    // Scattered blocks have a header block for each row of pieces.
    redo_bytes.saturating_mul(OWED_PERCENT) / 100 / BLOCK_BYTES
}

/// Makes a leg that was just reached one that takes part, if its redo log is the way to do that.
/// False: it is not, and the leg is as it was.
///
/// # Errors
/// The use of the leg has ended.
pub(crate) async fn bring(
    shared: &Arc<Shared>,
    leg: usize,
    session: &Arc<Session>,
    found: &mut Found,
) -> Result<bool> {
    let redo_bytes = found.redo_bytes();
    let fits_now = || fits(shared.legs().owed(leg), redo_bytes);
    // An image that is none already has nothing to keep, and goes over the line once. Where most of
    // what is owed may be there already, next to nothing does.
    let in_place = found.first || !found.is_consistent() || shared.legs().compares(leg);
    if in_place || (redo_bytes == 0 && !fits_now()) {
        return Ok(false);
    }
    signs::first(shared, leg, session, found).await?;
    if shared.config().mode == Mode::Sync {
        handshake::forget_stamp(shared, leg, session, found).await?;
    }
    if !shared.legs().open_redo(leg, session, LegEvent::CatchUpBegins) {
        return Err(BlockError::Unreachable("the leg is not wanted now".to_owned()));
    }
    if !fits_now() {
        let looking = look(shared, leg, session, owed_max(redo_bytes));
        signs::beside(shared, leg, session, found, looking).await?;
    }
    let ended = match fits_now() {
        true => batches(shared, leg, session, found).await?,
        false => Err(TOO_MUCH),
    };
    if let Err(why) = ended {
        shared.legs().leave_redo(leg, session, why);
    }
    Ok(ended.is_ok())
}

/// Why the redo log is not the way after all.
type Ended = std::result::Result<(), &'static str>;

const TOO_MUCH: &str = "what differs does not fit its redo log";
const NO_ROOM: &str = "what is written meanwhile does not fit its redo log";
const NO_END: &str = "more is written here than gets into its redo log";

async fn batches(
    shared: &Arc<Shared>,
    leg: usize,
    session: &Arc<Session>,
    found: &mut Found,
) -> Result<Ended> {
    let mut before = None;
    for _ in 0..BATCHES_MAX {
        let mut batch = Batch::new(shared, leg, session, found).copied_inside();
        let pass = Pass { shared, leg, session };
        let filled = signs::beside(shared, leg, session, found, pass.fill(&mut batch)).await?;
        let all = match filled {
            Ok(all) => all,
            Err(why) => return Ok(Err(why)),
        };
        if shared.config().mode == Mode::Async {
            return bring_home_logged(shared, leg, session, found, batch, all).await.map(Ok);
        }
        batch.send_all().await?;
        let bytes = batch.bytes();
        let last = is_last(bytes, before).then_some(all);
        batch.hurry(last.is_some());
        let begin = shared.host().now();
        if bring_home(shared, leg, session, found, batch, last).await? {
            return Ok(Ok(()));
        }
        before = Some((bytes, shared.host().now().saturating_sub(begin)));
    }
    Ok(Err(NO_END))
}

/// Whether changes are held up until a batch of `bytes` is home, so that it is the last one.
/// `before`: bytes of the batch before, and how long it took to go home. What is written meanwhile
/// makes the next batch, so that they get smaller no more when they last some round trips only.
fn is_last(bytes: u64, before: Option<(u64, Duration)>) -> bool {
    bytes <= LAST_BATCH_BYTES
        || before.is_some_and(|(larger, took)| bytes <= larger && took <= LAST_BATCH_TIME)
}

/// The asynchronous way: what is written after the batch goes into the epoch log.
async fn bring_home_logged(
    shared: &Arc<Shared>,
    leg: usize,
    session: &Arc<Session>,
    found: &mut Found,
    mut batch: Batch,
    all: RangeGuard,
) -> Result<()> {
    let legs = shared.legs();
    let flush = legs.cut(leg, session).ok_or_else(gone)?;
    let closed = shared.host().now();
    let epoch = legs.log_behind_batch(leg, session, found.stamp()).ok_or_else(gone)?;
    drop(all);
    batch.hurry(false);
    apply(shared, found, &mut batch, epoch, closed).await?;
    legs.note_stamp(leg, session, found.stamp(), closed);
    legs.home(leg, session, flush);
    legs.nears(leg, session);
    sender::start(shared, leg, session, found.layout());
    while !shared.books().follow(legs, leg, session).await? {
        // A change that failed here meanwhile, which the log brings.
        session.check()?;
        let logged = super::catch_up::log_owed(shared, leg, session);
        signs::beside(shared, leg, session, found, logged).await?;
    }
    handshake::tell(shared, leg, session, found).await
}

/// The synchronous way. With `all`, nothing is written here until the leg takes part: true then.
async fn bring_home(
    shared: &Arc<Shared>,
    leg: usize,
    session: &Arc<Session>,
    found: &mut Found,
    mut batch: Batch,
    all: Option<RangeGuard>,
) -> Result<bool> {
    let legs = shared.legs();
    let flush = legs.cut(leg, session).ok_or_else(gone)?;
    let closed = shared.host().now();
    apply(shared, found, &mut batch, 0, closed).await?;
    legs.home(leg, session, flush);
    let Some(all) = all else { return Ok(false) };
    legs.redo_is_done(leg, session);
    let follows = shared.books().follow(legs, leg, session).await?;
    drop(all);
    if !follows {
        return Err(gone());
    }
    handshake::tell(shared, leg, session, found).await?;
    Ok(true)
}

/// The batch becomes the image there. What was copied is stable here, too, before it counts as
/// equal.
async fn apply(
    shared: &Arc<Shared>,
    found: &mut Found,
    batch: &mut Batch,
    epoch: u64,
    closed: Duration,
) -> Result<()> {
    batch.commit(found, epoch, closed).await?;
    batch.copy_home(found).await?;
    batch.release(found).await?;
    change::flush_local(shared).await
}

/// Reads what is owed into a batch.
struct Pass<'a> {
    shared: &'a Arc<Shared>,
    leg: usize,
    session: &'a Arc<Session>,
}

impl Pass<'_> {
    /// Fills a batch with all that is owed at one moment, from which on nothing changes until the
    /// lock is let go.
    async fn fill(
        &self,
        batch: &mut Batch,
    ) -> Result<std::result::Result<RangeGuard, &'static str>> {
        if let Err(why) = self.until(batch, None).await? {
            return Ok(Err(why));
        }
        batch.send_all().await?;
        batch.hurry(true);
        let all = held(self.shared.locks().exclusive(0..u64::MAX)).await;
        Ok(self.until(batch, Some(&all)).await?.map(|()| all))
    }

    /// Goes on until little is owed, or nothing with `all`: the lock under which nothing changes.
    async fn until(&self, batch: &mut Batch, all: Option<&RangeGuard>) -> Result<Ended> {
        let Self { shared, leg, session } = *self;
        let reader = Reader { shared, leg, session, all_held: all.is_some() };
        let mut pieces = Pieces::new(session.info(), shared);
        let mut passes = 0;
        let enough = |batch: &Batch| match all {
            None => batch.taken_within(LAST_PASS_TIME).max(LAST_PASS_BYTES),
            Some(_) => 0,
        };
        while shared.legs().owed(leg) * BLOCK_BYTES > enough(batch) {
            session.check()?;
            shared.check_usable()?;
            if passes == PASSES_MAX {
                return Ok(Err(NO_END));
            }
            let group = batch.beside(span::next_group(&mut pieces, shared, leg)).await??;
            passes += u32::from(group.is_last);
            for piece in batch.beside(reader.take(group)).await?? {
                if !batch.has_room(piece.content.data_bytes()) {
                    return Ok(Err(NO_ROOM));
                }
                batch.add(piece);
            }
            batch.send().await?;
        }
        Ok(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_owed_leaves_room_for_what_is_written_meanwhile() {
        assert!(fits(0, 0) && !fits(1, 0));
        assert!(fits(75, 100 * BLOCK_BYTES) && !fits(76, 100 * BLOCK_BYTES));
        assert!(!fits(u64::MAX / 4096, 1 << 40));
    }

    #[test]
    fn changes_are_held_up_for_little_or_for_what_is_known_to_be_quick() {
        let (much, soon) = (64 << 20, Duration::from_millis(600));
        assert!(is_last(1 << 20, None) && !is_last(much, None));
        assert!(is_last(much, Some((much, soon))) && !is_last(much + 1, Some((much, soon))));
        assert!(!is_last(much, Some((much, 2 * soon))));
    }
}
