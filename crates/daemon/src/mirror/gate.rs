//! [`Gate`]: what a mirror's user has, whichever mirror is behind it at the moment. Held, what is
//! asked waits, so that the mirror behind can be ended and begun again in another shape.
//!
//! It changes no outcome and keeps no order of its own: what waits begins when the gate opens, as
//! it would have begun then.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use block::{BlockDevice, Buf, Bytes, Device, DeviceInfo, Extent, Io, WriteFlags, ZeroFlags};
use tokio::sync::Notify;

/// A device that another one can take the place of.
pub(crate) struct Gate {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    /// The gate was opened, or the last operation has ended.
    changed: Notify,
}

struct State {
    device: Device,
    held: bool,
    under_way: usize,
}

/// An operation that was let through, until dropped.
struct UnderWay(Arc<Shared>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.under_way -= 1;
        if state.under_way == 0 {
            self.0.changed.notify_waiters();
        }
    }
}

impl Gate {
    /// Open, with `device` behind it.
    pub(crate) fn new(device: Device) -> Self {
        let state = Mutex::new(State { device, held: false, under_way: 0 });
        Self { shared: Arc::new(Shared { state, changed: Notify::new() }) }
    }

    /// From now on, what is asked waits.
    pub(crate) fn hold(&self) {
        lock(&self.shared.state).held = true;
    }

    /// Ends when nothing that was let through is under way.
    pub(crate) async fn idle(&self) {
        self.shared.wait(|state| state.under_way == 0).await;
    }

    /// What waits goes on, to `device` if there is another one.
    pub(crate) fn open(&self, device: Option<Device>) {
        let mut state = lock(&self.shared.state);
        if let Some(device) = device {
            state.device = device;
        }
        state.held = false;
        self.shared.changed.notify_waiters();
    }

    fn ask<T, F>(&self, ask: F) -> Io<T>
    where
        T: Send + Unpin + 'static,
        F: FnOnce(&Device) -> Io<T> + Send + 'static,
    {
        let Some((device, guard)) = self.shared.enter() else {
            let shared = Arc::clone(&self.shared);
            return Io::later(async move {
                let (device, _guard) = shared.entered().await;
                ask(&device).await
            });
        };
        match ask(&device).try_ready() {
            Ok(result) => Io::done(result),
            Err(io) => Io::later(async move {
                let result = io.await;
                drop(guard);
                result
            }),
        }
    }
}

impl Shared {
    /// Through the gate, unless it is held.
    fn enter(self: &Arc<Self>) -> Option<(Device, UnderWay)> {
        let mut state = lock(&self.state);
        if state.held {
            return None;
        }
        state.under_way += 1;
        Some((Arc::clone(&state.device), UnderWay(Arc::clone(self))))
    }

    async fn entered(self: &Arc<Self>) -> (Device, UnderWay) {
        loop {
            self.wait(|state| !state.held).await;
            if let Some(entered) = self.enter() {
                return entered;
            }
        }
    }

    async fn wait(&self, done: impl Fn(&State) -> bool) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // Registered before the look, so that no change in between is missed.
            changed.as_mut().enable();
            if done(&lock(&self.state)) {
                return;
            }
            changed.await;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl BlockDevice for Gate {
    fn info(&self) -> DeviceInfo {
        lock(&self.shared.state).device.info()
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Buf> {
        self.ask(move |device| device.read(offset, buf))
    }

    fn write(&self, offset: u64, data: Bytes, flags: WriteFlags) -> Io<()> {
        self.ask(move |device| device.write(offset, data, flags))
    }

    fn flush(&self) -> Io<()> {
        self.ask(|device| device.flush())
    }

    fn trim(&self, offset: u64, len: u64) -> Io<()> {
        self.ask(move |device| device.trim(offset, len))
    }

    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Io<()> {
        self.ask(move |device| device.zero(offset, len, flags))
    }

    fn extents(&self, offset: u64, len: u64) -> Io<Vec<Extent>> {
        self.ask(move |device| device.extents(offset, len))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use block::backend::MemoryDevice;
    use block::layer::{Delay, DelayLayer, Delays};

    use super::*;

    fn memory(size: u64) -> Device {
        Arc::new(MemoryDevice::open(size, 512).unwrap())
    }

    async fn first(device: &Device) -> u8 {
        device.read(0, Buf::zeroed(512)).await.unwrap()[0]
    }

    #[tokio::test(start_paused = true)]
    async fn what_waits_goes_to_the_device_that_is_there_then() {
        let (one, other) = (memory(1 << 20), memory(2 << 20));
        let slow = Delays { write: Delay::Fixed(Duration::from_secs(3)), ..Delays::default() };
        let slow: Device = Arc::new(DelayLayer::new(Arc::clone(&one), slow, 1));
        let gate = Arc::new(Gate::new(slow));
        let write = |byte: u8| {
            let io = gate.write(0, Bytes::from(vec![byte; 512]), WriteFlags::NONE);
            tokio::spawn(io)
        };
        let before = write(1);
        tokio::task::yield_now().await;
        gate.hold();
        let after = write(2);
        let begin = tokio::time::Instant::now();
        gate.idle().await;
        assert!(begin.elapsed() >= Duration::from_secs(2), "what was let through is waited for");
        before.await.unwrap().unwrap();
        assert!(!after.is_finished());
        assert_eq!([first(&one).await, first(&other).await], [1, 0]);
        gate.open(Some(Arc::clone(&other)));
        after.await.unwrap().unwrap();
        assert_eq!([first(&one).await, first(&other).await], [1, 2]);
        assert_eq!(gate.info().size, 2 << 20);
    }

    #[tokio::test]
    async fn one_that_is_given_up_does_not_count() {
        let gate = Gate::new(memory(1 << 20));
        gate.hold();
        drop(gate.flush());
        gate.idle().await;
        gate.open(None);
        gate.flush().await.unwrap();
    }
}
