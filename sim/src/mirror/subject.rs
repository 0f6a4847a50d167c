//! What is put to the test: the product's mirror, or, to test the tests, a toy.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use block::Device;
use block::mirror::{Config, Mode};

use super::content::Content;
use super::disk::LocalDisk;
use super::executor::SimHost;
use super::leg::Leg;

/// Something that is done later.
pub(crate) type Later<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// What a mirror is made of.
#[derive(Clone)]
pub(crate) struct Place {
    /// The local disk, and the same as the mirror has it.
    pub(crate) disk: LocalDisk,
    pub(crate) local: Device,
    pub(crate) metadata: Device,
    pub(crate) legs: Vec<Leg>,
    pub(crate) host: Arc<SimHost>,
    pub(crate) config: Config,
}

impl Place {
    /// On this host, with what its processes have before this one of the disks and the legs.
    pub(crate) fn on(
        host: Arc<SimHost>,
        (local, metadata): (&LocalDisk, &LocalDisk),
        legs: &[Leg],
        config: Config,
    ) -> Self {
        let disk = local.opened();
        let (local, metadata) = (Arc::new(disk.clone()), Arc::new(metadata.opened()));
        Self { disk, local, metadata, legs: legs.to_vec(), host, config }
    }
}

/// What is put over the image of a leg, by sector.
pub(crate) type Over = BTreeMap<u64, Content>;

/// A kind of mirror.
pub(crate) trait Subject: Send + Sync {
    /// Bytes at the end of a leg that are not the guest's.
    fn tail_bytes(&self) -> u64;

    /// The only mode it has, if it has one only.
    fn mode(&self) -> Option<Mode>;

    /// It knows another unit when it sees one.
    fn tells_units_apart(&self) -> bool;

    /// Formats what a mirror needs.
    fn create(&self, place: Place) -> Later<Result<(), String>>;

    /// Begins to run.
    fn open(&self, place: Place) -> Later<Result<Arc<dyn Running>, String>>;

    /// Whether a leg with this content calls its image a legal one: then what whoever takes it over
    /// puts over what is there, by sector. Sectors asked for are those behind the image.
    ///
    /// # Errors
    /// It says that there is something to be put over it, and does not hold that.
    fn image(
        &self,
        leg_bytes: u64,
        content: &dyn Fn(u64) -> Content,
    ) -> Result<Option<Over>, String>;
}

/// A mirror that runs.
pub(crate) trait Running: Send + Sync {
    /// What the guest uses.
    fn device(&self) -> Device;

    /// The leg has, or gets in order, all that is acknowledged.
    fn in_sync(&self, leg: usize) -> bool;

    /// The leg is another one's, so nothing is written there.
    fn refuses(&self, leg: usize) -> bool;

    /// What may differ there is being copied.
    fn copies(&self, _leg: usize) -> bool {
        false
    }

    /// What of the things that a run has to meet now and then an operator can see right now.
    fn seen(&self) -> Vec<&'static str> {
        Vec::new()
    }

    /// Blocks of a leg that a verification has told to differ.
    fn told_to_differ(&self, _leg: usize) -> u64 {
        0
    }

    /// All that was acknowledged is stable at the leg.
    fn settled(&self, leg: usize) -> bool;

    /// What a person would do about a leg that waits for one.
    fn look_after(&self, leg: usize) -> Later<()>;

    /// In one line, for the story of a run.
    fn state(&self) -> String;

    /// Ends well.
    fn close(&self) -> Later<Result<(), String>>;
}
