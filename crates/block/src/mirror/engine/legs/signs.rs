//! What keeps others from a leg: a reservation, or the signs that its superblock was given.

use std::time::Duration;

use super::super::super::promote::SILENCE;
use super::super::super::status::Guard;
use super::Legs;

impl Legs {
    /// What keeps others from writing there.
    pub(crate) fn note_guard(&self, leg: usize, guard: Guard) {
        self.lock()[leg].guard = guard;
    }

    /// Its superblock was written.
    pub(crate) fn note_told(&self, leg: usize) {
        let now = self.host.now();
        let leg = &mut self.lock()[leg];
        if leg.told_at.is_none_or(|told| now.saturating_sub(told) > SILENCE) {
            leg.claimed_at = Some(now);
        }
        leg.told_at = Some(now);
    }

    /// When its superblock was written for the first time after a silence, in which somebody else
    /// may have come to take this mirror for gone; if it was since the mirror was opened.
    pub(crate) fn claimed_at(&self, leg: usize) -> Option<Duration> {
        self.lock()[leg].claimed_at
    }

    /// When its superblock was last written, if it was since the mirror was opened.
    pub(crate) fn told_at(&self, leg: usize) -> Option<Duration> {
        self.lock()[leg].told_at
    }

    /// As it was noted last.
    pub(crate) fn guard(&self, leg: usize) -> Guard {
        self.lock()[leg].guard
    }
}
