//! [`Local`]: the device whose content is mirrored.

use std::sync::Arc;

use super::shared::Shared;
use crate::{Buf, Device, DeviceInfo, Io, Result};

/// The local device.
pub(crate) struct Local {
    device: Device,
}

impl Local {
    pub(crate) fn new(device: Device) -> Self {
        Self { device }
    }

    /// What it can do.
    pub(crate) fn info(&self) -> DeviceInfo {
        self.device.info()
    }

    /// Asks for a change or a flush; [`outcome`](Self::outcome) says what its end means.
    pub(crate) fn change(&self, ask: impl FnOnce(&Device) -> Io<()>) -> Io<()> {
        ask(&self.device)
    }

    /// What the end of a change means for the user.
    ///
    /// # Errors
    /// The device's.
    pub(crate) async fn outcome(&self, _shared: &Arc<Shared>, result: Result<()>) -> Result<()> {
        result
    }

    /// Reads from it alone.
    pub(crate) fn read(&self, offset: u64, buf: Buf) -> Io<Buf> {
        self.device.read(offset, buf)
    }

    /// The device itself, for what it says about its content.
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }
}
