//! [`Local`]: the device whose content is mirrored, as long as it does its work. What it does not
//! write or flush any more, the legs that take part go on without.
//!
//! A failed flush is never tried again: the system may have dropped what it could not write, and
//! would call the next flush a success.

use std::sync::Mutex;

use super::signal::lock;
use crate::{BlockError, Buf, Device, DeviceInfo, Extent, Io};

/// The local device.
pub(crate) struct Local {
    device: Device,
    state: Mutex<State>,
}

/// What is to be had from it.
#[derive(Clone, Debug)]
enum State {
    /// Everything.
    Good,
    /// Reads: a flush has failed, and there was no leg to go on with.
    Broken(String),
    /// Nothing: the image is that of the legs that take part.
    Replaced(String),
}

impl Local {
    pub(crate) fn new(device: Device) -> Self {
        Self { device, state: Mutex::new(State::Good) }
    }

    /// What it can do.
    pub(crate) fn info(&self) -> DeviceInfo {
        self.device.info()
    }

    /// Asks for a change or a flush. Where the legs have taken its place, there is nothing to do.
    pub(crate) fn change(&self, ask: impl FnOnce(&Device) -> Io<()>) -> Io<()> {
        match &*lock(&self.state) {
            State::Good => {}
            State::Broken(why) => return Io::err(failed(why)),
            State::Replaced(_) => return Io::ok(()),
        }
        ask(&self.device)
    }

    /// Reads from it alone.
    pub(crate) fn read(&self, offset: u64, buf: Buf) -> Io<Buf> {
        match &*lock(&self.state) {
            State::Good | State::Broken(_) => {}
            State::Replaced(why) => return Io::err(failed(why)),
        }
        self.device.read(offset, buf)
    }

    /// What stands behind the image, where the device is a promoted leg itself.
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Which parts are data and which are holes; all is data where the legs have taken its place.
    pub(crate) fn extents(&self, offset: u64, len: u64) -> Io<Vec<Extent>> {
        if self.is_replaced() {
            let data = Extent { offset, len, hole: false };
            return Io::ok(if len == 0 { Vec::new() } else { vec![data] });
        }
        self.device.extents(offset, len)
    }

    /// The legs have taken its place.
    pub(crate) fn is_replaced(&self) -> bool {
        matches!(*lock(&self.state), State::Replaced(_))
    }

    /// Why it does not do all of its work.
    pub(crate) fn failure(&self) -> Option<String> {
        match &*lock(&self.state) {
            State::Good => None,
            State::Broken(why) | State::Replaced(why) => Some(why.clone()),
        }
    }

    /// A flush has failed, and nobody can go on without the device.
    pub(crate) fn set_broken(&self, why: &BlockError) {
        let mut state = lock(&self.state);
        if matches!(*state, State::Good) {
            *state = State::Broken(why.to_string());
        }
    }

    /// The legs take its place.
    pub(crate) fn set_replaced(&self, why: &BlockError) {
        *lock(&self.state) = State::Replaced(why.to_string());
    }
}

fn failed(why: &str) -> BlockError {
    let what = format!("the local device has failed: {why}");
    BlockError::Medium(std::io::Error::other(what))
}

/// What an error of a change says about the device, rather than about what was asked of it.
pub(crate) fn is_failure(error: &BlockError) -> bool {
    match error {
        BlockError::OutOfRange { .. }
        | BlockError::Misaligned { .. }
        | BlockError::Unsupported(_)
        | BlockError::ReadOnly
        | BlockError::NoSpace => false,
        BlockError::Medium(_) | BlockError::Fenced | BlockError::Unreachable(_) => true,
    }
}
