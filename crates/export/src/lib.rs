//! Local front ends of a [`block::BlockDevice`]: a file in a FUSE mount, an NBD server, a block
//! device of this machine's kernel; and [`ByteDevice`], on which whoever does not know blocks can
//! be made one.
//!
//! A front end turns what a local client says (kernel VFS, NBD) into calls of the device, and
//! nothing else: it caches nothing, it does not know where the device lives, and it adds no
//! durability of its own. What the client was told is stable, the device said is stable.
//!
//! Clients may write parts of blocks. Each front end locks the blocks it reads, modifies and
//! writes, but front ends do not know each other: give a device to one of them at a time.

#![deny(unsafe_code)]

mod byte_device;
pub mod fuse;
pub mod kernel;
pub mod nbd;
pub mod ublk;

use block::BlockError;

pub use byte_device::{ByteDevice, ReadData};

/// The number that the kernel is told of an error.
fn errno(error: &BlockError) -> i32 {
    tracing::debug!(%error, "operation failed");
    match error {
        BlockError::ReadOnly => libc::EROFS,
        BlockError::NoSpace => libc::ENOSPC,
        BlockError::OutOfRange { .. } | BlockError::Misaligned { .. } => libc::EINVAL,
        BlockError::Unsupported(_) => libc::EOPNOTSUPP,
        _ => libc::EIO,
    }
}

#[cfg(test)]
#[path = "../tests/common/mod.rs"]
mod test_device;
