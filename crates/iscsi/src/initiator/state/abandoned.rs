//! Commands whose callers have given up. A caller that gave up may write the same range anew at any
//! time, so from then on an old write must not land on a newer one:
//!
//! * What has not been handed to a session is withdrawn.
//! * A read that a session has is aborted, where the disk is told to (`Config::aborts_reads`): what
//!   nobody waits for takes no place on the line. That it ends is all that is expected of it.
//! * What a session has otherwise is carried out or not, and whichever it is, it is never issued
//!   again: not in a later incarnation, not after a unit attention, not after BUSY.
//! * While a session still has such a write, newer writes of the same range wait. A session that
//!   has ended has nothing any more: the next one reinstates it, which makes the target end its
//!   tasks before the login is answered (RFC 7143 §6.3.5).
//! * Nobody was told that it succeeded, so no flush vouches for it. If it did, its content is kept
//!   like any other: writing older content again must not undo what readers may have seen.

use std::sync::Arc;

use iscsi_proto::initiator::durability::Effect;

use super::{Batch, State};
use crate::initiator::op::{Left, Slot};

impl State {
    /// The caller of this command has gone.
    pub(in crate::initiator) fn abandon(&mut self, slot: &Arc<Slot>, batch: &mut Batch) {
        match slot.abandon() {
            Left::Nothing => return,
            Left::Failure(failure) => return self.durability.not_told(failure),
            Left::Command => {}
        }
        if slot.is_under_way() {
            if slot.range().is_some() {
                self.abandoned.push(slot.clone());
            }
            self.abort_read(slot, batch);
            return;
        }
        let is_other = |other: &Arc<Slot>| !Arc::ptr_eq(slot, other);
        self.waiting.retain(|(_, task)| is_other(&task.slot));
        self.requeued.retain(|(_, task)| is_other(&task.slot));
        self.resting.retain(|(_, _, task)| is_other(&task.slot));
        self.go_on(batch); // it may have been at the head of those that wait
    }

    /// Has the target forget a read, if that is wanted. One that was not sent yet ends at once.
    fn abort_read(&mut self, slot: &Arc<Slot>, batch: &mut Batch) {
        // A disk that dies of an aborted command asks for none.
        let Some((index, itt)) = slot.place().filter(|_| !self.dies()) else { return };
        let Some(member) = self.members.get_mut(index) else { return };
        member.session.abort(itt);
        self.collect(index, None, batch);
    }

    /// A write of the same range is under way that its caller has given up.
    pub(super) fn is_behind_abandoned(&self, effect: &Effect) -> bool {
        if self.abandoned.is_empty() {
            return false;
        }
        let Some((offset, len)) = effect.range() else { return false };
        let overlaps = |(at, other): (u64, u64)| {
            at < offset.saturating_add(len) && offset < at.saturating_add(other)
        };
        self.abandoned.iter().filter_map(|slot| slot.range()).any(overlaps)
    }
}

/// A command has left its session.
pub(super) fn note_returned(abandoned: &mut Vec<Arc<Slot>>, slot: &Arc<Slot>) {
    slot.set_under_way(false);
    if !abandoned.is_empty() {
        abandoned.retain(|other| !Arc::ptr_eq(slot, other));
    }
}
