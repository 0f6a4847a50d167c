//! A disk as a [`BlockDevice`] whose operations take virtual time and end in any order.
//!
//! Here: what every disk has in common, and the one of this host. A disk at the end of a link is
//! [`super::leg`].

pub(crate) mod store;
mod work;

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use block::{BlockDevice, BlockError, Buf, Bytes, DeviceInfo, Extent, Io, WriteFlags, ZeroFlags};

use self::store::{Answer, Session, Store, Work};
use super::content::{Content, SECTOR, SECTOR_BYTES};
use super::executor::Executor;
use super::points::Points;
use super::sabotage::Lie;
use crate::rng::Rng;

/// Takes a lock; the simulation is one thread, so nothing is ever damaged.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where an answer is left for whoever waits for it.
#[derive(Default)]
pub(crate) struct Slot(Mutex<(Option<Answer>, Option<Waker>)>);

impl Slot {
    pub(crate) fn set(&self, answer: Answer) {
        let waker = {
            let mut slot = lock(&self.0);
            slot.0 = Some(answer);
            slot.1.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Waits for a [`Slot`].
pub(crate) struct Waiting(pub(crate) Arc<Slot>);

impl Future for Waiting {
    type Output = Answer;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer> {
        let mut slot = lock(&self.0.0);
        match slot.0.take() {
            Some(answer) => Poll::Ready(answer),
            None => {
                slot.1 = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// What a disk can do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub(crate) bytes: u64,
    pub(crate) block_bytes: u32,
    pub(crate) can_fua: bool,
    pub(crate) can_zero: bool,
    pub(crate) can_extents: bool,
    /// It carries out barriers.
    pub(crate) ordered: bool,
    /// An operation takes from the one to the other, mostly the one.
    pub(crate) latency_us: (u64, u64),
}

impl Kind {
    pub(crate) fn info(&self) -> DeviceInfo {
        let mut info = DeviceInfo::new(self.bytes, self.block_bytes);
        info.can_fua = self.can_fua;
        info.can_zero = self.can_zero;
        info.can_extents = self.can_extents;
        info
    }

    pub(crate) fn latency(&self, rng: &mut Rng) -> Duration {
        let (least, most) = self.latency_us;
        Duration::from_micros(least + rng.skewed(most - least))
    }
}

/// A disk of this host. Clones share it; a clone asks for one start of the host.
#[derive(Clone)]
pub(crate) struct LocalDisk {
    name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) store: Arc<Mutex<Store>>,
    executor: Executor,
    points: Points,
    rng: Arc<Mutex<Rng>>,
    way: u64,
    boot: u64,
    /// The start of the host that may ask.
    current: Arc<Mutex<u64>>,
}

impl LocalDisk {
    pub(crate) fn new(
        name: &'static str,
        kind: Kind,
        executor: Executor,
        points: Points,
        mut rng: Rng,
    ) -> Self {
        let store = Arc::new(Mutex::new(Store::new(rng.fork())));
        Self::over(name, kind, store, 0, executor, points, rng)
    }

    /// A disk that can be reached on other ways as well.
    pub(crate) fn over(
        name: &'static str,
        kind: Kind,
        store: Arc<Mutex<Store>>,
        way: u64,
        executor: Executor,
        points: Points,
        rng: Rng,
    ) -> Self {
        let rng = Arc::new(Mutex::new(rng));
        Self { name, kind, store, executor, points, rng, way, boot: 0, current: Arc::default() }
    }

    pub(crate) fn set_lie(&self, lie: Option<Lie>) {
        lock(&self.store).set_lie(lie);
    }

    /// The host's process ends; with the power gone, the cache goes as well.
    pub(crate) fn stop(&self, power: bool) {
        *lock(&self.current) += 1;
        let mut store = lock(&self.store);
        match power {
            true => store.cut(),
            false => store.interrupt(),
        }
    }

    /// The disk for the present start of the host.
    pub(crate) fn opened(&self) -> Self {
        Self { boot: *lock(&self.current), ..self.clone() }
    }

    fn ask(&self, work: Work) -> Waiting {
        let slot = Arc::<Slot>::default();
        if *lock(&self.current) != self.boot {
            return Waiting(slot); // nobody is there to wait
        }
        let story = work.told();
        let session = Session::Start { way: self.way, number: self.boot };
        let id = lock(&self.store).begin(session, work);
        self.points.log(self.executor.now(), || format!("{} {id}: {story}", self.name));
        self.points.pass();
        let latency = self.kind.latency(&mut lock(&self.rng));
        let (disk, answer) = (self.clone(), slot.clone());
        self.executor.after(latency, move || {
            let result = {
                let mut store = lock(&disk.store);
                let result = store.perform(id);
                store.answered(id);
                result
            };
            if let Some(result) = result {
                let now = disk.executor.now();
                disk.points.log(now, || format!("{} {id} {:?}", disk.name, result.as_ref().err()));
                disk.points.pass();
                answer.set(result);
            }
        });
        Waiting(slot)
    }
}

/// Sectors of a range of bytes.
pub(crate) fn sectors(offset: u64, len: u64) -> Range<u64> {
    offset / SECTOR_BYTES..(offset + len) / SECTOR_BYTES
}

/// An operation that fills a buffer, on a device that does what it is asked for as [`Work`].
pub(crate) fn read(
    info: &DeviceInfo,
    offset: u64,
    mut buf: Buf,
    ask: impl FnOnce(Work) -> Waiting,
) -> Io<Buf> {
    if let Err(error) = info.check(offset, buf.len() as u64) {
        return Io::err(error);
    }
    let range = sectors(offset, buf.len() as u64);
    let waiting = ask(Work::Read(range.clone()));
    Io::later(async move {
        let contents = waiting.await?;
        let places = range.zip(buf.chunks_exact_mut(SECTOR));
        contents.iter().zip(places).for_each(|(content, (at, out))| content.fill(at, out));
        Ok(buf)
    })
}

/// An operation that says nothing but that it is done.
pub(crate) fn unit(waiting: Waiting) -> Io<()> {
    Io::later(async move { waiting.await.map(drop) })
}

/// An operation that changes content, on a device that does what it is asked for as [`Work`].
pub(crate) fn write(
    info: &DeviceInfo,
    offset: u64,
    data: &[u8],
    flags: WriteFlags,
    ask: impl FnOnce(Work) -> Waiting,
) -> Io<()> {
    if let Err(error) = info.check_write(offset, data.len() as u64) {
        return Io::err(error);
    }
    unit(ask(write_work(offset, data, flags.fua)))
}

/// A write as sectors.
pub(crate) fn write_work(offset: u64, data: &[u8], fua: bool) -> Work {
    let first = offset / SECTOR_BYTES;
    let pieces = data.chunks_exact(SECTOR).zip(first..);
    let contents = pieces.map(|(bytes, at)| Content::of(at, bytes)).collect();
    Work::Write { first, contents, fua }
}

/// An operation that zeroes a range, on a device that does what it is asked for as [`Work`].
pub(crate) fn zero(
    info: &DeviceInfo,
    offset: u64,
    len: u64,
    flags: ZeroFlags,
    ask: impl FnOnce(Work) -> Waiting,
) -> Io<()> {
    match info.check_write(offset, len) {
        Err(error) => Io::err(error),
        Ok(()) => unit(ask(Work::Zero { range: sectors(offset, len), fua: flags.fua })),
    }
}

/// Which blocks hold something.
pub(crate) fn extents(store: &Store, offset: u64, len: u64) -> Vec<Extent> {
    const GRANULE: u64 = 4096;
    let mut extents: Vec<Extent> = Vec::new();
    let mut push = |from: u64, to: u64, hole: bool| match extents.last_mut() {
        _ if from >= to => {}
        Some(last) if last.hole == hole => last.len += to - from,
        _ => extents.push(Extent { offset: from, len: to - from, hole }),
    };
    let end = offset + len;
    let mut at = offset;
    while let Some(sector) = store.known(sectors(at, end - at)).next() {
        let data = (sector * SECTOR_BYTES / GRANULE * GRANULE).max(offset);
        let next = (data + GRANULE).min((data / GRANULE + 1) * GRANULE).min(end);
        push(at, data, true);
        push(data, next, false);
        at = next;
    }
    push(at, end, true);
    extents
}

impl BlockDevice for LocalDisk {
    fn info(&self) -> DeviceInfo {
        self.kind.info()
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Buf> {
        read(&self.info(), offset, buf, |work| self.ask(work))
    }

    fn write(&self, offset: u64, data: Bytes, flags: WriteFlags) -> Io<()> {
        write(&self.info(), offset, &data, flags, |work| self.ask(work))
    }

    fn flush(&self) -> Io<()> {
        unit(self.ask(Work::Flush))
    }

    fn trim(&self, _offset: u64, _len: u64) -> Io<()> {
        Io::err(BlockError::Unsupported("trim"))
    }

    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Io<()> {
        zero(&self.info(), offset, len, flags, |work| self.ask(work))
    }

    fn extents(&self, offset: u64, len: u64) -> Io<Vec<Extent>> {
        if let Err(error) = self.info().check(offset, len) {
            return Io::err(error);
        }
        Io::ok(extents(&lock(&self.store), offset, len))
    }
}
