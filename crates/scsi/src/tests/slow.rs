//! A device whose operations take as long as the test wants.

use std::sync::atomic::{AtomicUsize, Ordering};

use block::{BlockDevice, DeviceInfo, Extent, Io, ZeroFlags};

use super::*;

/// Memory; every operation waits for a permit before it takes effect.
pub(super) struct SlowDevice {
    pub(super) memory: Arc<MemoryDevice>,
    permits: Arc<AtomicUsize>,
    started: AtomicUsize,
    flushes: AtomicUsize,
    volatile: bool,
}

impl SlowDevice {
    pub(super) fn new(size: u64) -> Arc<Self> {
        Arc::new(Self::over(size, false))
    }

    /// With a volatile cache.
    pub(super) fn cached(size: u64) -> Arc<Self> {
        Arc::new(Self::over(size, true))
    }

    fn over(size: u64, volatile: bool) -> Self {
        Self {
            memory: Arc::new(MemoryDevice::new(size, 512).unwrap()),
            permits: Arc::default(),
            started: AtomicUsize::new(0),
            flushes: AtomicUsize::new(0),
            volatile,
        }
    }

    /// Flushes that were asked for.
    pub(super) fn flushes(&self) -> usize {
        self.flushes.load(Ordering::Relaxed)
    }

    /// Lets so many operations finish.
    pub(super) fn permit(&self, operations: usize) {
        self.permits.fetch_add(operations, Ordering::Relaxed);
    }

    /// Operations that were asked for.
    pub(super) fn started(&self) -> usize {
        self.started.load(Ordering::Relaxed)
    }

    fn slowly<T: Unpin + Send + 'static>(
        &self,
        operation: impl FnOnce(&MemoryDevice) -> Io<T> + Send + 'static,
    ) -> Io<T> {
        self.started.fetch_add(1, Ordering::Relaxed);
        let (memory, permits) = (self.memory.clone(), self.permits.clone());
        Io::later(async move {
            std::future::poll_fn(|_| {
                let take = |permits: usize| permits.checked_sub(1);
                match permits.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
                    Ok(_) => std::task::Poll::Ready(()),
                    Err(_) => std::task::Poll::Pending, // polled again by the test
                }
            })
            .await;
            operation(&memory).await
        })
    }
}

impl BlockDevice for SlowDevice {
    fn info(&self) -> DeviceInfo {
        let mut info = self.memory.info();
        (info.volatile_cache, info.can_flush) = (self.volatile, info.can_flush || self.volatile);
        info
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Buf> {
        self.slowly(move |memory| memory.read(offset, buf))
    }

    fn write(&self, offset: u64, data: Bytes, flags: WriteFlags) -> Io<()> {
        self.slowly(move |memory| memory.write(offset, data, flags))
    }

    fn flush(&self) -> Io<()> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        self.slowly(|memory| memory.flush())
    }

    fn trim(&self, offset: u64, len: u64) -> Io<()> {
        self.slowly(move |memory| memory.trim(offset, len))
    }

    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Io<()> {
        self.slowly(move |memory| memory.zero(offset, len, flags))
    }

    fn extents(&self, offset: u64, len: u64) -> Io<Vec<Extent>> {
        self.slowly(move |memory| memory.extents(offset, len))
    }
}

/// One look at an execution: its response, if it has ended.
pub(super) fn look(execution: &mut Execution) -> Option<Response> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::Pin::new(execution).poll(&mut context) {
        std::task::Poll::Ready(response) => Some(response),
        std::task::Poll::Pending => None,
    }
}
