//! Taking over: the image at a leg becomes one that is written to, without the mirror it came from.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use serde::Serialize;

use super::engine::tail;
use super::error::MirrorError;
use super::generation::GenerationId;
use super::host::Host;
use super::layout::LegLayout;
use super::link::OpenLeg;
use super::superblock::{Consistency, RemoteSuperblock};
use crate::{BlockDevice, Buf, Device, DeviceInfo, Extent, Io, WriteFlags, ZeroFlags};

const WHAT: &str = "the leg";

/// How to promote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PromoteOptions {
    /// Also an image that is no legal one.
    pub force: bool,
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
}

/// Makes the image at `leg` one of its own: takes the reservation from whoever holds it, and begins
/// a new generation there. Needs nothing of the mirror it comes from.
///
/// # Errors
/// [`MirrorError::NotPromotable`] unless forced; what the device says; metadata that is damaged.
pub async fn promote(
    leg: OpenLeg,
    host: &dyn Host,
    options: PromoteOptions,
) -> std::result::Result<Promoted, MirrorError> {
    let device = |source| MirrorError::device(WHAT, source);
    let layout = layout(&leg.device)?;
    let found = tail::read(&*leg.device, &layout).await.map_err(device)?;
    let found = found.map_err(|fault| MirrorError::metadata(WHAT, &fault))?;
    let consistent = found.consistency == Consistency::Consistent;
    if !consistent && !options.force {
        let found = format!("the image there is no legal one ({:?})", found.consistency);
        return Err(MirrorError::NotPromotable { found });
    }
    let generation = GenerationId(host.random());
    if let Some(fence) = &leg.fence {
        // Not 0, which stands for no key (SPC-4 §6.14.3).
        fence.take(generation.0 as u64 | 1).await.map_err(device)?;
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
    Ok(Promoted {
        size: found.data_bytes,
        generation: generation.to_string(),
        // As long as it was followed, it had all that was complete.
        image_time: consistent.then(|| found.lease.into()),
        epoch: 0,
        behind: None,
        consistent,
    })
}

/// The image at a leg as a device, without the mirror's metadata behind it. It may be a little
/// longer than the mirror was, where the leg had more room than the local device.
///
/// # Errors
/// The leg is too small to be one.
pub fn promoted_device(leg: Device) -> std::result::Result<Device, MirrorError> {
    let size = layout(&leg)?.image_bytes_max();
    Ok(std::sync::Arc::new(Image { leg, size }))
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
    use std::sync::Arc;

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
