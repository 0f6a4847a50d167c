//! Where the metadata is. Pure arithmetic, checked; everything in blocks of 4 KiB.
//!
//! On the metadata device of the local side, from its begin on:
//! `superblock A · superblock B · activity ring · bitmap of leg 0 · of leg 1 · of leg 2`.
//! On a leg the image is at byte 0, and the metadata at the end, so that the image can be used
//! without us: `image · (unused) · redo log · fixed tail`. The fixed tail is the last 16 whole
//! blocks of the leg: `superblock A · superblock B · stamp A · stamp B · scratch · reserved`.
//! It has the same place whatever the length of the redo log, which the superblock tells.

use std::ops::Range;

use super::{BLOCK_BYTES, LEGS_MAX, bitmap};

/// Bytes of an extent of the activity log. Small: all of the extents in the log are copied after a
/// power cut. Large: a sequential writer meets a new one seldom.
pub const EXTENT_BYTES: u64 = 1 << 20;
/// Blocks of an extent.
pub const EXTENT_BLOCKS: u64 = EXTENT_BYTES / BLOCK_BYTES;

/// Largest image in bytes (2 PiB): the activity log names extents in 32 bits.
pub const SIZE_BYTES_MAX: u64 = EXTENT_BYTES << 31;

/// Records of the activity ring. One is written at a time, so two would do; more spread the wear,
/// and show damage that cannot come from a power cut.
pub const RING_RECORDS: u64 = 64;

/// Blocks in front of the ring.
const LOCAL_SUPERBLOCKS: u64 = 2;

/// Blocks at the end of a leg whose place depends on nothing but the size of the leg: five, and
/// room for more.
const TAIL_BLOCKS: u64 = 16;

/// Bytes at the end of a leg whose place depends on nothing but the size of the leg.
pub const TAIL_BYTES: u64 = TAIL_BLOCKS * BLOCK_BYTES;

/// A redo log that is smaller than this is of no use: a header block, and one of data.
pub const REDO_BYTES_MIN: u64 = 2 * BLOCK_BYTES;

/// Bytes of the redo log, where nothing is said about it, if the image is large: what changes
/// within a minute at 35 Mbit/s.
const REDO_DEFAULT_MIN: u64 = 256 << 20;

/// Why metadata cannot be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// There is nothing to mirror.
    #[error("an image of {size} bytes cannot be mirrored; at least {BLOCK_BYTES} are needed")]
    Empty {
        /// Bytes of the image.
        size: u64,
    },
    /// The image is larger than the activity log can name.
    #[error("an image of {size} bytes is too large; {SIZE_BYTES_MAX} are possible")]
    TooLarge {
        /// Bytes of the image.
        size: u64,
    },
    /// The metadata device is too small.
    #[error("the metadata device has {found} bytes; a mirror of {size} bytes needs {needed} there")]
    MetadataTooSmall {
        /// Bytes of the metadata device.
        found: u64,
        /// Bytes that it needs.
        needed: u64,
        /// Bytes of the image.
        size: u64,
    },
    /// The leg cannot hold the image and what stands behind it.
    #[error(
        "the leg has {found} bytes; an image of {size} bytes and the mirror's metadata behind it \
        need {needed}"
    )]
    LegTooSmall {
        /// Bytes of the leg.
        found: u64,
        /// Bytes that it needs.
        needed: u64,
        /// Bytes of the image.
        size: u64,
    },
    /// The device's blocks are larger than ours.
    #[error(
        "a device with blocks of {found} bytes cannot hold metadata, which is in {BLOCK_BYTES}"
    )]
    BlockSize {
        /// Bytes of its block.
        found: u32,
    },
}

/// Checks that blocks of 4 KiB can be written to a device with blocks of `block_size` bytes.
///
/// # Errors
/// [`LayoutError::BlockSize`].
pub fn check_block_size(block_size: u32) -> Result<(), LayoutError> {
    if u64::from(block_size) > BLOCK_BYTES {
        return Err(LayoutError::BlockSize { found: block_size });
    }
    Ok(())
}

/// The largest image that the local device and all of the legs can hold, in bytes: sizes in bytes,
/// and `redo_bytes` of each leg for its redo log.
///
/// # Errors
/// [`LayoutError::Empty`] and [`LayoutError::TooLarge`]; [`LayoutError::LegTooSmall`] where the
/// leg is too small for any image.
pub fn image_bytes(local: u64, legs: &[u64], redo_bytes: u64) -> Result<u64, LayoutError> {
    let mut size = local;
    for leg in legs {
        size = size.min(LegLayout::new(*leg, redo_bytes)?.image_bytes_max());
    }
    let size = size / BLOCK_BYTES * BLOCK_BYTES;
    check_image(size)?;
    Ok(size)
}

/// The redo log is at most this part of the image, unless more is asked for: what is owed after an
/// outage is seldom more, and room costs.
const REDO_PART: u64 = 10;

/// Bytes of the redo log on a leg of `leg_bytes`: what room there is between an image of `size`
/// bytes and the fixed tail, `wanted` at most. Less than [`REDO_BYTES_MIN`] is none.
pub fn redo_room(leg_bytes: u64, size: u64, wanted: u64) -> u64 {
    let tail = (leg_bytes / BLOCK_BYTES).saturating_sub(TAIL_BLOCKS) * BLOCK_BYTES;
    let room = tail.saturating_sub(size.next_multiple_of(BLOCK_BYTES)).min(wanted);
    if room < REDO_BYTES_MIN { 0 } else { room / BLOCK_BYTES * BLOCK_BYTES }
}

/// Bytes of the redo log where nothing is said about it, for an image of `size` bytes and a lag of
/// so many bytes.
pub fn redo_default(size: u64, lag_bytes: u64) -> u64 {
    REDO_DEFAULT_MIN.max(lag_bytes.saturating_add(lag_bytes / 2)).min(size / REDO_PART)
}

fn check_image(size: u64) -> Result<(), LayoutError> {
    match size {
        0..BLOCK_BYTES => Err(LayoutError::Empty { size }),
        BLOCK_BYTES..=SIZE_BYTES_MAX => Ok(()),
        _ => Err(LayoutError::TooLarge { size }),
    }
}

/// The metadata device of a mirror of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalLayout {
    size: u64,
}

impl LocalLayout {
    /// For an image of `size` bytes.
    ///
    /// # Errors
    /// [`LayoutError::Empty`], [`LayoutError::TooLarge`].
    pub fn new(size: u64) -> Result<Self, LayoutError> {
        check_image(size)?;
        Ok(Self { size })
    }

    /// Checks that a metadata device of `found` bytes is large enough.
    ///
    /// # Errors
    /// [`LayoutError::MetadataTooSmall`].
    pub fn check(&self, found: u64) -> Result<(), LayoutError> {
        let needed = self.len_bytes();
        if found < needed {
            return Err(LayoutError::MetadataTooSmall { found, needed, size: self.size });
        }
        Ok(())
    }

    /// Blocks of the image, the last of them perhaps in part.
    pub fn blocks(&self) -> u64 {
        self.size.div_ceil(BLOCK_BYTES)
    }

    /// Extents of the image, the last of them perhaps in part.
    pub fn extents(&self) -> u32 {
        self.size.div_ceil(EXTENT_BYTES) as u32
    }

    /// Where the copy of the superblock with this sequence number is, in bytes.
    pub fn superblock(sequence: u64) -> u64 {
        sequence % LOCAL_SUPERBLOCKS * BLOCK_BYTES
    }

    /// Where the record with this sequence number is, in bytes.
    pub fn record(sequence: u64) -> u64 {
        (LOCAL_SUPERBLOCKS + sequence % RING_RECORDS) * BLOCK_BYTES
    }

    /// The whole ring, in bytes.
    pub fn ring() -> Range<u64> {
        let first = LOCAL_SUPERBLOCKS * BLOCK_BYTES;
        first..first + RING_RECORDS * BLOCK_BYTES
    }

    /// Pages of a leg's bitmap.
    pub fn pages(&self) -> u64 {
        bitmap::pages(self.blocks())
    }

    /// Where a page of a leg's bitmap is, in bytes.
    ///
    /// # Panics
    /// When there is no such leg or page: a bug.
    pub fn page(&self, leg: usize, page: u64) -> u64 {
        assert!(leg < LEGS_MAX && page < self.pages(), "there is no page {page} of leg {leg}");
        Self::ring().end + (leg as u64 * self.pages() + page) * BLOCK_BYTES
    }

    /// Bytes that the metadata device needs.
    pub fn len_bytes(&self) -> u64 {
        Self::ring().end + LEGS_MAX as u64 * self.pages() * BLOCK_BYTES
    }
}

/// The end of a leg of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LegLayout {
    /// First byte of the fixed tail.
    tail: u64,
    redo_bytes: u64,
}

impl LegLayout {
    /// For a leg of `leg_bytes`, with `redo_bytes` (whole blocks) for its redo log.
    ///
    /// # Errors
    /// [`LayoutError::LegTooSmall`].
    pub fn new(leg_bytes: u64, redo_bytes: u64) -> Result<Self, LayoutError> {
        let redo_bytes = redo_bytes.div_ceil(BLOCK_BYTES).saturating_mul(BLOCK_BYTES);
        let tail = (leg_bytes / BLOCK_BYTES).saturating_sub(TAIL_BLOCKS) * BLOCK_BYTES;
        let layout = Self { tail, redo_bytes };
        if layout.image_bytes_max() == 0 {
            layout.check(BLOCK_BYTES, leg_bytes)?;
        }
        Ok(layout)
    }

    /// The same leg with a redo log of so many bytes, which its superblock tells.
    #[must_use]
    pub fn with_redo(self, redo_bytes: u64) -> Self {
        Self { redo_bytes, ..self }
    }

    /// Checks that an image of `size` bytes fits in front of the metadata; `found` is the size of
    /// the leg.
    ///
    /// # Errors
    /// [`LayoutError::LegTooSmall`].
    pub fn check(&self, size: u64, found: u64) -> Result<(), LayoutError> {
        if size <= self.image_bytes_max() {
            return Ok(());
        }
        let needed = size.div_ceil(BLOCK_BYTES).saturating_mul(BLOCK_BYTES);
        let needed = needed.saturating_add(self.redo_bytes).saturating_add(TAIL_BYTES);
        Err(LayoutError::LegTooSmall { found, needed, size })
    }

    /// Bytes of the largest image in front of the metadata.
    pub fn image_bytes_max(&self) -> u64 {
        self.tail.saturating_sub(self.redo_bytes)
    }

    /// The redo log, in bytes; it ends where the fixed tail begins.
    pub fn redo_log(&self) -> Range<u64> {
        self.tail.saturating_sub(self.redo_bytes)..self.tail
    }

    /// Where the copy of the superblock with this sequence number is, in bytes.
    pub fn superblock(&self, sequence: u64) -> u64 {
        self.tail + sequence % 2 * BLOCK_BYTES
    }

    /// Where the stamp of this epoch is, in bytes.
    pub fn stamp(&self, epoch: u64) -> u64 {
        self.tail + (2 + epoch % 2) * BLOCK_BYTES
    }

    /// A block to try things on, in bytes.
    pub fn scratch(&self) -> u64 {
        self.tail + 4 * BLOCK_BYTES
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn nothing_overlaps_on_the_metadata_device(size in BLOCK_BYTES..=SIZE_BYTES_MAX) {
            let layout = LocalLayout::new(size).unwrap();
            prop_assert_eq!(LocalLayout::superblock(2), 0);
            prop_assert_eq!(LocalLayout::superblock(3) + BLOCK_BYTES, LocalLayout::ring().start);
            prop_assert_eq!(LocalLayout::record(RING_RECORDS), LocalLayout::ring().start);
            let last = LocalLayout::record(2 * RING_RECORDS - 1) + BLOCK_BYTES;
            prop_assert_eq!(last, LocalLayout::ring().end);
            prop_assert_eq!(layout.page(0, 0), LocalLayout::ring().end);
            for leg in 1..LEGS_MAX {
                let behind = layout.page(leg - 1, layout.pages() - 1) + BLOCK_BYTES;
                prop_assert_eq!(layout.page(leg, 0), behind);
            }
            let behind = layout.page(LEGS_MAX - 1, layout.pages() - 1) + BLOCK_BYTES;
            prop_assert_eq!(layout.len_bytes(), behind);
            prop_assert!(layout.pages() * bitmap::PAGE_BLOCKS >= layout.blocks());
            prop_assert!(u64::from(layout.extents()) * EXTENT_BYTES >= size);
            prop_assert!(layout.check(behind).is_ok() && layout.check(behind - 1).is_err());
        }

        #[test]
        fn what_fits_a_leg_lies_inside_it(leg in 0u64..1 << 40, redo in 0u64..1 << 30) {
            match LegLayout::new(leg, redo) {
                Err(LayoutError::LegTooSmall { found, needed, size }) => {
                    prop_assert_eq!((found, size), (leg, BLOCK_BYTES));
                    prop_assert!(LegLayout::new(needed, redo).is_ok());
                    prop_assert!(LegLayout::new(needed - 1, redo).is_err() && needed > leg);
                }
                Err(other) => prop_assert!(false, "{}", other),
                Ok(layout) => {
                    let max = layout.image_bytes_max();
                    prop_assert!(max > 0 && max <= layout.redo_log().start);
                    prop_assert!(layout.redo_log().end <= layout.superblock(0));
                    prop_assert_eq!(layout.superblock(1) + BLOCK_BYTES, layout.stamp(0));
                    prop_assert_eq!(layout.stamp(1) + BLOCK_BYTES, layout.scratch());
                    prop_assert!(layout.tail + TAIL_BYTES <= leg);
                    prop_assert!(leg - (layout.tail + TAIL_BYTES) < BLOCK_BYTES);
                    prop_assert!(layout.check(max, leg).is_ok());
                    prop_assert!(layout.check(max + 1, leg).is_err());
                    prop_assert_eq!(image_bytes(u64::MAX, &[leg], redo), Ok(max));
                    // The fixed tail is found without knowing the redo log.
                    let plain = LegLayout::new(leg, 0).unwrap();
                    prop_assert_eq!(plain.superblock(1), layout.superblock(1));
                }
            }
        }
    }

    #[test]
    fn the_image_is_what_the_smallest_can_hold() {
        let legs = [(1 << 30) + TAIL_BYTES, (1 << 29) + TAIL_BYTES + 512];
        assert_eq!(image_bytes(1 << 40, &legs, 0), Ok(1 << 29));
        assert_eq!(image_bytes(1 << 40, &legs[..1], 1 << 20), Ok((1 << 30) - (1 << 20)));
        assert_eq!(image_bytes(1 << 20, &legs, 0), Ok(1 << 20));
        assert_eq!(image_bytes((1 << 20) + 512, &legs, 0), Ok(1 << 20));
        assert_eq!(image_bytes(0, &legs, 0), Err(LayoutError::Empty { size: 0 }));
    }

    #[test]
    fn the_redo_log_takes_what_room_there_is() {
        let image = 1 << 30;
        let leg = |room: u64| image + room + TAIL_BYTES + 512;
        assert_eq!(redo_room(leg(0), image, u64::MAX), 0);
        assert_eq!(redo_room(leg(BLOCK_BYTES), image, u64::MAX), 0);
        assert_eq!(redo_room(leg(5 * BLOCK_BYTES), image, u64::MAX), 5 * BLOCK_BYTES);
        assert_eq!(redo_room(leg(1 << 20), image - 5, 70_000), 16 * BLOCK_BYTES + BLOCK_BYTES);
        assert_eq!(redo_room(leg(1 << 20), image, 0), 0);
        assert_eq!(redo_room(100, image, u64::MAX), 0);
        let layout =
            LegLayout::new(leg(1 << 20), redo_room(leg(1 << 20), image, u64::MAX)).unwrap();
        assert!(layout.check(image, leg(1 << 20)).is_ok());
        assert_eq!(redo_default(image, 256 << 20), image / 10);
        assert_eq!(redo_default(1 << 40, 1 << 30), 3 << 29);
        assert_eq!(redo_default(1 << 40, 64 << 20), 256 << 20);
    }

    #[test]
    fn a_leg_that_is_too_small_says_what_it_needs() {
        let error = image_bytes(1 << 30, &[TAIL_BYTES], 0).unwrap_err().to_string();
        assert_eq!(
            error,
            "the leg has 65536 bytes; an image of 4096 bytes and the mirror's metadata behind it \
            need 69632"
        );
        let layout = LegLayout::new(1 << 20, 0).unwrap();
        assert!(layout.check(1 << 20, 1 << 20).unwrap_err().to_string().contains("need 1114112"));
        let error = LocalLayout::new(1 << 30).unwrap().check(4096).unwrap_err().to_string();
        assert!(
            error.contains("has 4096 bytes") && error.contains("needs 380928 there"),
            "{error}"
        );
        assert!(check_block_size(4096).is_ok() && check_block_size(8192).is_err());
    }

    #[test]
    fn a_terabyte_needs_34_mib_of_metadata_for_each_leg() {
        let layout = LocalLayout::new(1 << 40).unwrap();
        assert_eq!(layout.len_bytes() / LEGS_MAX as u64 / (1 << 20), 34);
    }
}
