//! Makes every write stable before it completes: a disk without a volatile cache.

use bytes::Bytes;

use crate::{BlockDevice, Buf, Compared, Device, DeviceInfo, Extent, Io, WriteFlags, ZeroFlags};

/// A device that has no volatile cache: writes, zeroes and trims are stable when they complete. A
/// trim has no FUA, so it is followed by a flush; where the device below has no FUA, all are.
pub struct WriteThroughLayer {
    inner: Device,
}

impl WriteThroughLayer {
    /// `inner`, with every write forced to stable storage.
    pub fn new(inner: Device) -> Self {
        Self { inner }
    }

    fn flush_after(&self, change: Io<()>) -> Io<()> {
        if !self.inner.info().can_flush {
            return change;
        }
        let inner = self.inner.clone();
        match change.try_ready() {
            Ok(Ok(())) => inner.flush(),
            Ok(Err(error)) => Io::err(error),
            Err(change) => Io::later(async move {
                change.await?;
                inner.flush().await
            }),
        }
    }

    fn forced(&self, change: Io<()>) -> Io<()> {
        if self.inner.info().can_fua { change } else { self.flush_after(change) }
    }
}

impl BlockDevice for WriteThroughLayer {
    fn info(&self) -> DeviceInfo {
        DeviceInfo { volatile_cache: false, can_fua: true, ..self.inner.info() }
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Buf> {
        self.inner.read(offset, buf)
    }

    fn write(&self, offset: u64, data: Bytes, _flags: WriteFlags) -> Io<()> {
        self.forced(self.inner.write(offset, data, WriteFlags::FUA))
    }

    fn flush(&self) -> Io<()> {
        self.inner.flush()
    }

    fn trim(&self, offset: u64, len: u64) -> Io<()> {
        // Old data may come back after a power cut otherwise, where trimmed blocks read as zeroes.
        self.flush_after(self.inner.trim(offset, len))
    }

    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Io<()> {
        self.forced(self.inner.zero(offset, len, ZeroFlags { fua: true, ..flags }))
    }

    fn extents(&self, offset: u64, len: u64) -> Io<Vec<Extent>> {
        self.inner.extents(offset, len)
    }

    fn compare_and_write(&self, offset: u64, expected: Bytes, new: Bytes) -> Io<Compared> {
        self.inner.compare_and_write(offset, expected, new)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::backend::MemoryDevice;
    use crate::testing;

    /// Remembers what is stable: everything at a flush, and what is forced if it can.
    struct Probe {
        memory: MemoryDevice,
        can_fua: bool,
        unstable: Arc<AtomicUsize>,
    }

    impl Probe {
        fn note(&self, forced: bool) {
            let volatile = !(forced && self.can_fua);
            self.unstable.fetch_add(usize::from(volatile), Ordering::Relaxed);
        }
    }

    impl BlockDevice for Probe {
        fn info(&self) -> DeviceInfo {
            DeviceInfo { volatile_cache: true, can_fua: self.can_fua, ..self.memory.info() }
        }
        fn read(&self, offset: u64, buf: Buf) -> Io<Buf> {
            self.memory.read(offset, buf)
        }
        fn write(&self, offset: u64, data: Bytes, flags: WriteFlags) -> Io<()> {
            self.note(flags.fua);
            self.memory.write(offset, data, flags)
        }
        fn flush(&self) -> Io<()> {
            self.unstable.store(0, Ordering::Relaxed);
            self.memory.flush()
        }
        fn trim(&self, offset: u64, len: u64) -> Io<()> {
            self.note(false);
            self.memory.trim(offset, len)
        }
        fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Io<()> {
            self.note(flags.fua);
            self.memory.zero(offset, len, flags)
        }
        fn extents(&self, offset: u64, len: u64) -> Io<Vec<Extent>> {
            self.memory.extents(offset, len)
        }
    }

    #[tokio::test]
    async fn every_change_is_stable_when_it_completes() {
        for can_fua in [true, false] {
            let unstable = Arc::new(AtomicUsize::new(0));
            let memory = MemoryDevice::new(4 << 20, 512).unwrap();
            let probe = Probe { memory, can_fua, unstable: unstable.clone() };
            let layer = WriteThroughLayer::new(Arc::new(probe));
            assert!(!layer.info().volatile_cache);
            let left = |what: &str| {
                assert_eq!(unstable.load(Ordering::Relaxed), 0, "{what}, FUA: {can_fua}");
            };
            layer.write(0, Buf::zeroed(512).freeze(), WriteFlags::NONE).await.unwrap();
            left("write");
            layer.zero(0, 512, ZeroFlags::default()).await.unwrap();
            left("zero");
            layer.trim(0, 512).await.unwrap();
            left("trim");
            testing::conformance(&layer).await;
        }
    }
}
