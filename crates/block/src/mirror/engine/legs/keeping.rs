//! The part of [`Legs`] about an image that has to be kept before it is written over: nothing is
//! sent to the leg meanwhile, and nothing waits for it.

use super::super::super::leg::LegEvent;
use super::Legs;

impl Legs {
    /// Its image is being kept. Where the log was kept for it, that is given up: what is written is
    /// noted from now on, and is part of the copy.
    pub(crate) fn waits_to_be_kept(&self, number: usize, message: String) {
        let now = self.host.now();
        let mut legs = self.lock();
        let leg = &mut legs[number];
        if leg.is_logged() {
            drop(self.give_up(number, leg));
        }
        leg.step(LegEvent::Lost, Some(message), now);
        drop(legs);
        self.wake();
        self.wake_log();
    }

    /// The image may be written over.
    pub(crate) fn is_kept(&self, leg: usize) {
        let keeping = &mut self.lock()[leg].keeping;
        (keeping.kept, keeping.refusals) = (true, 0);
    }

    /// Whether the image that is there has been kept.
    pub(crate) fn was_kept(&self, leg: usize) -> bool {
        self.lock()[leg].keeping.kept
    }

    /// The image must not be written over; what is said of that is made of how often in a row that
    /// was so.
    pub(crate) fn is_not_kept(&self, leg: usize, message: impl FnOnce(u32) -> String) {
        let now = self.host.now();
        let mut legs = self.lock();
        let leg = &mut legs[leg];
        let keeping = &mut leg.keeping;
        (keeping.refused, keeping.refusals) = (true, keeping.refusals.saturating_add(1));
        let message = message(keeping.refusals);
        leg.step(LegEvent::Lost, Some(message), now);
        drop(legs);
        self.wake();
    }

    /// How often in a row that was so, if the last attempt has ended by it. Told once.
    pub(crate) fn take_refusals(&self, leg: usize) -> Option<u32> {
        let keeping = &mut self.lock()[leg].keeping;
        std::mem::take(&mut keeping.refused).then_some(keeping.refusals)
    }
}
