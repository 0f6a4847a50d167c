//! Refuses every change.

use bytes::Bytes;

use crate::{BlockDevice, BlockError, Buf, Device, DeviceInfo, Extent, Io, WriteFlags, ZeroFlags};

/// What a device that is only read is made of.
pub trait Reads: Send + Sync + 'static {
    /// As [`BlockDevice::info`]; what it says of changes counts for nothing.
    fn info(&self) -> DeviceInfo;

    /// As [`BlockDevice::read`].
    fn read(&self, offset: u64, buf: Buf) -> Io<Buf>;

    /// As [`BlockDevice::flush`]: what lies below may have been written to by others.
    fn flush(&self) -> Io<()> {
        Io::ok(())
    }

    /// As [`BlockDevice::extents`].
    fn extents(&self, offset: u64, len: u64) -> Io<Vec<Extent>>;
}

impl Reads for Device {
    fn info(&self) -> DeviceInfo {
        (**self).info()
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Buf> {
        (**self).read(offset, buf)
    }

    fn flush(&self) -> Io<()> {
        (**self).flush()
    }

    fn extents(&self, offset: u64, len: u64) -> Io<Vec<Extent>> {
        (**self).extents(offset, len)
    }
}

/// A device whose content cannot be changed through this layer.
pub struct ReadOnlyLayer<R = Device> {
    inner: R,
}

impl<R: Reads> ReadOnlyLayer<R> {
    /// `inner`, read-only.
    pub fn new(inner: R) -> Self {
        Self { inner }
    }
}

impl<R: Reads> BlockDevice for ReadOnlyLayer<R> {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            read_only: true,
            can_trim: false,
            can_zero: false,
            can_fua: false,
            can_compare_and_write: false,
            volatile_cache: false, // nothing that is written could be lost
            ..self.inner.info()
        }
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Buf> {
        self.inner.read(offset, buf)
    }

    fn write(&self, _offset: u64, _data: Bytes, _flags: WriteFlags) -> Io<()> {
        Io::err(BlockError::ReadOnly)
    }

    fn flush(&self) -> Io<()> {
        self.inner.flush()
    }

    fn trim(&self, _offset: u64, _len: u64) -> Io<()> {
        Io::err(BlockError::ReadOnly)
    }

    fn zero(&self, _offset: u64, _len: u64, _flags: ZeroFlags) -> Io<()> {
        Io::err(BlockError::ReadOnly)
    }

    fn extents(&self, offset: u64, len: u64) -> Io<Vec<Extent>> {
        self.inner.extents(offset, len)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::backend::MemoryDevice;

    #[tokio::test]
    async fn reads_pass_and_changes_do_not() {
        let memory: Device = Arc::new(MemoryDevice::new(1 << 20, 512).unwrap());
        memory.write(0, Buf::copy_from(&[7; 512]).freeze(), WriteFlags::NONE).await.unwrap();
        let layer = ReadOnlyLayer::new(memory);
        assert!(layer.info().read_only);
        let zeroes = Buf::zeroed(512).freeze();
        assert!(matches!(
            layer.write(0, zeroes, WriteFlags::NONE).await,
            Err(BlockError::ReadOnly)
        ));
        assert!(matches!(layer.trim(0, 512).await, Err(BlockError::ReadOnly)));
        let zero = layer.zero(0, 512, ZeroFlags::default()).await;
        assert!(matches!(zero, Err(BlockError::ReadOnly)));
        assert!(layer.read(0, Buf::new(512)).await.unwrap().iter().all(|byte| *byte == 7));
    }
}
