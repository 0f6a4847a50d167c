//! What is on a device that belongs to a mirror, for people and `--json`. Reads only.

use serde::Serialize;

use super::error::MirrorError;
use crate::Device;

/// What [`inspect`] found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Inspection {
    /// Nothing of a mirror.
    Nothing,
}

/// Looks whether `device` is a mirror's metadata or one of its legs. Never writes.
///
/// # Errors
/// The device's, and metadata that is damaged.
pub async fn inspect(_device: &Device) -> Result<Inspection, MirrorError> {
    Err(MirrorError::Unsupported("looking at a mirror's metadata"))
}
