//! What is done to the shape of a mirror that does not run: a leg is removed, all sides grow. (Legs
//! are added where they are created.)
//!
//! The legs have no gaps: the place of a leg on the metadata device is its number in the mirror. So
//! those behind a leg that is removed move up, their bits first: pages under another leg's name say
//! that everything may differ, and so whatever is cut off in between costs a copy at most.

use std::time::SystemTime;

use super::engine::{guard, tail};
use super::error::MirrorError;
use super::layout::{LayoutError, LegLayout, LocalLayout, TAIL_BYTES};
use super::link::OpenLeg;
use super::redo::replay;
use super::status::LegState;
use super::stopped::{Stopped, metadata_error};
use super::store::{self, InitialBits};
use super::superblock::{Consistency, LegRecord, LocalSuperblock, RemoteSuperblock, Role};
use super::{BLOCK_BYTES, bitmap::Bitmap};
use crate::{BlockError, Device};

/// A leg that was removed.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Removed {
    /// Its URL or path.
    pub name: String,
    /// What it holds is a plain image now, without anything of the mirror; `None`: it is somebody
    /// else's by now, or was not reached, and nothing was changed there.
    pub image: Option<RemovedImage>,
}

/// What a leg holds that was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RemovedImage {
    /// Bytes of the image, which is at byte 0.
    pub size: u64,
    /// It is an image of one moment.
    pub consistent: bool,
    /// When its mirror wrote to it last.
    pub time: SystemTime,
}

/// Removes the leg at this place; `leg` is it, if it is reached. Its image stays.
///
/// # Errors
/// There is no such leg, or no other; what the devices say.
pub async fn remove_leg(
    mirror: &Stopped,
    place: usize,
    leg: Option<OpenLeg>,
) -> Result<Removed, MirrorError> {
    let mut books = mirror.open().await?;
    let record = books.leg(place)?;
    let count = books.superblock.legs.iter().flatten().count();
    if count == 1 {
        let hint = "a mirror has 1 to 3; its files may be deleted instead";
        return Err(MirrorError::Legs { found: 0, expected: 1, hint });
    }
    let layout = LocalLayout::new(books.superblock.size);
    let layout = layout.map_err(|error| metadata_error(error.into()))?;
    let mut legs = books.superblock.legs.clone();
    for to in place..count - 1 {
        let moved = legs[to + 1].take();
        let (id, bits) = (moved.as_ref().map(|record| record.bitmap), books.bits[to + 1].as_mut());
        if let (Some(id), Some(bits)) = (id, bits) {
            let written = store::write_pages(&mirror.metadata, &layout, to, bits, id).await;
            written.map_err(metadata_error)?;
        }
        legs[to] = moved;
    }
    if place == count - 1 {
        legs[place] = None;
    }
    let uuid = books.superblock.uuid;
    books.commit(|superblock| superblock.legs = legs).await?;
    let image = match leg {
        Some(leg) => make_plain(&leg, uuid, &record).await?,
        None => None,
    };
    Ok(Removed { name: record.name, image })
}

/// Takes what is the mirror's from a leg. One that somebody else has by now is left alone.
async fn make_plain(
    leg: &OpenLeg,
    uuid: super::superblock::MirrorId,
    record: &LegRecord,
) -> Result<Option<RemovedImage>, MirrorError> {
    let device = |source| MirrorError::device(&record.name, source);
    let Ok(layout) = LegLayout::new(leg.device.info().size, 0) else { return Ok(None) };
    let Ok(found) = tail::read(&*leg.device, &layout).await.map_err(device)? else {
        return Ok(None);
    };
    let ours =
        found.uuid == uuid && found.leg == record.id && found.lineage.ended(record.base).is_none();
    if !ours {
        return Ok(None);
    }
    let key = guard::key(uuid, record.id);
    if let Some(fence) = &leg.fence {
        match fence.hold(key).await {
            Err(BlockError::Fenced) => return Ok(None),
            Err(error @ BlockError::Unreachable(_)) => return Err(device(error)),
            _ => {}
        }
    }
    let found = replay::settle(&*leg.device, &layout, &found).await.map_err(device)?;
    tail::erase(&*leg.device, &layout).await.map_err(device)?;
    if let Some(fence) = &leg.fence
        && let Err(error) = fence.release(key).await
    {
        tracing::warn!(leg = %record.name, %error, "its reservation stays");
    }
    let consistent = found.consistency == Consistency::Consistent;
    Ok(Some(RemovedImage { size: found.data_bytes, consistent, time: found.lease.into() }))
}

/// The mirror gets the size that its local device has by now. All legs were made larger before;
/// what is known is written to `metadata`, a new device that takes the place of the old one
/// afterwards. May be done again if it was cut off.
///
/// Returns the size.
///
/// # Errors
/// A side has not grown, or not enough; what the devices say.
pub async fn grow(
    mirror: &Stopped,
    metadata: &Device,
    legs: Vec<OpenLeg>,
) -> Result<u64, MirrorError> {
    let books = mirror.open().await?;
    let mut superblock = books.superblock.clone();
    let size = mirror.local.info().size / BLOCK_BYTES * BLOCK_BYTES;
    check(&superblock, size, &legs)?;
    let layout = LocalLayout::new(size);
    let layout = layout.map_err(|error| MirrorError::metadata("the local device", &error))?;
    let fits = layout.check(metadata.info().size);
    fits.map_err(|error| MirrorError::metadata("the mirror's metadata", &error))?;
    let records = superblock.legs.clone();
    let mut told = Vec::new();
    for (record, leg) in records.iter().flatten().zip(&legs) {
        told.push(look(leg, record, &superblock, size).await?);
    }
    for ((record, leg), found) in superblock.legs.iter_mut().flatten().zip(&legs).zip(told) {
        let written = move_tail(leg, record, found, superblock.uuid, size).await;
        let (sequence, leg_bytes) = written?;
        (record.superblock_sequence, record.leg_bytes) = (sequence, leg_bytes);
        if record.state == LegState::InSync {
            record.state = LegState::Lost; // It lacks what is new.
        }
    }
    let old_blocks = superblock.size.div_ceil(BLOCK_BYTES);
    superblock.size = size;
    superblock.sequence += 1;
    // A ring of its own: what was under way is in the bits.
    superblock.ring_from = 0;
    let formatted = store::format(metadata, &superblock, InitialBits::AllDiffer).await;
    formatted.map_err(metadata_error)?;
    for (place, record) in superblock.legs.iter().enumerate() {
        let (Some(record), Some(old)) = (record, books.bits[place].as_ref()) else { continue };
        let mut bits = Bitmap::new(layout.blocks());
        let mut from = 0;
        while let Some(run) = old.next_run(from, old_blocks) {
            from = run.end;
            bits.set(run);
        }
        bits.set(old_blocks..layout.blocks());
        let written = store::write_pages(metadata, &layout, place, &mut bits, record.bitmap).await;
        written.map_err(metadata_error)?;
    }
    Ok(size)
}

fn check(superblock: &LocalSuperblock, size: u64, legs: &[OpenLeg]) -> Result<(), MirrorError> {
    let wrong = |what: &str, found: String| Err(MirrorError::Metadata { what: what.into(), found });
    let expected = superblock.legs.iter().flatten().count();
    if legs.len() != expected {
        let hint = "all of them have to grow";
        return Err(MirrorError::Legs { found: legs.len(), expected, hint });
    }
    if superblock.role != Role::Primary {
        return wrong("the local device", "it is not the primary of its mirror now".into());
    }
    // All of them at once: each is made larger somewhere else, by somebody else.
    let mut small = Vec::new();
    if size <= superblock.size {
        small.push(format!("the local device has {size} bytes, as the mirror has"));
    }
    for (record, leg) in superblock.legs.iter().flatten().zip(legs) {
        let (name, found) = (&record.name, leg.device.info().size);
        let layout = LegLayout::new(found, 0).and_then(|layout| layout.check(size, found));
        if let Err(LayoutError::LegTooSmall { needed, .. }) = layout {
            let lacks = needed.saturating_sub(found);
            small.push(format!("{name} has {found} bytes of {needed}, {lacks} too few"));
        } else if let Err(error) = layout {
            small.push(format!("{name}: {error}"));
        } else if found != record.leg_bytes && found < record.leg_bytes + TAIL_BYTES {
            // Where its superblock is now and where it will be must not overlap.
            let lacks = record.leg_bytes + TAIL_BYTES - found;
            let had = record.leg_bytes;
            small.push(format!("{name} has {found} bytes, had {had}, and needs {lacks} more"));
        }
    }
    if small.is_empty() {
        return Ok(());
    }
    wrong("the mirror cannot grow", format!("{}: make it larger first", small.join("; ")))
}

/// What the leg says of itself, at its old end or, where this was cut off, at its new one.
async fn look(
    leg: &OpenLeg,
    record: &LegRecord,
    superblock: &LocalSuperblock,
    size: u64,
) -> Result<RemoteSuperblock, MirrorError> {
    let wrong = |found: String| MirrorError::Metadata { what: record.name.clone(), found };
    for (bytes, data_bytes) in [(leg.device.info().size, size), (record.leg_bytes, superblock.size)]
    {
        let Ok(layout) = LegLayout::new(bytes, 0) else { continue };
        let found = tail::read(&*leg.device, &layout).await;
        let found = found.map_err(|source| MirrorError::device(&record.name, source))?;
        let Ok(found) = found else { continue };
        if (found.uuid, found.leg) == (superblock.uuid, record.id) {
            if found.lineage.ended(superblock.lineage.current()).is_some() {
                return Err(wrong("it was promoted".to_owned()));
            }
            if found.data_bytes != data_bytes {
                continue;
            }
            return Ok(found);
        }
    }
    Err(wrong(format!("it is not this leg of mirror {}", superblock.uuid)))
}

/// Writes the leg's superblock to its new end: no image until what is new was copied.
async fn move_tail(
    leg: &OpenLeg,
    record: &LegRecord,
    found: RemoteSuperblock,
    uuid: super::superblock::MirrorId,
    size: u64,
) -> Result<(u64, u64), MirrorError> {
    let device = |source| MirrorError::device(&record.name, source);
    let leg_bytes = leg.device.info().size;
    if found.data_bytes == size {
        return Ok((found.sequence, leg_bytes));
    }
    if let Some(fence) = &leg.fence {
        let held = fence.hold(guard::key(uuid, record.id)).await;
        if let Err(error @ (BlockError::Fenced | BlockError::Unreachable(_))) = held {
            return Err(device(error));
        }
    }
    let layout = |bytes| {
        let layout = LegLayout::new(bytes, 0);
        layout.map_err(|error| MirrorError::metadata(&record.name, &error))
    };
    // What is in its redo log is where that was.
    let old = layout(record.leg_bytes)?;
    let found = replay::settle(&*leg.device, &old, &found).await.map_err(device)?;
    let layout = layout(leg_bytes)?;
    if leg_bytes != record.leg_bytes {
        tail::erase(&*leg.device, &layout).await.map_err(device)?;
    }
    let consistency = match found.consistency {
        Consistency::Consistent => Consistency::InconsistentSince(0),
        other => other,
    };
    let sequence = found.sequence + 1;
    // Where its redo log was there may be a part of the image now: it gets another one when it is
    // reached.
    let (data_bytes, redo_bytes) = (size, 0);
    let superblock = RemoteSuperblock { sequence, data_bytes, redo_bytes, consistency, ..found };
    tail::write(&*leg.device, &layout, &superblock).await.map_err(device)?;
    Ok((sequence, leg_bytes))
}
