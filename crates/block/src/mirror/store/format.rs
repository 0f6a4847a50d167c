//! The metadata device when it is made, and when it is opened.

use std::sync::Arc;

use super::super::activity::{self, ActivityLog, Recovered};
use super::super::bitmap::{Bitmap, PAGE_BYTES};
use super::super::host::Host;
use super::super::layout::{EXTENT_BLOCKS, LocalLayout, check_block_size};
use super::super::superblock::{BYTES, Block, BlockFault, LocalSuperblock, Record, newest};
use super::super::{BLOCK_BYTES, LEGS_MAX};
use super::write::{write_all_stable, write_stable};
use super::{MetadataStore, StoreError};
use crate::{Buf, Bytes, Device};

/// Bytes of bitmap pages that are read or written at once.
const PIECE_BYTES: usize = 1 << 20;

/// What may differ when a mirror is new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InitialBits {
    /// Everything: the legs get a first copy.
    AllDiffer,
    /// Nothing: somebody knows that all sides are equal.
    NoneDiffers,
}

/// A metadata device that was taken up again.
pub struct Opened {
    /// The store.
    pub store: MetadataStore,
    /// What may differ at each leg: its bitmap and all extents of the log.
    pub bitmaps: [Option<Bitmap>; LEGS_MAX],
    /// Bytes of the extents of the log.
    pub active_bytes: u64,
    /// Why everything may differ: the log was damaged in a way that no power cut leaves.
    pub doubt: Option<String>,
}

async fn read(device: &Device, at: u64, len: usize) -> Result<Buf, StoreError> {
    Ok(device.read(at, Buf::new(len)).await?)
}

/// What the superblocks say, the newer good one.
///
/// # Errors
/// The device's; [`BlockFault`] for whatever is there instead; a device that is too small for any.
pub async fn read_superblock(device: &Device) -> Result<LocalSuperblock, StoreError> {
    check_block_size(device.info().block_size)?;
    if device.info().size < 2 * BLOCK_BYTES {
        return Err(BlockFault::Blank.into());
    }
    let both = read(device, 0, 2 * BYTES).await?;
    let [first, second]: &[Block; 2] =
        both.as_chunks().0.try_into().map_err(|_| BlockFault::Blank)?;
    Ok(newest(first, second)?)
}

/// Makes a metadata device, whatever it held before. The superblock comes last, so that a half
/// made one is none.
///
/// # Errors
/// The device's; one that is too small; names that are too long.
pub async fn format(
    device: &Device,
    superblock: &LocalSuperblock,
    bits: InitialBits,
) -> Result<(), StoreError> {
    check_block_size(device.info().block_size)?;
    let layout = LocalLayout::new(superblock.size)?;
    layout.check(device.info().size)?;
    let ring = LocalLayout::ring();
    let blank = Bytes::from(vec![0; ring.end as usize]);
    write_stable(device, 0, blank.slice(..ring.start as usize)).await?;
    write_stable(device, ring.start, blank.slice(ring.start as usize..)).await?;
    // Pages under a name that was never used say that everything may differ.
    if bits == InitialBits::NoneDiffers {
        for (leg, record) in superblock.legs.iter().enumerate() {
            let Some(record) = record else { continue };
            let mut bitmap = Bitmap::new(layout.blocks());
            write_pages(device, &layout, leg, &mut bitmap, record.bitmap).await?;
        }
    }
    // Both copies, so that one may be lost at once.
    let older =
        LocalSuperblock { sequence: superblock.sequence.wrapping_sub(1), ..superblock.clone() };
    for copy in [&older, superblock] {
        let block = Bytes::copy_from_slice(&copy.encode()?[..]);
        write_stable(device, LocalLayout::superblock(copy.sequence), block).await?;
    }
    Ok(())
}

/// Writes all pages of a leg; durable when this ends.
pub(in crate::mirror) async fn write_pages(
    device: &Device,
    layout: &LocalLayout,
    leg: usize,
    bitmap: &mut Bitmap,
    id: super::BitmapId,
) -> Result<(), StoreError> {
    let at_once = (PIECE_BYTES / PAGE_BYTES) as u64;
    for first in (0..layout.pages()).step_by(PIECE_BYTES / PAGE_BYTES) {
        let numbers = first..(first + at_once).min(layout.pages());
        let mut pages = Vec::new();
        for number in numbers {
            let mut page = [0; PAGE_BYTES];
            bitmap.take_page(number, id, &mut page);
            pages.extend_from_slice(&page);
        }
        write_all_stable(device, vec![(layout.page(leg, first), pages.into())]).await?;
    }
    Ok(())
}

/// Takes a metadata device up again whose superblock was read.
///
/// Where the log cannot be believed, this writes down that everything may differ before it
/// returns.
///
/// # Errors
/// The device's; one that is too small; records of a newer version.
pub async fn open(
    device: Device,
    host: Arc<dyn Host>,
    superblock: &LocalSuperblock,
) -> Result<Opened, StoreError> {
    open_with_capacity(device, host, superblock, activity::EXTENTS_MAX).await
}

/// As [`open`], with room for so many extents in the log.
pub(super) async fn open_with_capacity(
    device: Device,
    host: Arc<dyn Host>,
    superblock: &LocalSuperblock,
    capacity: usize,
) -> Result<Opened, StoreError> {
    let layout = LocalLayout::new(superblock.size)?;
    layout.check(device.info().size)?;
    let range = LocalLayout::ring();
    let ring = read(&device, range.start, (range.end - range.start) as usize).await?;
    let mut found =
        activity::recover(superblock.uuid, superblock.ring_from, layout.extents(), &ring)?;
    let doubt = found.doubt.take();
    let mut bitmaps = [const { None }; LEGS_MAX];
    for (leg, record) in superblock.legs.iter().enumerate() {
        let Some(record) = record else { continue };
        let mut bitmap = match doubt {
            None => read_bitmap(&device, &layout, leg, record.bitmap).await?,
            Some(_) => Bitmap::full(layout.blocks()),
        };
        if doubt.is_some() {
            write_pages(&device, &layout, leg, &mut bitmap, record.bitmap).await?;
        }
        for extent in &found.extents {
            let first = u64::from(*extent) * EXTENT_BLOCKS;
            bitmap.set(first..first + EXTENT_BLOCKS);
        }
        bitmaps[leg] = Some(bitmap);
    }
    if doubt.is_some() {
        let blank = vec![0; ring.len()];
        write_stable(&device, range.start, blank.into()).await?;
        found =
            Recovered { sequence: superblock.ring_from.saturating_sub(1), ..Recovered::default() };
    }
    // A record of the activity log that a killed process left on its way may be read before it is
    // stable. An extent that counts as active by it gets no other record, and would be forgotten by
    // a power cut.
    if device.info().can_flush {
        device.flush().await?;
    }
    let log = ActivityLog::new(layout.extents(), capacity, &found);
    let store = MetadataStore::new(device, host, layout, superblock.uuid, log);
    let active_bytes = store.active_bytes();
    Ok(Opened { store, bitmaps, active_bytes, doubt })
}

async fn read_bitmap(
    device: &Device,
    layout: &LocalLayout,
    leg: usize,
    id: super::BitmapId,
) -> Result<Bitmap, StoreError> {
    let mut bitmap = Bitmap::new(layout.blocks());
    let at_once = (PIECE_BYTES / PAGE_BYTES) as u64;
    for first in (0..layout.pages()).step_by(PIECE_BYTES / PAGE_BYTES) {
        let count = at_once.min(layout.pages() - first);
        let pages = read(device, layout.page(leg, first), count as usize * PAGE_BYTES).await?;
        for (number, page) in (first..).zip(pages.as_chunks::<PAGE_BYTES>().0) {
            bitmap.load_page(number, id, page);
        }
    }
    Ok(bitmap)
}
