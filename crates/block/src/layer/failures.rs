//! [`FailuresLayer`]: remembers that operations have failed, so that whoever closes the device can
//! say so. Changes no outcome. What was refused for what it asked (outside the device, a change of
//! a read-only one, not supported) is no failure of the device.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::OpKind;
use crate::{
    BlockDevice, BlockError, Buf, Compared, Device, DeviceInfo, Extent, Io, WriteFlags, ZeroFlags,
};

/// What has failed so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    /// Operations.
    pub count: u64,
    /// The first one, and why.
    pub first: Option<String>,
}

#[derive(Default)]
struct Noted {
    failures: Failures,
    /// It was told that somebody else has the device.
    fenced: bool,
}

/// A device whose failures are counted.
pub struct FailuresLayer {
    inner: Device,
    failures: Arc<Mutex<Noted>>,
}

impl FailuresLayer {
    /// `inner`, watched.
    pub fn new(inner: Device) -> Self {
        Self { inner, failures: Arc::default() }
    }

    /// What has failed so far.
    pub fn failures(&self) -> Failures {
        lock(&self.failures).failures.clone()
    }

    fn watch<T: Send + Unpin + 'static>(
        &self,
        kind: OpKind,
        at: u64,
        len: u64,
        io: Io<T>,
    ) -> Io<T> {
        let failures = self.failures.clone();
        match io.try_ready() {
            Ok(result) => {
                note(&failures, kind, at, len, result.as_ref().err());
                Io::done(result)
            }
            Err(io) => Io::later(async move {
                let result = io.await;
                note(&failures, kind, at, len, result.as_ref().err());
                result
            }),
        }
    }
}

fn lock(failures: &Mutex<Noted>) -> MutexGuard<'_, Noted> {
    failures.lock().unwrap_or_else(PoisonError::into_inner)
}

fn note(failures: &Mutex<Noted>, kind: OpKind, at: u64, len: u64, error: Option<&BlockError>) {
    let Some(error) = error else { return };
    let is_failure = matches!(
        error,
        BlockError::Medium(_)
            | BlockError::NoSpace
            | BlockError::Fenced
            | BlockError::Unreachable(_)
    );
    if !is_failure {
        return;
    }
    let mut noted = lock(failures);
    if matches!(error, BlockError::Fenced) && !std::mem::replace(&mut noted.fenced, true) {
        // Its user is told an I/O error, which says too little.
        tracing::error!(
            "another host has reserved the volume: what is written here does not get there any more"
        );
    }
    let failures = &mut noted.failures;
    failures.count += 1;
    failures.first.get_or_insert_with(|| match kind {
        OpKind::Flush => format!("flush: {error}"),
        kind => format!("{} of {len} bytes at {at}: {error}", kind.name()),
    });
}

impl BlockDevice for FailuresLayer {
    fn info(&self) -> DeviceInfo {
        self.inner.info()
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Buf> {
        let len = buf.len() as u64;
        self.watch(OpKind::Read, offset, len, self.inner.read(offset, buf))
    }

    fn write(&self, offset: u64, data: Bytes, flags: WriteFlags) -> Io<()> {
        let len = data.len() as u64;
        self.watch(OpKind::Write, offset, len, self.inner.write(offset, data, flags))
    }

    fn flush(&self) -> Io<()> {
        self.watch(OpKind::Flush, 0, 0, self.inner.flush())
    }

    fn trim(&self, offset: u64, len: u64) -> Io<()> {
        self.watch(OpKind::Trim, offset, len, self.inner.trim(offset, len))
    }

    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Io<()> {
        self.watch(OpKind::Zero, offset, len, self.inner.zero(offset, len, flags))
    }

    fn extents(&self, offset: u64, len: u64) -> Io<Vec<Extent>> {
        self.watch(OpKind::Extents, offset, len, self.inner.extents(offset, len))
    }

    fn compare_and_write(&self, offset: u64, expected: Bytes, new: Bytes) -> Io<Compared> {
        let len = new.len() as u64;
        let compared = self.inner.compare_and_write(offset, expected, new);
        self.watch(OpKind::Write, offset, len, compared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::MemoryDevice;
    use crate::layer::{Fault, FaultLayer};

    #[tokio::test]
    async fn the_first_failure_is_remembered_and_refusals_are_none() {
        let memory: Device = Arc::new(MemoryDevice::new(1 << 20, 512).unwrap());
        let fault = Arc::new(FaultLayer::new(memory, 1));
        let layer = FailuresLayer::new(fault.clone());
        let write = |at| layer.write(at, Bytes::from(vec![1; 512]), WriteFlags::NONE);
        write(0).await.unwrap();
        assert!(write(1 << 20).await.is_err(), "outside the device");
        assert_eq!(layer.failures(), Failures::default());
        fault.inject(Fault::on(OpKind::Write, || BlockError::NoSpace));
        assert!(write(4096).await.is_err());
        assert!(write(8192).await.is_err());
        let failures = layer.failures();
        assert_eq!(failures.count, 2);
        assert!(failures.first.unwrap().starts_with("write of 512 bytes at 4096: "));
    }
}
