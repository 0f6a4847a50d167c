//! The system calls of the file backend that std does not have, as safe functions.

use std::ffi::c_int;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// The kernel, the file system or the file does not know this operation.
pub(super) fn unsupported(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Unsupported
        || matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOTTY))
}

/// The file is on tmpfs or ramfs.
pub(super) fn in_memory(file: &File) -> bool {
    const RAMFS_MAGIC: i64 = 0x8584_58f6;
    let mut stat = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: fstatfs writes one statfs, which is only read when it says that it has done so.
    let kind = unsafe {
        match libc::fstatfs(file.as_raw_fd(), stat.as_mut_ptr()) {
            0 => stat.assume_init().f_type,
            _ => return false,
        }
    };
    // A device node in a tmpfs is not a file of the tmpfs.
    let regular = file.metadata().is_ok_and(|metadata| metadata.is_file());
    regular && (kind == libc::TMPFS_MAGIC || kind == RAMFS_MAGIC)
}

/// One preadv2 with `flags` (`RWF_…`). May read less than all.
pub(super) fn read(file: &File, buf: &mut [u8], offset: u64, flags: c_int) -> io::Result<usize> {
    let vector = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    let offset = offset_of(offset)?;
    retry(|| {
        // SAFETY: `vector` describes `buf`, which is writable and outlives the call.
        unsafe { libc::preadv2(file.as_raw_fd(), &vector, 1, offset, flags) as i64 }
    })
    .map(|n| n as usize)
}

/// One pwritev2 with `flags` (`RWF_…`). May write less than all.
pub(super) fn write(file: &File, data: &[u8], offset: u64, flags: c_int) -> io::Result<usize> {
    let vector = libc::iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: data.len() };
    let offset = offset_of(offset)?;
    retry(|| {
        // SAFETY: `vector` describes `data`, which outlives the call and is only read by it.
        unsafe { libc::pwritev2(file.as_raw_fd(), &vector, 1, offset, flags) as i64 }
    })
    .map(|n| n as usize)
}

/// Releases the storage of a range, which reads as zeroes then.
pub(super) fn punch_hole(file: &File, offset: u64, len: u64) -> io::Result<()> {
    fallocate(file, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, offset, len)
}

/// Zeroes a range and keeps its storage.
pub(super) fn zero_range(file: &File, offset: u64, len: u64) -> io::Result<()> {
    fallocate(file, libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE, offset, len)
}

fn fallocate(file: &File, mode: c_int, offset: u64, len: u64) -> io::Result<()> {
    let (offset, len) = (offset_of(offset)?, offset_of(len)?);
    retry(|| {
        // SAFETY: takes no pointers.
        i64::from(unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, len) })
    })
    .map(drop)
}

/// First byte of data at or after `offset`; `None` when only a hole follows.
pub(super) fn seek_data(file: &File, offset: u64) -> io::Result<Option<u64>> {
    match seek(file, offset, libc::SEEK_DATA) {
        Ok(at) => Ok(Some(at)),
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => Ok(None),
        Err(error) => Err(error),
    }
}

/// First byte of a hole (or the end) at or after `offset`.
pub(super) fn seek_hole(file: &File, offset: u64) -> io::Result<u64> {
    seek(file, offset, libc::SEEK_HOLE)
}

fn seek(file: &File, offset: u64, whence: c_int) -> io::Result<u64> {
    let offset = offset_of(offset)?;
    retry(|| {
        // SAFETY: takes no pointers. The file position it moves is used by nobody.
        unsafe { libc::lseek(file.as_raw_fd(), offset, whence) }
    })
    .map(|at| at as u64)
}

/// Takes the whole-file lock or fails with `WouldBlock`. It goes with the last handle.
pub(super) fn lock(file: &File, exclusive: bool) -> io::Result<()> {
    let kind = if exclusive { libc::LOCK_EX } else { libc::LOCK_SH };
    retry(|| {
        // SAFETY: takes no pointers.
        i64::from(unsafe { libc::flock(file.as_raw_fd(), kind | libc::LOCK_NB) })
    })
    .map(drop)
}

const FICLONE: u64 = 0x4004_9409;

/// Has an empty file share all blocks of another.
pub(super) fn clone_file(empty: &File, of: &File) -> io::Result<()> {
    retry(|| {
        // SAFETY: FICLONE takes no pointer, but the descriptor of an open file.
        i64::from(unsafe { libc::ioctl(empty.as_raw_fd(), FICLONE as _, of.as_raw_fd()) })
    })
    .map(drop)
}

const BLKDISCARD: u64 = 0x1277;
const BLKSSZGET: u64 = 0x1268;
const BLKPBSZGET: u64 = 0x127b;
const BLKGETSIZE64: u64 = 0x8008_1272;

/// Tells a block device that a range is not needed.
pub(super) fn discard(file: &File, offset: u64, len: u64) -> io::Result<()> {
    let range = [offset, len];
    retry(|| {
        // SAFETY: BLKDISCARD reads two u64, and `range` outlives the call.
        i64::from(unsafe { libc::ioctl(file.as_raw_fd(), BLKDISCARD as _, range.as_ptr()) })
    })
    .map(drop)
}

/// Bytes that the file system below has left for us.
pub(super) fn available_bytes(file: &File) -> io::Result<u64> {
    let mut stat = std::mem::MaybeUninit::<libc::statvfs>::zeroed();
    retry(|| {
        // SAFETY: `stat` is writable for one statvfs and outlives the call.
        i64::from(unsafe { libc::fstatvfs(file.as_raw_fd(), stat.as_mut_ptr()) })
    })?;
    // SAFETY: all of its fields are integers, for which any bits will do, and it was zeroed.
    let stat = unsafe { stat.assume_init() };
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Size of a block device in bytes.
pub(super) fn block_device_size(file: &File) -> io::Result<u64> {
    let mut size = 0u64;
    retry(|| {
        // SAFETY: BLKGETSIZE64 writes one u64.
        i64::from(unsafe { libc::ioctl(file.as_raw_fd(), BLKGETSIZE64 as _, &raw mut size) })
    })?;
    Ok(size)
}

/// Logical and physical block size of a block device in bytes.
pub(super) fn block_device_block_sizes(file: &File) -> io::Result<(u32, u32)> {
    let (mut logical, mut physical): (c_int, libc::c_uint) = (0, 0);
    retry(|| {
        // SAFETY: BLKSSZGET writes one int.
        i64::from(unsafe { libc::ioctl(file.as_raw_fd(), BLKSSZGET as _, &raw mut logical) })
    })?;
    retry(|| {
        // SAFETY: BLKPBSZGET writes one unsigned int.
        i64::from(unsafe { libc::ioctl(file.as_raw_fd(), BLKPBSZGET as _, &raw mut physical) })
    })?;
    Ok((logical.unsigned_abs(), physical))
}

fn offset_of(value: u64) -> io::Result<i64> {
    i64::try_from(value).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// Repeats a system call that a signal interrupted; -1 becomes errno.
fn retry(mut call: impl FnMut() -> i64) -> io::Result<i64> {
    loop {
        let result = call();
        if result >= 0 {
            return Ok(result);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}
