//! [`Buffered`]: one write into the page cache.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use bytes::Bytes;

use super::stall::Stalls;
use super::turns::Write;
use super::writer::Writer;
use super::{Inner, sys};
use crate::buf::PAGE;
use crate::{Io, Result};

/// Writes in the caller's thread where that does not wait, else in one of the others.
pub(super) struct Buffered {
    inner: Arc<Inner>,
    /// Cleared for good when the file system knows no RWF_NOWAIT for writes.
    pub(super) nowait: AtomicBool,
    pub(super) stalls: Stalls,
    writer: Writer,
}

impl Buffered {
    pub(super) fn new(inner: Arc<Inner>) -> Self {
        let nowait = AtomicBool::new(true);
        Self { inner, nowait, stalls: Stalls::new(), writer: Writer::default() }
    }

    /// Writes what it can into the page cache. `Ok(n)` with n < len: go on where it may wait.
    fn cached(&self, data: &[u8], offset: u64) -> Result<usize> {
        let mut done = 0;
        while done < data.len() && self.nowait.load(Ordering::Relaxed) {
            let at = offset + done as u64;
            match sys::write(&self.inner.file, &data[done..], at, self.inner.inline_flags()) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if sys::unsupported(&error) => {
                    self.nowait.store(false, Ordering::Relaxed);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(done)
    }

    /// Writes whole pages into a page cache that knows no RWF_NOWAIT.
    fn pages(&self, offset: u64, data: Bytes) -> Io<()> {
        let start = Instant::now();
        let in_runtime = tokio::runtime::Handle::try_current().is_ok();
        if !in_runtime || self.stalls.none_lately(start) {
            let result = self.inner.write_all(&data, offset, false);
            self.stalls.record(start, Instant::now());
            return Io::done(result);
        }
        match self.writer.write(&self.inner, offset, data) {
            Ok(io) => io,
            Err(data) => self.inner.blocking(move |inner| inner.write_all(&data, offset, false)),
        }
    }
}

impl Write for Buffered {
    fn write(&self, offset: u64, data: Bytes) -> Io<()> {
        match self.cached(&data, offset) {
            Ok(done) if done == data.len() => Io::ok(()),
            Ok(0) if whole_pages(offset, &data) => self.pages(offset, data),
            Ok(done) => self
                .inner
                .blocking(move |inner| inner.write_all(&data[done..], offset + done as u64, false)),
            Err(error) => Io::err(error),
        }
    }
}

/// Whole pages into the page cache: a copy under the inode's lock. Parts of pages may have to be
/// read first: many of those should wait side by side.
fn whole_pages(offset: u64, data: &[u8]) -> bool {
    (offset | data.len() as u64).is_multiple_of(PAGE as u64)
}
