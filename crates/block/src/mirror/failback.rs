//! Failing back: the former local device becomes a leg of the one that was promoted, and gets what
//! differs.
//!
//! 1. At the site that takes over, [`primary_of_leg`] promotes the leg and makes it the local
//!    device of a mirror, with one leg that is awaited: what is written from then on is known.
//! 2. At the old site, [`hand_back`] writes behind the image of the old local device what the old
//!    metadata says may differ from the leg (bits and active extents), and a superblock of the
//!    generation in which that leg was followed last. Its mirror does not open any more.
//! 3. When the new mirror meets that device, what differs is what it brings and what was written
//!    since. Where one of the two is not known (the leg was promoted without a mirror, put back, or
//!    the generations do not join), everything may differ; copies look before they send.
//!
//! Both ways are the same: when all is in sync, the roles can change again.

use std::ops::Range;
use std::sync::Arc;

use zerocopy::byteorder::little_endian::{U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::bitmap::{self, Bitmap, BitmapId, PAGE_BYTES};
use super::engine::local::Local;
use super::engine::tail;
use super::error::MirrorError;
use super::generation::GenerationId;
use super::host::Host;
use super::layout::{LegLayout, LocalLayout, TAIL_BYTES};
use super::promote::{self, PromoteOptions, Promoted};
use super::status::LegState;
use super::store::{self, InitialBits, StoreError};
use super::superblock::{
    BYTES, Block, Consistency, Kind, LegId, LegRecord, LocalSuperblock, RemoteSuperblock, Role,
    Verified, open, seal,
};
use super::{BLOCK_BYTES, LEGS_MAX};
use crate::{BlockDevice, Buf, Bytes, Device, Result, WriteFlags};

const WHAT: &str = "the local disk";

/// In front of the pages.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHeader {
    uuid: U128,
    /// The leg from which the device differs.
    from: U128,
    bitmap: U128,
    size: U64,
    /// Number of that leg's superblock as the mirror wrote it last.
    leg_sequence: U64,
}

/// What was given back.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct HandedBack {
    /// Bytes of the image.
    pub size: u64,
    /// The leg that is the primary now.
    pub leg: String,
    /// Bytes of blocks that may differ from the leg as it was when it was followed last.
    pub differing_bytes: u64,
}

/// The name of the former local device as a leg, from that of the leg which was promoted; and back.
fn name_of_other_end(leg: LegId) -> LegId {
    LegId(!leg.0)
}

/// Bytes behind the image that tell what differs, in front of a leg's own.
fn redo_bytes(size: u64) -> u64 {
    (1 + bitmap::pages(size.div_ceil(BLOCK_BYTES))) * BLOCK_BYTES
}

/// Bytes that a local device has to have to be given back, for an image of `size` bytes.
pub fn bytes_needed(size: u64) -> u64 {
    size.next_multiple_of(BLOCK_BYTES) + redo_bytes(size) + TAIL_BYTES
}

fn refused(found: impl Into<String>) -> MirrorError {
    MirrorError::NotToBeGivenBack { found: found.into() }
}

fn store_error(error: StoreError) -> MirrorError {
    MirrorError::store("the mirror's metadata", error)
}

/// Makes the local device a leg of the one that was promoted: `leg` by its place. The mirror must
/// not run, and does not open any more. May be done again.
///
/// # Errors
/// The device has no room behind the image; its content is not what the metadata tells of; what the
/// devices say.
pub async fn hand_back(
    local: &Device,
    metadata: &Device,
    host: Arc<dyn Host>,
    leg: usize,
) -> std::result::Result<HandedBack, MirrorError> {
    let device = |source| MirrorError::device(WHAT, source);
    let mut superblock = store::read_superblock(metadata).await.map_err(store_error)?;
    let legs = superblock.legs.iter().flatten().count();
    let record = superblock.legs.get(leg).cloned().flatten();
    let record = record.ok_or(MirrorError::NoSuchLeg { leg, legs })?;
    let (layout, lineage) = check(local, &superblock, &record)?;
    let now = host.wall_clock();
    let opened = store::open(metadata.clone(), host, &superblock).await.map_err(store_error)?;
    let mut bitmaps = opened.bitmaps;
    let bits = bitmaps[leg].take();
    let mut bits = bits.unwrap_or_else(|| Bitmap::full(superblock.size.div_ceil(BLOCK_BYTES)));
    // First: what its mirror would write later is in no set.
    superblock.role = Role::HandedBack;
    superblock.sequence += 1;
    opened.store.commit(&superblock).await.map_err(device)?;
    let found = tail::read(&**local, &layout).await.map_err(device)?;
    let sequence = match found {
        Ok(found) if found.uuid == superblock.uuid => found.sequence + 1,
        _ => {
            tail::erase(&**local, &layout).await.map_err(device)?;
            1
        }
    };
    let differing_bytes = bits.count() * BLOCK_BYTES;
    write_set(local, &layout, &superblock, &record, &mut bits).await.map_err(device)?;
    let given = RemoteSuperblock {
        uuid: superblock.uuid,
        sequence,
        leg: name_of_other_end(record.id),
        lineage,
        data_bytes: superblock.size,
        redo_bytes: redo_bytes(superblock.size),
        consistency: Consistency::Consistent,
        writer: String::new(),
        lease: now.into(),
    };
    tail::write(&**local, &layout, &given).await.map_err(device)?;
    Ok(HandedBack { size: superblock.size, leg: record.name, differing_bytes })
}

fn check(
    local: &Device,
    superblock: &LocalSuperblock,
    record: &LegRecord,
) -> std::result::Result<(LegLayout, super::generation::Lineage), MirrorError> {
    if superblock.role == Role::Secondary {
        return Err(refused(
            "it failed while the mirror was in use, and the legs went on without it; make a new \
             mirror at the other site, which copies everything",
        ));
    }
    if superblock.role == Role::Restoring
        || record.state == LegState::Copying
        || record.is_awaited()
    {
        return Err(refused(format!("it or {} is no image", record.name)));
    }
    let lineage = superblock.lineage.back_to(record.base).ok_or_else(|| {
        refused(format!("{} was followed too long ago: {}", record.name, record.base))
    })?;
    let (found, needed) = (local.info().size, bytes_needed(superblock.size));
    if found < needed {
        return Err(refused(format!(
            "it has {found} bytes, and {needed} are needed to note behind its image of {} bytes what \
             differs; make it larger",
            superblock.size
        )));
    }
    let layout = LegLayout::new(found, redo_bytes(superblock.size));
    let layout = layout.map_err(|error| MirrorError::metadata(WHAT, &error))?;
    Ok((layout, lineage))
}

async fn write_set(
    local: &Device,
    layout: &LegLayout,
    superblock: &LocalSuperblock,
    record: &LegRecord,
    bits: &mut Bitmap,
) -> Result<()> {
    let at = layout.redo_log().start;
    let header = RawHeader {
        uuid: superblock.uuid.0.into(),
        from: record.id.0.into(),
        bitmap: record.bitmap.0.into(),
        size: superblock.size.into(),
        leg_sequence: record.superblock_sequence.into(),
    };
    let header = seal(Kind::HandOver, &header);
    local.write(at, Bytes::copy_from_slice(&header[..]), WriteFlags::NONE).await?;
    for number in 0..bits.pages() {
        let mut page = [0; PAGE_BYTES];
        bits.take_page(number, record.bitmap, &mut page);
        let at = at + (1 + number) * BLOCK_BYTES;
        local.write(at, Bytes::copy_from_slice(&page), WriteFlags::NONE).await?;
    }
    local.flush().await
}

/// What differs at a device that was given back.
pub(crate) struct Differences {
    bits: Bitmap,
    /// Number of the superblock of the leg, which was promoted, as it was known there.
    pub(crate) leg_sequence: u64,
}

impl Differences {
    /// The blocks.
    pub(crate) fn runs(&self) -> impl Iterator<Item = Range<u64>> {
        let mut from = 0;
        std::iter::from_fn(move || {
            let run = self.bits.next_run(from, self.bits.blocks())?;
            from = run.end;
            Some(run)
        })
    }
}

/// What a device that was given back says of what differs; `None` where it says nothing that can be
/// used.
///
/// # Errors
/// The device's.
pub(crate) async fn differences(
    device: &dyn BlockDevice,
    superblock: &RemoteSuperblock,
) -> Result<Option<Differences>> {
    let size = superblock.data_bytes;
    if superblock.redo_bytes != redo_bytes(size) {
        return Ok(None);
    }
    let Ok(layout) = LegLayout::new(device.info().size, superblock.redo_bytes) else {
        return Ok(None);
    };
    let at = layout.redo_log().start;
    let mut block: Box<Block> = Box::new([0; BYTES]);
    block.copy_from_slice(&device.read(at, Buf::new(BYTES)).await?);
    let Ok(header) = open::<RawHeader>(Kind::HandOver, &block) else { return Ok(None) };
    let from = name_of_other_end(superblock.leg);
    let known = (header.uuid.get(), header.from.get(), header.size.get());
    if known != (superblock.uuid.0, from.0, size) {
        return Ok(None);
    }
    let mut bits = Bitmap::new(size.div_ceil(BLOCK_BYTES));
    for number in 0..bits.pages() {
        let mut page = [0; PAGE_BYTES];
        let at = at + (1 + number) * BLOCK_BYTES;
        page.copy_from_slice(&device.read(at, Buf::new(PAGE_BYTES)).await?);
        // What cannot be read of it says that all may differ.
        bits.load_page(number, BitmapId(header.bitmap.get()), &page);
    }
    Ok(Some(Differences { bits, leg_sequence: header.leg_sequence.get() }))
}

/// Number of the superblock of a leg just before it was promoted and became the local device.
pub(crate) async fn promoted_sequence(local: &Local) -> Option<u64> {
    let layout = LegLayout::new(local.info().size, 0).ok()?;
    let found = tail::read(&**local.device(), &layout).await.ok()?.ok()?;
    found.sequence.checked_sub(1)
}

/// Promotes the leg that `leg` is, and makes it the local device of a mirror, whose one leg is
/// awaited under this name: the former local device, once its site gives it back. `metadata` says
/// how the metadata device is had for an image of so many bytes.
///
/// # Errors
/// As [`promote()`](super::promote()); what the devices say.
pub async fn primary_of_leg(
    leg: super::OpenLeg,
    metadata: &Device,
    host: &dyn Host,
    awaited: &str,
    options: PromoteOptions,
) -> std::result::Result<Promoted, MirrorError> {
    let layout = LegLayout::new(leg.device.info().size, 0);
    let layout = layout.map_err(|error| MirrorError::metadata(WHAT, &error))?;
    let found = promote::look(&*leg.device, &layout, options).await?;
    let fits = LocalLayout::new(found.data_bytes);
    let fits = fits.and_then(|layout| layout.check(metadata.info().size));
    fits.map_err(|error| MirrorError::metadata("the mirror's metadata", &error))?;
    let local = leg.device.clone();
    let promoted = promote::promote(leg, host, options).await?;
    let told = tail::read(&*local, &layout).await;
    let told = told.map_err(|source| MirrorError::device(WHAT, source))?;
    let told = told.map_err(|fault| MirrorError::metadata(WHAT, &fault))?;
    // The generation in which the former local device followed, if nobody was promoted in between.
    let base = told.lineage.history().first().map_or(GenerationId(0), |past| past.id);
    let record = LegRecord {
        id: name_of_other_end(told.leg),
        identity: String::new(),
        name: awaited.to_owned(),
        state: LegState::Lost,
        base,
        acked_epoch: 0,
        superblock_sequence: 0,
        bitmap: BitmapId(host.random()),
        leg_bytes: 0,
        redo_bytes: 0,
        verified: Verified::default(),
    };
    let mut legs = [const { None }; LEGS_MAX];
    legs[0] = Some(record);
    let superblock = LocalSuperblock {
        uuid: told.uuid,
        sequence: 2,
        size: told.data_bytes,
        role: Role::Primary,
        clean: true,
        ring_from: 0,
        epoch_max: 0,
        lineage: told.lineage,
        legs,
    };
    let formatted = store::format(metadata, &superblock, InitialBits::NoneDiffers).await;
    formatted.map_err(store_error)?;
    Ok(promoted)
}

#[cfg(test)]
pub(super) fn places() -> Vec<super::format_doc::Place> {
    super::format_doc::places!(RawHeader, 32, uuid, from, bitmap, size, leg_sequence)
}
