//! The file and its directory: attributes, answers now or later, where data is.

use std::ffi::{OsStr, OsString};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use block::{BlockError, Io};
use fuser::{Errno, FileAttr, FileType, FopenFlags, INodeNo, OpenFlags, ReplyEmpty};
use tokio::runtime::Handle;

use super::killed::{Caller, Changes};
use super::{Busy, FuseConfig, sys};
use crate::byte_device::{ByteDevice, ReadData};

/// The file's inode; the directory is [`INodeNo::ROOT`].
pub(super) const FILE: INodeNo = INodeNo(2);

/// Bytes searched for data or a hole with one question to the device, so that a question about a
/// huge volume is not one huge question.
const SEEK_WINDOW: u64 = 1 << 30;

/// The device as a file, and the directory it is in.
pub(super) struct Volume {
    pub(super) device: ByteDevice,
    pub(super) file_name: OsString,
    pub(super) read_only: bool,
    pub(super) kernel_write_back: bool,
    parallel_direct_writes: bool,
    owner: (u32, u32),
    mounted: SystemTime,
    modified: Mutex<SystemTime>,
    pub(super) runtime: Handle,
    changes: Changes,
    /// Reads under way.
    reads: Arc<AtomicUsize>,
    /// Held by the file system and by every operation under way.
    busy: Busy,
}

/// A reply without content.
pub(super) fn empty(reply: ReplyEmpty) -> impl FnOnce(Result<(), Errno>) + Send + 'static {
    move |result| match result {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

impl Volume {
    pub(super) fn new(device: ByteDevice, config: FuseConfig, runtime: Handle, busy: Busy) -> Self {
        let now = SystemTime::now();
        Self {
            read_only: config.read_only || device.info().read_only,
            device,
            file_name: config.file_name,
            kernel_write_back: config.kernel_write_back,
            parallel_direct_writes: config.parallel_direct_writes,
            owner: sys::owner(),
            mounted: now,
            modified: Mutex::new(now),
            runtime,
            changes: Changes::default(),
            reads: Arc::default(),
            busy,
        }
    }

    /// How the kernel treats a file that is opened with `flags`.
    pub(super) fn open_flags(&self, flags: OpenFlags) -> FopenFlags {
        if self.parallel_direct_writes && flags.0 & libc::O_DIRECT != 0 {
            FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
        } else if self.reads.load(Ordering::Acquire) > 0 {
            // Else the kernel throws away what it has cached, so that what others wrote to the
            // volume is seen. For pages that are being read it waits, and cannot be killed then.
            FopenFlags::FOPEN_KEEP_CACHE
        } else {
            FopenFlags::empty()
        }
    }

    fn spawn(&self, answering: impl Future<Output = ()> + Send + 'static) {
        let busy = self.busy.clone();
        self.runtime.spawn(async move {
            answering.await;
            drop(busy);
        });
    }

    /// Answers a question at once if `io` is ready, else from the runtime.
    pub(super) fn answer<T: Send + Unpin + 'static>(
        &self,
        caller: Caller,
        io: Io<T>,
        reply: impl FnOnce(Result<T, Errno>) + Send + 'static,
    ) {
        match io.try_ready() {
            Ok(result) => reply(result.map_err(errno)),
            Err(io) => self.spawn(Changes::or_drop(io, caller, reply)),
        }
    }

    /// Answers a read, likewise.
    pub(super) fn answer_read(
        &self,
        caller: Caller,
        range: Range<u64>,
        reply: impl FnOnce(Result<ReadData, Errno>) + Send + 'static,
    ) {
        let (device, len) = (self.device.clone(), (range.end - range.start) as usize);
        let (turn, io) = match self.changes.turn_to_read(range.clone()) {
            Ok(turn) => match device.read(range.start, len).try_ready() {
                Ok(result) => return reply(result.map_err(errno)),
                Err(io) => (Some(turn), io),
            },
            Err(waiting) => {
                let io = Io::later(async move {
                    let _turn = waiting.await;
                    device.read(range.start, len).await
                });
                (None, io)
            }
        };
        let reads = Arc::clone(&self.reads);
        reads.fetch_add(1, Ordering::AcqRel);
        self.spawn(async move {
            // Both end before the answer: who has it may write, or open the file, at once.
            let reply = |result| {
                drop(turn);
                reads.fetch_sub(1, Ordering::AcqRel);
                reply(result);
            };
            Changes::or_drop(io, caller, reply).await;
        });
    }

    /// Answers a change of a range, which `begin` begins when its turn has come.
    pub(super) fn answer_change(
        &self,
        caller: Caller,
        range: Range<u64>,
        begin: impl FnOnce() -> Io<()> + Send + 'static,
        reply: impl FnOnce(Result<(), Errno>) + Send + 'static,
    ) {
        let changes = self.changes.clone();
        let (turn, io) = match self.changes.turn(range) {
            Ok(guard) => match begin().try_ready() {
                Ok(result) => return reply(result.map_err(errno)),
                Err(io) => (Ok(guard), Ok(io)),
            },
            waiting => (waiting, Err(begin)),
        };
        self.spawn(async move {
            let begin = move || match io {
                Ok(io) => io,
                Err(begin) => begin(),
            };
            changes.change(turn, begin, caller, reply).await;
        });
    }

    pub(super) fn answer_flush(&self, caller: Caller, reply: ReplyEmpty) {
        let reply = empty(reply);
        if let Some(unheard) = self.changes.take_unheard() {
            return reply(Err(unheard));
        }
        match self.device.flush().try_ready() {
            Ok(result) => reply(result.map_err(errno)),
            Err(io) => {
                let changes = self.changes.clone();
                self.spawn(async move { changes.flush(io, caller, reply).await });
            }
        }
    }

    pub(super) fn attributes(&self, inode: INodeNo) -> Option<FileAttr> {
        let info = self.device.info();
        let (kind, perm, nlink, size) = match inode {
            INodeNo::ROOT => (FileType::Directory, 0o700, 2, 0),
            FILE => {
                (FileType::RegularFile, if self.read_only { 0o400 } else { 0o600 }, 1, info.size)
            }
            _ => return None,
        };
        let modified = *self.modified.lock().unwrap_or_else(|e| e.into_inner());
        Some(FileAttr {
            ino: inode,
            size,
            blocks: size / 512,
            atime: self.mounted,
            mtime: modified,
            ctime: modified,
            crtime: self.mounted,
            kind,
            perm,
            nlink,
            uid: self.owner.0,
            gid: self.owner.1,
            rdev: 0,
            blksize: info.preferred_block_size,
            flags: 0,
        })
    }

    pub(super) fn set_modified(&self, time: SystemTime) {
        *self.modified.lock().unwrap_or_else(|e| e.into_inner()) = time;
    }

    pub(super) fn name_of(&self, parent: INodeNo, name: &OsStr) -> Result<INodeNo, Errno> {
        if parent == INodeNo::ROOT && name == self.file_name {
            Ok(FILE)
        } else {
            Err(Errno::ENOENT)
        }
    }
}

pub(super) fn errno(error: BlockError) -> Errno {
    Errno::from_i32(crate::errno(&error))
}

/// Finds the first data (or hole) at or after `offset`.
pub(super) async fn seek(
    device: ByteDevice,
    mut offset: u64,
    hole: bool,
) -> Result<Option<u64>, BlockError> {
    let size = device.info().size;
    while offset < size {
        let len = SEEK_WINDOW.min(size - offset);
        let extents = device.extents(offset, len).await?;
        if let Some(found) = extents.into_iter().find(|extent| extent.hole == hole) {
            return Ok(Some(found.offset));
        }
        offset += len;
    }
    Ok(None)
}
