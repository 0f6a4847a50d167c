//! Taking over: the image at a leg becomes one that is written to, without the mirror it came from.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use serde::Serialize;

use super::engine::tail;
use super::error::MirrorError;
use super::generation::GenerationId;
use super::host::Host;
use super::layout::LegLayout;
use super::link::{Fence, OpenLeg};
use super::redo::replay;
use super::superblock::{BlockFault, Consistency, RemoteSuperblock};
use crate::{BlockDevice, BlockError, Buf, Device, DeviceInfo, Extent, Io, WriteFlags, ZeroFlags};

const WHAT: &str = "the leg";

/// A mirror that lives reads the superblocks of its legs, and writes to them, so often: at a leg in
/// sync, and where no reservation keeps others away also during whatever takes long.
pub(super) const SIGN_EVERY: Duration = Duration::from_secs(5);

/// Whoever has not given a sign for so long by the clocks of both sides is not taken for alive at
/// once, since clocks differ: the leg is watched then.
const SIGN_AGE_MAX: Duration = Duration::from_secs(15);

/// What a look, or a write, may take on its way to a leg and back.
pub(super) const WAY_MAX: Duration = Duration::from_secs(2);

/// Signs farther apart than that leave room for somebody to take the mirror for gone; late ones do
/// not.
pub(super) const SILENCE: Duration =
    Duration::from_secs(SIGN_EVERY.as_secs() + WAY_MAX.as_secs() / 2);

/// Time for which a leg is watched, with a look each second. Before it is written to: one sign of a
/// mirror that lives gets there. Afterwards: a mirror that was reading the superblock just before
/// reads it again, and what it had sent by then gets there.
const WATCHED: Duration = Duration::from_secs(SIGN_EVERY.as_secs() + WAY_MAX.as_secs());

/// How to promote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PromoteOptions {
    /// Takes over an image that is no legal one, and one whose mirror lives and cannot be kept from
    /// it, too.
    pub force: bool,
    /// The reservation is given up again when all is done, so that hosts that know nothing of it
    /// may write. What keeps the old side from writing then is its own look at the superblock.
    pub release: bool,
}

/// What was promoted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Promoted {
    /// Bytes of the image.
    pub size: u64,
    /// Short name of the generation that begins with it.
    pub generation: String,
    /// The moment whose image it is, as far as is known.
    pub image_time: Option<SystemTime>,
    /// The last epoch that is in it.
    pub epoch: u64,
    /// So long before the last sign of life of the mirror that moment is, as far as is known.
    pub behind: Option<Duration>,
    /// The image is a legal one.
    pub consistent: bool,
    /// Bytes of the redo log that were copied home first.
    pub applied_bytes: u64,
    /// The key under which it is reserved now, where its target knows reservations: others write to
    /// it after they have registered under that.
    pub reservation: Option<u64>,
}

/// The key under which a leg is reserved that was promoted with this generation. Never 0, which
/// stands for no key (SPC-4 §6.14.3).
fn key_of(generation: GenerationId) -> u64 {
    generation.0 as u64 | 1
}

/// The key under which a leg is reserved if it was promoted and nobody has it since; `None` for
/// what is no leg.
///
/// # Errors
/// The device's.
pub async fn reservation_key(leg: &Device) -> crate::Result<Option<u64>> {
    let Ok(layout) = layout(leg) else { return Ok(None) };
    let found = tail::read(&**leg, &layout).await?;
    Ok(found.ok().map(|found| key_of(found.lineage.current())))
}

/// Makes the image at `leg` one of its own: takes the reservation from whoever holds it, and begins
/// a new generation there. Needs nothing of the mirror it comes from.
///
/// Where nothing keeps others from writing, it takes seven seconds until that is told: an old host
/// that came back in the moment before has either noticed by then and writes nothing any more, or
/// has written its own superblock over this one, and keeps the leg.
///
/// # Errors
/// [`MirrorError::NotPromotable`] unless forced; [`MirrorError::WrittenMeanwhile`], forced or not;
/// what the device says; metadata that is damaged.
pub async fn promote(
    leg: OpenLeg,
    host: &dyn Host,
    options: PromoteOptions,
) -> std::result::Result<Promoted, MirrorError> {
    let device = |source| MirrorError::device(WHAT, source);
    let layout = layout(&leg.device)?;
    let found = look(&*leg.device, &layout, options).await?;
    let generation = GenerationId(host.random());
    let key = key_of(generation);
    let fence = take(&leg, key).await.map_err(device)?;
    if fence.is_none() && !options.force {
        watch(&*leg.device, &layout, &found, host).await?;
    }
    // As it is now that nobody else writes: the mirror may have begun to copy since.
    let found = look(&*leg.device, &layout, options).await?;
    let (consistent, applied_bytes) = apply(&*leg.device, &layout, &found, options).await?;
    let stamp = tail::read_stamp(&*leg.device, &layout, found.uuid).await.map_err(device)?;
    if fence.is_none() {
        // Copying what was in its log may have taken long.
        has(&*leg.device, &layout, &found).await?.map_err(written_meanwhile)?;
    }
    let now = host.wall_clock().into();
    let promoted = RemoteSuperblock {
        sequence: found.sequence + 1,
        lineage: found.lineage.advanced(generation, now),
        consistency: Consistency::Consistent,
        writer: String::new(),
        lease: now,
        ..found.clone()
    };
    tail::write(&*leg.device, &layout, &promoted).await.map_err(device)?;
    let stamp = match fence {
        Some(_) => stamp,
        None => {
            let there = has(&*leg.device, &layout, &promoted).await?;
            there.map_err(written_meanwhile)?;
            let stays = stays(&*leg.device, &layout, &promoted, host).await?;
            stays.map_err(written_meanwhile)?;
            // What the old host has sent until it noticed is in the image.
            tail::read_stamp(&*leg.device, &layout, found.uuid).await.map_err(device)?
        }
    };
    let kept = fence.as_ref().filter(|_| !options.release).map(|_| key);
    if let Some(fence) = fence.filter(|_| options.release) {
        fence.release(key).await.map_err(device)?;
    }
    // With a stamp it has what had been written when that epoch ended. As long as it was followed
    // without, it had all that was complete.
    let image = stamp.as_ref().map_or(found.lease, |stamp| stamp.closed);
    Ok(Promoted {
        size: found.data_bytes,
        generation: generation.to_string(),
        image_time: consistent.then(|| image.into()),
        epoch: stamp.map_or(0, |stamp| stamp.epoch),
        behind: consistent.then(|| Duration::from_millis(found.lease.0.saturating_sub(image.0))),
        consistent,
        applied_bytes,
        reservation: kept,
    })
}

/// What the leg says, if it may be promoted.
pub(super) async fn look(
    device: &dyn BlockDevice,
    layout: &LegLayout,
    options: PromoteOptions,
) -> std::result::Result<RemoteSuperblock, MirrorError> {
    let found = tail::read(device, layout).await;
    let found = found.map_err(|source| MirrorError::device(WHAT, source))?;
    let found = found.map_err(|fault| MirrorError::metadata(WHAT, &fault))?;
    match found.consistency {
        Consistency::Consistent | Consistency::Applying(_) => Ok(found),
        Consistency::InconsistentSince(_) if options.force => Ok(found),
        Consistency::InconsistentSince(_) => {
            let found = format!("the image there is no legal one ({:?})", found.consistency);
            Err(MirrorError::NotPromotable { found })
        }
    }
}

/// Copies home what is committed and not at its place yet. With `force` an image is taken over
/// without what cannot be read of that. Returns whether the image is a legal one then, and the
/// bytes of what was copied. The superblock that tells of the promotion releases the batch.
async fn apply(
    device: &dyn BlockDevice,
    layout: &LegLayout,
    found: &RemoteSuperblock,
    options: PromoteOptions,
) -> std::result::Result<(bool, u64), MirrorError> {
    let Consistency::Applying(committed) = found.consistency else {
        return Ok((found.consistency == Consistency::Consistent, 0));
    };
    match replay::bring_home(device, layout, found, committed).await {
        Ok(()) => Ok((true, committed.bytes)),
        Err(error @ BlockError::Medium(_)) if options.force => {
            tracing::warn!(%error, "the redo log is left out");
            Ok((false, 0))
        }
        Err(error @ BlockError::Medium(_)) => {
            let found =
                format!("a batch was committed to its redo log and cannot be used: {error}");
            Err(MirrorError::NotPromotable { found })
        }
        Err(source) => Err(MirrorError::device(WHAT, source)),
    }
}

/// Takes the reservation, and with it the right to write from whoever had it; `None` where there
/// are no reservations.
async fn take(leg: &OpenLeg, key: u64) -> crate::Result<Option<Arc<dyn Fence>>> {
    let Some(fence) = leg.fence.clone() else { return Ok(None) };
    match fence.take(key).await {
        Ok(()) => Ok(Some(fence)),
        Err(error @ (BlockError::Unreachable(_) | BlockError::Fenced)) => Err(error),
        Err(error) if fence.is_required() => Err(error),
        Err(error) => {
            tracing::warn!(%error, "the leg cannot be reserved");
            Ok(None)
        }
    }
}

/// Where nothing can keep the mirror from writing, it has to be gone: looks for signs of its life.
/// One that ended in order has said so.
async fn watch(
    device: &dyn BlockDevice,
    layout: &LegLayout,
    found: &RemoteSuperblock,
    host: &dyn Host,
) -> std::result::Result<(), MirrorError> {
    if found.writer.is_empty() {
        return Ok(());
    }
    let lives = |when: String| {
        let found = format!(
            "its mirror lives ({}, which wrote to it {when}), and the leg has no reservation that \
             would keep it from writing: end it there, or cut it off",
            found.writer
        );
        MirrorError::NotPromotable { found }
    };
    let (told, now) = (SystemTime::from(found.lease), host.wall_clock());
    let age = now.duration_since(told).or_else(|_| told.duration_since(now)).unwrap_or_default();
    if age < SIGN_AGE_MAX {
        return Err(lives(format!("{:.1} s ago by the clocks of both", age.as_secs_f64())));
    }
    match stays(device, layout, found, host).await? {
        Ok(()) => Ok(()),
        Err(_) => Err(lives("while it was looked at".to_owned())),
    }
}

/// A superblock that stands in the place of the one that was looked for, or what is there of one.
type Other = std::result::Result<RemoteSuperblock, BlockFault>;

/// Whether the leg keeps this superblock for as long as a mirror takes to notice that a leg is not
/// its own any more.
async fn stays(
    device: &dyn BlockDevice,
    layout: &LegLayout,
    superblock: &RemoteSuperblock,
    host: &dyn Host,
) -> std::result::Result<std::result::Result<(), Other>, MirrorError> {
    let end = host.now() + WATCHED;
    while host.now() < end {
        host.sleep(Duration::from_secs(1)).await;
        if let Err(other) = has(device, layout, superblock).await? {
            return Ok(Err(other));
        }
    }
    Ok(Ok(()))
}

/// Whether the leg has this superblock.
async fn has(
    device: &dyn BlockDevice,
    layout: &LegLayout,
    superblock: &RemoteSuperblock,
) -> std::result::Result<std::result::Result<(), Other>, MirrorError> {
    let again = tail::read(device, layout).await;
    let again = again.map_err(|source| MirrorError::device(WHAT, source))?;
    Ok(if again.as_ref() == Ok(superblock) { Ok(()) } else { Err(again) })
}

/// Somebody else has written there.
fn written_meanwhile(other: Other) -> MirrorError {
    let who = match other {
        Ok(other) if !other.writer.is_empty() => other.writer,
        Ok(_) => "a mirror that has ended, or another promotion".to_owned(),
        Err(fault) => format!("somebody who has left no superblock of a leg ({fault})"),
    };
    MirrorError::WrittenMeanwhile { who }
}

/// The image at a leg as a device, without the mirror's metadata behind it. It may be a little
/// longer than the mirror was, where the leg had more room than the local device.
///
/// # Errors
/// The leg is too small to be one.
pub fn promoted_device(leg: Device) -> std::result::Result<Device, MirrorError> {
    let size = layout(&leg)?.image_bytes_max();
    Ok(Arc::new(Image { leg, size }))
}

fn layout(leg: &Device) -> std::result::Result<LegLayout, MirrorError> {
    LegLayout::new(leg.info().size, 0).map_err(|error| MirrorError::metadata(WHAT, &error))
}

/// The first bytes of a device.
struct Image {
    leg: Device,
    size: u64,
}

impl Image {
    fn ask<T>(&self, offset: u64, len: u64, operation: impl FnOnce(&Device) -> Io<T>) -> Io<T> {
        match self.info().check(offset, len) {
            Ok(()) => operation(&self.leg),
            Err(error) => Io::err(error),
        }
    }
}

impl BlockDevice for Image {
    fn info(&self) -> DeviceInfo {
        DeviceInfo { size: self.size, ..self.leg.info() }
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Buf> {
        self.ask(offset, buf.len() as u64, |leg| leg.read(offset, buf))
    }

    fn write(&self, offset: u64, data: Bytes, flags: WriteFlags) -> Io<()> {
        self.ask(offset, data.len() as u64, |leg| leg.write(offset, data, flags))
    }

    fn flush(&self) -> Io<()> {
        self.leg.flush()
    }

    fn trim(&self, offset: u64, len: u64) -> Io<()> {
        self.ask(offset, len, |leg| leg.trim(offset, len))
    }

    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Io<()> {
        self.ask(offset, len, |leg| leg.zero(offset, len, flags))
    }

    fn extents(&self, offset: u64, len: u64) -> Io<Vec<Extent>> {
        self.ask(offset, len, |leg| leg.extents(offset, len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::MemoryDevice;
    use crate::testing;

    #[tokio::test]
    async fn the_image_is_a_block_device_that_ends_before_the_metadata() {
        let leg: Device = Arc::new(MemoryDevice::new(4 << 20, 512).unwrap());
        let image = promoted_device(leg).unwrap();
        assert_eq!(image.info().size, (4 << 20) - super::super::layout::TAIL_BYTES);
        testing::conformance(&*image).await;
    }
}
