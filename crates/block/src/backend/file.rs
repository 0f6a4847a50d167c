//! [`FileDevice`]: a regular file, sparse or not, or a block device of this machine.
//!
//! What the page cache can serve is served at once (`RWF_NOWAIT`), and so is all of a file system
//! in memory (tmpfs). Where writes into the page cache cannot be told not to wait (ext4), whole
//! pages are still written in the caller's thread, until one stalls (`stall`); then by one thread
//! of the file's own (`writer`). Long writes take turns, so that threads do not meet at the inode's
//! lock (`turns`). Everything else that may wait for a disk is done by tokio's blocking pool,
//! of which one file uses a part at most (`lane`), and outside a runtime in the caller's thread.
//!
//! **After a failed sync** the kernel may have dropped the pages that it could not write and marked
//! them clean, so that a second fdatasync would succeed without the data being anywhere. Therefore
//! the first failure is remembered: every later flush and FUA write fails with the same error until
//! the device is opened again. Reads and plain writes go on. Whom the kernel tells of a failure,
//! and how none is missed, is said in `durable`.
//!
//! Writable files are locked (`flock`, exclusively) as long as they are open, so that two servers
//! cannot write to the same one; read-only ones are locked shared.

mod buffered;
mod durable;
mod lane;
mod open;
mod snapshot;
mod stall;
mod sys;
mod turns;
mod writer;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;

pub use open::{FileOptions, OpenError, Trial, check_folder};
pub use snapshot::SnapshotError;

use buffered::Buffered;
use durable::{Durable, System};
use lane::Lane;
use turns::{Turns, Write};

use crate::buf::PAGE;
use crate::{BlockDevice, BlockError, Buf, DeviceInfo, Extent, Io, Result, WriteFlags, ZeroFlags};

/// Bytes of zeroes written at a time where the kernel cannot zero by itself.
const ZEROES_BYTES: usize = 1 << 20;

/// A file or block device of this machine.
pub struct FileDevice {
    inner: Arc<Inner>,
    buffered: Arc<Turns<Buffered>>,
}

struct Inner {
    file: File,
    /// As it was opened; the size is that of `size`.
    info: DeviceInfo,
    /// In bytes; it changes when someone resizes the file and says so.
    size: AtomicU64,
    /// O_DIRECT: data must be aligned in memory, and there is no cache to hit.
    direct: bool,
    block_device: bool,
    /// The file system lives in memory: nothing ever waits for a disk.
    in_memory: bool,
    /// Cleared for good when the file system knows no RWF_NOWAIT for reads.
    nowait_read: AtomicBool,
    durable: Durable,
    lane: Lane,
}

impl FileDevice {
    fn new(file: File, info: DeviceInfo, direct: bool, block_device: bool) -> Self {
        let in_memory = !direct && sys::in_memory(&file);
        let durable = Durable::new(System { direct }, &file, !info.read_only);
        let inner = Inner {
            file,
            size: AtomicU64::new(info.size),
            info,
            direct,
            block_device,
            in_memory,
            nowait_read: AtomicBool::new(!direct),
            durable,
            lane: Lane::default(),
        };
        let inner = Arc::new(inner);
        Self { buffered: Turns::new(Buffered::new(inner.clone())), inner }
    }

    /// How large the file or block device is now, in bytes of whole blocks. Below the size of
    /// [`info`](BlockDevice::info), someone has cut off what is still being served.
    ///
    /// # Errors
    /// The system does not tell.
    pub fn size_now(&self) -> io::Result<u64> {
        let bytes = match self.inner.block_device {
            true => sys::block_device_size(&self.inner.file)?,
            false => self.inner.file.metadata()?.len(),
        };
        Ok(bytes - bytes % u64::from(self.inner.info.block_size))
    }

    /// Takes the size that there is now, if it is larger; true if it was.
    ///
    /// # Errors
    /// The system does not tell.
    pub fn grow(&self) -> io::Result<bool> {
        let size = self.size_now()?;
        Ok(self.inner.size.fetch_max(size, Ordering::AcqRel) < size)
    }

    /// Gives a regular file another size, on stable storage. A larger one is served after
    /// [`grow`](Self::grow), a smaller one at once: what was there is lost, and a write that is
    /// under way there may make the file longer again, so nobody may be using it.
    ///
    /// # Errors
    /// It is not a regular file, is open read-only, or the size is not one of whole blocks; or the
    /// system refuses.
    pub fn resize(&self, bytes: u64) -> Result<()> {
        let block_size = self.inner.info.block_size;
        if self.inner.block_device {
            return Err(BlockError::Unsupported("another size of a block device"));
        }
        if self.inner.info.read_only {
            return Err(BlockError::ReadOnly);
        }
        if bytes == 0 || !bytes.is_multiple_of(u64::from(block_size)) {
            return Err(BlockError::Misaligned { offset: 0, len: bytes, block_size });
        }
        self.inner.size.fetch_min(bytes, Ordering::AcqRel);
        self.inner.file.set_len(bytes)?;
        self.inner.sync()
    }

    /// Bytes that the file system has left, and that this file has allocated. `None` for a block
    /// device.
    ///
    /// # Errors
    /// The system does not tell.
    pub fn space(&self) -> io::Result<Option<(u64, u64)>> {
        use std::os::linux::fs::MetadataExt;
        if self.inner.block_device {
            return Ok(None);
        }
        let used = self.inner.file.metadata()?.st_blocks() * 512;
        Ok(Some((sys::available_bytes(&self.inner.file)?, used)))
    }

    /// The sync that failed: from then on every flush does.
    pub fn sync_failure(&self) -> Option<io::Error> {
        self.inner.durable.failure().map(io::Error::from_raw_os_error)
    }
}

impl Inner {
    /// Does `work` where waiting for a disk hurts nobody.
    fn blocking<T: Send + Unpin + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T> + Send + 'static,
    ) -> Io<T> {
        let inner = self.clone();
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return Io::done(work(&inner));
        };
        self.lane.run(&runtime, move || work(&inner))
    }

    fn info(&self) -> DeviceInfo {
        DeviceInfo { size: self.size.load(Ordering::Acquire), ..self.info.clone() }
    }

    /// Fills what it can of `buf` from the page cache. `Ok(n)` with n < len: go on where it may
    /// wait.
    fn read_cached(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let mut done = 0;
        while done < buf.len() && self.nowait_read.load(Ordering::Relaxed) {
            let at = offset + done as u64;
            match sys::read(&self.file, &mut buf[done..], at, self.inline_flags()) {
                Ok(0) => return Err(truncated()),
                Ok(n) => done += n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if sys::unsupported(&error) => {
                    self.nowait_read.store(false, Ordering::Relaxed);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(done)
    }

    /// How to do I/O in the caller's thread.
    fn inline_flags(&self) -> libc::c_int {
        if self.in_memory { 0 } else { libc::RWF_NOWAIT }
    }

    fn write_all(&self, data: &[u8], offset: u64, fua: bool) -> Result<()> {
        let copied;
        let data = match self.direct && !(data.as_ptr() as usize).is_multiple_of(PAGE) {
            true => {
                copied = Buf::copy_from(data);
                &copied[..]
            }
            false => data,
        };
        match fua {
            true => self.durable.write_fua(&self.file, data, offset),
            false => self.durable.write(&self.file, data, offset),
        }
    }

    fn sync(&self) -> Result<()> {
        self.durable.sync(&self.file)
    }

    fn trim(&self, offset: u64, len: u64) -> Result<()> {
        match sys::punch_hole(&self.file, offset, len) {
            Err(error) if sys::unsupported(&error) && self.block_device => {
                Ok(sys::discard(&self.file, offset, len)?)
            }
            Err(error) if sys::unsupported(&error) => self.write_zeroes(offset, len),
            result => Ok(result?),
        }
    }

    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Result<()> {
        if flags.fua {
            self.durable.check()?;
        }
        let mut result = Err(io::ErrorKind::Unsupported.into());
        if flags.may_trim && self.info.can_trim {
            result = sys::punch_hole(&self.file, offset, len);
        }
        if result.as_ref().is_err_and(sys::unsupported) {
            result = sys::zero_range(&self.file, offset, len);
        }
        match result {
            Err(error) if sys::unsupported(&error) => self.write_zeroes(offset, len)?,
            result => result?,
        }
        if flags.fua { self.sync() } else { Ok(()) }
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        let zeroes = Buf::zeroed(ZEROES_BYTES.min(len as usize));
        let mut done = 0;
        while done < len {
            let part = (len - done).min(zeroes.len() as u64);
            self.write_all(&zeroes[..part as usize], offset + done, false)?;
            done += part;
        }
        Ok(())
    }

    /// Holes by SEEK_DATA and SEEK_HOLE, rounded inwards to blocks.
    fn extents(&self, offset: u64, len: u64) -> Result<Vec<Extent>> {
        let block_size = u64::from(self.info.block_size);
        let end = offset + len;
        let mut extents = Vec::new();
        let mut push = |from: u64, to: u64, hole: bool| match extents.last_mut() {
            _ if from >= to => {}
            Some(Extent { len, hole: last, .. }) if *last == hole => *len += to - from,
            _ => extents.push(Extent { offset: from, len: to - from, hole }),
        };
        let mut at = offset;
        let mut covered = offset;
        while at < end {
            let data = match sys::seek_data(&self.file, at)? {
                Some(data) => data.min(end),
                // No data up to the end of the file, which may not be where it was: what was cut
                // off is no hole, and reading it fails.
                None if self.file.metadata()?.len() < end => return Err(truncated()),
                None => end,
            };
            let hole_from = at.next_multiple_of(block_size);
            let hole_to = if data == end { end } else { data / block_size * block_size };
            if hole_from < hole_to {
                push(covered, hole_from, false);
                push(hole_from, hole_to, true);
                covered = hole_to;
            }
            // Progress even if the file changes in between.
            at = if data < end { sys::seek_hole(&self.file, data)?.max(data + 1) } else { end };
        }
        push(covered, end, false);
        Ok(extents)
    }
}

/// Someone made the file shorter.
fn truncated() -> BlockError {
    BlockError::Medium(io::ErrorKind::UnexpectedEof.into())
}

impl BlockDevice for FileDevice {
    fn info(&self) -> DeviceInfo {
        self.inner.info()
    }

    fn read(&self, offset: u64, mut buf: Buf) -> Io<Buf> {
        if let Err(error) = self.inner.info().check(offset, buf.len() as u64) {
            return Io::err(error);
        }
        let done = match self.inner.read_cached(&mut buf, offset) {
            Ok(done) if done == buf.len() => return Io::ok(buf),
            Ok(done) => done,
            Err(error) => return Io::err(error),
        };
        self.inner.blocking(move |inner| {
            inner.file.read_exact_at(&mut buf[done..], offset + done as u64)?;
            Ok(buf)
        })
    }

    fn write(&self, offset: u64, data: Bytes, flags: WriteFlags) -> Io<()> {
        if let Err(error) = self.inner.info().check_write(offset, data.len() as u64) {
            return Io::err(error);
        }
        // A write that must reach the disk waits in any case.
        if flags.fua || self.inner.direct {
            return self.inner.blocking(move |inner| inner.write_all(&data, offset, flags.fua));
        }
        // A block device has no lock for its writes to meet at.
        match self.inner.block_device || data.len() < turns::LONG_BYTES {
            true => self.buffered.file.write(offset, data),
            false => self.buffered.write(offset, data),
        }
    }

    fn flush(&self) -> Io<()> {
        if self.inner.info.read_only {
            return Io::ok(());
        }
        if self.inner.in_memory {
            return Io::done(self.inner.sync());
        }
        self.inner.blocking(Inner::sync)
    }

    fn trim(&self, offset: u64, len: u64) -> Io<()> {
        match self.inner.info().check_write(offset, len) {
            Ok(()) if len == 0 || !self.inner.info.can_trim => Io::ok(()),
            Ok(()) => self.inner.blocking(move |inner| inner.trim(offset, len)),
            Err(error) => Io::err(error),
        }
    }

    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Io<()> {
        match self.inner.info().check_write(offset, len) {
            Ok(()) if len == 0 => Io::ok(()),
            Ok(()) => self.inner.blocking(move |inner| inner.zero(offset, len, flags)),
            Err(error) => Io::err(error),
        }
    }

    fn extents(&self, offset: u64, len: u64) -> Io<Vec<Extent>> {
        match self.inner.info().check(offset, len) {
            Ok(()) if len == 0 => Io::ok(Vec::new()),
            Ok(()) if self.inner.info.can_extents => {
                self.inner.blocking(move |inner| inner.extents(offset, len))
            }
            Ok(()) => Io::ok(vec![Extent { offset, len, hole: false }]),
            Err(error) => Io::err(error),
        }
    }
}

#[cfg(test)]
mod tests;
