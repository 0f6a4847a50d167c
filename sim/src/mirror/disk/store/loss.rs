//! What becomes of what is under way, and of what is not stable, when a link is lost, a process
//! ends, or the power fails.

use std::collections::BTreeMap;

use super::{Operation, Session, Store, Work};
use crate::mirror::content::Content;
use crate::mirror::sabotage::Lie;

impl Store {
    /// The link of a way is lost. What was asked for over it may still be carried out, now or
    /// until it is forgotten.
    pub(crate) fn lose_session(&mut self, way: u64) {
        let of = |session: Session| session.is_login_on(way);
        let flying = self.asked_for(of);
        if self.has_barriers(of) {
            self.lose_in_order(&flying, of);
        } else {
            for id in &flying {
                match self.rng.below(3) {
                    0 => drop(self.flying.remove(id)),
                    1 => drop(self.perform(*id)),
                    _ => {}
                }
            }
        }
        // What was carried out has ended; nobody hears of it.
        for id in flying.iter().filter(|id| !self.flying.contains_key(id)) {
            self.unanswered.remove(id);
        }
    }

    /// What is left of a session that was lost is never carried out: neither what has not arrived,
    /// nor what waits there for a barrier.
    pub(crate) fn forget(&mut self, session: Session) {
        for id in self.asked_for(|of| of == session) {
            self.flying.remove(&id);
            self.unanswered.remove(&id);
        }
    }

    /// What is under way of some sessions, oldest first.
    pub(super) fn asked_for(&self, of: impl Fn(Session) -> bool) -> Vec<u64> {
        let flying = self.flying.iter().filter(|(_, operation)| of(operation.session));
        flying.map(|(id, _)| *id).collect()
    }

    /// What earlier sessions of the same way have asked for ends here, done or not.
    pub(crate) fn quiesce(&mut self, session: Session) {
        if self.lie == Some(Lie::DoesNotQuiesce) {
            let old = |operation: &&Operation| operation.session.is_older(session);
            self.lied += self.flying.values().filter(old).count() as u64;
            return;
        }
        let old = |of: Session| of.is_older(session);
        if self.has_barriers(old) {
            let some = self.rng.below(self.flying.len() as u64 + 1);
            self.run_some(some, old);
            self.flying.retain(|_, operation| !old(operation.session));
        }
        for id in self.asked_for(old) {
            match self.rng.coin() {
                true => drop(self.perform(id)),
                false => drop(self.flying.remove(&id)),
            }
        }
        self.unanswered.retain(|id| self.flying.contains_key(id));
    }

    /// The process that asked ends: what is under way is done in any part.
    pub(crate) fn interrupt(&mut self) {
        if self.has_barriers(|_| true) {
            let some = self.rng.below(self.flying.len() as u64 + 1);
            self.run_some(some, |_| true);
        }
        let landing: Vec<u64> =
            self.flying.keys().copied().filter(|id| self.may_land(*id)).collect();
        self.flying.retain(|id, _| landing.contains(id));
        for (id, operation) in std::mem::take(&mut self.flying) {
            let luck = self.rng.below(3); // none, all, some
            let mut lands = {
                let mut rng = self.rng.fork();
                move || luck == 1 || luck == 2 && rng.coin()
            };
            match operation.work {
                Work::Read(_) | Work::Reserve(_) => {}
                Work::Barrier if self.lie == Some(Lie::BarrierOnlyOrders) => {}
                Work::Flush | Work::Barrier => {
                    if lands() {
                        self.flush(id, &operation.uncovered);
                    }
                }
                Work::Write { first, contents, .. } => {
                    for (content, at) in contents.iter().zip(first..) {
                        if lands() {
                            self.land(id, at, content.clone());
                        }
                    }
                }
                Work::Zero { range, .. } => {
                    let known: Vec<u64> = self.sectors.range(range).map(|(at, _)| *at).collect();
                    for at in known {
                        if lands() {
                            self.land(id, at, Content::Zero);
                        }
                    }
                }
            }
        }
        self.unanswered.clear();
    }

    /// The power fails.
    pub(crate) fn cut(&mut self) {
        self.interrupt();
        if self.lie == Some(Lie::GoesBack) {
            self.lied += 1;
            let before = self.before.clone();
            return self.put_back(before);
        }
        // Now and then all is lost, which is the most; or nothing; or each write as a whole, which
        // leaves checksums good; or each sector by itself.
        let luck = self.rng.below(5);
        let mut kept_writes: BTreeMap<u64, bool> = BTreeMap::new();
        for sector in self.sectors.values_mut() {
            let states = sector.dirty.len();
            let kept = match luck {
                0 => 0,
                1 => states,
                2 => self.rng.below(states as u64 + 1) as usize,
                _ => {
                    let mut keep = |by: u64| {
                        let rng = &mut self.rng;
                        *kept_writes.entry(by).or_insert_with(|| rng.coin())
                    };
                    sector.dirty.iter().rposition(|(by, _)| keep(*by)).map_or(0, |last| last + 1)
                }
            };
            let kept = sector.dirty.drain(..).take(kept).next_back();
            if let Some((_, content)) = kept {
                sector.stable = content;
            }
        }
        self.touched = true;
    }
}
