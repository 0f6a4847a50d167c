//! Makes every write stable before it completes: a disk without a volatile cache.

use bytes::Bytes;

use crate::{BlockDevice, Buf, Device, DeviceInfo, Extent, Io, WriteFlags, ZeroFlags};

/// A device that has no volatile cache.
pub struct WriteThroughLayer {
    inner: Device,
}

impl WriteThroughLayer {
    /// `inner`, with every write forced to stable storage.
    pub fn new(inner: Device) -> Self {
        Self { inner }
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
        self.inner.write(offset, data, WriteFlags::FUA)
    }

    fn flush(&self) -> Io<()> {
        self.inner.flush()
    }

    fn trim(&self, offset: u64, len: u64) -> Io<()> {
        self.inner.trim(offset, len)
    }

    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Io<()> {
        self.inner.zero(offset, len, ZeroFlags { fua: true, ..flags })
    }

    fn extents(&self, offset: u64, len: u64) -> Io<Vec<Extent>> {
        self.inner.extents(offset, len)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::backend::MemoryDevice;
    use crate::testing;

    /// Counts forced writes.
    struct Probe(MemoryDevice, Arc<AtomicUsize>);

    impl BlockDevice for Probe {
        fn info(&self) -> DeviceInfo {
            DeviceInfo { volatile_cache: true, ..self.0.info() }
        }
        fn read(&self, offset: u64, buf: Buf) -> Io<Buf> {
            self.0.read(offset, buf)
        }
        fn write(&self, offset: u64, data: Bytes, flags: WriteFlags) -> Io<()> {
            self.1.fetch_add(usize::from(flags.fua), Ordering::Relaxed);
            self.0.write(offset, data, flags)
        }
        fn flush(&self) -> Io<()> {
            self.0.flush()
        }
        fn trim(&self, offset: u64, len: u64) -> Io<()> {
            self.0.trim(offset, len)
        }
        fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Io<()> {
            self.1.fetch_add(usize::from(flags.fua), Ordering::Relaxed);
            self.0.zero(offset, len, flags)
        }
        fn extents(&self, offset: u64, len: u64) -> Io<Vec<Extent>> {
            self.0.extents(offset, len)
        }
    }

    #[tokio::test]
    async fn every_change_is_forced() {
        let forced = Arc::new(AtomicUsize::new(0));
        let probe = Probe(MemoryDevice::new(1 << 20, 512).unwrap(), forced.clone());
        let layer = WriteThroughLayer::new(Arc::new(probe));
        assert!(!layer.info().volatile_cache);
        layer.write(0, Buf::zeroed(512).freeze(), WriteFlags::NONE).await.unwrap();
        layer.zero(0, 512, ZeroFlags::default()).await.unwrap();
        assert_eq!(forced.load(Ordering::Relaxed), 2);
        testing::conformance(&layer).await;
    }
}
