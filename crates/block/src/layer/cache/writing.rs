//! Writes behind: taking them, writing them out, and what waits for that (flush, forced writes and
//! everything else that changes the device).

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;

use super::config::CacheConfig;
use super::dirty::{Job, Readiness};
use super::sabotage::Sabotage;
use super::shared::{Hold, PERMIT_BYTES, Shared, State, copy_error};
use crate::{BlockError, Buf, Device, Io, Result, WriteFlags};

/// Takes a write into memory; waits for room if need be.
pub(super) fn write_behind(shared: &Arc<Shared>, offset: u64, data: Bytes) -> Io<()> {
    let permits = (data.len() as u64 / PERMIT_BYTES) as u32;
    let mistaken = shared.config.mistakes.has(Sabotage::NoRoomNeeded);
    if let Ok(room) = shared.room.try_acquire_many(if mistaken { 0 } else { permits }) {
        room.forget();
        return Io::done(take(shared, offset, &data));
    }
    shared.lock().stats.writes_waited += 1;
    // Whoever waits for room needs the rest to go out, however young it is.
    write_out(shared);
    let shared = shared.clone();
    Io::later(async move {
        // What has failed keeps its room until a flush; nobody waits for that.
        let failure = |state: &mut State| state.deferred.as_ref().map(copy_error);
        tokio::select! {
            biased; // so that a run is a function of its seed
            room = shared.room.acquire_many(permits) => match room {
                Ok(room) => room.forget(),
                Err(_) => return Err(BlockError::Unreachable("the cache is closed".into())),
            },
            error = shared.until(failure) => return Err(error),
        }
        take(&shared, offset, &data)
    })
}

/// The write's room is taken already; it is given back if the write is refused.
fn take(shared: &Arc<Shared>, offset: u64, data: &Bytes) -> Result<()> {
    let len = data.len() as u64;
    let mut state = shared.lock();
    if let Some(error) = &state.deferred {
        let error = copy_error(error);
        drop(state);
        shared.free(len);
        return Err(error);
    }
    let replaced = state.dirty.insert(offset, data, Instant::now());
    if !shared.config.mistakes.has(Sabotage::KeepStaleChunks) {
        state.chunks.invalidate(&(offset..offset + len));
    }
    state.stats.writes_in += 1;
    drop(state);
    shared.free(replaced);
    write_out(shared);
    Ok(())
}

/// Starts what may be written now, and sees to it that the rest is looked at in time.
pub(super) fn write_out(shared: &Arc<Shared>) {
    let mut state = shared.lock();
    // Half of the memory is for bursts.
    let pressure = state.dirty.bytes() * 2 > shared.config.write_bytes_max;
    let now = Instant::now();
    let ready = Readiness { now, delay: shared.config.write_delay, pressure };
    while state.writes_in_flight < shared.config.writes_in_flight_max {
        let Some(job) = take_job(&mut state, ready, &shared.config) else { break };
        state.writes_in_flight += job.runs.len();
        state.stats.writes_out += job.runs.len() as u64;
        shared.runtime.spawn(run(shared.clone(), job));
    }
    let due = state.dirty.next_due(shared.config.write_delay);
    if let Some(due) = due.filter(|_| !state.timer_armed) {
        state.timer_armed = true;
        let shared = shared.clone();
        // What is due and still blocked goes when that ends; so no earlier than a full delay.
        let at = if due <= now { now + shared.config.write_delay } else { due };
        shared.runtime.clone().spawn(async move {
            tokio::time::sleep_until(at).await;
            shared.lock().timer_armed = false;
            write_out(&shared);
        });
    }
}

fn take_job(state: &mut State, ready: Readiness, config: &CacheConfig) -> Option<Job> {
    let chunk_bytes = config.write_chunk_bytes;
    let mistaken = config.mistakes.has(Sabotage::NoHold);
    let holds = if mistaken { &[][..] } else { &state.holds[..] };
    state.dirty.take(ready, |chunk, seq| {
        let (start, end) = (chunk * chunk_bytes, (chunk + 1) * chunk_bytes);
        let holds = holds.iter().filter(|hold| hold.seq < seq);
        holds.into_iter().any(|hold| hold.range.start < end && start < hold.range.end)
    })
}

/// Writes one chunk's runs side by side.
async fn run(shared: Arc<Shared>, job: Job) {
    let count = job.runs.len();
    let write = |(offset, pieces): (u64, Vec<Bytes>)| {
        shared.device.write(offset, join(pieces), WriteFlags::NONE)
    };
    // All of them are awaited, also after an error: none may be on its way when the next begins.
    let results = futures_util::future::join_all(job.runs.into_iter().map(write)).await;
    let errors: Vec<BlockError> = results.into_iter().filter_map(Result::err).collect();
    let mut state = shared.lock();
    state.writes_in_flight -= count;
    state.stats.deferred_errors += errors.len() as u64;
    let freed = match errors.into_iter().next() {
        None => state.dirty.written(job.chunk),
        Some(error) => {
            tracing::warn!(%error, chunk = job.chunk, "an acknowledged write failed; its data is kept");
            state.deferred.get_or_insert(error);
            state.dirty.failed(job.chunk)
        }
    };
    drop(state);
    if !shared.config.mistakes.has(Sabotage::KeepRoom) {
        shared.free(freed);
    }
    shared.progress.notify_waiters();
    write_out(&shared);
}

fn join(mut pieces: Vec<Bytes>) -> Bytes {
    if pieces.len() == 1 {
        return pieces.swap_remove(0);
    }
    let mut buf = Buf::new(pieces.iter().map(Bytes::len).sum());
    let mut at = 0;
    for piece in pieces {
        buf[at..at + piece.len()].copy_from_slice(&piece);
        at += piece.len();
    }
    buf.freeze()
}

/// Writes everything out that was acknowledged before, and makes it stable.
///
/// What failed before is tried again. The flush fails if any of it still does; it also fails, once,
/// if a failure has not been reported yet although the second attempt went well.
pub(super) async fn flush(shared: Arc<Shared>) -> Result<()> {
    let start = Instant::now();
    let result = flush_now(&shared).await;
    let mut state = shared.lock();
    state.stats.flushes += 1;
    state.stats.flush_wait_us += start.elapsed().as_micros() as u64;
    result
}

async fn flush_now(shared: &Arc<Shared>) -> Result<()> {
    let (seq, errors, earlier) = {
        let mut state = shared.lock();
        state.dirty.retry();
        let errors = state.stats.deferred_errors;
        let unreported = errors > state.reported_errors;
        let earlier = state.deferred.as_ref().filter(|_| unreported).map(copy_error);
        (state.dirty.urge(), errors, earlier)
    };
    write_out(shared);
    // Asked under one lock: another flush may let what has failed wait again at any time.
    let written = |state: &mut State| {
        state.dirty.is_out(seq).then(|| match &state.deferred {
            Some(error) if state.dirty.has_failed() => {
                state.reported_errors = state.stats.deferred_errors;
                Err(copy_error(error))
            }
            _ => Ok(()),
        })
    };
    shared.until(written).await?;
    let mistakes = shared.config.mistakes;
    if shared.device.info().can_flush && !mistakes.has(Sabotage::FlushSkipsDevice) {
        shared.device.flush().await?;
    }
    let mut state = shared.lock();
    if earlier.is_some() {
        state.reported_errors = state.reported_errors.max(errors);
    }
    // What failed since the call, and was cured by another flush, is for the next one to report.
    if state.reported_errors == state.stats.deferred_errors && !state.dirty.has_failed() {
        state.deferred = None;
    }
    let earlier = earlier.filter(|_| !mistakes.has(Sabotage::ForgetError));
    earlier.map_or(Ok(()), Err)
}

/// Waits until no acknowledged write of the range is left in memory.
pub(super) async fn settle(shared: &Arc<Shared>, range: &Range<u64>) -> Result<()> {
    let held = hold(shared, range, Past::Nothing).await?;
    release(shared, held.id);
    Ok(())
}

/// Zeroes or trims the range on the device itself, as [`exclusive`] does, also past writes of it
/// that have failed: what they hold is not wanted any more, and a full device has to be able to get
/// space back. That they have failed is for the next flush to say, as ever.
pub(super) fn replace(
    shared: &Arc<Shared>,
    range: Range<u64>,
    operation: impl FnOnce(&Device) -> Io<()> + Send + 'static,
) -> Io<()> {
    let owner = shared.clone();
    let task = shared.runtime.spawn(async move {
        let held = hold(&owner, &range, Past::Failed).await?;
        let stale = !owner.config.mistakes.has(Sabotage::KeepChunksPastExclusive);
        let outdated = if stale { range.clone() } else { 0..0 };
        owner.lock().chunks.invalidate(&outdated);
        let result = operation(&owner.device).await;
        let mut state = owner.lock();
        state.chunks.invalidate(&outdated);
        let replaces = result.is_ok() && !owner.config.mistakes.has(Sabotage::KeepReplaced);
        let freed = if replaces { state.dirty.discard(&range, held.seq) } else { 0 };
        drop(state);
        owner.free(freed);
        release(&owner, held.id);
        result
    });
    awaited(task)
}

/// Changes the range on the device itself, after the pending writes of it and before later ones.
///
/// It runs to its end even if nobody waits any more: what the device does is then known.
pub(super) fn exclusive(
    shared: &Arc<Shared>,
    range: Range<u64>,
    operation: impl FnOnce(&Device) -> Io<()> + Send + 'static,
) -> Io<()> {
    let owner = shared.clone();
    let task = shared.runtime.spawn(async move {
        let Held { id: hold, .. } = hold(&owner, &range, Past::Nothing).await?;
        let stale = !owner.config.mistakes.has(Sabotage::KeepChunksPastExclusive);
        let outdated = if stale { range } else { 0..0 };
        owner.lock().chunks.invalidate(&outdated);
        let result = operation(&owner.device).await;
        owner.lock().chunks.invalidate(&outdated);
        release(&owner, hold);
        result
    });
    awaited(task)
}

fn awaited(task: tokio::task::JoinHandle<Result<()>>) -> Io<()> {
    Io::later(async move {
        let ended = task.await;
        ended.unwrap_or_else(|_| Err(BlockError::Unreachable("the runtime has ended".into())))
    })
}

/// What an operation does not wait for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Past {
    Nothing,
    /// Writes that have failed, which stay where they are as long as the hold.
    Failed,
}

/// A hold that is in force, and the newest data that were there before it.
struct Held {
    id: u64,
    seq: u64,
}

/// Holds back later writes of the range and waits for the pending ones.
async fn hold(shared: &Arc<Shared>, range: &Range<u64>, past: Past) -> Result<Held> {
    let (id, seq) = {
        let mut state = shared.lock();
        state.next_hold += 1;
        let (id, seq) = (state.next_hold, state.dirty.last_seq());
        state.holds.push(Hold { id, range: range.clone(), seq });
        if state.dirty.overlaps(range, seq) {
            state.dirty.urge();
        }
        (id, seq)
    };
    write_out(shared);
    let settled = |state: &mut State| match &state.deferred {
        Some(error) if past == Past::Nothing => Some(Err(copy_error(error))),
        _ if past == Past::Failed && !state.dirty.overlaps_unfailed(range, seq) => {
            // From now on a flush may not send them either.
            let own = state.holds.iter_mut().find(|hold| hold.id == id);
            own.into_iter().for_each(|hold| hold.seq = 0);
            Some(Ok(Held { id, seq }))
        }
        _ => (!state.dirty.overlaps(range, seq)).then_some(Ok(Held { id, seq })),
    };
    let settled = shared.until(settled).await;
    if settled.is_err() {
        release(shared, id);
    }
    settled
}

fn release(shared: &Arc<Shared>, hold: u64) {
    shared.lock().holds.retain(|held| held.id != hold);
    shared.progress.notify_waiters();
    write_out(shared);
}
