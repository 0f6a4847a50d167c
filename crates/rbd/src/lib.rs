//! An image of Ceph (RBD) as a [`BlockDevice`](block::BlockDevice), through Ceph's own librbd and
//! librados.
//!
//! Both libraries are loaded when the first image is opened, never before: a program with this
//! crate in it runs where there is no Ceph. Sources: `rbd/librbd.h` and `rados/librados.h` of Ceph
//! 16 and later. Not here: what an image is served as; making, resizing and removing images, which
//! `rbd` does.
//!
//! Besides, [`Objects`]: a few kilobytes in a pool that several clients change one after the other.
//!
//! `unsafe` is in `ffi` (what the calls are), and in `cluster`, `image`, `in_flight` and `object`
//! (what has to hold when they are made).

#![deny(unsafe_code)]

mod cluster;
mod disk;
mod error;
mod extents;
mod ffi;
mod image;
mod in_flight;
mod object;
pub mod url;

pub use disk::RbdDisk;
pub use error::{LoadError, OpenError};
pub use object::{Object, Objects};

/// How an image is used.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// Nothing will be written.
    pub read_only: bool,
}
