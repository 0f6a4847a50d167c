//! Flushes and forced writes under way: the commands that a target tells of a failure of its cache.
//!
//! It may tell the failure to one of them and not to another that vouches for the same data, and
//! the answers may come in another order than the commands were carried out in. GOOD counts
//! therefore when all of them that were under way when it came are over and none has failed; until
//! then it is held. Each waits for what is at the target already, never for what has yet to be
//! sent, nor for another that is held: the wait is bounded by the slowest of them, and no two wait
//! for each other.
//!
//! Not here: what a failure is, and what a command vouches for.

use std::collections::BTreeSet;

/// How far a flush or a forced write is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Way {
    /// Not at the target, as every other command.
    #[default]
    Away,
    /// At the target.
    Sent { number: u64, seen: Seen },
    /// GOOD has come; those with a lower number count.
    Held { before: u64, seen: Seen },
}

/// How many had failed, and how many had been lost, when it was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    failed: u64,
    unanswered: u64,
}

/// What GOOD of one is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Worth {
    /// What it says.
    All,
    /// Others that were under way with it are not over.
    Unknown,
    /// One that was under way with it has failed.
    Failed,
    /// One that was under way with it has no answer, and will have none.
    Lost,
}

/// All that are under way.
#[derive(Clone, Debug, Default)]
pub(super) struct Tellers {
    under_way: BTreeSet<u64>,
    next: u64,
    /// Counts since the beginning.
    so_far: Seen,
}

impl Tellers {
    /// One is sent.
    pub(super) fn sent(&mut self, way: &mut Way) {
        self.over(way);
        let (number, seen) = (self.next, self.so_far);
        self.next += 1;
        self.under_way.insert(number);
        *way = Way::Sent { number, seen };
    }

    /// GOOD has come.
    pub(super) fn good(&mut self, way: &mut Way) {
        if let Way::Sent { number, seen } = *way {
            self.under_way.remove(&number);
            *way = Way::Held { before: self.next, seen };
        }
    }

    /// It has failed.
    pub(super) fn failed(&mut self, way: &mut Way) {
        self.over(way);
        self.so_far.failed += 1;
    }

    /// It was not carried out.
    pub(super) fn over(&mut self, way: &mut Way) {
        if let Way::Sent { number, .. } = std::mem::take(way) {
            self.under_way.remove(&number);
        }
    }

    /// Nobody will know whether it was carried out. False if none was under way.
    pub(super) fn unanswered(&mut self, way: &mut Way) -> bool {
        let Way::Sent { number, .. } = std::mem::take(way) else { return false };
        let was_under_way = self.under_way.remove(&number);
        self.so_far.unanswered += u64::from(was_under_way);
        was_under_way
    }

    /// The incarnation is over, and with it all of them.
    pub(super) fn lost(&mut self) {
        if !self.under_way.is_empty() {
            self.so_far.unanswered += 1;
            self.under_way.clear();
        }
    }

    /// What GOOD of this one is worth by now.
    pub(super) fn worth(&self, way: Way) -> Worth {
        let (Way::Sent { number: before, seen } | Way::Held { before, seen }) = way else {
            return Worth::All;
        };
        if seen.failed != self.so_far.failed {
            Worth::Failed
        } else if seen.unanswered != self.so_far.unanswered {
            Worth::Lost
        } else if self.under_way.first().is_some_and(|first| *first < before) {
            Worth::Unknown
        } else {
            Worth::All
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent<const N: usize>(tellers: &mut Tellers) -> [Way; N] {
        [(); N].map(|()| {
            let mut way = Way::Away;
            tellers.sent(&mut way);
            way
        })
    }

    #[test]
    fn good_waits_for_those_at_the_target_and_for_nothing_sent_later() {
        let mut tellers = Tellers::default();
        let [mut first, mut second, mut third] = sent(&mut tellers);
        tellers.good(&mut second);
        let [mut later] = sent(&mut tellers);
        assert_eq!(tellers.worth(second), Worth::Unknown);
        tellers.good(&mut first);
        assert_eq!((tellers.worth(first), tellers.worth(second)), (Worth::Unknown, Worth::Unknown));
        tellers.over(&mut third);
        assert_eq!((tellers.worth(first), tellers.worth(second)), (Worth::Unknown, Worth::All));
        tellers.good(&mut later);
        assert_eq!((tellers.worth(first), tellers.worth(later)), (Worth::All, Worth::All));
    }

    #[test]
    fn a_failure_or_a_loss_is_shared_by_all_that_were_under_way() {
        for lost in [false, true] {
            let mut tellers = Tellers::default();
            let [mut first, mut second, mut third] = sent(&mut tellers);
            tellers.good(&mut second);
            match lost {
                true => assert!(tellers.unanswered(&mut first)),
                false => tellers.failed(&mut first),
            }
            tellers.good(&mut third);
            let worth = if lost { Worth::Lost } else { Worth::Failed };
            assert_eq!((tellers.worth(second), tellers.worth(third)), (worth, worth));
            let [mut later] = sent(&mut tellers);
            tellers.good(&mut later);
            assert_eq!(tellers.worth(later), Worth::All);
        }
    }

    #[test]
    fn the_end_of_the_incarnation_leaves_nothing_that_is_waited_for() {
        let mut tellers = Tellers::default();
        let [mut first, mut second] = sent(&mut tellers);
        tellers.good(&mut second);
        tellers.lost();
        assert_eq!(tellers.worth(second), Worth::Lost);
        assert!(!tellers.unanswered(&mut first), "counted already");
        tellers.sent(&mut second);
        tellers.good(&mut second);
        assert_eq!(tellers.worth(second), Worth::All);
    }
}
