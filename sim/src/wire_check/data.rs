//! Data-Out as the observer counts it: the sequences under way, and what has come.

use std::collections::BTreeMap;

use iscsi_proto::ids::Ttt;
use iscsi_proto::time::Instant;

use super::task::Rules;

/// A sequence of Data-Out PDUs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sequence {
    pub(super) ttt: Ttt,
    pub(super) next_sn: u32,
    pub(super) next_offset: u32,
    pub(super) end: u32,
    /// Some of it was asked for again: the target waits for that instead.
    pub(super) superseded: bool,
    /// When it was asked for, or data of it was sent.
    pub(super) moved: Instant,
}

impl Sequence {
    pub(super) const fn new(ttt: Ttt, next_offset: u32, end: u32, moved: Instant) -> Self {
        Self { ttt, next_sn: 0, next_offset, end, superseded: false, moved }
    }

    /// The target waits for it: it did not ask for it anew, and has no reason to take it for lost.
    /// After a sequence reception timeout an R2T is not outstanding any more (§13.17).
    pub(super) fn is_outstanding(&self, at: Instant, (params, data_timeout): Rules<'_>) -> bool {
        let timed_out = params.error_recovery_level > 0 && self.moved + data_timeout <= at;
        !self.superseded && !timed_out
    }
}

/// Ranges of bytes, apart from each other.
#[derive(Debug, Default)]
pub(super) struct Ranges(BTreeMap<u32, u32>);

impl Ranges {
    pub(super) fn add(&mut self, mut from: u32, mut to: u32) {
        if from >= to {
            return;
        }
        let touching: Vec<(u32, u32)> =
            self.0.range(..=to).filter(|(_, end)| **end >= from).map(|(f, t)| (*f, *t)).collect();
        for (start, end) in touching {
            self.0.remove(&start);
            (from, to) = (from.min(start), to.max(end));
        }
        self.0.insert(from, to);
    }

    pub(super) fn holds(&self, from: u32, to: u32) -> bool {
        from >= to || self.0.range(..=from).next_back().is_some_and(|(_, end)| *end >= to)
    }
}

#[cfg(test)]
mod tests {
    use super::Ranges;

    #[test]
    fn ranges_join_when_they_touch() {
        let mut ranges = Ranges::default();
        for (from, to) in [(10, 20), (30, 40), (0, 5)] {
            ranges.add(from, to);
        }
        assert!(ranges.holds(12, 20) && ranges.holds(7, 7) && !ranges.holds(10, 21));
        ranges.add(20, 30);
        assert!(ranges.holds(10, 40) && !ranges.holds(5, 10));
        ranges.add(3, 12);
        assert!(ranges.holds(0, 40) && !ranges.holds(0, 41));
    }
}
