//! Unit attention conditions of one nexus (SAM-5 §5.14): what happened to a logical unit that this
//! initiator has not been told yet.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::lun::Lun;
use crate::sense::AdditionalSense;

/// The first of the 29/xx family, which may mean any of them (SPC-4 annex D).
pub(crate) const POWER_ON: AdditionalSense =
    AdditionalSense::POWER_ON_RESET_OR_BUS_DEVICE_RESET_OCCURRED;

type Queues = BTreeMap<Lun, Vec<AdditionalSense>>;

/// Pending conditions, oldest first, per logical unit.
#[derive(Default)]
pub(crate) struct UnitAttentions {
    /// Conditions pending for any unit, so that the common case costs one load.
    pending: AtomicUsize,
    queues: Mutex<Queues>,
}

impl UnitAttentions {
    /// Establishes a condition. One of the 29/xx family says all there is to say, so it replaces
    /// what was pending; only 29/00 stays, which says the most: an initiator that is told of less
    /// believes that volatile caches were kept. The same condition is not queued twice.
    pub(crate) fn establish(&self, lun: Lun, condition: AdditionalSense) {
        self.establish_all(&[lun], condition);
    }

    /// The same for several units. They are counted once: a target may have thousands.
    pub(crate) fn establish_all(&self, luns: &[Lun], condition: AdditionalSense) {
        let mut queues = self.lock();
        for lun in luns {
            let queue = queues.entry(*lun).or_default();
            if condition.0 == 0x29 {
                queue.retain(|pending| *pending == POWER_ON);
            }
            let told_by_power_on = condition.0 == 0x29 && !queue.is_empty();
            if !told_by_power_on && !queue.contains(&condition) {
                queue.push(condition);
            }
        }
        self.recount(&queues);
    }

    /// Takes the oldest condition of a unit: it is reported once.
    pub(crate) fn take(&self, lun: Lun) -> Option<AdditionalSense> {
        if self.pending.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut queues = self.lock();
        let queue = queues.get_mut(&lun).filter(|queue| !queue.is_empty())?;
        let condition = queue.remove(0);
        self.recount(&queues);
        Some(condition)
    }

    /// The oldest condition of a unit, which stays, and whether there are more.
    pub(crate) fn peek(&self, lun: Lun) -> Option<(AdditionalSense, bool)> {
        let queues = self.lock();
        let queue = queues.get(&lun)?;
        queue.first().map(|first| (*first, queue.len() > 1))
    }

    /// Forgets a condition on all units, because the initiator has just seen the news itself.
    pub(crate) fn clear(&self, condition: AdditionalSense) {
        if self.pending.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut queues = self.lock();
        queues.values_mut().for_each(|queue| queue.retain(|pending| *pending != condition));
        self.recount(&queues);
    }

    /// Forgets units that are gone.
    pub(crate) fn remove(&self, luns: &[Lun]) {
        let mut queues = self.lock();
        for lun in luns {
            queues.remove(lun);
        }
        self.recount(&queues);
    }

    fn recount(&self, queues: &Queues) {
        self.pending.store(queues.values().map(Vec::len).sum(), Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESET: AdditionalSense = AdditionalSense::BUS_DEVICE_RESET_FUNCTION_OCCURRED;
    const LUNS: AdditionalSense = AdditionalSense::REPORTED_LUNS_DATA_HAS_CHANGED;
    const SIZE: AdditionalSense = AdditionalSense::CAPACITY_DATA_HAS_CHANGED;

    #[test]
    fn reported_once_in_order_and_per_unit() {
        let attentions = UnitAttentions::default();
        let [zero, one] = [Lun::new(0).unwrap(), Lun::new(1).unwrap()];
        for condition in [LUNS, SIZE, LUNS] {
            attentions.establish(zero, condition);
        }
        attentions.establish(one, SIZE);
        assert_eq!(attentions.take(zero), Some(LUNS));
        assert_eq!(attentions.take(zero), Some(SIZE));
        assert_eq!(attentions.take(zero), None);
        assert_eq!(attentions.take(one), Some(SIZE));
        assert_eq!(attentions.pending.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn nothing_replaces_a_power_on() {
        let attentions = UnitAttentions::default();
        let lun = Lun::new(0).unwrap();
        attentions.establish(lun, SIZE);
        attentions.establish(lun, POWER_ON);
        attentions.establish(lun, AdditionalSense::I_T_NEXUS_LOSS_OCCURRED);
        attentions.establish(lun, RESET);
        assert_eq!((attentions.take(lun), attentions.take(lun)), (Some(POWER_ON), None));
    }

    #[test]
    fn a_reset_replaces_what_came_before() {
        let attentions = UnitAttentions::default();
        let lun = Lun::new(0).unwrap();
        attentions.establish(lun, SIZE);
        attentions.establish(lun, RESET);
        attentions.establish(lun, LUNS);
        attentions.clear(LUNS);
        assert_eq!((attentions.take(lun), attentions.take(lun)), (Some(RESET), None));
    }
}
