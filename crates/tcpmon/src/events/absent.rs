//! A build without clang: the same interface, which only says why there are no events.

use std::convert::Infallible;

use super::{Event, EventFilter, EventsError, Source};

/// Programs in the kernel; there are none in this build.
#[derive(Debug)]
pub struct Events(Infallible);

impl Events {
    /// Says why there are none.
    ///
    /// # Errors
    /// Always [`EventsError::NotBuilt`].
    pub fn open(_: &EventFilter) -> Result<Self, EventsError> {
        Err(EventsError::NotBuilt(env!("ENKAKU_WITHOUT_EBPF")))
    }

    /// What is seen and what is not.
    pub fn sources(&self) -> &[Source] {
        match self.0 {}
    }

    /// Hands over what has happened.
    pub fn drain(&mut self, _: impl FnMut(Event, &[u8])) -> usize {
        match self.0 {}
    }

    /// Events that were lost.
    pub fn lost(&self) -> u32 {
        match self.0 {}
    }
}
