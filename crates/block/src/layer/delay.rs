//! [`DelayLayer`]: makes a device slow, for tests and experiments. Needs a tokio runtime.
//!
//! Either all operations wait side by side, or each caller has a queue of its own, as if there were
//! a disk for each: that is the storage of the APT study's simulation, a virtual disk per
//! connection. A caller is a tokio task, because a device is not told of connections, and a server
//! that runs each connection as a task needs to tell nothing.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::task;
use tokio::time::Instant;

use super::{OpKind, Random};
use crate::{
    BlockDevice, Buf, Compared, Device, DeviceInfo, Extent, Io, Result, WriteFlags, ZeroFlags,
};

/// Longest delay; longer ones are cut to it, so that no mistake in a unit stops a run for hours.
pub const DELAY_MAX: Duration = Duration::from_secs(60);

/// How long to wait before an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delay {
    /// Not at all.
    #[default]
    None,
    /// Always as long.
    Fixed(Duration),
    /// Anything from the first to the second, equally likely.
    Uniform(Duration, Duration),
}

impl Delay {
    fn draw(self, random: &Mutex<Random>) -> Duration {
        let delay = match self {
            Self::None => Duration::ZERO,
            Self::Fixed(delay) => delay,
            Self::Uniform(min, max) => {
                let span_us = max.saturating_sub(min).as_micros().min(u128::from(u64::MAX - 1));
                min.saturating_add(Duration::from_micros(locked(random).below(span_us as u64 + 1)))
            }
        };
        delay.min(DELAY_MAX)
    }
}

/// Delays per kind of operation. Default: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delays {
    /// Before a read.
    pub read: Delay,
    /// Before a write.
    pub write: Delay,
    /// Before a flush.
    pub flush: Delay,
    /// Before a trim.
    pub trim: Delay,
    /// Before zeroing.
    pub zero: Delay,
    /// Before a look at extents.
    pub extents: Delay,
}

impl Delays {
    /// The same delay for all operations.
    pub fn all(delay: Delay) -> Self {
        let (read, write, flush) = (delay, delay, delay);
        Self { read, write, flush, trim: delay, zero: delay, extents: delay }
    }

    fn of(&self, kind: OpKind) -> Delay {
        match kind {
            OpKind::Read => self.read,
            OpKind::Write => self.write,
            OpKind::Flush => self.flush,
            OpKind::Trim => self.trim,
            OpKind::Zero => self.zero,
            OpKind::Extents => self.extents,
        }
    }
}

/// Whose operations wait for each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Queueing {
    /// Nobody's: all delays run side by side, as those of a far disk do.
    #[default]
    SideBySide,
    /// Those of one caller (tokio task): a delay begins when the caller's one before has ended.
    /// Callers do not wait for each other. All that is asked for outside of a task is one caller's.
    PerCaller,
}

/// Callers remembered before those that wait for nothing are forgotten. A server has as many as
/// connections; what is remembered of one is a few dozen bytes.
const CALLERS_KEPT: usize = 256;

/// When the last operation of each caller is done.
type Queues = HashMap<Option<task::Id>, Instant>;

/// A device behind a delay.
pub struct DelayLayer {
    device: Device,
    delays: Delays,
    random: Mutex<Random>,
    queueing: Queueing,
    queues: Mutex<Queues>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// When an operation of `caller` is done that takes `delay` and comes `now`.
fn enqueue(
    queues: &mut Queues,
    caller: Option<task::Id>,
    now: Instant,
    delay: Duration,
) -> Instant {
    if queues.len() >= CALLERS_KEPT {
        queues.retain(|_, done| *done > now);
    }
    let done = queues.entry(caller).or_insert(now);
    *done = now.max(*done) + delay;
    *done
}

impl DelayLayer {
    /// Puts `delays` before the operations of `device`; `seed` decides the random ones. They run
    /// side by side.
    pub fn new(device: Device, delays: Delays, seed: u64) -> Self {
        let random = Mutex::new(Random(seed));
        Self { device, delays, random, queueing: Queueing::default(), queues: Mutex::default() }
    }

    /// Sets whose operations wait for each other.
    #[must_use]
    pub fn with_queueing(mut self, queueing: Queueing) -> Self {
        self.queueing = queueing;
        self
    }

    fn delayed<T: Send + Unpin + 'static>(
        &self,
        kind: OpKind,
        operation: impl FnOnce(&Device) -> Io<T> + Send + 'static,
    ) -> Io<T> {
        let delay = self.delays.of(kind).draw(&self.random);
        if delay.is_zero() {
            return operation(&self.device);
        }
        let device = self.device.clone();
        // The clock starts now, not when the future is first polled.
        let now = Instant::now();
        let done = match self.queueing {
            Queueing::SideBySide => now + delay,
            Queueing::PerCaller => enqueue(&mut locked(&self.queues), task::try_id(), now, delay),
        };
        let sleep = tokio::time::sleep_until(done);
        Io::later(async move {
            sleep.await;
            operation(&device).await
        })
    }

    fn checked<T: Send + Unpin + 'static>(
        &self,
        check: Result<()>,
        kind: OpKind,
        operation: impl FnOnce(&Device) -> Io<T> + Send + 'static,
    ) -> Io<T> {
        match check {
            Ok(()) => self.delayed(kind, operation),
            Err(error) => Io::err(error), // a mistake of the caller does not reach the disk
        }
    }
}

impl BlockDevice for DelayLayer {
    fn info(&self) -> DeviceInfo {
        self.device.info()
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Buf> {
        let check = self.info().check(offset, buf.len() as u64);
        self.checked(check, OpKind::Read, move |device| device.read(offset, buf))
    }

    fn write(&self, offset: u64, data: Bytes, flags: WriteFlags) -> Io<()> {
        let check = self.info().check_write(offset, data.len() as u64);
        self.checked(check, OpKind::Write, move |device| device.write(offset, data, flags))
    }

    fn flush(&self) -> Io<()> {
        self.delayed(OpKind::Flush, |device| device.flush())
    }

    fn trim(&self, offset: u64, len: u64) -> Io<()> {
        let check = self.info().check_write(offset, len);
        self.checked(check, OpKind::Trim, move |device| device.trim(offset, len))
    }

    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Io<()> {
        let check = self.info().check_write(offset, len);
        self.checked(check, OpKind::Zero, move |device| device.zero(offset, len, flags))
    }

    fn extents(&self, offset: u64, len: u64) -> Io<Vec<Extent>> {
        let check = self.info().check(offset, len);
        self.checked(check, OpKind::Extents, move |device| device.extents(offset, len))
    }

    fn compare_and_write(&self, offset: u64, expected: Bytes, new: Bytes) -> Io<Compared> {
        let check = self.info().check_write(offset, new.len() as u64);
        self.checked(check, OpKind::Write, move |device| {
            device.compare_and_write(offset, expected, new)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::backend::MemoryDevice;
    use crate::testing;

    fn memory() -> Device {
        Arc::new(MemoryDevice::new(1 << 20, 512).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn conforms() {
        let delay = Delay::Uniform(Duration::from_micros(1), Duration::from_millis(1));
        testing::conformance(&DelayLayer::new(memory(), Delays::all(delay), 1)).await;
    }

    #[test]
    fn equals_the_model() {
        testing::random_operations(|| DelayLayer::new(memory(), Delays::default(), 1));
    }

    #[tokio::test(start_paused = true)]
    async fn operations_wait_side_by_side() {
        let delay = Duration::from_millis(30);
        let delays = Delays { read: Delay::Fixed(delay), ..Delays::default() };
        let device = DelayLayer::new(memory(), delays, 1);
        let start = tokio::time::Instant::now();
        let reads: Vec<_> = (0..8).map(|i| device.read(i * 4096, Buf::new(4096))).collect();
        for read in reads {
            read.await.unwrap();
        }
        assert_eq!(start.elapsed().as_millis(), 30);
        let write = device.write(0, Bytes::from(vec![0; 512]), WriteFlags::NONE);
        assert!(write.try_ready().is_ok(), "no delay for writes");
    }

    #[tokio::test(start_paused = true)]
    async fn each_caller_has_a_queue_of_its_own() {
        let delay = Duration::from_millis(30);
        let delays = Delays { read: Delay::Fixed(delay), ..Delays::default() };
        let device = DelayLayer::new(memory(), delays, 1).with_queueing(Queueing::PerCaller);
        let device = Arc::new(device);
        let start = Instant::now();
        let caller = |reads: u64| {
            let device = Arc::clone(&device);
            tokio::spawn(async move {
                let reads: Vec<_> =
                    (0..reads).map(|i| device.read(i * 4096, Buf::new(4096))).collect();
                let mut done = Vec::new();
                for read in reads {
                    read.await.unwrap();
                    done.push(start.elapsed().as_millis());
                }
                // An idle disk owes nothing to the past.
                tokio::time::sleep(Duration::from_millis(200)).await;
                let again = Instant::now();
                device.read(0, Buf::new(4096)).await.unwrap();
                assert_eq!(again.elapsed().as_millis(), 30);
                done
            })
        };
        let (one, other) = (caller(3), caller(1));
        assert_eq!(one.await.unwrap(), [30, 60, 90]);
        assert_eq!(other.await.unwrap(), [30], "it waited for another caller");
        // What has no delay waits for nobody.
        assert!(device.flush().try_ready().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn callers_that_are_gone_are_forgotten() {
        let delays = Delays::all(Delay::Fixed(Duration::from_millis(1)));
        let device = DelayLayer::new(memory(), delays, 1).with_queueing(Queueing::PerCaller);
        let device = Arc::new(device);
        for _ in 0..4 * CALLERS_KEPT {
            let device = Arc::clone(&device);
            tokio::spawn(async move { device.flush().await }).await.unwrap().unwrap();
        }
        assert!(locked(&device.queues).len() <= CALLERS_KEPT);
    }

    #[test]
    fn the_same_seed_gives_the_same_delays_within_bounds() {
        let delay = Delay::Uniform(Duration::from_millis(2), Duration::from_millis(5));
        let draw = |seed| {
            let random = Mutex::new(Random(seed));
            (0..100).map(|_| delay.draw(&random)).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        let bounds = Duration::from_millis(2)..=Duration::from_millis(5);
        assert!(draw(7).iter().all(|delay| bounds.contains(delay)));
        let hours = Delay::Fixed(Duration::from_secs(36_000));
        assert_eq!(hours.draw(&Mutex::new(Random(0))), DELAY_MAX);
    }
}
