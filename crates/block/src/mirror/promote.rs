//! Taking over: the image at a leg becomes one that is written to, without the mirror it came from.

use std::time::{Duration, SystemTime};

use serde::Serialize;

use super::error::MirrorError;
use super::host::Host;
use super::link::OpenLeg;
use crate::Device;

/// How to promote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PromoteOptions {
    /// Also an image that is no legal one, or whose mirror seems alive.
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
    _leg: OpenLeg,
    _host: &dyn Host,
    _options: PromoteOptions,
) -> Result<Promoted, MirrorError> {
    Err(MirrorError::Unsupported("promoting"))
}

/// The image at a leg as a device, without the mirror's metadata behind it.
///
/// # Errors
/// The leg has no metadata, or it is damaged.
pub fn promoted_device(_leg: Device) -> Result<Device, MirrorError> {
    Err(MirrorError::Unsupported("the image of a leg"))
}
