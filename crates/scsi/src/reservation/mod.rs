//! Reservations of one logical unit: who may do what to it while somebody has it reserved.
//!
//! Two generations of the same idea. Persistent reservations (SPC-4 §5.12) belong to initiator
//! ports, survive resets and lost sessions, and with APTPL a restart. RESERVE and RELEASE (SPC-2)
//! belong to one nexus and end with it or with a reset. They exclude each other but for the
//! exceptions of CRH (SPC-4 §5.12.3).
//!
//! The hot path pays one atomic load where nothing is reserved.

pub(crate) mod input;
pub(crate) mod output;
mod shared;
pub(crate) mod spc2;
mod state;
mod store;
mod transport_id;
mod versioned;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use shared::Shared;
pub use shared::{LEASE, SharedFileStore, SharedStore, Stored};
use state::{Effects, Outcome, Refusal, Registrations};
pub(crate) use state::{Port, nexus_name};
pub use store::{FileStore, StateError, StateStore};
pub use versioned::{Changed, Known, SharedState, Versioned};

use crate::nexus::NexusId;
use crate::opcodes::Access;
use crate::sense::{AdditionalSense, Sense, SenseKey};

/// Reservations of a unit.
#[derive(Default)]
pub(crate) struct Reservations {
    /// Something is reserved, one way or the other.
    reserved: AtomicBool,
    current: RwLock<Current>,
    /// Held from reading the state to be changed until the changed one is saved and in force.
    changing: Mutex<()>,
    store: Option<Arc<dyn StateStore>>,
    /// In place of `store` where other targets serve the unit as well.
    shared: Option<Shared>,
}

#[derive(Default)]
struct Current {
    persistent: Registrations,
    /// The version of the shared store that this is.
    version: u64,
    /// The nexus that did RESERVE.
    spc2: Option<NexusId>,
}

impl Reservations {
    /// State as it was saved, if there is a store.
    pub(crate) fn open(store: Option<Arc<dyn StateStore>>) -> Result<Self, StateError> {
        let saved = store.as_deref().map(StateStore::load).transpose()?.flatten();
        let persistent = match saved {
            Some(bytes) => store::decode(&bytes)?,
            None => Registrations::default(),
        };
        let reserved = AtomicBool::new(persistent.reservation.is_some());
        let current = RwLock::new(Current { persistent, ..Current::default() });
        Ok(Self { reserved, current, changing: Mutex::default(), store, shared: None })
    }

    /// State that several targets keep together.
    pub(crate) fn open_shared(store: Arc<dyn SharedStore>) -> Result<Self, StateError> {
        let shared = Shared::new(store);
        let known = shared.load()?;
        let reservations = Self { shared: Some(shared), ..Self::default() };
        reservations.install(known);
        Ok(reservations)
    }

    /// Others keep it together with us.
    pub(crate) fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// What is known may be acted upon. Only what is shared grows old.
    pub(crate) fn is_fresh(&self) -> bool {
        self.shared.as_ref().is_none_or(Shared::is_fresh)
    }

    /// Reads what is shared; whom to tell what of it.
    pub(crate) fn refresh(&self) -> Result<Effects, StateError> {
        let Some(shared) = &self.shared else { return Ok(Effects::default()) };
        Ok(self.install(shared.load()?))
    }

    /// Takes a newer state over. What is new in it was done at another target.
    fn install(&self, known: Known<Registrations>) -> Effects {
        let mut current = self.write();
        if known.version <= current.version {
            return Effects::default(); // read before what is known already
        }
        let before = std::mem::replace(&mut current.persistent, known.state);
        current.version = known.version;
        self.note(&current);
        current.persistent.told_of(&before)
    }

    /// Refuses a command that a reservation of somebody else keeps out (SPC-4 table 51, SBC-3
    /// table 13): false for RESERVATION CONFLICT.
    pub(crate) fn admits(&self, nexus: NexusId, port: &str, access: Access) -> bool {
        if !self.reserved.load(Ordering::Acquire) || access == Access::Free {
            return true;
        }
        let current = self.read();
        if let Some(holder) = current.spc2 {
            return holder == nexus || access == Access::Own;
        }
        let state = &current.persistent;
        let Some(held) = &state.reservation else { return true };
        match access {
            Access::Free | Access::Query | Access::Own => true,
            Access::Read if held.kind.is_write_exclusive() => true,
            Access::Read | Access::Write | Access::Flush | Access::Manage => {
                state.holds(port)
                    || held.kind.admits_registrants() && state.registered.contains_key(port)
            }
        }
    }

    /// The registrations as of now.
    fn snapshot(&self) -> Registrations {
        self.read().persistent.clone()
    }

    fn holder_spc2(&self) -> Option<NexusId> {
        self.read().spc2
    }

    /// State can be kept through power loss.
    fn has_store(&self) -> bool {
        self.store.is_some() || self.shared.is_some()
    }

    /// Somebody else is changing the state, which may take a disk's time.
    fn try_changing(&self) -> Option<MutexGuard<'_, ()>> {
        match self.changing.try_lock() {
            Ok(guard) => Some(guard),
            Err(std::sync::TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => None,
        }
    }

    /// Changes the state. What has to be on disk is there before it is in force; a state that
    /// cannot be saved does not come into force.
    fn change(
        &self,
        _changing: MutexGuard<'_, ()>,
        change: impl Fn(&mut Registrations) -> Outcome,
    ) -> Outcome {
        if let Some(shared) = &self.shared {
            return self.change_shared(shared, change);
        }
        let before = self.snapshot();
        let mut after = before.clone();
        let effects = change(&mut after)?;
        if let Some(store) = self.store.as_deref().filter(|_| must_be_saved(&before, &after))
            && let Err(error) = store.save(&store::encode(&after))
        {
            tracing::error!(%error, ?store, "reservations cannot be saved");
            return Err(not_saved());
        }
        let mut current = self.write();
        current.persistent = after;
        self.note(&current);
        Ok(effects)
    }

    /// Changes what is shared; returns when the change holds at every target.
    fn change_shared(
        &self,
        shared: &Shared,
        change: impl Fn(&mut Registrations) -> Outcome,
    ) -> Outcome {
        match shared.change(change) {
            Ok(Changed::Done { known, stored, value: effects }) => {
                self.install(known);
                if stored {
                    shared.wait();
                }
                Ok(effects)
            }
            Ok(Changed::Contended) => {
                tracing::error!(
                    ?shared,
                    "reservations cannot be changed: others always come first"
                );
                Err(not_saved())
            }
            Ok(Changed::Refused(refusal)) => Err(refusal),
            Err(error) => {
                tracing::error!(%error, ?shared, "reservations cannot be changed");
                Err(not_saved())
            }
        }
    }

    /// RESERVE(6), RESERVE(10); false for RESERVATION CONFLICT.
    fn reserve_spc2(&self, nexus: NexusId, port: &str) -> bool {
        let mut current = self.write();
        if let Some(answer) = answer_despite_registrations(&current.persistent, port) {
            return answer;
        }
        let free = current.spc2.is_none_or(|holder| holder == nexus);
        if free {
            current.spc2 = Some(nexus);
            self.note(&current);
        }
        free
    }

    /// RELEASE(6), RELEASE(10); false for RESERVATION CONFLICT.
    fn release_spc2(&self, nexus: NexusId, port: &str) -> bool {
        let answer = answer_despite_registrations(&self.read().persistent, port);
        answer.unwrap_or_else(|| {
            self.nexus_lost(nexus);
            true // not the holder: nothing to do (SPC-2 §7.16)
        })
    }

    /// The nexus is gone, and what it reserved with RESERVE.
    pub(crate) fn nexus_lost(&self, nexus: NexusId) {
        self.forget_spc2(|holder| holder == nexus);
    }

    /// A reset ends RESERVE, not persistent reservations.
    pub(crate) fn reset(&self) {
        self.forget_spc2(|_| true);
    }

    fn forget_spc2(&self, which: impl Fn(NexusId) -> bool) {
        if !self.reserved.load(Ordering::Acquire) {
            return;
        }
        let mut current = self.write();
        current.spc2 = current.spc2.filter(|holder| !which(*holder));
        self.note(&current);
    }

    fn note(&self, current: &Current) {
        let reserved = current.persistent.reservation.is_some() || current.spc2.is_some();
        self.reserved.store(reserved, Ordering::Release);
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Current> {
        self.current.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, Current> {
        self.current.write().unwrap_or_else(PoisonError::into_inner)
    }
}

fn not_saved() -> Refusal {
    let failed = AdditionalSense::INTERNAL_TARGET_FAILURE;
    Refusal::Invalid(Sense::new(SenseKey::HARDWARE_ERROR, failed))
}

fn must_be_saved(before: &Registrations, after: &Registrations) -> bool {
    let persists = before.through_power_loss || after.through_power_loss;
    let changed = before.registered != after.registered
        || before.reservation != after.reservation
        || before.through_power_loss != after.through_power_loss;
    persists && changed
}

/// RESERVE and RELEASE while there are registrations (CRH, SPC-4 §5.12.3): GOOD without an effect
/// for those who have access anyway, a conflict for all others.
fn answer_despite_registrations(state: &Registrations, port: &str) -> Option<bool> {
    if state.registered.is_empty() {
        return None;
    }
    let registered = state.registered.contains_key(port);
    let shared = state.reservation.as_ref().is_some_and(|held| held.kind.admits_registrants());
    Some(state.holds(port) || registered && shared)
}
