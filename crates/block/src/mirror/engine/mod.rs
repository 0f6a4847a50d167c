//! [`Mirror`]: the engine. It moves data between the devices as the pure parts decide, one task a
//! leg besides the user's operations. Runs on any [`Host`]: no runtime is named here.

use std::future::Future;
use std::sync::Arc;

use serde::Serialize;

use super::config::Config;
use super::error::MirrorError;
use super::host::Host;
use super::link::LegSource;
use super::status::Status;
use crate::Device;

/// What a mirror is made of.
#[derive(Clone)]
pub struct Parts {
    /// Whose content is mirrored.
    pub local: Device,
    /// Where the mirror keeps what it knows.
    pub metadata: Device,
    /// The ways to the legs, 1 to [`LEGS_MAX`](super::LEGS_MAX), in the order of their numbers.
    pub legs: Vec<Arc<dyn LegSource>>,
    /// Time, tasks and randomness.
    pub host: Arc<dyn Host>,
}

/// How to create a mirror.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CreateOptions {
    /// The legs hold what the local device holds, or its content does not matter: nothing is
    /// copied.
    pub skip_initial_copy: bool,
    /// Overwrites the metadata of another mirror.
    pub force: bool,
}

/// How to verify.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerifyOptions {
    /// Bytes a second at most.
    pub bytes_per_s: Option<u64>,
    /// What differs is written to the leg again.
    pub heal: bool,
}

/// What [`Mirror::verify`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct VerifyReport {
    /// Bytes compared.
    pub bytes: u64,
    /// Bytes that were not compared, because they are not yet at the leg.
    pub skipped_bytes: u64,
    /// Blocks of [`BLOCK_BYTES`](super::BLOCK_BYTES) that differ.
    pub mismatches: u64,
    /// Of these, blocks that were written to the leg again.
    pub healed: u64,
    /// Offsets in bytes of the first that differ, a few of them.
    pub offsets: Vec<u64>,
}

/// Whose changes are given up where both sides have written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discard {
    /// The local device's: it gets the content of this leg.
    Local {
        /// The leg whose content is kept.
        keep: usize,
    },
    /// This leg's: it gets the local content.
    Leg(usize),
}

/// A mirror in use.
pub struct Mirror {
    parts: Parts,
}

impl Mirror {
    /// Formats metadata and legs. What already holds a mirror is refused, unless forced.
    ///
    /// # Errors
    /// [`MirrorError::Exists`], sizes that do not fit, and what the devices say.
    pub async fn create(
        parts: &Parts,
        config: &Config,
        options: CreateOptions,
    ) -> Result<(), MirrorError> {
        let _ = (parts, config, options);
        Err(MirrorError::Unsupported("creating a mirror"))
    }

    /// Recovers the metadata and offers the device at once; legs are reached in the background.
    ///
    /// # Errors
    /// Metadata that is missing, damaged or another's; what the devices say.
    pub async fn open(parts: Parts, config: Config) -> Result<Self, MirrorError> {
        let _ = (parts, config);
        Err(MirrorError::Unsupported("opening a mirror"))
    }

    /// What the user reads and writes.
    pub fn device(&self) -> Device {
        self.parts.local.clone()
    }

    /// How it stands.
    pub fn status(&self) -> Status {
        Status {
            size: self.parts.local.info().size,
            mode: super::Mode::Sync,
            generation: String::new(),
            written_bytes: 0,
            guest_wait: std::time::Duration::ZERO,
            legs: Vec::new(),
        }
    }

    /// Ends at the first change of a leg's state after this call: call it before
    /// [`status`](Self::status), and no change is missed.
    pub fn changed(&self) -> impl Future<Output = ()> + Send + 'static {
        std::future::pending()
    }

    /// Sends nothing to the leg until [`resume`](Self::resume); what changes is noted.
    ///
    /// # Errors
    /// [`MirrorError::NoSuchLeg`], or the change could not be made durable.
    pub async fn pause(&self, leg: usize) -> Result<(), MirrorError> {
        let _ = leg;
        Err(MirrorError::Unsupported("pausing a leg"))
    }

    /// Takes the leg up again after [`pause`](Self::pause), or tries one that has failed.
    ///
    /// # Errors
    /// [`MirrorError::NoSuchLeg`].
    pub async fn resume(&self, leg: usize) -> Result<(), MirrorError> {
        let _ = leg;
        Err(MirrorError::Unsupported("resuming a leg"))
    }

    /// Sends what differs now rather than at the next attempt; with `whole`, everything.
    ///
    /// # Errors
    /// [`MirrorError::NoSuchLeg`], [`MirrorError::State`].
    pub async fn resync(&self, leg: usize, whole: bool) -> Result<(), MirrorError> {
        let _ = (leg, whole);
        Err(MirrorError::Unsupported("a resync on demand"))
    }

    /// Compares the leg with the local device, while both are in use.
    ///
    /// # Errors
    /// [`MirrorError::NoSuchLeg`], [`MirrorError::State`] unless in sync, and what the devices say.
    pub async fn verify(
        &self,
        leg: usize,
        options: VerifyOptions,
    ) -> Result<VerifyReport, MirrorError> {
        let _ = (leg, options);
        Err(MirrorError::Unsupported("verifying"))
    }

    /// Decides where both sides have written.
    ///
    /// # Errors
    /// [`MirrorError::NoSuchLeg`], [`MirrorError::State`] where there is nothing to decide.
    pub async fn resolve(&self, discard: Discard) -> Result<(), MirrorError> {
        let _ = discard;
        Err(MirrorError::Unsupported("resolving"))
    }

    /// Flushes, and writes down that nothing was under way. Operations that come later fail.
    ///
    /// # Errors
    /// What the devices say.
    pub async fn close(self) -> Result<(), MirrorError> {
        Ok(())
    }
}
