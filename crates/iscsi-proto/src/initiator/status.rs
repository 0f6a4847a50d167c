//! StatSN of one connection (RFC 7143 §4.2.2.2): what has arrived, what is missing, and what may be
//! acknowledged. Plain bookkeeping: it asks for nothing and knows no PDU.
//!
//! At error recovery level 0 nothing is ever missing: a number out of order ends the connection.

use std::collections::VecDeque;

use crate::serial::StatSn;

/// How far behind the first missing answer others are taken. More answers than a target can have
/// commands under way in any window that is met, and 16 KiB of memory.
pub(super) const STATUS_AHEAD_MAX: usize = 1 << 14;

/// What a number means when it comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// The one that is due.
    Next,
    /// Behind a hole, or filling one.
    Ahead,
    /// It has been here before.
    Duplicate,
    /// Behind a hole that is too large to be true.
    TooFar,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    Missing,
    /// It is here, but must not be acknowledged: data of its command is missing.
    Held,
    Done,
}

/// The answers of one connection.
#[derive(Clone, Debug)]
pub(super) struct StatusNumbers {
    expected: StatSn,
    /// From `expected` on; empty while nothing is missing. The first one is never `Done`.
    ahead: VecDeque<Mark>,
}

impl StatusNumbers {
    pub(super) const fn new(expected: StatSn) -> Self {
        Self { expected, ahead: VecDeque::new() }
    }

    /// What may be acknowledged: everything before this one is here and dealt with.
    pub(super) const fn expected(&self) -> StatSn {
        self.expected
    }

    /// The number after the last one that is known to exist.
    pub(super) fn next(&self) -> StatSn {
        self.expected.plus(self.ahead.len() as u32) // at most STATUS_AHEAD_MAX
    }

    pub(super) fn check(&self, number: StatSn) -> Arrival {
        let Ok(distance) = usize::try_from(number.since(self.expected)) else {
            return Arrival::Duplicate;
        };
        match self.ahead.get(distance) {
            Some(Mark::Missing) => Arrival::Ahead,
            Some(_) => Arrival::Duplicate,
            None if distance == 0 => Arrival::Next,
            None if distance < STATUS_AHEAD_MAX => Arrival::Ahead,
            None => Arrival::TooFar,
        }
    }

    /// The answer is here and dealt with.
    pub(super) fn done(&mut self, number: StatSn) {
        if self.ahead.is_empty() && number == self.expected {
            self.expected = number.next();
            return;
        }
        self.mark(number, Mark::Done);
        while self.ahead.front() == Some(&Mark::Done) {
            self.ahead.pop_front();
            self.expected = self.expected.next();
        }
    }

    /// The answer is here, and is not to be acknowledged yet.
    pub(super) fn hold(&mut self, number: StatSn) {
        self.mark(number, Mark::Held);
    }

    /// The target has used every number before `next`. False if that cannot be.
    pub(super) fn announce(&mut self, next: StatSn) -> bool {
        let Ok(distance) = usize::try_from(next.since(self.expected)) else { return true };
        if distance > STATUS_AHEAD_MAX {
            return false;
        }
        if self.ahead.len() < distance {
            self.ahead.resize(distance, Mark::Missing);
        }
        true
    }

    fn mark(&mut self, number: StatSn, mark: Mark) {
        let Ok(distance) = usize::try_from(number.since(self.expected)) else { return };
        if distance >= STATUS_AHEAD_MAX {
            return; // refused by `check`
        }
        if self.ahead.len() <= distance {
            self.ahead.resize(distance + 1, Mark::Missing);
        }
        self.ahead[distance] = mark;
    }

    pub(super) fn is_missing(&self, number: StatSn) -> bool {
        let distance = usize::try_from(number.since(self.expected));
        distance.is_ok_and(|distance| self.ahead.get(distance) == Some(&Mark::Missing))
    }

    /// Runs of missing answers: the first one's number, and how many.
    pub(super) fn missing(&self) -> impl Iterator<Item = (StatSn, u32)> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let is_missing = |mark: &Mark| *mark == Mark::Missing;
            let begin = at + self.ahead.iter().skip(at).position(is_missing)?;
            let length = self.ahead.iter().skip(begin).take_while(|mark| is_missing(mark)).count();
            at = begin + length;
            Some((self.expected.plus(begin as u32), length as u32))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers() -> StatusNumbers {
        StatusNumbers::new(StatSn(u32::MAX - 1))
    }

    fn at(n: u32) -> StatSn {
        StatSn(u32::MAX - 1).plus(n)
    }

    #[test]
    fn without_a_hole_nothing_is_kept() {
        let mut numbers = numbers();
        for n in 0..5 {
            assert_eq!(numbers.check(at(n)), Arrival::Next);
            numbers.done(at(n));
        }
        assert_eq!(numbers.expected(), at(5));
        assert_eq!(numbers.ahead.capacity(), 0);
        assert_eq!(numbers.check(at(4)), Arrival::Duplicate);
    }

    #[test]
    fn a_hole_stops_the_acknowledgement_until_it_is_filled() {
        let mut numbers = numbers();
        for n in [1, 2, 5] {
            assert_eq!(numbers.check(at(n)), Arrival::Ahead);
            numbers.done(at(n));
        }
        assert_eq!(numbers.expected(), at(0));
        assert_eq!(numbers.missing().collect::<Vec<_>>(), [(at(0), 1), (at(3), 2)]);
        assert_eq!(numbers.check(at(2)), Arrival::Duplicate);
        numbers.done(at(0));
        assert_eq!(numbers.expected(), at(3));
        numbers.hold(at(3));
        numbers.done(at(4));
        assert_eq!(numbers.expected(), at(3), "held");
        assert_eq!(numbers.missing().count(), 0);
        assert_eq!(numbers.check(at(3)), Arrival::Duplicate);
        numbers.done(at(3));
        assert_eq!((numbers.expected(), numbers.next()), (at(6), at(6)));
    }

    #[test]
    fn what_a_target_announces_is_bounded() {
        let mut numbers = numbers();
        assert!(numbers.announce(at(0)));
        assert!(numbers.announce(at(3)));
        assert_eq!(numbers.missing().collect::<Vec<_>>(), [(at(0), 3)]);
        assert!(!numbers.announce(at(STATUS_AHEAD_MAX as u32 + 1)));
        assert_eq!(numbers.check(at(STATUS_AHEAD_MAX as u32)), Arrival::TooFar);
        numbers.done(at(STATUS_AHEAD_MAX as u32));
        assert_eq!(numbers.next(), at(3));
    }
}
