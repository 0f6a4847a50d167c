//! Barriers: which of the operations under way may be carried out, and what becomes of those behind
//! one that fails. An operation that has to wait for a barrier is dormant: nothing of it lands.
//! Each way to the disk has an order of its own.

use super::{Answer, Operation, Session, Store, Work};
use crate::mirror::sabotage::Lie;

/// What a store with barriers remembers.
#[derive(Default)]
pub(super) struct Order {
    /// The session that has asked for a barrier.
    begun: Option<Session>,
    /// The session in which something has failed since, and what had begun by then.
    failed: Option<(Session, Vec<u64>)>,
    /// What has arrived and waits for its turn.
    ripe: Vec<u64>,
}

impl Store {
    /// An operation is asked for in a session: a barrier begins its order.
    pub(super) fn note_begun(&mut self, session: Session, work: &Work) {
        if matches!(work, Work::Barrier) {
            self.order.begun = Some(session);
        }
    }

    /// Nothing older keeps the operation from being carried out.
    pub(super) fn may_run(&self, id: u64) -> bool {
        let Some(operation) = self.flying.get(&id) else { return true };
        let lies = match self.lie {
            Some(Lie::BarrierIsSimple) => true,
            Some(Lie::StampOvertakes) => self.is_stamp(operation),
            _ => false,
        };
        let barrier = |operation: &Operation| matches!(operation.work, Work::Barrier);
        let mut older = self.older(id, operation);
        lies || match barrier(operation) {
            false => older.all(|older| !barrier(older)),
            true => older.all(|older| !barrier(older) && self.is_overtaken(older)),
        }
    }

    /// It is carried out ahead of what it would have to wait for.
    pub(super) fn overtakes(&self, id: u64) -> bool {
        let barrier = |operation: &Operation| matches!(operation.work, Work::Barrier);
        let Some(operation) = self.flying.get(&id) else { return false };
        let mut older = self.older(id, operation);
        older.any(|older| barrier(operation) || barrier(older))
    }

    /// What was asked for before it on the same way, and is under way.
    fn older(&self, id: u64, of: &Operation) -> impl Iterator<Item = &Operation> {
        let way = of.session.way();
        let older = self.flying.range(..id).map(|(_, older)| older);
        older.filter(move |older| older.session.way() == way)
    }

    /// The operation is under way and may have an effect now.
    pub(super) fn may_land(&self, id: u64) -> bool {
        let Some(operation) = self.flying.get(&id) else { return false };
        let reserved = self.conflicts(operation.session.way()) && !self.ignores_reservation;
        !reserved && !self.is_refused(id, operation.session) && self.may_run(id)
    }

    /// A barrier does not wait for it, which is wrong.
    fn is_overtaken(&self, older: &Operation) -> bool {
        match self.lie {
            Some(Lie::BarrierOvertakesWrites) => matches!(older.work, Work::Write { .. }),
            Some(Lie::BarrierOvertakesStamps) => self.is_stamp(older),
            _ => false,
        }
    }

    fn is_stamp(&self, operation: &Operation) -> bool {
        let Work::Write { first, .. } = &operation.work else { return false };
        self.stamps.contains(first)
    }

    /// It has arrived, and waits.
    pub(super) fn ripens(&mut self, id: u64) {
        self.order.ripe.push(id);
    }

    /// Those that have waited and may be carried out now.
    pub(crate) fn take_ripe(&mut self) -> Vec<u64> {
        let ripe = std::mem::take(&mut self.order.ripe);
        let (now, later) = ripe.into_iter().partition(|id| self.may_run(*id));
        self.order.ripe = later;
        now
    }

    /// Refused, since something before it in its session has failed.
    pub(super) fn is_refused(&self, id: u64, session: Session) -> bool {
        let failed = self.order.failed.as_ref();
        failed.is_some_and(|(of, begun)| *of == session && !begun.contains(&id))
    }

    /// An operation was answered so: nothing that has not begun by now is carried out behind it.
    pub(super) fn note_answer(&mut self, operation: &Operation, answer: &Answer) {
        let session = &operation.session;
        let ends = answer.is_err() && self.order.begun == Some(*session);
        if ends && self.lie == Some(Lie::GoesOnBehindFailure) {
            self.lied += 1;
            return;
        }
        if !ends || self.order.failed.as_ref().is_some_and(|(of, _)| of == session) {
            return;
        }
        let barrier = |operation: &Operation| matches!(operation.work, Work::Barrier);
        let mut begun = Vec::new();
        if !barrier(operation) {
            let same = |other: &Operation| other.session.way() == session.way();
            let running = self.flying.iter().filter(|(_, other)| same(other));
            let running = running.take_while(|(_, other)| !barrier(other));
            begun.extend(running.map(|(id, _)| *id));
        }
        let (all, rng) = (self.rng.coin(), &mut self.rng);
        begun.retain(|_| all || rng.coin());
        self.order.failed = Some((*session, begun));
    }

    /// A session with barriers is lost: of what is under way, what has not arrived is gone, and of
    /// the rest any part is carried out in order.
    pub(super) fn lose_in_order(&mut self, flying: &[u64], of: impl Fn(Session) -> bool) {
        let arrived = self.rng.below(flying.len() as u64 + 1) as usize;
        for id in &flying[arrived..] {
            self.flying.remove(id);
        }
        let some = self.rng.below(arrived as u64 + 1);
        self.run_some(some, of);
    }

    /// So many operations of some sessions are carried out, in an order that the barriers allow.
    pub(super) fn run_some(&mut self, count: u64, of: impl Fn(Session) -> bool) {
        for _ in 0..count {
            let mut running = self.asked_for(&of);
            running.retain(|id| self.may_run(*id));
            if running.is_empty() {
                return;
            }
            let id = self.rng.pick(&running);
            drop(self.perform(id));
        }
    }

    /// There are barriers of some sessions among what is under way.
    pub(super) fn has_barriers(&self, of: impl Fn(Session) -> bool) -> bool {
        let barrier = |operation: &Operation| matches!(operation.work, Work::Barrier);
        self.flying.values().any(|operation| barrier(operation) && of(operation.session))
    }
}
