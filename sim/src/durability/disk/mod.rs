//! Storage as it is under a target: a cache that forgets, a medium that keeps, and the ways in
//! which the one does not reach the other. A [`BlockDevice`] for the real device server, whose
//! operations end when the simulation says so.
//!
//! A completed write is *visible*; it is *stable* only after a flush, after its own FUA, or because
//! the cache was written back in between. A power cut leaves of each sector any state that it had
//! since it was last stable: a random subset of the writes, torn at sector grain. A write-back that
//! fails marks its sectors clean, as Linux does: they stay visible, never become stable, and one
//! later call is told ([`Telling`]).
//!
//! Not here: a file (`block::backend`) and its system calls. [`Telling::UntilRestart`] mirrors what
//! that backend makes of the kernel's single report: it remembers it.

mod state;

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use block::{BlockDevice, BlockError, Buf, Bytes, DeviceInfo, Extent, Io, WriteFlags, ZeroFlags};

use self::state::{State, Work};
use super::sabotage::Sabotage;
use crate::rng::Rng;

/// Bytes of a sector, and of a logical block: what a power cut does not tear.
pub(crate) const SECTOR: usize = 512;

/// Sectors of the disk: few, so that operations overlap.
pub(crate) const SECTORS: u32 = 96;

/// What a sector holds: the number of the operation that wrote it, 0 for zeroes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Value(pub(crate) u32);

/// A run of sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) first: u32,
    pub(crate) count: u32,
}

impl Run {
    pub(crate) const ALL: Self = Self { first: 0, count: SECTORS };

    pub(crate) fn sectors(self) -> std::ops::Range<u32> {
        self.first..self.first + self.count
    }

    pub(crate) const fn bytes(self) -> usize {
        self.count as usize * SECTOR
    }
}

/// The bytes of a sector.
pub(crate) fn fill(value: Value, sector: u32, out: &mut [u8]) {
    if value == Value(0) {
        return out.fill(0);
    }
    let mut stamp = [0; 8];
    stamp[..4].copy_from_slice(&value.0.to_be_bytes());
    stamp[4..].copy_from_slice(&sector.to_be_bytes());
    out.chunks_exact_mut(8).for_each(|chunk| chunk.copy_from_slice(&stamp));
}

/// What bytes hold at a sector; `None` for what nobody writes there.
pub(crate) fn value_of(sector: u32, bytes: &[u8]) -> Option<Value> {
    let stamp: &[u8; 8] = bytes.first_chunk()?;
    let [a, b, c, d, place @ ..] = *stamp;
    let value = Value(u32::from_be_bytes([a, b, c, d]));
    let here = value == Value(0) && place == [0; 4] || u32::from_be_bytes(place) == sector;
    let same = bytes.chunks_exact(8).all(|chunk| chunk == stamp);
    (here && same).then_some(value)
}

/// Who is told that a write-back failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Telling {
    /// The next flush or FUA write, once: a target that passes on what its kernel says.
    Once,
    /// The next flush or FUA write, and all that follow until the target is restarted: Enkaku's
    /// file backend.
    UntilRestart,
}

/// What the storage does wrong, in percent of the occasions.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wrongs {
    pub(crate) flush: u32,
    pub(crate) write_back: u32,
    pub(crate) fua: u32,
    pub(crate) write: u32,
    pub(crate) read: u32,
}

/// Fixed properties.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub(crate) telling: Telling,
    pub(crate) can_fua: bool,
    /// With [`Telling::Once`], a FUA write may be what is told.
    pub(crate) fua_is_told: bool,
    pub(crate) wrongs: Wrongs,
}

/// What happened down here, for the counters.
pub(crate) type Note = &'static str;

/// The storage. Clones share it: it outlives every target that runs over it.
#[derive(Clone)]
pub(crate) struct Disk(Arc<Mutex<State>>);

impl Disk {
    pub(crate) fn new(kind: Kind, sabotage: Option<Sabotage>, rng: Rng) -> Self {
        Self(Arc::new(Mutex::new(State::new(kind, sabotage, rng))))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Operations begun since the last call.
    pub(crate) fn take_fresh(&self) -> Vec<u64> {
        std::mem::take(&mut self.lock().fresh)
    }

    /// What happened since the last call.
    pub(crate) fn take_notes(&self) -> Vec<Note> {
        std::mem::take(&mut self.lock().notes)
    }

    /// An operation ends.
    pub(crate) fn finish(&self, id: u64) {
        let waker = {
            let mut state = self.lock();
            let Some(work) = state.works.remove(&id) else { return };
            let result = state.perform(work);
            state.done.insert(id, result);
            state.wakers.remove(&id)
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The cache is written back, in part.
    pub(crate) fn write_back(&self) {
        self.lock().write_back();
    }

    /// Space runs out, or comes back.
    pub(crate) fn set_full(&self, full: bool) {
        let mut state = self.lock();
        state.full = full && !state.calm;
    }

    /// Nothing goes wrong from here on, but for what went wrong before.
    pub(crate) fn calm_down(&self) {
        let mut state = self.lock();
        (state.calm, state.full) = (true, false);
    }

    /// The power fails: what is under way ends anywhere, what is not stable may be gone.
    pub(crate) fn cut(&self) {
        let mut state = self.lock();
        state.interrupt();
        (state.untold, state.remembered) = (None, None);
        state.lose_cache();
    }

    /// The process above dies; the cache is not its own and stays.
    pub(crate) fn process_dies(&self) {
        let mut state = self.lock();
        state.interrupt();
        state.remembered = None;
    }

    /// Whether the process above refuses all flushes until it is restarted.
    pub(crate) fn refuses_flushes(&self) -> bool {
        self.lock().remembered.is_some()
    }

    /// What would be there after a power cut at the worst moment.
    pub(crate) fn stable(&self, sector: u32) -> Value {
        self.lock().sectors[sector as usize].stable
    }

    fn begin(&self, work: Work) -> Pending {
        let mut state = self.lock();
        let id = state.next;
        state.next += 1;
        state.works.insert(id, work);
        state.fresh.push(id);
        Pending { disk: self.clone(), id }
    }
}

/// An operation under way.
struct Pending {
    disk: Disk,
    id: u64,
}

impl Future for Pending {
    type Output = Result<Vec<Value>, BlockError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.disk.lock();
        match state.done.remove(&self.id) {
            Some(result) => Poll::Ready(result),
            None => {
                state.wakers.insert(self.id, context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Pending {
    fn unit(self) -> Io<()> {
        Io::later(async move { self.await.map(drop) })
    }
}

fn run(offset: u64, len: u64) -> Run {
    // Within the disk: checked before.
    Run { first: (offset / SECTOR as u64) as u32, count: (len / SECTOR as u64) as u32 }
}

impl BlockDevice for Disk {
    fn info(&self) -> DeviceInfo {
        let mut info = DeviceInfo::new(u64::from(SECTORS) * SECTOR as u64, SECTOR as u32);
        info.can_fua = self.lock().kind.can_fua;
        info.can_trim = true;
        info.can_zero = true;
        info
    }

    fn read(&self, offset: u64, mut buf: Buf) -> Io<Buf> {
        if let Err(error) = self.info().check(offset, buf.len() as u64) {
            return Io::err(error);
        }
        let run = run(offset, buf.len() as u64);
        let pending = self.begin(Work::Read(run));
        Io::later(async move {
            let values = pending.await?;
            let places = run.sectors().zip(buf.chunks_exact_mut(SECTOR));
            values.into_iter().zip(places).for_each(|(value, (at, out))| fill(value, at, out));
            Ok(buf)
        })
    }

    fn write(&self, offset: u64, data: Bytes, flags: WriteFlags) -> Io<()> {
        if let Err(error) = self.info().check_write(offset, data.len() as u64) {
            return Io::err(error);
        }
        let run = run(offset, data.len() as u64);
        let pieces = run.sectors().zip(data.chunks_exact(SECTOR));
        let value: Option<Vec<Value>> = pieces.map(|(at, bytes)| value_of(at, bytes)).collect();
        let Some(value) = value else {
            return Io::err(io::Error::other("somebody writes what nobody sent"));
        };
        self.begin(Work::Write { run, value, fua: flags.fua }).unit()
    }

    fn flush(&self) -> Io<()> {
        let mark = self.lock().landed;
        self.begin(Work::Flush(mark)).unit()
    }

    fn trim(&self, offset: u64, len: u64) -> Io<()> {
        if let Err(error) = self.info().check_write(offset, len) {
            return Io::err(error);
        }
        self.begin(Work::Trim(run(offset, len))).unit()
    }

    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Io<()> {
        if let Err(error) = self.info().check_write(offset, len) {
            return Io::err(error);
        }
        let run = run(offset, len);
        let value = vec![Value(0); run.count as usize];
        self.begin(Work::Write { run, value, fua: flags.fua }).unit()
    }

    fn extents(&self, offset: u64, len: u64) -> Io<Vec<Extent>> {
        Io::ok(vec![Extent { offset, len, hole: false }])
    }
}
