//! [`Durable`]: the two ways to make data of a file stable, and whom a failure of write-back is
//! told.
//!
//! Linux tells every *open file description* once that pages could not be written back (errseq_t,
//! Documentation/filesystems/vfs.rst, "Handling errors during writeback"), and then counts those
//! pages as clean. Whatever reports the error consumes it: a write with RWF_DSYNC (fsync of its
//! range, but the error of the whole file), on some file systems (NFS) a plain write too. So
//! * nothing but fdatasync is done through the description that flushes use, and one at a time: of
//!   two at once only one would learn of a failure that concerns both;
//! * a write with RWF_DSYNC has a description to itself as long as it lasts: of two through the
//!   same one, the first to end would take the error of the other's pages.
//!
//! Where there is no further description, FUA is a plain write and a flush.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use super::sys;
use crate::{BlockError, Result};

/// Descriptions kept for writes with FUA. More at once are served by one flush for all of them,
/// which many small ones do not wait longer for.
const FUA_DESCRIPTIONS_MAX: usize = 4;

/// What is asked of the kernel; the tests have one of their own.
pub(super) trait Kernel: Send + Sync + 'static {
    /// An open file description.
    type Description: Send;
    /// Another description of the same file.
    fn reopen(&self, description: &Self::Description) -> io::Result<Self::Description>;
    /// pwritev2.
    fn write(
        &self,
        description: &Self::Description,
        data: &[u8],
        offset: u64,
        flags: libc::c_int,
    ) -> io::Result<usize>;
    /// fdatasync.
    fn sync_data(&self, description: &Self::Description) -> io::Result<()>;
}

/// The kernel we run on.
pub(super) struct System {
    /// Descriptions bypass the page cache (O_DIRECT).
    pub(super) direct: bool,
}

impl Kernel for System {
    type Description = File;

    fn reopen(&self, description: &File) -> io::Result<File> {
        let flags = if self.direct { libc::O_DIRECT } else { 0 };
        // The link leads to the file itself, whatever its name means by now. Without O_EXCL, which
        // the first description of a block device holds.
        let link = format!("/proc/self/fd/{}", description.as_raw_fd());
        OpenOptions::new().read(true).write(true).custom_flags(flags).open(link)
    }

    fn write(
        &self,
        description: &File,
        data: &[u8],
        offset: u64,
        flags: libc::c_int,
    ) -> io::Result<usize> {
        sys::write(description, data, offset, flags)
    }

    fn sync_data(&self, description: &File) -> io::Result<()> {
        description.sync_data()
    }
}

/// Flushes and FUA writes of one file, whose plain writes go through a description `io` that every
/// call is given.
pub(super) struct Durable<K: Kernel = System> {
    kernel: K,
    /// For fdatasync alone. Without it there is only the caller's.
    for_sync: Option<K::Description>,
    for_fua: Mutex<Fua<K::Description>>,
    /// Cleared for good when the file system knows no RWF_DSYNC.
    dsync: AtomicBool,
    /// The first sync that failed (errno).
    failed: OnceLock<i32>,
    /// Syncs that have begun.
    begun: AtomicU64,
    /// The last sync that ended well, by its number. Locked while one runs.
    ended: Mutex<u64>,
}

struct Fua<D> {
    idle: Vec<D>,
    /// Idle ones and those in use.
    count: usize,
}

impl<K: Kernel> Durable<K> {
    /// For the file behind `io`. `writable`: without the right to write nothing is opened anew.
    pub(super) fn new(kernel: K, io: &K::Description, writable: bool) -> Self {
        let reopened = if writable { kernel.reopen(io).map(Some) } else { Ok(None) };
        let for_sync = reopened.unwrap_or_else(|error| {
            tracing::debug!(%error, "no description for flushes alone: FUA writes flush");
            None
        });
        Self {
            kernel,
            for_sync,
            for_fua: Mutex::new(Fua { idle: Vec::new(), count: 0 }),
            dsync: AtomicBool::new(true),
            failed: OnceLock::new(),
            begun: AtomicU64::new(0),
            ended: Mutex::new(0),
        }
    }

    /// The sync that failed (errno): from then on every flush does.
    pub(super) fn failure(&self) -> Option<i32> {
        self.failed.get().copied()
    }

    /// Fails if a sync ever has: what it should have made stable may be lost.
    pub(super) fn check(&self) -> Result<()> {
        match self.failure() {
            Some(errno) => Err(io::Error::from_raw_os_error(errno).into()),
            None => Ok(()),
        }
    }

    /// Makes all stable that was written before the call.
    pub(super) fn sync(&self, io: &K::Description) -> Result<()> {
        let asked = self.begun.load(Ordering::SeqCst);
        let mut ended = locked(&self.ended);
        self.check()?;
        if *ended > asked {
            return Ok(()); // one that began after the call has ended meanwhile
        }
        let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let description = self.for_sync.as_ref().unwrap_or(io);
        match self.kernel.sync_data(description) {
            Ok(()) => {
                *ended = number;
                Ok(())
            }
            Err(error) => {
                self.remember(&error); // before the lock goes: the next in line has to know
                Err(error.into())
            }
        }
    }

    /// Writes all of `data` into the page cache, or to a device past it.
    pub(super) fn write(&self, io: &K::Description, data: &[u8], offset: u64) -> Result<()> {
        Ok(self.write_fully(io, data, offset, 0)?)
    }

    /// Writes all of `data` and makes it stable.
    pub(super) fn write_fua(&self, io: &K::Description, data: &[u8], offset: u64) -> Result<()> {
        self.check()?;
        if let Some(description) = self.take(io) {
            let result = self.write_fully(&description, data, offset, libc::RWF_DSYNC);
            locked(&self.for_fua).idle.push(description);
            match result {
                Ok(()) => return Ok(()),
                Err(error) if sys::unsupported(&error) => {
                    self.dsync.store(false, Ordering::Relaxed);
                }
                Err(error) => {
                    self.judge(&error, io, data, offset);
                    return Err(error.into());
                }
            }
        }
        self.write(io, data, offset)?;
        self.sync(io)
    }

    /// Decides whether a write that also synced has failed in its sync. Where file systems keep no
    /// error for each description, it has told of, and consumed, the failure of earlier writes.
    fn judge(&self, error: &io::Error, io: &K::Description, data: &[u8], offset: u64) {
        let refused = |error: &io::Error| {
            let kind = BlockError::from(io::Error::from(error.kind()));
            matches!(kind, BlockError::NoSpace | BlockError::ReadOnly)
        };
        let was_written = || match self.write_fully(io, data, offset, 0) {
            Ok(()) => true,
            Err(error) => !refused(&error),
        };
        if !refused(error) || was_written() {
            self.remember(error);
        }
    }

    fn write_fully(
        &self,
        description: &K::Description,
        data: &[u8],
        offset: u64,
        flags: libc::c_int,
    ) -> io::Result<()> {
        let mut done = 0;
        while done < data.len() {
            match self.kernel.write(description, &data[done..], offset + done as u64, flags)? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                n => done += n,
            }
        }
        Ok(())
    }

    /// A description that nobody else uses, if there is one or may be one more.
    fn take(&self, io: &K::Description) -> Option<K::Description> {
        if self.for_sync.is_none() || !self.dsync.load(Ordering::Relaxed) {
            return None;
        }
        let mut fua = locked(&self.for_fua);
        if let Some(description) = fua.idle.pop() {
            return Some(description);
        }
        if fua.count == FUA_DESCRIPTIONS_MAX {
            return None;
        }
        let description = self.kernel.reopen(io).ok()?;
        fua.count += 1;
        Some(description)
    }

    fn remember(&self, error: &io::Error) {
        tracing::error!(%error, "a sync failed: earlier writes may be lost, flushes fail from now");
        let _already_set = self.failed.set(error.raw_os_error().unwrap_or(libc::EIO));
    }
}

/// A panic elsewhere is our bug; what the lock guards is still right.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
