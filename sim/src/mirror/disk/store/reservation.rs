//! Persistent reservations of a unit, as far as a mirror uses them: write exclusive, registrants
//! only (SPC-4 §5.13), kept over a power loss. By way: a host's path to the unit.

use std::collections::BTreeMap;

use block::BlockError;

use super::{Answer, Store, Work};

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// Register, and reserve if nobody has.
    Hold(u64),
    /// Register, and take the reservation and the registrations of all others.
    Take(u64),
    /// Tell the holder's key.
    Tell,
    /// Give both back.
    Release,
}

/// What a unit knows.
#[derive(Clone, Debug, Default)]
pub(super) struct Reservation {
    /// The key that each way is registered under.
    registered: BTreeMap<u64, u64>,
    holder: Option<u64>,
}

/// What comes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Done,
    Conflict,
    /// The ways of others end, with what is under way there.
    Preempted,
}

impl Reservation {
    pub(super) fn may_write(&self, way: u64) -> bool {
        self.holder.is_none() || self.registered.contains_key(&way)
    }

    pub(super) fn holder(&self) -> Option<u64> {
        self.holder
    }

    pub(super) fn act(&mut self, way: u64, act: Act) -> Outcome {
        match act {
            Act::Tell => {}
            Act::Hold(_) if !self.may_write(way) => return Outcome::Conflict,
            Act::Hold(key) => {
                self.registered.insert(way, key);
                self.holder.get_or_insert(key);
            }
            Act::Take(key) => {
                self.registered = BTreeMap::from([(way, key)]);
                self.holder = Some(key);
                return Outcome::Preempted;
            }
            Act::Release => {
                self.registered.remove(&way);
                self.holder = None;
            }
        }
        Outcome::Done
    }
}

impl Store {
    /// What this way asks for is not carried out. Counts what is carried out and should not be.
    pub(super) fn refuses(&mut self, way: u64, work: &Work) -> bool {
        let changes = matches!(work, Work::Write { .. } | Work::Zero { .. });
        if !changes && !matches!(work, Work::Flush | Work::Barrier) {
            return false;
        }
        let conflict = self.conflicts(way);
        if conflict && !self.ignores_reservation {
            return true;
        }
        self.ignored += u64::from(conflict && changes);
        let stranger = self.belongs_to.is_some_and(|owner| owner != way);
        self.trespasses += u64::from(stranger && changes);
        false
    }

    /// Somebody else has reserved it.
    pub(super) fn conflicts(&self, way: u64) -> bool {
        !self.reservation.may_write(way)
    }

    pub(super) fn reserve(&mut self, way: u64, act: Act) -> Answer {
        match self.reservation.act(way, act) {
            Outcome::Done => {}
            Outcome::Conflict => return Err(BlockError::Fenced),
            Outcome::Preempted => {
                // Aborted: whatever was not carried out is not any more.
                for id in self.asked_for(|session| session.way() != way) {
                    self.flying.remove(&id);
                }
            }
        }
        Ok(Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_was_preempted_neither_writes_nor_holds_it_again() {
        let mut unit = Reservation::default();
        assert!(unit.may_write(0) && unit.may_write(1));
        assert_eq!(unit.act(0, Act::Hold(7)), Outcome::Done);
        assert_eq!((unit.may_write(0), unit.may_write(1)), (true, false));
        assert_eq!(unit.act(1, Act::Hold(8)), Outcome::Conflict);
        assert_eq!(unit.act(1, Act::Take(8)), Outcome::Preempted);
        assert_eq!((unit.may_write(0), unit.may_write(1)), (false, true));
        assert_eq!((unit.act(0, Act::Hold(7)), unit.holder()), (Outcome::Conflict, Some(8)));
        assert_eq!(unit.act(1, Act::Release), Outcome::Done);
        assert!(unit.may_write(0));
    }
}
