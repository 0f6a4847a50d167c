//! Local front ends of a [`block::BlockDevice`]: a file in a FUSE mount and an NBD server; and
//! [`ByteDevice`], on which whoever does not know blocks can be made one.
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
pub mod nbd;

pub use byte_device::{ByteDevice, ReadData};

#[cfg(test)]
#[path = "../tests/common/mod.rs"]
mod test_device;
