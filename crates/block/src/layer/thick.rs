//! Hides that storage can be given back: for initiators that shall find a fully provisioned disk.

use bytes::Bytes;

use crate::{BlockDevice, Buf, Compared, Device, DeviceInfo, Extent, Io, WriteFlags, ZeroFlags};

/// A device that never trims.
pub struct ThickLayer {
    inner: Device,
}

impl ThickLayer {
    /// `inner`, without trim.
    pub fn new(inner: Device) -> Self {
        Self { inner }
    }
}

impl BlockDevice for ThickLayer {
    fn info(&self) -> DeviceInfo {
        DeviceInfo { can_trim: false, trim_zeroes: false, ..self.inner.info() }
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Buf> {
        self.inner.read(offset, buf)
    }

    fn write(&self, offset: u64, data: Bytes, flags: WriteFlags) -> Io<()> {
        self.inner.write(offset, data, flags)
    }

    fn flush(&self) -> Io<()> {
        self.inner.flush()
    }

    /// Advice that is not taken.
    fn trim(&self, offset: u64, len: u64) -> Io<()> {
        Io::done(self.inner.info().check_write(offset, len))
    }

    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Io<()> {
        self.inner.zero(offset, len, ZeroFlags { may_trim: false, ..flags })
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

    use super::*;
    use crate::backend::MemoryDevice;
    use crate::testing;

    #[tokio::test]
    async fn conforms_and_keeps_what_is_trimmed() {
        let memory: Device = Arc::new(MemoryDevice::new(1 << 20, 512).unwrap());
        let layer = ThickLayer::new(memory);
        testing::conformance(&layer).await;
        layer.write(0, Buf::copy_from(&[7; 512]).freeze(), WriteFlags::NONE).await.unwrap();
        assert!(!layer.info().can_trim);
        layer.trim(0, 512).await.unwrap();
        assert!(layer.read(0, Buf::new(512)).await.unwrap().iter().all(|byte| *byte == 7));
        assert!(layer.trim(1 << 20, 512).await.is_err());
    }
}
