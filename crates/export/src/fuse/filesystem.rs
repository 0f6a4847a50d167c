//! What the kernel asks (FUSE, protocol 7) as calls of the device.
//!
//! No request waits here: what is not ready at once goes on in the runtime and is answered from
//! there, so slow remote I/O holds up nobody. Two inodes: the directory and the file.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

use block::{Buf, Io};
use fuser::{
    BsdFileFlags, Errno, FileHandle, FileType, Filesystem, Generation, INodeNo, InitFlags,
    IoctlFlags, KernelConfig, LockOwner, OpenAccMode, OpenFlags, PollEvents, RenameFlags,
    ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyIoctl,
    ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use tracing::{debug, trace, warn};

use super::killed::Caller;
use super::volume::{FILE, Volume, empty, seek};

/// Longest read or write in bytes: the most the kernel does with its default limits (256 pages).
const TRANSFER_LEN_MAX: u32 = 1 << 20;

/// Asynchronous requests (read-ahead, direct I/O of many at once) that the kernel may have under
/// way: 128 of 1 MiB are 2.5 times a gigabit over 400 ms.
const BACKGROUND_MAX: u16 = 128;

/// How long the kernel may trust what it was told. Only this process changes it.
const VALID: Duration = Duration::from_secs(1);

/// Name length that statfs reports (NAME_MAX).
const NAME_LEN_MAX: u32 = 255;

// The names of parameters that are not used tell what the kernel sends.
impl Filesystem for Volume {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Each setter's Err is the nearest value the kernel takes.
        if let Err(nearest) = config.set_max_write(TRANSFER_LEN_MAX) {
            let _ = config.set_max_write(nearest);
        }
        if let Err(nearest) = config.set_max_readahead(TRANSFER_LEN_MAX) {
            let _ = config.set_max_readahead(nearest);
        }
        let _ = config.set_max_background(BACKGROUND_MAX);
        // Direct I/O of one caller as many requests at once. Kernels without it do one by one.
        if let Err(missing) = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO) {
            debug!(?missing, "the kernel has no asynchronous direct I/O");
        }
        if self.kernel_write_back
            && config.add_capabilities(InitFlags::FUSE_WRITEBACK_CACHE).is_err()
        {
            warn!("the kernel has no write-back cache for FUSE: each write is a request");
        }
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let attributes = self
            .name_of(parent, name)
            .and_then(|inode| self.attributes(inode).ok_or(Errno::ENOENT));
        match attributes {
            Ok(attributes) => reply.entry(&VALID, &attributes, Generation(0)),
            Err(errno) => reply.error(errno),
        }
    }

    fn getattr(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        match self.attributes(inode) {
            Some(attributes) => reply.attr(&VALID, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn setattr(
        &self,
        _request: &Request,
        inode: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let Some(attributes) = self.attributes(inode) else { return reply.error(Errno::ENOENT) };
        if mode.is_some() || uid.is_some() || gid.is_some() {
            return reply.error(Errno::EPERM);
        }
        if let Some(size) = size {
            // open(O_TRUNC) arrives as size 0 without a handle. A block device ignores it, so that
            // `cp image /mnt/volume` works; any other change of size is as impossible as there.
            let by_open = size == 0 && handle.is_none();
            if size != attributes.size && !by_open {
                return reply.error(Errno::EINVAL);
            }
        }
        match mtime {
            Some(TimeOrNow::SpecificTime(time)) => self.set_modified(time),
            Some(TimeOrNow::Now) => self.set_modified(SystemTime::now()),
            None => {}
        }
        match self.attributes(inode) {
            Some(attributes) => reply.attr(&VALID, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _request: &Request, inode: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if inode != FILE {
            reply.error(Errno::EISDIR);
        } else if self.read_only && flags.acc_mode() != OpenAccMode::O_RDONLY {
            reply.error(Errno::EROFS);
        } else {
            reply.opened(FileHandle(0), self.open_flags(flags));
        }
    }

    fn read(
        &self,
        request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        trace!(offset, size, "read");
        let _entered = self.runtime.enter();
        let left = self.device.info().size.saturating_sub(offset);
        if left == 0 {
            return reply.data(&[]);
        }
        let end = offset + u64::from(size).min(left);
        self.answer_read(Caller(request.pid()), offset..end, move |result| match result {
            Ok(data) => reply.data(&data),
            Err(errno) => reply.error(errno),
        });
    }

    fn write(
        &self,
        request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        trace!(offset, len = data.len(), "write");
        let _entered = self.runtime.enter();
        let left = self.device.info().size.saturating_sub(offset);
        if left == 0 && !data.is_empty() {
            return reply.error(Errno::ENOSPC);
        }
        // O_SYNC is no concern here: the kernel sends an fsync after such a write.
        let len = data.len() as u32;
        let written = u64::from(len).min(left) as u32;
        let data = Buf::copy_from(&data[..written as usize]).freeze();
        self.set_modified(SystemTime::now());
        // The kernel does not look how much of a page it gathered was written, only for an error.
        let lost = len > written && write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let (device, range) = (self.device.clone(), offset..offset + u64::from(written));
        let begin = move || device.write(offset, data, false);
        self.answer_change(Caller(request.pid()), range, begin, move |result| match result {
            Ok(()) if lost => reply.error(Errno::ENOSPC),
            Ok(()) => reply.written(written),
            Err(errno) => reply.error(errno),
        });
    }

    fn flush(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        // A close, not an fsync: nothing is held back here, and nothing is promised. What the
        // kernel gathered it has written before it asks, and it tells the closer itself what
        // failed.
        reply.ok();
    }

    fn fsync(
        &self,
        request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        let _entered = self.runtime.enter();
        self.answer_flush(Caller(request.pid()), reply);
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn fallocate(
        &self,
        request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        trace!(offset, length, mode, "fallocate");
        let _entered = self.runtime.enter();
        let (device, caller) = (self.device.clone(), Caller(request.pid()));
        let size = device.info().size;
        let past_the_end = offset.checked_add(length).is_none_or(|end| end > size);
        match mode & !libc::FALLOC_FL_KEEP_SIZE {
            libc::FALLOC_FL_PUNCH_HOLE => {
                let len = length.min(size.saturating_sub(offset));
                if len == 0 {
                    return reply.ok();
                }
                let begin = move || device.zero(offset, len, false, true);
                self.answer_change(caller, offset..offset + len, begin, empty(reply));
            }
            libc::FALLOC_FL_ZERO_RANGE | 0 if past_the_end => reply.error(Errno::ENOSPC),
            libc::FALLOC_FL_ZERO_RANGE => {
                let begin = move || device.zero(offset, length, false, false);
                self.answer_change(caller, offset..offset + length, begin, empty(reply));
            }
            // Space for what lies within the volume is the volume's own business.
            0 => reply.ok(),
            _ => reply.error(Errno::EOPNOTSUPP),
        }
    }

    fn lseek(
        &self,
        request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let size = self.device.info().size;
        let hole = match whence {
            libc::SEEK_HOLE => true,
            libc::SEEK_DATA => false,
            _ => return reply.error(Errno::EINVAL),
        };
        let Some(offset) = u64::try_from(offset).ok().filter(|offset| *offset < size) else {
            return reply.error(Errno::ENXIO);
        };
        let _entered = self.runtime.enter();
        let io = Io::later(seek(self.device.clone(), offset, hole));
        self.answer(Caller(request.pid()), io, move |result| match result {
            Ok(Some(found)) => reply.offset(found as i64),
            // Every file ends with a hole, as lseek(2) has it.
            Ok(None) if hole => reply.offset(size as i64),
            Ok(None) => reply.error(Errno::ENXIO),
            Err(errno) => reply.error(errno),
        });
    }

    fn readdir(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        if inode != INodeNo::ROOT {
            return reply.error(Errno::ENOTDIR);
        }
        let entries = [
            (INodeNo::ROOT, FileType::Directory, OsStr::new(".")),
            (INodeNo::ROOT, FileType::Directory, OsStr::new("..")),
            (FILE, FileType::RegularFile, &self.file_name),
        ];
        for (next, (inode, kind, name)) in (1..).zip(entries).skip(offset as usize) {
            if reply.add(inode, next, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _request: &Request, _inode: INodeNo, reply: ReplyStatfs) {
        let info = self.device.info();
        // Also the granularity with which a loop device discards.
        let block = info.preferred_block_size;
        let blocks = info.size / u64::from(block);
        reply.statfs(blocks, 0, 0, 2, 0, block, NAME_LEN_MAX, block);
    }

    fn ioctl(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _flags: IoctlFlags,
        _command: u32,
        _data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }

    // ENOSYS once, and the kernel does not ask again and does without (or by itself).

    fn getxattr(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _name: &OsStr,
        _size: u32,
        reply: ReplyXattr,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn listxattr(&self, _request: &Request, _inode: INodeNo, _size: u32, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }

    fn setxattr(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _name: &OsStr,
        _value: &[u8],
        _flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn poll(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _notifier: fuser::PollNotifier,
        _events: PollEvents,
        _flags: fuser::PollFlags,
        reply: fuser::ReplyPoll,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn copy_file_range(
        &self,
        _request: &Request,
        _inode_in: INodeNo,
        _handle_in: FileHandle,
        _offset_in: u64,
        _inode_out: INodeNo,
        _handle_out: FileHandle,
        _offset_out: u64,
        _len: u64,
        _flags: fuser::CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        reply.error(Errno::ENOSYS);
    }

    // The directory is as it is.

    fn create(
        &self,
        _request: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        _mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        reply.error(Errno::EPERM);
    }

    fn mknod(
        &self,
        _request: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        _mode: u32,
        _umask: u32,
        _rdev: u32,
        reply: ReplyEntry,
    ) {
        reply.error(Errno::EPERM);
    }

    fn mkdir(
        &self,
        _request: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        _mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        reply.error(Errno::EPERM);
    }

    fn symlink(
        &self,
        _request: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        _target: &Path,
        reply: ReplyEntry,
    ) {
        reply.error(Errno::EPERM);
    }

    fn unlink(&self, _request: &Request, _parent: INodeNo, _name: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EPERM);
    }

    fn rmdir(&self, _request: &Request, _parent: INodeNo, _name: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EPERM);
    }

    fn rename(
        &self,
        _request: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        _new_parent: INodeNo,
        _new_name: &OsStr,
        _flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::EPERM);
    }
}
