//! A [`Session`]: one use of a leg, from its `connect` until the first operation that fails or is
//! not answered in time. Then everything that waits for it goes on at once, and nothing is asked of
//! that device any more.
//!
//! A flush has more time than anything else, since a disk may have much to write for it, as long as
//! the leg answers: while one waits, the leg is asked for a block now and then. So has what is
//! under way together with a flush, because a disk may let writes wait until it is done.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::super::host::Host;
use super::super::link::{CopyInside, OpenLeg};
use super::allowance::Allowance;
use super::signal::{Either, Signal, either, lock};
use crate::{
    BlockDevice, BlockError, Buf, Bytes, Device, DeviceInfo, Extent, Io, Result, WriteFlags,
    ZeroFlags,
};

/// The watch looks so often within the time that an operation may take, so a leg is given up at
/// most this part of it early, and never late.
const LOOKS_PER_TIMEOUT: u32 = 8;

/// A flush, and what waits with it, may take so many times the time of any other operation, while
/// the leg answers: by default the 30 s that Linux gives a command of a user who may have to wait
/// behind it.
const FLUSH_TIMES: u32 = 3;

/// One use of a leg.
pub(crate) struct Session {
    leg: OpenLeg,
    info: DeviceInfo,
    host: Arc<dyn Host>,
    /// An operation that takes longer ends the session.
    timeout: Duration,
    watch: Mutex<Watch>,
    ended: Arc<Signal>,
    /// Why the leg does not copy within itself after all.
    refused_inside: OnceLock<String>,
    /// What was allowed of such copies when the last batch was home.
    allowed_inside: Mutex<Option<Allowance>>,
}

#[derive(Default)]
struct Watch {
    next: u64,
    under_way: BTreeMap<u64, Asked>,
    /// When the leg answered last.
    answered_at: Duration,
    end: Option<String>,
    /// It was given up after so long without an answer.
    silence: Duration,
}

struct Asked {
    since: Duration,
    waits: Waits,
    waker: Option<Waker>,
}

/// How long an operation may take.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waits {
    /// The session's timeout.
    Alone,
    /// As long as a flush: it was under way together with one.
    WithFlush,
    /// It is a flush.
    Flush,
}

impl Watch {
    /// Notes that an operation begins.
    fn begin(&mut self, is_flush: bool, now: Duration) -> u64 {
        let waits = if is_flush {
            self.under_way.values_mut().for_each(|asked| asked.waits.with_flush());
            Waits::Flush
        } else if self.under_way.values().any(|asked| asked.waits == Waits::Flush) {
            Waits::WithFlush
        } else {
            Waits::Alone
        };
        self.next += 1;
        self.under_way.insert(self.next, Asked { since: now, waits, waker: None });
        self.next
    }

    /// Since when the oldest operation is under way that waits with a flush, or that does not.
    fn oldest(&self, with_flush: bool) -> Option<Duration> {
        let asked = self.under_way.values();
        let asked = asked.filter(|asked| (asked.waits != Waits::Alone) == with_flush);
        asked.map(|asked| asked.since).min()
    }

    /// How long nothing was answered that should have been.
    fn silence(&self, now: Duration) -> Duration {
        let patient = self.oldest(true).map(|since| since.max(self.answered_at));
        let since = patient.into_iter().chain(self.oldest(false)).min();
        since.map_or(Duration::ZERO, |since| now.saturating_sub(since))
    }
}

impl Waits {
    fn with_flush(&mut self) {
        if *self == Self::Alone {
            *self = Self::WithFlush;
        }
    }
}

impl Session {
    /// The use of `leg` begins.
    pub(crate) fn new(leg: OpenLeg, host: Arc<dyn Host>, timeout: Duration) -> Arc<Self> {
        let info = leg.device.info();
        let (watch, ended, refused_inside, allowed_inside) = Default::default();
        Arc::new(Self { leg, info, host, timeout, watch, ended, refused_inside, allowed_inside })
    }

    /// The leg as it was opened.
    pub(crate) fn leg(&self) -> &OpenLeg {
        &self.leg
    }

    /// What copies within the leg, or why nothing does.
    pub(crate) fn inside(&self) -> std::result::Result<Arc<dyn CopyInside>, String> {
        match self.refused_inside.get() {
            Some(why) => Err(why.clone()),
            None => self.leg.inside.clone(),
        }
    }

    /// The leg has failed to copy within itself, and is not asked again.
    pub(crate) fn refuse_inside(&self, why: &str) {
        let _ = self.refused_inside.set(why.to_owned()); // the first reason stands
    }

    /// What is allowed of copies within the leg, as the last batch has left it.
    pub(super) fn allowed_inside(&self) -> Option<Allowance> {
        *lock(&self.allowed_inside)
    }

    /// Keeps what the last batch of copies was allowed in the end, for the next one to begin with.
    pub(super) fn note_allowed_inside(&self, allowed: Allowance) {
        *lock(&self.allowed_inside) = Some(allowed);
    }

    /// What its device could do when it was opened.
    pub(crate) fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Asks the device for something. Fails as [`BlockError::Unreachable`] when the session ends
    /// first, without waiting for the device.
    pub(crate) fn run<T: Unpin>(
        self: &Arc<Self>,
        ask: impl FnOnce(&Device) -> Io<T>,
    ) -> Operation<T> {
        self.ask(false, ask)
    }

    /// Asks the device for a flush, as [`run`](Self::run) does for anything else.
    pub(crate) fn flush(self: &Arc<Self>) -> Operation<()> {
        self.ask(true, |device| device.flush())
    }

    fn ask<T: Unpin>(
        self: &Arc<Self>,
        is_flush: bool,
        ask: impl FnOnce(&Device) -> Io<T>,
    ) -> Operation<T> {
        let mut watch = lock(&self.watch);
        if let Some(why) = &watch.end {
            let io = Io::err(BlockError::Unreachable(why.clone()));
            return Operation { session: self.clone(), ticket: 0, io };
        }
        let ticket = watch.begin(is_flush, self.host.now());
        drop(watch);
        Operation { session: self.clone(), ticket, io: ask(&self.leg.device) }
    }

    /// Ends it; the first reason stands.
    pub(crate) fn end(&self, why: &str) {
        let mut watch = lock(&self.watch);
        if watch.end.is_some() {
            return;
        }
        watch.end = Some(why.to_owned());
        let waiting = std::mem::take(&mut watch.under_way);
        drop(watch);
        waiting.into_values().filter_map(|asked| asked.waker).for_each(Waker::wake);
        self.ended.raise();
    }

    /// Why it has ended, if it has.
    pub(crate) fn why_ended(&self) -> Option<String> {
        lock(&self.watch).end.clone()
    }

    /// Whether it goes on.
    ///
    /// # Errors
    /// Why it has ended.
    pub(crate) fn check(&self) -> Result<()> {
        self.why_ended().map_or(Ok(()), |why| Err(BlockError::Unreachable(why)))
    }

    /// The leg had not answered for so long when the session ended.
    pub(crate) fn silence(&self) -> Duration {
        lock(&self.watch).silence
    }

    /// Runs `work` to its end, and meanwhile ends the session if the leg does not answer in time.
    /// `work` is not dropped: its operations fail then.
    pub(crate) async fn watched<F: Future>(self: &Arc<Self>, work: F) -> F::Output {
        let mut work = std::pin::pin!(work);
        let between = self.timeout / LOOKS_PER_TIMEOUT;
        let (mut pause, mut ping) = (self.host.sleep(between), None);
        loop {
            match either(work.as_mut(), either(&mut pause, answer(&mut ping))).await {
                Either::Left(output) => return output,
                Either::Right(Either::Right(())) => {}
                Either::Right(Either::Left(())) => {
                    self.look();
                    pause = self.host.sleep(between);
                    if ping.is_none() && self.is_patient(between) {
                        let block = self.info.block_size as usize;
                        ping = Some(self.run(|device| device.read(0, Buf::new(block))));
                    }
                }
            }
        }
    }

    /// Ends when the session has ended.
    pub(crate) async fn over(&self) {
        loop {
            let change = self.ended.next();
            if self.why_ended().is_some() {
                return;
            }
            change.await;
        }
    }

    /// A flush, or what waits with it, is under way for longer than that.
    fn is_patient(&self, longer: Duration) -> bool {
        let oldest = lock(&self.watch).oldest(true);
        oldest.is_some_and(|since| self.host.now().saturating_sub(since) > longer)
    }

    fn look(&self) {
        let now = self.host.now();
        let early = self.timeout / LOOKS_PER_TIMEOUT;
        let flush_max = self.timeout * FLUSH_TIMES;
        let (silence, patience) = {
            let watch = lock(&self.watch);
            let oldest = watch.oldest(true).unwrap_or(now);
            (watch.silence(now), now.saturating_sub(oldest))
        };
        let why = if silence > self.timeout - early {
            format!("no answer for {:.1} s", self.timeout.as_secs_f64())
        } else if patience > flush_max - early {
            let what = "a flush, or what waits with it, has not ended";
            format!("{what} within {:.1} s", flush_max.as_secs_f64())
        } else {
            return;
        };
        lock(&self.watch).silence = silence;
        self.end(&why);
    }

    /// An operation has ended: it counts no more, also where nobody drops it yet.
    fn ended(&self, ticket: u64, by_the_leg: bool) {
        let now = self.host.now();
        let mut watch = lock(&self.watch);
        watch.under_way.remove(&ticket);
        if by_the_leg {
            watch.answered_at = now;
        }
    }
}

/// Ends when the operation, if there is one, was answered.
async fn answer<T: Unpin>(operation: &mut Option<Operation<T>>) {
    match operation {
        // That it was answered is noted by its session, whatever the answer is.
        Some(asked) => drop(asked.await),
        None => std::future::pending().await,
    }
    *operation = None;
}

/// Something asked of a leg. Dropped, it may or may not be carried out.
#[must_use = "an operation may not have finished until it is awaited"]
pub(crate) struct Operation<T> {
    session: Arc<Session>,
    ticket: u64,
    io: Io<T>,
}

impl<T: Unpin> Future for Operation<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        {
            let mut watch = lock(&self.session.watch);
            if let Some(why) = &watch.end {
                // Also what has just been answered: nobody may take for stable what came with the
                // end of a session.
                return Poll::Ready(Err(BlockError::Unreachable(why.clone())));
            }
            if let Some(asked) = watch.under_way.get_mut(&self.ticket) {
                asked.waker = Some(context.waker().clone());
            }
        }
        let polled = Pin::new(&mut self.io).poll(context);
        if let Poll::Ready(result) = &polled {
            let by_the_leg = result.is_ok();
            self.session.ended(self.ticket, by_the_leg);
        }
        polled
    }
}

impl<T> Drop for Operation<T> {
    fn drop(&mut self) {
        lock(&self.session.watch).under_way.remove(&self.ticket);
    }
}

/// A session as a device: its operations fail when it ends.
pub(crate) struct SessionDevice(pub(crate) Arc<Session>);

impl BlockDevice for SessionDevice {
    fn info(&self) -> DeviceInfo {
        self.0.info.clone()
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Buf> {
        Io::later(self.0.run(|device| device.read(offset, buf)))
    }

    fn write(&self, offset: u64, data: Bytes, flags: WriteFlags) -> Io<()> {
        Io::later(self.0.run(|device| device.write(offset, data, flags)))
    }

    fn flush(&self) -> Io<()> {
        Io::later(self.0.flush())
    }

    fn trim(&self, offset: u64, len: u64) -> Io<()> {
        Io::later(self.0.run(|device| device.trim(offset, len)))
    }

    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Io<()> {
        Io::later(self.0.run(|device| device.zero(offset, len, flags)))
    }

    fn extents(&self, offset: u64, len: u64) -> Io<Vec<Extent>> {
        Io::later(self.0.run(|device| device.extents(offset, len)))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::join;

    use super::*;
    use crate::backend::MemoryDevice;
    use crate::layer::{Delay, DelayLayer, Delays};
    use crate::mirror::TokioHost;

    fn session(device: Device, timeout_ms: u64) -> Arc<Session> {
        let leg = OpenLeg::of(device);
        Session::new(leg, Arc::new(TokioHost::current()), Duration::from_millis(timeout_ms))
    }

    fn memory() -> Device {
        Arc::new(MemoryDevice::new(1 << 20, 512).unwrap())
    }

    struct Hung(Device);

    impl BlockDevice for Hung {
        fn info(&self) -> DeviceInfo {
            self.0.info()
        }
        fn read(&self, _: u64, _: Buf) -> Io<Buf> {
            Io::later(std::future::pending())
        }
        fn write(&self, _: u64, _: crate::Bytes, _: crate::WriteFlags) -> Io<()> {
            Io::later(std::future::pending())
        }
        fn flush(&self) -> Io<()> {
            Io::later(std::future::pending())
        }
        fn trim(&self, _: u64, _: u64) -> Io<()> {
            Io::later(std::future::pending())
        }
        fn zero(&self, _: u64, _: u64, _: crate::ZeroFlags) -> Io<()> {
            Io::later(std::future::pending())
        }
        fn extents(&self, _: u64, _: u64) -> Io<Vec<crate::Extent>> {
            Io::later(std::future::pending())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_leg_that_does_not_answer_is_given_up_in_time_and_all_who_wait_go_on() {
        let session = session(Arc::new(Hung(memory())), 1000);
        let start = tokio::time::Instant::now();
        let both = async {
            let flush = session.flush();
            let read = session.run(|device| device.read(0, Buf::new(512)));
            (flush.await, read.await.map(drop))
        };
        let (flush, read) = session.watched(both).await;
        assert!(matches!(flush, Err(BlockError::Unreachable(_))), "{flush:?}");
        assert!(matches!(read, Err(BlockError::Unreachable(_))), "{read:?}");
        let took = start.elapsed();
        assert!(took > Duration::from_millis(800) && took <= Duration::from_secs(1), "{took:?}");
        assert!(lock(&session.watch).under_way.is_empty());
        session.over().await;
        assert!(session.run(|device| device.flush()).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_leg_is_kept_as_long_as_each_operation_is_in_time() {
        let delays = Delays::all(Delay::Fixed(Duration::from_millis(800)));
        let session = session(Arc::new(DelayLayer::new(memory(), delays, 1)), 1000);
        let work = async {
            for _ in 0..10 {
                session.run(|device| device.flush()).await.unwrap();
            }
        };
        session.watched(work).await;
        assert_eq!(session.why_ended(), None);
    }

    /// A leg that flushes so slowly, and does all else in no time.
    fn flushes_in(ms: u64) -> Device {
        let quick = Delays::all(Delay::Fixed(Duration::from_millis(1)));
        let flush = Delay::Fixed(Duration::from_millis(ms));
        Arc::new(DelayLayer::new(memory(), Delays { flush, ..quick }, 1))
    }

    #[tokio::test(start_paused = true)]
    async fn a_flush_may_take_longer_at_a_leg_that_answers() {
        let session = session(flushes_in(2500), 1000);
        session.watched(async { session.flush().await.unwrap() }).await;
        assert_eq!(session.why_ended(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_flush_that_does_not_end_is_given_up_though_all_else_is_answered() {
        let session = session(flushes_in(1 << 40), 1000);
        let start = tokio::time::Instant::now();
        let flush = session.watched(async { session.flush().await }).await;
        assert!(flush.is_err());
        let why = session.why_ended().unwrap();
        assert_eq!(why, "a flush, or what waits with it, has not ended within 3.0 s");
        let took = start.elapsed();
        assert!(took > Duration::from_millis(2600) && took <= Duration::from_secs(3), "{took:?}");
        assert!(session.silence() < Duration::from_millis(300), "{:?}", session.silence());
    }

    #[tokio::test(start_paused = true)]
    async fn a_leg_that_hangs_under_a_flush_has_no_more_time_than_else() {
        let session = session(Arc::new(Hung(memory())), 1000);
        let start = tokio::time::Instant::now();
        assert!(session.watched(async { session.flush().await }).await.is_err());
        let took = start.elapsed();
        assert!(took > Duration::from_millis(800) && took <= Duration::from_secs(1), "{took:?}");
    }

    /// A write of 512 zeroes.
    async fn write(session: &Arc<Session>) -> Result<()> {
        let data = Buf::zeroed(512).freeze();
        session.run(|device| device.write(0, data, WriteFlags::NONE)).await
    }

    /// A leg whose flushes take so long, and whose writes so long, as they do behind a flush.
    fn writes_and_flushes_in(write_ms: u64, flush_ms: u64) -> Arc<Session> {
        let fixed = |ms| Delay::Fixed(Duration::from_millis(ms));
        let (write, flush) = (fixed(write_ms), fixed(flush_ms));
        let delays = Delays { write, flush, ..Delays::all(fixed(1)) };
        session(Arc::new(DelayLayer::new(memory(), delays, 1)), 1000)
    }

    #[tokio::test(start_paused = true)]
    async fn what_waits_behind_a_flush_has_its_time() {
        for write_first in [false, true] {
            let session = writes_and_flushes_in(2400, 2000);
            let flush = async { session.flush().await };
            let both = async {
                if write_first {
                    join(write(&session), flush).await
                } else {
                    join(flush, write(&session)).await
                }
            };
            let (one, other) = session.watched(both).await;
            one.and(other).unwrap();
            assert_eq!(session.why_ended(), None, "write first: {write_first}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_that_never_ends_is_not_kept_by_flush_after_flush() {
        let session = writes_and_flushes_in(1 << 40, 100);
        let start = tokio::time::Instant::now();
        let both = async {
            let flushes = async { while session.flush().await.is_ok() {} };
            join(write(&session), flushes).await.0
        };
        assert!(session.watched(both).await.is_err());
        let took = start.elapsed();
        assert!(took > Duration::from_millis(2600) && took <= Duration::from_secs(3), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_that_hangs_is_not_waited_for_because_others_are_answered() {
        let delays = Delays::all(Delay::Fixed(Duration::from_millis(1)));
        let write = Delay::Fixed(Duration::from_secs(1000));
        let device = DelayLayer::new(memory(), Delays { write, ..delays }, 1);
        let session = session(Arc::new(device), 1000);
        let start = tokio::time::Instant::now();
        let work = async {
            let data = Buf::zeroed(512).freeze();
            let written = session.run(|device| device.write(0, data, WriteFlags::NONE));
            let reads = async {
                while session.run(|device| device.read(0, Buf::new(512))).await.is_ok() {}
            };
            join(written, reads).await.0
        };
        assert!(session.watched(work).await.is_err());
        assert!(start.elapsed() <= Duration::from_secs(1), "{:?}", start.elapsed());
    }

    #[tokio::test]
    async fn what_is_answered_after_the_end_does_not_count() {
        let session = session(memory(), 1000);
        let flush = session.run(|device| device.flush());
        session.end("cut");
        assert!(matches!(flush.await, Err(BlockError::Unreachable(why)) if why == "cut"));
    }
}
