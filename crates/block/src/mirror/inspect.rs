//! What is on a device that belongs to a mirror, for people and `--json`. Reads only.

use std::time::SystemTime;

use serde::Serialize;

use super::engine::tail;
use super::error::MirrorError;
use super::layout::{LegLayout, check_block_size};
use super::status::LegState;
use super::superblock::{
    BYTES, Block, BlockFault, Committed, Consistency, LocalSuperblock, RemoteSuperblock, Role,
    newest,
};
use crate::{Buf, Device};

/// What [`inspect`] found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "what")]
#[non_exhaustive]
pub enum Inspection {
    /// Nothing of a mirror.
    Nothing,
    /// The metadata of a mirror.
    Metadata(MetadataInspection),
    /// A leg of a mirror.
    Leg(LegInspection),
}

/// What the metadata of a mirror says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MetadataInspection {
    /// Short name of the mirror.
    pub mirror: String,
    /// Which side it is.
    pub role: Role,
    /// Bytes of the image.
    pub size_bytes: u64,
    /// Short name of the present generation.
    pub generation: String,
    /// It was closed in order.
    pub clean: bool,
    /// Its legs by place; `None` where one was removed.
    pub legs: Vec<Option<LegRecordInspection>>,
}

/// What the metadata says of a leg.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LegRecordInspection {
    /// Its URL without credentials, or its path.
    pub name: String,
    /// What the unit said it is, empty if it did not.
    pub identity: String,
    /// Where it stood last.
    pub state: LegState,
    /// Short name of the generation in which it was followed last.
    pub base: String,
    /// Size of the leg in bytes.
    pub leg_bytes: u64,
}

/// What a leg says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LegInspection {
    /// Short name of the mirror.
    pub mirror: String,
    /// Bytes of the image, which is at byte 0.
    pub size_bytes: u64,
    /// Short name of the generation of its image.
    pub generation: String,
    /// Short names of the generations before, the latest first.
    pub history: Vec<String>,
    /// What the image is.
    pub consistency: Consistency,
    /// The batch in its redo log that is committed and was not released: it belongs to the image,
    /// whatever of it is at its place.
    pub batch: Option<BatchInspection>,
    /// Bytes of its redo log; 0 without.
    pub redo_bytes: u64,
    /// Who writes to it; empty when nobody does or it is not known.
    pub writer: String,
    /// When it was last told something by its writer, by the writer's clock.
    pub told: SystemTime,
}

/// A committed batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct BatchInspection {
    /// Bytes of the redo log that it takes.
    pub bytes: u64,
    /// With it, all epochs up to this one are there; 0: the mirror has none.
    pub epoch: u64,
    /// The moment whose image it makes.
    pub image_time: SystemTime,
}

const WHAT: &str = "the device";

/// Looks whether `device` is a mirror's metadata or one of its legs. Never writes.
///
/// # Errors
/// The device's, and metadata that is damaged, or of a version that is not known here.
pub async fn inspect(device: &Device) -> Result<Inspection, MirrorError> {
    let info = device.info();
    check_block_size(info.block_size).map_err(|error| MirrorError::metadata(WHAT, &error))?;
    if info.size >= 2 * BYTES as u64
        && let Some(found) = understood(local(device).await?)?
    {
        return Ok(Inspection::Metadata(MetadataInspection::of(&found)));
    }
    let Ok(layout) = LegLayout::new(info.size, 0) else { return Ok(Inspection::Nothing) };
    let read = tail::read(&**device, &layout).await;
    let read = read.map_err(|source| MirrorError::device(WHAT, source))?;
    Ok(match understood(read)? {
        Some(found) => Inspection::Leg(LegInspection::of(&found)),
        None => Inspection::Nothing,
    })
}

async fn local(device: &Device) -> Result<Result<LocalSuperblock, BlockFault>, MirrorError> {
    let both = device.read(0, Buf::new(2 * BYTES)).await;
    let both = both.map_err(|source| MirrorError::device(WHAT, source))?;
    let block = |number: usize| -> Box<Block> {
        let mut block = Box::new([0; BYTES]);
        block.copy_from_slice(&both[number * BYTES..(number + 1) * BYTES]);
        block
    };
    Ok(newest(&block(0), &block(1)))
}

/// What is somebody else's is nothing of a mirror; what is a mirror's and cannot be used is told.
fn understood<T>(read: Result<T, BlockFault>) -> Result<Option<T>, MirrorError> {
    match read {
        Ok(found) => Ok(Some(found)),
        Err(fault) if is_foreign(&fault) => Ok(None),
        Err(fault) => Err(MirrorError::metadata(WHAT, &fault)),
    }
}

fn is_foreign(fault: &BlockFault) -> bool {
    match fault {
        BlockFault::Blank | BlockFault::Foreign { .. } => true,
        BlockFault::Neither { first, second } => is_foreign(first) && is_foreign(second),
        _ => false,
    }
}

impl MetadataInspection {
    fn of(found: &LocalSuperblock) -> Self {
        let leg = |record: &super::superblock::LegRecord| LegRecordInspection {
            name: record.name.clone(),
            identity: record.identity.clone(),
            state: record.state,
            base: record.base.to_string(),
            leg_bytes: record.leg_bytes,
        };
        let last = found.legs.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        Self {
            mirror: found.uuid.to_string(),
            role: found.role,
            size_bytes: found.size,
            generation: found.lineage.current().to_string(),
            clean: found.clean,
            legs: found.legs[..last].iter().map(|record| record.as_ref().map(leg)).collect(),
        }
    }
}

impl LegInspection {
    fn of(found: &RemoteSuperblock) -> Self {
        let batch = match found.consistency {
            Consistency::Applying(Committed { bytes, epoch, closed, .. }) => {
                Some(BatchInspection { bytes, epoch, image_time: closed.into() })
            }
            _ => None,
        };
        Self {
            batch,
            mirror: found.uuid.to_string(),
            size_bytes: found.data_bytes,
            generation: found.lineage.current().to_string(),
            history: found.lineage.history().iter().map(|past| past.id.to_string()).collect(),
            consistency: found.consistency,
            redo_bytes: found.redo_bytes,
            writer: found.writer.clone(),
            told: found.lease.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::backend::MemoryDevice;
    use crate::mirror::{Config, CreateOptions, LegSource, Mirror, OpenLeg, Parts, TokioHost};
    use crate::{Bytes, WriteFlags};

    struct Leg(Device);

    impl LegSource for Leg {
        fn name(&self) -> String {
            "leg".into()
        }

        fn connect(
            &self,
        ) -> std::pin::Pin<Box<dyn Future<Output = crate::Result<OpenLeg>> + Send>> {
            let device = self.0.clone();
            let open = OpenLeg { identity: "unit 7".into(), ..OpenLeg::of(device) };
            Box::pin(async { Ok(open) })
        }
    }

    fn memory(size: u64) -> Device {
        Arc::new(MemoryDevice::new(size, 512).unwrap())
    }

    #[tokio::test]
    async fn metadata_and_legs_are_told_from_all_else() {
        let (local, metadata, leg) = (memory(4 << 20), memory(2 << 20), memory(8 << 20));
        for device in [&local, &metadata, &leg, &memory(4096)] {
            assert_eq!(inspect(device).await.unwrap(), Inspection::Nothing);
        }
        let legs: Vec<Arc<dyn LegSource>> = vec![Arc::new(Leg(leg.clone()))];
        let host = Arc::new(TokioHost::current());
        let parts = Parts { local, metadata: metadata.clone(), legs, host };
        Mirror::create(&parts, &Config::default(), CreateOptions::default()).await.unwrap();
        let Inspection::Metadata(here) = inspect(&metadata).await.unwrap() else { panic!() };
        assert_eq!((here.size_bytes, here.clean, here.legs.len()), (4 << 20, true, 1));
        let record = here.legs[0].as_ref().unwrap();
        assert_eq!((&*record.name, &*record.identity), ("leg", "unit 7"));
        assert_eq!((record.state, record.leg_bytes), (LegState::Copying, 8 << 20));
        let Inspection::Leg(there) = inspect(&leg).await.unwrap() else { panic!() };
        assert_eq!((&there.mirror, &there.generation), (&here.mirror, &here.generation));
        assert_eq!((there.consistency, there.batch), (Consistency::InconsistentSince(0), None));

        // A block that is a mirror's and damaged is not taken for somebody else's.
        for at in [0, BYTES as u64] {
            let mut block = metadata.read(at, Buf::new(BYTES)).await.unwrap();
            block[200] ^= 1;
            metadata.write(at, Bytes::copy_from_slice(&block), WriteFlags::NONE).await.unwrap();
        }
        let error = inspect(&metadata).await.unwrap_err().to_string();
        assert!(error.contains("damaged"), "{error}");
    }
}
