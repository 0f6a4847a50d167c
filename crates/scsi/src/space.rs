//! [`SpaceUsage`]: how much storage there is behind a thin unit, and the soft threshold at which
//! initiators are warned (SBC-3 §4.7.3.7).
//!
//! The device server does not look at storage itself: whoever knows tells it now and then.

use std::sync::{Mutex, MutexGuard, PoisonError};

use block::DeviceInfo;

/// Storage behind a thin unit, as last reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceUsage {
    /// Bytes that can still be allocated, by this unit or others.
    pub available_bytes: u64,
    /// Bytes allocated by this unit.
    pub used_bytes: u64,
}

/// Space of one unit.
#[derive(Default)]
pub(crate) struct Space {
    state: Mutex<State>,
    /// Warn when less than this is available; 0 never warns.
    pub(crate) threshold_bytes: u64,
}

#[derive(Default)]
struct State {
    usage: Option<SpaceUsage>,
    /// The threshold was reached and has not been left since.
    warned: bool,
}

/// Threshold sets are counted in 32 bits: even with this one they reach 2⁴⁸ blocks.
const THRESHOLD_EXPONENT_MAX: u8 = 16;

impl Space {
    pub(crate) fn new(threshold_bytes: u64) -> Self {
        Self { threshold_bytes, ..Self::default() }
    }

    pub(crate) fn usage(&self) -> Option<SpaceUsage> {
        self.lock().usage
    }

    /// Takes note; true when initiators are to be warned, once per crossing.
    pub(crate) fn report(&self, usage: SpaceUsage) -> bool {
        let mut state = self.lock();
        state.usage = Some(usage);
        let low = usage.available_bytes < self.threshold_bytes;
        let before = std::mem::replace(&mut state.warned, low);
        low && !before
    }

    /// THRESHOLD EXPONENT: a set has 2 to this many blocks.
    pub(crate) fn threshold_exponent(&self, info: &DeviceInfo) -> u8 {
        // A set is never more than a 256th of the unit, so that counts mean something.
        let blocks = (info.size / u64::from(info.block_size)).max(256);
        ((blocks / 256).ilog2() as u8).clamp(1, THRESHOLD_EXPONENT_MAX)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crossing_warns_once() {
        let space = Space::new(100);
        let report = |available_bytes| space.report(SpaceUsage { available_bytes, used_bytes: 0 });
        let reported = [100, 99, 50, 0, 100, 99].map(report);
        assert_eq!(reported, [false, true, false, false, false, true]);
        assert!(!Space::new(0).report(SpaceUsage { available_bytes: 0, used_bytes: 0 }));
    }
}
