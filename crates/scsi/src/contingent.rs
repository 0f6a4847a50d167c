//! [`Contingent`]: auto contingent allegiance (ACA, SAM-5 §5.9) of one nexus. A command with the
//! NACA bit that ends with CHECK CONDITION establishes it for its unit; from then on whatever comes
//! from this nexus is refused with ACA ACTIVE, but commands with the ACA attribute, until CLEAR
//! ACA, a reset of the unit, or the end of the nexus.
//!
//! It is what makes an order of commands hold where one of them fails: without it those behind a
//! failed write are carried out.
//!
//! Two things are simpler than SAM-5 has them. Commands that are in the task set already are
//! refused as well, not blocked until the condition is cleared: they end sooner, with nothing done.
//! Other nexuses are not concerned (as with TST 001b): an initiator cannot keep a unit from others
//! by a bad command.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::lun::Lun;

/// The units on which a nexus has the condition.
#[derive(Default)]
pub(crate) struct Contingent {
    /// Their number, so that the common case costs one load.
    active: AtomicUsize,
    units: Mutex<BTreeSet<Lun>>,
}

impl Contingent {
    /// A command with NACA has ended with CHECK CONDITION.
    pub(crate) fn establish(&self, lun: Lun) {
        let mut units = self.lock();
        units.insert(lun);
        self.active.store(units.len(), Ordering::Release);
    }

    /// The condition is over, if there is one.
    pub(crate) fn clear(&self, lun: Lun) {
        if self.active.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut units = self.lock();
        units.remove(&lun);
        self.active.store(units.len(), Ordering::Release);
    }

    /// The nexus has it on this unit.
    pub(crate) fn is_active(&self, lun: Lun) -> bool {
        self.active.load(Ordering::Acquire) > 0 && self.lock().contains(&lun)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<Lun>> {
        self.units.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
