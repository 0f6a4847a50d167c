//! [`MetadataStore`]: the metadata device of a mirror in use. It does the I/O that the
//! [activity log](super::activity) asks for, writes superblocks and bitmap pages, and takes it all
//! up again after a power cut.
//!
//! What is written goes on although nobody waits for it any more, in tasks of the [`Host`]: a
//! write that was given up half way could otherwise land on a newer one. After a write of metadata
//! has failed nothing can be entered that is not in the log already.
//!
//! Not here: what the bits and the fields of the superblock mean.

use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use super::activity::{self, ActivityLog, Step, Ticket, Touch};
use super::bitmap::{Bitmap, BitmapId};
use super::host::Host;
use super::layout::{EXTENT_BYTES, LayoutError, LocalLayout};
use super::superblock::{BlockFault, LocalSuperblock, MirrorId, Record};
use crate::range_lock::{RangeGuard, RangeLocks, Waiting, held};
use crate::{BlockError, Bytes, Device, Io, Result};

mod detached;
mod format;
mod pages;
mod write;

pub(super) use format::write_pages;
pub use format::{InitialBits, Opened, format, open, read_superblock};

/// Bytes of a change at most. Longer ones have to be cut.
pub const CHANGE_BYTES_MAX: u64 = (activity::WRITE_EXTENTS_MAX as u64 - 1) * EXTENT_BYTES;

/// Why metadata cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The device failed.
    #[error(transparent)]
    Device(#[from] BlockError),
    /// Something else stands there.
    #[error(transparent)]
    Fault(#[from] BlockFault),
    /// It does not fit.
    #[error(transparent)]
    Layout(#[from] LayoutError),
}

/// What the turns of a store are about.
const PAGES: Range<u64> = 0..1;
const RECORDS: Range<u64> = 1..2;

/// What the store has to know of the image whose metadata it keeps.
pub trait Image: Send + Sync + 'static {
    /// Calls `look` for each leg there is, with its number, the name of its pages and its bits.
    fn look_at_bits(&self, look: &mut dyn FnMut(usize, BitmapId, &mut Bitmap));

    /// Makes stable on the local device what was written there.
    fn make_stable(&self) -> Io<()>;
}

/// What was written to the metadata device since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Metrics {
    /// Changes that were entered without waiting for metadata.
    pub entered_at_once: u64,
    /// Changes that had to wait for a record.
    pub entered_later: u64,
    /// Records of the activity log.
    pub records: u64,
    /// Times that extents left the log, each with a flush of the local device.
    pub leaves: u64,
    /// Pages of bitmaps.
    pub pages: u64,
    /// Superblocks.
    pub superblocks: u64,
    /// Bytes of all of these.
    pub bytes: u64,
}

/// The metadata device of a mirror in use. Clones are the same store.
#[derive(Clone)]
pub struct MetadataStore {
    inner: Arc<Inner>,
}

struct Inner {
    device: Device,
    host: Arc<dyn Host>,
    layout: LocalLayout,
    uuid: MirrorId,
    state: Mutex<State>,
    /// [`PAGES`] is held by whoever takes pages and makes them durable: a page that was taken
    /// counts as saved, which is believed only by those who have waited for it. [`RECORDS`] is held
    /// while a record of the log is written.
    turns: Arc<RangeLocks>,
    /// Blocks being written.
    blocks: Arc<RangeLocks>,
}

struct State {
    log: ActivityLog,
    image: Option<Weak<dyn Image>>,
    /// A task is about to look at what the log has to have done.
    looking: bool,
    waiters: BTreeMap<Ticket, Waiter>,
    /// Why no more metadata can be written.
    failure: Option<String>,
    metrics: Metrics,
}

/// A turn, or a place in the queue for it.
type Turn = std::result::Result<RangeGuard, Waiting>;

/// Let in, or why not.
type LetIn = std::result::Result<(), String>;

/// Whoever waits to be let in.
#[derive(Default)]
struct Waiter {
    outcome: Option<LetIn>,
    waker: Option<Waker>,
}

impl MetadataStore {
    fn new(
        device: Device,
        host: Arc<dyn Host>,
        layout: LocalLayout,
        uuid: MirrorId,
        log: ActivityLog,
    ) -> Self {
        let state = State {
            log,
            image: None,
            looking: false,
            waiters: BTreeMap::new(),
            failure: None,
            metrics: Metrics::default(),
        };
        let (state, turns, blocks) = (Mutex::new(state), Arc::default(), Arc::default());
        Self { inner: Arc::new(Inner { device, host, layout, uuid, state, turns, blocks }) }
    }

    /// Serves this image from now on. Extents can leave the log only when there is one.
    pub fn serve(&self, image: Weak<dyn Image>) {
        self.inner.lock().image = Some(image);
    }

    /// What was written so far.
    pub fn metrics(&self) -> Metrics {
        self.inner.lock().metrics
    }

    /// Bytes that are copied if the power is cut now, besides those that the bitmaps tell.
    pub fn active_bytes(&self) -> u64 {
        self.inner.lock().log.extents().count() as u64 * EXTENT_BYTES
    }

    /// Makes it durable that the bytes `bytes` are about to change; at most [`CHANGE_BYTES_MAX`].
    /// They count as changing until what comes of it is dropped.
    pub fn enter(&self, bytes: Range<u64>) -> Entering {
        let inner = self.inner.clone();
        let mut state = inner.lock();
        let end = bytes.end.div_ceil(EXTENT_BYTES);
        let extents = match (u32::try_from(bytes.start / EXTENT_BYTES), u32::try_from(end)) {
            (Ok(start), Ok(end)) => start..end,
            _ => 0..u32::MAX, // Refused by the log like everything outside of the device.
        };
        let stage = match state.log.touch(extents.clone()) {
            Touch::In => {
                state.metrics.entered_at_once += 1;
                Stage::In
            }
            Touch::TooLong => Stage::Refused(too_long()),
            Touch::Wait(ticket) => match state.failure.clone() {
                Some(why) => {
                    state.log.give_up(ticket);
                    Stage::Refused(unwritable(&why))
                }
                None => {
                    state.waiters.insert(ticket, Waiter::default());
                    inner.look(&mut state);
                    Stage::Waits(ticket)
                }
            },
        };
        drop(state);
        Entering { inner, extents, stage }
    }

    /// Writes a superblock to its place; durable when this ends. The caller counts it up.
    ///
    /// # Errors
    /// The device's, and [`BlockFault::TooLong`] as text.
    pub async fn commit(&self, superblock: &LocalSuperblock) -> Result<()> {
        let block = superblock.encode().map_err(|fault| unwritable(&fault.to_string()))?;
        let at = LocalLayout::superblock(superblock.sequence);
        let inner = self.inner.clone();
        let written = detached::run(&self.inner.host, async move {
            let written = inner.write_block(at, Bytes::copy_from_slice(&block[..])).await;
            let mut state = inner.lock();
            state.metrics.superblocks += 1;
            inner.noted(&mut state, written)
        });
        written.await.unwrap_or_else(|| Err(closed()))
    }

    /// Writes down the bits of one leg, or of all, as they are now.
    ///
    /// # Errors
    /// The device's: the bits count as not saved.
    pub async fn save(&self, leg: Option<usize>) -> Result<()> {
        let inner = self.inner.clone();
        let saved = detached::run(&self.inner.host, async move {
            let _turn = held(inner.turns.exclusive(PAGES)).await;
            inner.save(leg).await
        });
        saved.await.unwrap_or_else(|| Err(closed()))
    }

    /// Empties the log: the local device is made stable, the bits are saved, and an empty record
    /// says that they tell everything. For a mirror that is being closed.
    ///
    /// # Errors
    /// The devices'; [`BlockError::Unsupported`] while a change is under way.
    pub async fn forget(&self) -> Result<()> {
        let inner = self.inner.clone();
        let forgotten = detached::run(&self.inner.host, async move {
            let _turns = held(inner.turns.exclusive(PAGES.start..RECORDS.end)).await;
            inner.forget().await
        });
        forgotten.await.unwrap_or_else(|| Err(closed()))
    }
}

impl Inner {
    /// Nothing is left half changed behind this lock, so a panic elsewhere does not spoil it.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn image(&self) -> Result<Arc<dyn Image>> {
        let image = self.lock().image.as_ref().and_then(Weak::upgrade);
        image.ok_or_else(closed)
    }

    /// Has the log looked at soon: by a task, so that all writers who come now share a record.
    fn look(self: &Arc<Self>, state: &mut State) {
        if !std::mem::replace(&mut state.looking, true) {
            let inner = self.clone();
            self.host.spawn(Box::pin(async move {
                let mut state = inner.lock();
                state.looking = false;
                inner.go_on(&mut state);
            }));
        }
    }

    /// Begins what the log has to have done now.
    fn go_on(self: &Arc<Self>, state: &mut State) {
        loop {
            match state.log.step() {
                Step::Idle => return,
                Step::LetIn(tickets) => state.tell(tickets, &Ok(())),
                // Turns are taken here, so that whoever comes later waits for what has begun.
                Step::Record { sequence, extents } => {
                    let turn = self.turns.exclusive(RECORDS);
                    self.host.spawn(Box::pin(self.clone().record(turn, sequence, extents)));
                }
                Step::Leave(extents) => {
                    let turn = self.turns.exclusive(PAGES);
                    self.host.spawn(Box::pin(self.clone().leave(turn, extents)));
                }
            }
        }
    }

    async fn record(self: Arc<Self>, turn: Turn, sequence: u64, extents: Vec<u32>) {
        let turn = held(turn).await;
        let written = self.write_record(sequence, &extents).await;
        let mut state = self.lock();
        match self.noted(&mut state, written) {
            Ok(()) => {
                let tickets = state.log.recorded();
                state.tell(tickets, &Ok(()));
                drop(turn);
                self.go_on(&mut state);
            }
            Err(error) => {
                let tickets = state.log.failed();
                state.tell(tickets, &Err(error.to_string()));
            }
        }
    }

    async fn write_record(&self, sequence: u64, extents: &[u32]) -> Result<()> {
        let block = activity::encode(self.uuid, sequence, extents);
        let at = LocalLayout::record(sequence);
        let written = self.write_block(at, Bytes::copy_from_slice(&block[..])).await;
        self.lock().metrics.records += 1;
        written
    }

    /// Has extents leave the log. If they cannot, whoever comes next tries again.
    async fn leave(self: Arc<Self>, turn: Turn, extents: Vec<u32>) {
        let turn = held(turn).await;
        let saved = self.make_bits_durable(&extents).await;
        let mut state = self.lock();
        match saved {
            Ok(()) => {
                state.metrics.leaves += 1;
                state.log.left();
                drop(turn);
                self.go_on(&mut state);
            }
            Err(error) => {
                let tickets = state.log.stayed();
                state.tell(tickets, &Err(error.to_string()));
            }
        }
    }

    async fn make_bits_durable(&self, extents: &[u32]) -> Result<()> {
        let image = self.image()?;
        image.make_stable().await?;
        self.save_missing_bits(&*image, extents).await
    }

    async fn forget(&self) -> Result<()> {
        self.image()?.make_stable().await?;
        self.save(None).await?;
        let sequence = self.lock().log.clear();
        let busy = BlockError::Unsupported("closing the metadata while changes are under way");
        let written = self.write_record(sequence.ok_or(busy)?, &[]).await;
        self.noted(&mut self.lock(), written)
    }

    /// Metadata that could not be written may be there or not: no more is written.
    fn noted(&self, state: &mut State, written: Result<()>) -> Result<()> {
        if let Err(error) = &written {
            state.failure.get_or_insert_with(|| error.to_string());
        }
        written
    }
}

impl State {
    fn tell(&mut self, tickets: Vec<Ticket>, outcome: &LetIn) {
        for ticket in tickets {
            let Some(waiter) = self.waiters.get_mut(&ticket) else { continue };
            waiter.outcome = Some(outcome.clone());
            if let Some(waker) = waiter.waker.take() {
                waker.wake();
            }
        }
    }
}

fn too_long() -> BlockError {
    BlockError::Unsupported("a change of more than 63 MiB at once, or outside of the mirror,")
}

fn unwritable(why: &str) -> BlockError {
    let what = format!("the mirror's metadata cannot be written: {why}");
    BlockError::Medium(std::io::Error::other(what))
}

fn closed() -> BlockError {
    BlockError::Unreachable("the mirror is closed".into())
}

/// A change that waits to be let in. Dropped, it gives up its place.
#[must_use = "nothing may be changed before this has ended well"]
pub struct Entering {
    inner: Arc<Inner>,
    extents: Range<u32>,
    stage: Stage,
}

enum Stage {
    In,
    Waits(Ticket),
    Refused(BlockError),
    /// The outcome was told.
    Over,
}

/// A change that was let in, until dropped.
pub struct Entered {
    inner: Arc<Inner>,
    extents: Range<u32>,
}

impl Entering {
    fn let_in(&self) -> Entered {
        Entered { inner: self.inner.clone(), extents: self.extents.clone() }
    }
}

impl Future for Entering {
    type Output = Result<Entered>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        match std::mem::replace(&mut this.stage, Stage::Over) {
            Stage::In => Poll::Ready(Ok(this.let_in())),
            Stage::Refused(error) => Poll::Ready(Err(error)),
            Stage::Over => panic!("Entering polled after completion"), // our bug
            Stage::Waits(ticket) => {
                let inner = this.inner.clone();
                let mut state = inner.lock();
                let waiter = state.waiters.entry(ticket).or_default();
                let Some(outcome) = waiter.outcome.take() else {
                    waiter.waker = Some(context.waker().clone());
                    this.stage = Stage::Waits(ticket);
                    return Poll::Pending;
                };
                state.waiters.remove(&ticket);
                state.metrics.entered_later += 1;
                Poll::Ready(outcome.map(|()| this.let_in()).map_err(|why| unwritable(&why)))
            }
        }
    }
}

impl Drop for Entering {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::In => drop(self.let_in()),
            Stage::Refused(_) | Stage::Over => {}
            Stage::Waits(ticket) => {
                let mut state = self.inner.lock();
                let outcome = state.waiters.remove(&ticket).and_then(|waiter| waiter.outcome);
                if outcome.is_some() {
                    drop(state);
                    if outcome == Some(Ok(())) {
                        drop(self.let_in());
                    }
                } else {
                    state.log.give_up(ticket);
                    // Whoever stood behind may get in.
                    self.inner.look(&mut state);
                }
            }
        }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut state = self.inner.lock();
        if state.log.release(self.extents.clone()) {
            self.inner.look(&mut state);
        }
    }
}

#[cfg(test)]
mod tests;
