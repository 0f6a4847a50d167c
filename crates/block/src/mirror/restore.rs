//! Giving up what was written at the local device: it gets the image of a leg. For a mirror that
//! does not run, since the content changes under whoever would use it.
//!
//! The bits of that leg are the cursor: all are set to begin with, and cleared, and written down,
//! as the copy goes on; only what differs is written. Until it is done the metadata says that the
//! local device is no image, and its mirror does not open.

use std::ops::Range;

use futures_util::future::join;
use futures_util::stream::{self, StreamExt};

use super::BLOCK_BYTES;
use super::bitmap::{Bitmap, BitmapId};
use super::engine::{guard, tail};
use super::error::MirrorError;
use super::layout::LegLayout;
use super::link::OpenLeg;
use super::redo::replay;
use super::status::LegState;
use super::stopped::{Opened, Stopped};
use super::superblock::{Consistency, LegRecord, LocalSuperblock, RemoteSuperblock, Role};
use crate::{Buf, Device, Result, WriteFlags};

/// Blocks compared at once: 1 MiB.
const STEP_BLOCKS: u64 = 256;

/// Steps under way: 16 MiB, which fills 1 Gbit/s up to a round trip of 130 ms.
const STEPS_AT_ONCE: usize = 16;

/// Steps after which what was done is made stable and written down: 64 MiB, which a copy that is
/// killed does again at most.
const STEPS_PER_NOTE: usize = 64;

/// How far it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct RestoreProgress {
    /// Bytes compared by this call.
    pub compared_bytes: u64,
    /// Bytes compared by this call that differed and were written here.
    pub written_bytes: u64,
    /// Bytes that are left.
    pub left_bytes: u64,
}

/// The local device gets the image of `leg`, whose number is `place`; what it has of its own is
/// gone. Goes on where an earlier call was cut off. `told` hears how far it is.
///
/// # Errors
/// The leg is none of this mirror's, or no legal image; what the devices say.
pub async fn restore_local(
    mirror: &Stopped,
    place: usize,
    leg: OpenLeg,
    told: &mut (dyn FnMut(RestoreProgress) + Send),
) -> std::result::Result<RestoreProgress, MirrorError> {
    let mut books = mirror.open().await?;
    let record = books.leg(place)?;
    let found = look(mirror, &books.superblock, &record, &leg).await?;
    if let Some(fence) = &leg.fence {
        // Whoever writes there still does not from now on: the image stands.
        let taken = fence.take(guard::key(books.superblock.uuid, record.id)).await;
        taken.map_err(|source| MirrorError::device(&record.name, source))?;
    }
    let found = settle(&record, &leg, &found).await?;
    if books.superblock.role != Role::Restoring {
        let id = BitmapId(mirror.host.random());
        books.bits[place] = Some(Bitmap::full(books.superblock.size.div_ceil(BLOCK_BYTES)));
        books.commit(|superblock| begin(superblock, place, id)).await?;
    }
    let progress = copy(mirror, &mut books, place, &leg.device, told).await?;
    let ids = [(); super::LEGS_MAX].map(|()| BitmapId(mirror.host.random()));
    books.commit(|superblock| finish(superblock, place, &found, ids)).await?;
    Ok(progress)
}

async fn look(
    mirror: &Stopped,
    superblock: &LocalSuperblock,
    record: &LegRecord,
    leg: &OpenLeg,
) -> std::result::Result<RemoteSuperblock, MirrorError> {
    let wrong = |found: String| MirrorError::Metadata { what: record.name.clone(), found };
    let (here, there) = (mirror.local.info().size, leg.device.info().size);
    if here < superblock.size {
        let found = format!("it has {here} bytes, and the image {}", superblock.size);
        return Err(MirrorError::Metadata { what: "the local device".into(), found });
    }
    if there != record.leg_bytes {
        return Err(wrong(format!("it has {there} bytes, and had {} as a leg", record.leg_bytes)));
    }
    let layout = LegLayout::new(there, 0).map_err(|error| wrong(error.to_string()))?;
    let found = tail::read(&*leg.device, &layout).await;
    let found = found.map_err(|source| MirrorError::device(&record.name, source))?;
    let found = found.map_err(|fault| wrong(fault.to_string()))?;
    if (found.uuid, found.leg, found.data_bytes) != (superblock.uuid, record.id, superblock.size) {
        return Err(wrong(format!("it is not this leg of mirror {}", superblock.uuid)));
    }
    if matches!(found.consistency, Consistency::InconsistentSince(_)) {
        return Err(wrong("its image is not of one moment".to_owned()));
    }
    Ok(found)
}

/// What is committed to the leg's redo log gets to its place.
async fn settle(
    record: &LegRecord,
    leg: &OpenLeg,
    found: &RemoteSuperblock,
) -> std::result::Result<RemoteSuperblock, MirrorError> {
    let device = |source| MirrorError::device(&record.name, source);
    let layout = LegLayout::new(record.leg_bytes, 0);
    let layout = layout.map_err(|error| MirrorError::metadata(&record.name, &error))?;
    replay::settle(&*leg.device, &layout, found).await.map_err(device)
}

/// Nothing counts as equal, under a new name of the pages, and the local device is no image.
fn begin(superblock: &mut LocalSuperblock, place: usize, id: BitmapId) {
    superblock.role = Role::Restoring;
    if let Some(record) = superblock.legs[place].as_mut() {
        record.bitmap = id;
    }
}

/// The image is that of the leg, of its generation. What other legs have of the old one is not
/// known to be equal any more.
fn finish(
    superblock: &mut LocalSuperblock,
    place: usize,
    found: &RemoteSuperblock,
    ids: [BitmapId; super::LEGS_MAX],
) {
    superblock.role = Role::Primary;
    superblock.lineage = found.lineage.clone();
    let legs = superblock.legs.iter_mut().zip(ids).enumerate();
    for (number, (record, id)) in legs {
        let Some(record) = record else { continue };
        if record.state != LegState::Copying {
            record.state = LegState::Lost;
        }
        if number == place {
            (record.base, record.superblock_sequence) = (found.lineage.current(), found.sequence);
        } else {
            record.bitmap = id;
        }
    }
}

async fn copy(
    mirror: &Stopped,
    books: &mut Opened,
    place: usize,
    leg: &Device,
    told: &mut (dyn FnMut(RestoreProgress) + Send),
) -> std::result::Result<RestoreProgress, MirrorError> {
    let device = |source| MirrorError::device("copying the image of the leg", source);
    let size = books.superblock.size;
    let mut progress = RestoreProgress::default();
    while let Some(steps) = books.bits[place].as_ref().and_then(steps) {
        let compare = |blocks: &Range<u64>| {
            let offset = blocks.start * BLOCK_BYTES;
            step(&mirror.local, leg, offset, (blocks.end * BLOCK_BYTES).min(size) - offset)
        };
        let compared: Vec<_> =
            stream::iter(steps.iter().map(compare)).buffer_unordered(STEPS_AT_ONCE).collect().await;
        for result in compared {
            let (compared, written) = result.map_err(device)?;
            progress.compared_bytes += compared;
            progress.written_bytes += written;
        }
        // Stable here before the bits say so.
        mirror.local.flush().await.map_err(device)?;
        if let Some(bits) = books.bits[place].as_mut() {
            for blocks in steps {
                bits.clear(blocks);
            }
            progress.left_bytes = bits.count() * BLOCK_BYTES;
        }
        books.write_bits(place).await?;
        told(progress);
    }
    Ok(progress)
}

/// What is next, in pieces; `None` when nothing is left.
fn steps(bits: &Bitmap) -> Option<Vec<Range<u64>>> {
    let mut steps = Vec::new();
    let mut from = 0;
    while steps.len() < STEPS_PER_NOTE
        && let Some(run) = bits.next_run(from, bits.blocks())
    {
        from = run.end.min(run.start + STEP_BLOCKS);
        steps.push(run.start..from);
    }
    (!steps.is_empty()).then_some(steps)
}

/// Bytes compared, and bytes that differed and were written here.
async fn step(local: &Device, leg: &Device, offset: u64, len: u64) -> Result<(u64, u64)> {
    let read = |device: &Device| device.read(offset, Buf::new(len as usize));
    let (here, there) = join(read(local), read(leg)).await;
    let there = there?.freeze();
    // What cannot be read here is replaced.
    let here = here.ok();
    let mut written = 0;
    for at in (0..there.len()).step_by(BLOCK_BYTES as usize) {
        let block = at..(at + BLOCK_BYTES as usize).min(there.len());
        if here.as_ref().is_some_and(|here| here[block.clone()] == there[block.clone()]) {
            continue;
        }
        let data = there.slice(block);
        written += data.len() as u64;
        local.write(offset + at as u64, data, WriteFlags::NONE).await?;
    }
    Ok((len, written))
}
