//! [`Stopped`]: a mirror that does not run, for what is done to it then. Its devices, which nobody
//! else has open, and its metadata, changed one decision after the other.

use std::sync::Arc;

use super::LEGS_MAX;
use super::bitmap::Bitmap;
use super::error::MirrorError;
use super::host::Host;
use super::layout::LocalLayout;
use super::store::{self, MetadataStore, StoreError};
use super::superblock::{LegRecord, LocalSuperblock};
use crate::Device;

/// The devices of a mirror that does not run.
#[derive(Clone)]
pub struct Stopped {
    /// The local device.
    pub local: Device,
    /// Its metadata.
    pub metadata: Device,
    /// Time, tasks and randomness.
    pub host: Arc<dyn Host>,
}

/// What its metadata says.
pub(crate) struct Opened {
    metadata: Device,
    store: MetadataStore,
    pub(crate) superblock: LocalSuperblock,
    /// What may differ at each leg, extents that were under way included.
    pub(crate) bits: [Option<Bitmap>; LEGS_MAX],
}

pub(crate) fn metadata_error(error: StoreError) -> MirrorError {
    MirrorError::store("the mirror's metadata", error)
}

impl Stopped {
    pub(crate) async fn open(&self) -> Result<Opened, MirrorError> {
        let superblock = store::read_superblock(&self.metadata).await.map_err(metadata_error)?;
        let opened = store::open(self.metadata.clone(), self.host.clone(), &superblock).await;
        let opened = opened.map_err(metadata_error)?;
        let metadata = self.metadata.clone();
        Ok(Opened { metadata, store: opened.store, superblock, bits: opened.bitmaps })
    }
}

impl Opened {
    /// What is known of a leg.
    ///
    /// # Errors
    /// There is none at this place.
    pub(crate) fn leg(&self, place: usize) -> Result<LegRecord, MirrorError> {
        let legs = self.superblock.legs.iter().flatten().count();
        let record = self.superblock.legs.get(place).cloned().flatten();
        record.ok_or(MirrorError::NoSuchLeg { leg: place, legs })
    }

    /// Changes the superblock; durable when this ends.
    pub(crate) async fn commit(
        &mut self,
        change: impl FnOnce(&mut LocalSuperblock),
    ) -> Result<(), MirrorError> {
        change(&mut self.superblock);
        self.superblock.sequence += 1;
        let written = self.store.commit(&self.superblock).await;
        written.map_err(|source| MirrorError::device("the mirror's metadata", source))
    }

    /// Writes all pages of what is at this place now, under the name that its record has.
    pub(crate) async fn write_bits(&mut self, place: usize) -> Result<(), MirrorError> {
        let layout = LocalLayout::new(self.superblock.size);
        let layout = layout.map_err(|error| metadata_error(error.into()))?;
        let id = self.superblock.legs[place].as_ref().map(|record| record.bitmap);
        let (Some(id), Some(bits)) = (id, self.bits[place].as_mut()) else { return Ok(()) };
        let written = store::write_pages(&self.metadata, &layout, place, bits, id).await;
        written.map_err(metadata_error)
    }
}
