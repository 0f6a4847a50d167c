//! Block devices: one trait, the places data lives (`backend`), and features stacked on top
//! (`layer`).
//!
//! A device is a flat array of bytes addressed by byte offset. It knows no LUN, no PDU and no
//! client; the shape of the trait follows nbdkit's (ask capabilities, do not assume).

pub mod backend;
pub mod buf;
mod calendar;
pub mod content;
pub mod copy;
pub mod error;
pub mod incremental;
pub mod io;
pub mod layer;
pub mod load;
pub mod mirror;
pub mod range_lock;
pub mod stream;
pub mod testing;

pub use buf::Buf;
pub use bytes::Bytes;
pub use calendar::civil;
pub use error::{BlockError, Result};
pub use io::Io;

use std::sync::Arc;

/// A device shared by everything that uses it.
pub type Device = Arc<dyn BlockDevice>;

/// What a device can do and how it wants to be used. Cheap to ask, so ask again after a resize.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// Capacity in bytes, always a multiple of `block_size`.
    pub size: u64,
    /// Smallest addressable unit in bytes: a power of two, 512 to 65536. Offsets and lengths are
    /// multiples of it.
    pub block_size: u32,
    /// Best unit of I/O in bytes (physical block), a power of two, at least `block_size`.
    pub preferred_block_size: u32,
    /// Writes, trims and zeroes are refused.
    pub read_only: bool,
    /// `flush` makes earlier writes stable. A device without it is either stable at once or never.
    pub can_flush: bool,
    /// A write with `fua` is stable when it completes, without a flush of everything else.
    pub can_fua: bool,
    /// There is a volatile cache: a completed write without FUA may be lost until a flush.
    pub volatile_cache: bool,
    /// `trim` may release storage; trimmed ranges read as zeroes when `trim_zeroes`.
    pub can_trim: bool,
    /// Trimmed ranges read back as zeroes.
    pub trim_zeroes: bool,
    /// `zero` is faster than writing zeroes.
    pub can_zero: bool,
    /// `extents` tells holes from data (otherwise everything is reported as data).
    pub can_extents: bool,
    /// The device may be used by several connections at once (flush on one covers writes of all).
    pub can_multi_conn: bool,
    /// `compare_and_write` is one step for everybody who reaches the storage, by whatever way.
    pub can_compare_and_write: bool,
}

impl DeviceInfo {
    /// A writable device of `size` bytes with nothing but plain reads, writes and flushes.
    pub fn new(size: u64, block_size: u32) -> Self {
        Self {
            size,
            block_size,
            preferred_block_size: block_size.max(4096),
            read_only: false,
            can_flush: true,
            can_fua: false,
            volatile_cache: true,
            can_trim: false,
            trim_zeroes: false,
            can_zero: false,
            can_extents: false,
            can_multi_conn: true,
            can_compare_and_write: false,
        }
    }

    /// Checks that `offset..offset + len` lies inside the device and on block boundaries.
    ///
    /// # Errors
    /// [`BlockError::OutOfRange`] or [`BlockError::Misaligned`].
    pub fn check(&self, offset: u64, len: u64) -> Result<()> {
        if offset.checked_add(len).is_none_or(|end| end > self.size) {
            return Err(BlockError::OutOfRange { offset, len, size: self.size });
        }
        let mask = u64::from(self.block_size) - 1;
        if (offset | len) & mask != 0 {
            return Err(BlockError::Misaligned { offset, len, block_size: self.block_size });
        }
        Ok(())
    }

    /// As [`check`](Self::check), for an operation that changes the device.
    ///
    /// # Errors
    /// Also [`BlockError::ReadOnly`].
    pub fn check_write(&self, offset: u64, len: u64) -> Result<()> {
        if self.read_only {
            return Err(BlockError::ReadOnly);
        }
        self.check(offset, len)
    }
}

/// Wishes that come with a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WriteFlags {
    /// Force unit access: stable before completion. Devices without `can_fua` flush instead.
    pub fua: bool,
}

impl WriteFlags {
    /// Stable before completion.
    pub const FUA: Self = Self { fua: true };
    /// No wishes.
    pub const NONE: Self = Self { fua: false };
}

/// Wishes that come with [`BlockDevice::zero`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ZeroFlags {
    /// Stable before completion.
    pub fua: bool,
    /// The range may become a hole (otherwise storage stays allocated, so that a later write
    /// cannot fail for lack of space).
    pub may_trim: bool,
}

impl ZeroFlags {
    /// Sets both wishes.
    pub fn new(fua: bool, may_trim: bool) -> Self {
        Self { fua, may_trim }
    }
}

/// A run of bytes of one kind, as [`BlockDevice::extents`] reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First byte.
    pub offset: u64,
    /// Length in bytes, not 0.
    pub len: u64,
    /// No storage is allocated. A hole reads as zeroes.
    pub hole: bool,
}

/// What [`BlockDevice::compare_and_write`] came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compared {
    /// It was as expected, and is replaced.
    Written,
    /// It was not, and nothing has changed.
    Differs {
        /// First byte that differs, counted from the begin of the range.
        at: u64,
    },
}

/// A block device.
///
/// Operations start when called and finish when the returned [`Io`] is awaited; an operation that
/// can finish without waiting returns a ready `Io`, so that the fast path crosses no thread and
/// allocates no future. Dropping an unfinished `Io` leaves a read harmlessly abandoned and a write
/// in an unknown state (old, new or torn), as after a power cut.
///
/// Reads and writes that overlap in time are not ordered against each other. After `flush`
/// completes, every write completed before `flush` was called is on stable storage.
pub trait BlockDevice: Send + Sync + 'static {
    /// Size, block size and capabilities as of now.
    fn info(&self) -> DeviceInfo;

    /// Fills the whole of `buf` from `offset` and hands it back.
    fn read(&self, offset: u64, buf: Buf) -> Io<Buf>;

    /// Writes all of `data` at `offset`.
    fn write(&self, offset: u64, data: Bytes, flags: WriteFlags) -> Io<()>;

    /// Makes all completed writes stable.
    fn flush(&self) -> Io<()>;

    /// The range is no longer needed. Advice: may do nothing (unless `trim_zeroes`).
    fn trim(&self, offset: u64, len: u64) -> Io<()>;

    /// Makes the range read as zeroes.
    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Io<()>;

    /// Which parts of the range are data and which are holes: sorted, without gaps, covering
    /// exactly the range asked for.
    fn extents(&self, offset: u64, len: u64) -> Io<Vec<Extent>>;

    /// Writes `new` at `offset` if what is there equals `expected`, which is as long; it is stable
    /// when that completes. Only of a device with `can_compare_and_write`, since nobody can build
    /// it out of reads and writes who does not know all the others. One block can always be had; a
    /// longer range that the storage cannot take in one step is [`BlockError::Unsupported`].
    fn compare_and_write(&self, _offset: u64, _expected: Bytes, _new: Bytes) -> Io<Compared> {
        Io::err(BlockError::Unsupported("comparing and writing in one step"))
    }
}
