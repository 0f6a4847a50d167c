//! A medium that can be taken out: PREVENT ALLOW MEDIUM REMOVAL (SPC-4 §6.17) and the load and
//! eject half of START STOP UNIT (SBC-3 §5.25).
//!
//! Every unit accepts PREVENT; only those that say they are removable can be ejected.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::context::UnitContext;
use crate::nexus::NexusId;
use crate::opcodes::Access;
use crate::sense::{AdditionalSense, Sense, SenseKey};
use crate::{Command, Execution, Response, Status};

/// Is the medium there, and who wants it to stay.
#[derive(Default)]
pub(crate) struct Medium {
    pub(crate) removable: bool,
    ejected: AtomicBool,
    preventers: Mutex<BTreeSet<NexusId>>,
}

impl Medium {
    pub(crate) fn new(removable: bool) -> Self {
        Self { removable, ..Self::default() }
    }

    /// Refuses what needs a medium when there is none.
    pub(crate) fn check(&self) -> Result<(), Sense> {
        match self.ejected.load(Ordering::Acquire) {
            true => Err(Sense::new(SenseKey::NOT_READY, AdditionalSense::MEDIUM_NOT_PRESENT)),
            false => Ok(()),
        }
    }

    /// A nexus ends, and its wish with it.
    pub(crate) fn nexus_lost(&self, nexus: NexusId) {
        self.lock().remove(&nexus);
    }

    /// A reset ends all wishes; the medium stays where it is.
    pub(crate) fn reset(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<NexusId>> {
        self.preventers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// PREVENT ALLOW MEDIUM REMOVAL.
pub(crate) fn prevent_allow(context: &UnitContext<'_>, command: Command) -> Execution {
    let (medium, nexus) = (&context.unit.medium, context.nexus.id);
    match command.cdb.byte(4) & 3 {
        0 => drop(medium.lock().remove(&nexus)),
        1 if !context.admits(Access::Manage) => {
            return Response::status(Status::RESERVATION_CONFLICT).into();
        }
        1 => drop(medium.lock().insert(nexus)),
        _ => return Sense::invalid_cdb(4, 1).into(), // for media changers, obsolete
    }
    Response::good().into()
}

/// LOEJ of START STOP UNIT: takes the medium out, or puts it back.
pub(crate) fn load_eject(context: &UnitContext<'_>, load: bool) -> Result<(), Sense> {
    let medium = &context.unit.medium;
    if !medium.removable {
        return Err(Sense::invalid_cdb(4, 1));
    }
    if !medium.lock().is_empty() {
        return Err(Sense::illegal(AdditionalSense::MEDIUM_REMOVAL_PREVENTED));
    }
    if medium.ejected.swap(!load, Ordering::AcqRel) == load {
        // Whoever else uses the unit finds another medium, as far as they know.
        let changed = AdditionalSense::NOT_READY_TO_READY_CHANGE;
        if load {
            context.nexus.target.establish(context.unit.lun, changed, Some(context.nexus));
        }
        tracing::info!(lun = %context.unit.lun, load, "medium moved");
    }
    Ok(())
}
