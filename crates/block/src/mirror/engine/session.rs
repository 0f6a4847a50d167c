//! A [`Session`]: one use of a leg, from its `connect` until the first operation that fails or is
//! not answered in time. Then everything that waits for it goes on at once, and nothing is asked of
//! that device any more.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::super::host::Host;
use super::super::link::{CopyInside, OpenLeg};
use super::signal::{Either, Signal, either, lock};
use crate::{
    BlockDevice, BlockError, Buf, Bytes, Device, DeviceInfo, Extent, Io, Result, WriteFlags,
    ZeroFlags,
};

/// The watch looks so often within the time that an operation may take, so a leg is given up at
/// most this part of it early, and never late.
const LOOKS_PER_TIMEOUT: u32 = 8;

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
}

#[derive(Default)]
struct Watch {
    next: u64,
    /// Since when, and who waits.
    under_way: BTreeMap<u64, (Duration, Option<Waker>)>,
    end: Option<String>,
    /// It was given up after so long without an answer.
    silence: Duration,
}

impl Session {
    /// The use of `leg` begins.
    pub(crate) fn new(leg: OpenLeg, host: Arc<dyn Host>, timeout: Duration) -> Arc<Self> {
        let info = leg.device.info();
        let (watch, ended, refused_inside) = Default::default();
        Arc::new(Self { leg, info, host, timeout, watch, ended, refused_inside })
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
        let mut watch = lock(&self.watch);
        watch.next += 1;
        let ticket = watch.next;
        if let Some(why) = &watch.end {
            let io = Io::err(BlockError::Unreachable(why.clone()));
            return Operation { session: self.clone(), ticket, io };
        }
        watch.under_way.insert(ticket, (self.host.now(), None));
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
        waiting.into_values().filter_map(|(_, waker)| waker).for_each(Waker::wake);
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
    pub(crate) async fn watched<F: Future>(&self, work: F) -> F::Output {
        let mut work = std::pin::pin!(work);
        loop {
            let pause = self.host.sleep(self.timeout / LOOKS_PER_TIMEOUT);
            match either(work.as_mut(), pause).await {
                Either::Left(output) => return output,
                Either::Right(()) => self.look(),
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

    fn look(&self) {
        let now = self.host.now();
        let late = self.timeout - self.timeout / LOOKS_PER_TIMEOUT;
        let oldest = lock(&self.watch).under_way.values().map(|(since, _)| *since).min();
        let silence = oldest.map_or(Duration::ZERO, |since| now.saturating_sub(since));
        if silence > late {
            lock(&self.watch).silence = silence;
            self.end(&format!("no answer for {:.1} s", self.timeout.as_secs_f64()));
        }
    }
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
            if let Some((_, waker)) = watch.under_way.get_mut(&self.ticket) {
                *waker = Some(context.waker().clone());
            }
        }
        Pin::new(&mut self.io).poll(context)
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
        Io::later(self.0.run(|device| device.flush()))
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
            let flush = session.run(|device| device.flush());
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

    #[tokio::test]
    async fn what_is_answered_after_the_end_does_not_count() {
        let session = session(memory(), 1000);
        let flush = session.run(|device| device.flush());
        session.end("cut");
        assert!(matches!(flush.await, Err(BlockError::Unreachable(why)) if why == "cut"));
    }
}
