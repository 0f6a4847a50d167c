//! What is known of the blocks of one leg: which may differ, and which of these are on their way
//! to becoming stable there. Pure: no I/O, no time.
//!
//! A block is *clean*, or *dirty* (the bit is set): then it is under way, or *settled* (the leg has
//! answered, and a flush makes it clean), or *owed*: only a copy makes it clean. Bits are set
//! before anything is written anywhere, and cleared only for what a flush has covered that was
//! asked for after the leg had answered. Whoever loses the leg forgets what was under way and
//! settled; the bits stay, so it is owed.

use std::collections::VecDeque;
use std::ops::Range;

use super::super::bitmap::Bitmap;
use super::block_set::BlockSet;

/// The blocks of one leg.
pub(crate) struct Tracking {
    dirty: Bitmap,
    /// What the leg has answered, by the flush that will cover it. The newest is still open.
    settled: VecDeque<Round>,
    /// Blocks of operations under way. Overlaps are excluded by the range lock, so a block counts
    /// once.
    under_way: u64,
}

struct Round {
    number: u64,
    blocks: BlockSet,
}

/// A flush under way: what was settled when it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flushing(u64);

impl Tracking {
    /// With what may differ to begin with.
    pub(crate) fn new(dirty: Bitmap) -> Self {
        let open = Round { number: 0, blocks: BlockSet::default() };
        Self { dirty, settled: VecDeque::from([open]), under_way: 0 }
    }

    /// All that may differ; the caller notes which pages have been written down.
    pub(crate) fn dirty_mut(&mut self) -> &mut Bitmap {
        &mut self.dirty
    }

    /// Blocks that a copy has to bring.
    pub(crate) fn owed(&self) -> u64 {
        let settled: u64 = self.settled.iter().map(|round| round.blocks.count()).sum();
        self.dirty.count().saturating_sub(settled + self.under_way)
    }

    /// Blocks that the leg has answered and no flush has covered.
    pub(crate) fn unflushed(&self) -> u64 {
        self.settled.iter().map(|round| round.blocks.count()).sum()
    }

    /// A block among them is owed. Asked under the range lock, so that none of them is under way.
    pub(crate) fn any_owed(&self, blocks: Range<u64>) -> bool {
        self.first_owed(blocks).is_some()
    }

    /// The first run of owed blocks among `blocks`, as far as it goes; those under way count.
    pub(crate) fn first_owed(&self, blocks: Range<u64>) -> Option<Range<u64>> {
        let mut from = blocks.start;
        while from < blocks.end {
            let run = self.dirty.next_run(from, blocks.end)?;
            let settled = self.settled.iter();
            let first = settled.filter_map(|round| round.blocks.first_in(run.clone()));
            match first.min_by_key(|settled| settled.start) {
                Some(settled) if settled.start == run.start => from = settled.end,
                Some(settled) => return Some(run.start..settled.start),
                None => return Some(run),
            }
        }
        None
    }

    /// A change of `blocks` begins somewhere.
    pub(crate) fn changes(&mut self, blocks: Range<u64>) {
        self.dirty.set(blocks.clone());
        for round in &mut self.settled {
            round.blocks.remove(blocks.clone());
        }
    }

    /// They are being sent: `changes` was called for them, or they are owed.
    pub(crate) fn sends(&mut self, blocks: Range<u64>) {
        self.under_way += blocks.end - blocks.start;
    }

    /// The leg has answered.
    pub(crate) fn sent(&mut self, blocks: Range<u64>, well: bool) {
        self.under_way = self.under_way.saturating_sub(blocks.end - blocks.start);
        if well && let Some(open) = self.settled.back_mut() {
            open.blocks.insert(blocks);
        }
    }

    /// The leg has answered a change that was stable by then.
    pub(crate) fn sent_stable(&mut self, blocks: Range<u64>) {
        self.under_way = self.under_way.saturating_sub(blocks.end - blocks.start);
        self.dirty.clear(blocks);
    }

    /// The leg is about to be asked to flush.
    pub(crate) fn flushes(&mut self) -> Flushing {
        let number = self.settled.back().map_or(0, |round| round.number);
        self.settled.push_back(Round { number: number + 1, blocks: BlockSet::default() });
        Flushing(number)
    }

    /// It has flushed.
    pub(crate) fn flushed(&mut self, flush: Flushing) {
        while self.settled.front().is_some_and(|round| round.number <= flush.0) {
            let Some(round) = self.settled.pop_front() else { break };
            for blocks in round.blocks.ranges() {
                self.dirty.clear(blocks);
            }
        }
    }

    /// The leg is lost: what was on its way is owed.
    pub(crate) fn lost(&mut self) {
        let number = self.settled.back().map_or(0, |round| round.number + 1);
        self.settled = VecDeque::from([Round { number, blocks: BlockSet::default() }]);
        self.under_way = 0;
    }

    /// Everything may differ.
    pub(crate) fn all_differ(&mut self) {
        self.lost();
        self.dirty.set(0..self.dirty.blocks());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Tracking {
        fn dirty(&self) -> &Bitmap {
            &self.dirty
        }
    }

    fn tracking() -> Tracking {
        Tracking::new(Bitmap::new(100))
    }

    fn write(tracking: &mut Tracking, blocks: Range<u64>) {
        tracking.changes(blocks.clone());
        tracking.sends(blocks.clone());
        tracking.sent(blocks, true);
    }

    #[test]
    fn a_flush_cleans_what_was_answered_before_it_was_asked_for() {
        let mut tracking = tracking();
        write(&mut tracking, 0..4);
        tracking.changes(10..12);
        tracking.sends(10..12);
        let flush = tracking.flushes();
        tracking.sent(10..12, true);
        tracking.flushed(flush);
        assert_eq!((tracking.dirty().count(), tracking.owed()), (2, 0));
        let flush = tracking.flushes();
        tracking.flushed(flush);
        assert_eq!(tracking.dirty().count(), 0);
    }

    #[test]
    fn what_is_written_again_while_a_flush_is_under_way_stays_dirty() {
        let mut tracking = tracking();
        write(&mut tracking, 0..4);
        let flush = tracking.flushes();
        write(&mut tracking, 1..2);
        tracking.flushed(flush);
        assert_eq!(tracking.dirty().next_run(0, 100), Some(1..2));
        assert_eq!(tracking.owed(), 0);
    }

    #[test]
    fn flushes_that_end_in_another_order_clean_no_more_than_each_covers() {
        let mut tracking = tracking();
        write(&mut tracking, 0..1);
        let first = tracking.flushes();
        write(&mut tracking, 1..2);
        let second = tracking.flushes();
        write(&mut tracking, 2..3);
        tracking.flushed(second);
        assert_eq!(tracking.dirty().next_run(0, 100), Some(2..3));
        tracking.flushed(first);
        assert_eq!(tracking.dirty().next_run(0, 100), Some(2..3));
    }

    #[test]
    fn a_lost_leg_is_owed_whatever_no_flush_covered() {
        let mut tracking = tracking();
        write(&mut tracking, 0..2);
        let flush = tracking.flushes();
        write(&mut tracking, 4..6);
        tracking.changes(8..9);
        tracking.sends(8..9);
        tracking.lost();
        tracking.flushed(flush);
        assert_eq!(tracking.owed(), 5);
        assert!(tracking.any_owed(8..20) && tracking.any_owed(0..1) && !tracking.any_owed(2..4));
    }

    #[test]
    fn what_failed_is_owed() {
        let mut tracking = tracking();
        tracking.changes(3..5);
        tracking.sends(3..5);
        tracking.sent(3..5, false);
        assert_eq!(tracking.first_owed(0..100), Some(3..5));
    }

    #[test]
    fn runs_of_owed_blocks_leave_out_the_settled_ones() {
        let mut tracking = tracking();
        tracking.changes(0..20);
        tracking.sends(0..3);
        tracking.sent(0..3, true);
        let _ = tracking.flushes();
        tracking.sends(10..12);
        tracking.sent(10..12, true);
        assert_eq!(tracking.first_owed(0..100), Some(3..10));
        assert_eq!(tracking.first_owed(10..100), Some(12..20));
        assert_eq!(tracking.first_owed(20..100), None);
        assert_eq!(tracking.owed(), 15);
    }
}
