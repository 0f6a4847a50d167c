//! What is known of the blocks of one leg: which may differ, and which of these are on their way
//! to becoming stable there. Pure: no I/O, no time.
//!
//! A block is *clean*, or *dirty* (the bit is set). A dirty block is one of these:
//! *under way* (being sent, its range held meanwhile); *copying* (being sent by a copy, which does
//! not hold its range: changed meanwhile, it is owed again once that has ended); *settled* (the leg
//! has answered, and a flush of both sides makes it clean); *logged* (the epoch log brings it, in
//! order); *stamped* (what the log has brought is stable at the leg, and a flush here makes it
//! clean); or *owed*: only a copy makes it clean.
//!
//! Bits are set before anything is written anywhere, and cleared only for what is stable on both
//! sides. Whoever loses the leg forgets what was under way and settled; whoever gives up the log
//! forgets that it was logged. The bits stay, so it is owed.

use std::ops::Range;

use super::super::bitmap::Bitmap;
use super::block_set::BlockSet;
use super::rounds::Rounds;

/// The blocks of one leg.
pub(crate) struct Tracking {
    dirty: Bitmap,
    /// What the leg has answered.
    settled: Rounds,
    /// What the log has made stable at the leg.
    stamped: Rounds,
    /// What the log brings.
    logged: BlockSet,
    /// Blocks that the log has made stable at the leg before the local device has answered.
    early: BlockSet,
    /// Blocks in the log that the local device has failed to write: nobody knows what it holds.
    doubtful: BlockSet,
    /// Blocks of operations under way. Overlaps are excluded by the range lock, so a block counts
    /// once.
    under_way: u64,
    /// What a copy sends. Nothing else may be sent there before that has ended: it could be
    /// overtaken.
    copying: BlockSet,
    /// Those of `copying` that were changed since the copy has read them.
    overtaken: BlockSet,
}

/// A flush under way: what was settled and stamped when it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flushing {
    /// None where the leg is not asked.
    settled: Option<u64>,
    stamped: u64,
}

impl Tracking {
    /// With what may differ to begin with.
    pub(crate) fn new(dirty: Bitmap) -> Self {
        let (settled, stamped) = (Rounds::default(), Rounds::default());
        let (logged, early, doubtful) = Default::default();
        let (copying, overtaken, under_way) = Default::default();
        Self { dirty, settled, stamped, logged, early, doubtful, under_way, copying, overtaken }
    }

    /// All that may differ; the caller notes which pages have been written down.
    pub(crate) fn dirty_mut(&mut self) -> &mut Bitmap {
        &mut self.dirty
    }

    /// Nothing may differ.
    pub(crate) fn is_clean(&self) -> bool {
        self.dirty.count() == 0
    }

    /// Blocks that a copy has to bring.
    pub(crate) fn owed(&self) -> u64 {
        let copying = self.copying.count() - self.overtaken.count();
        let on_their_way = self.unflushed() + self.logged.count() + self.under_way + copying;
        self.dirty.count().saturating_sub(on_their_way)
    }

    /// Blocks that may differ and that the log does not bring, whatever is under way to the leg.
    pub(crate) fn not_logged(&self) -> u64 {
        self.dirty.count().saturating_sub(self.logged.count())
    }

    /// Blocks that wait for nothing but a flush.
    pub(crate) fn unflushed(&self) -> u64 {
        self.settled.count() + self.stamped.count()
    }

    /// A block among them is owed, or a copy is bringing it. Asked under the range lock, so that
    /// none of them is under way.
    pub(crate) fn any_owed(&self, blocks: Range<u64>) -> bool {
        self.first_owed(blocks).is_some()
    }

    /// The log has not brought one of them yet.
    pub(crate) fn any_logged(&self, blocks: Range<u64>) -> bool {
        self.logged.first_in(blocks).is_some()
    }

    /// The first run of owed blocks among `blocks`, as far as it goes; those under way, and those
    /// that a copy is bringing, count.
    pub(crate) fn first_owed(&self, blocks: Range<u64>) -> Option<Range<u64>> {
        self.first_dirty_but(&[], blocks)
    }

    /// As [`first_owed`](Self::first_owed), without those that a copy is bringing.
    pub(crate) fn first_to_copy(&self, blocks: Range<u64>) -> Option<Range<u64>> {
        self.first_dirty_but(&[&self.copying], blocks)
    }

    /// The first run of dirty blocks that wait for neither a flush nor the log, and are not in
    /// `others`.
    fn first_dirty_but(&self, others: &[&BlockSet], blocks: Range<u64>) -> Option<Range<u64>> {
        let mut from = blocks.start;
        while from < blocks.end {
            let run = self.dirty.next_run(from, blocks.end)?;
            let waiting = [
                self.settled.first_in(run.clone()),
                self.stamped.first_in(run.clone()),
                self.logged.first_in(run.clone()),
            ];
            let others = others.iter().map(|set| set.first_in(run.clone()));
            match waiting.into_iter().chain(others).flatten().min_by_key(|other| other.start) {
                Some(other) if other.start == run.start => from = other.end,
                Some(other) => return Some(run.start..other.start),
                None => return Some(run),
            }
        }
        None
    }

    /// A change of `blocks` begins somewhere.
    pub(crate) fn changes(&mut self, blocks: Range<u64>) {
        self.dirty.set(blocks.clone());
        self.settled.remove(blocks.clone());
        self.stamped.remove(blocks.clone());
        for changed in parts_in(&self.copying, blocks) {
            self.overtaken.insert(changed);
        }
    }

    /// A copy sends them; the caller holds their range now, and need not until it has ended.
    pub(crate) fn copies(&mut self, blocks: Range<u64>) {
        self.copying.insert(blocks);
    }

    /// That has ended. Returns what the leg has got as it still is here.
    pub(crate) fn copied(&mut self, blocks: Range<u64>, well: bool) -> Vec<Range<u64>> {
        let mut got = Vec::new();
        for part in parts_in(&self.copying, blocks) {
            if well {
                got.extend(without(part.clone(), &self.overtaken));
            }
            self.copying.remove(part.clone());
            self.overtaken.remove(part);
        }
        for blocks in &got {
            self.settled.insert(blocks.clone());
        }
        got
    }

    /// They are being sent: `changes` was called for them, or they are owed.
    pub(crate) fn sends(&mut self, blocks: Range<u64>) {
        self.under_way += blocks.end - blocks.start;
    }

    /// The leg has answered.
    pub(crate) fn sent(&mut self, blocks: Range<u64>, well: bool) {
        self.under_way = self.under_way.saturating_sub(blocks.end - blocks.start);
        if well {
            self.settled.insert(blocks);
        }
    }

    /// The leg has answered a change that was stable by then.
    pub(crate) fn sent_stable(&mut self, blocks: Range<u64>) {
        self.under_way = self.under_way.saturating_sub(blocks.end - blocks.start);
        self.dirty.clear(blocks);
    }

    /// The log brings these: `changes` was called for them, or they are owed.
    pub(crate) fn logs(&mut self, blocks: Range<u64>) {
        self.logged.insert(blocks);
    }

    /// Blocks that `logs` was called for are left to a copy.
    pub(crate) fn left_to_copy(&mut self, blocks: Range<u64>) {
        self.logged.remove(blocks);
    }

    /// The log has brought these, and they are stable at the leg. Those in `issuing` the local
    /// device has not answered.
    pub(crate) fn stamped(&mut self, blocks: Range<u64>, issuing: &BlockSet) {
        for brought in parts_in(&self.logged, blocks) {
            for wrong in parts_in(&self.doubtful, brought.clone()) {
                self.doubtful.remove(wrong.clone());
                self.logged.remove(wrong.clone());
                self.early.remove(wrong);
            }
            for early in parts_in(issuing, brought.clone()) {
                self.early.insert(early);
            }
            for brought in parts_in(&self.logged, brought.clone()) {
                for ready in without(brought, &self.early) {
                    self.logged.remove(ready.clone());
                    self.stamped.insert(ready);
                }
            }
        }
    }

    /// The local device has answered.
    pub(crate) fn ended_here(&mut self, blocks: Range<u64>, well: bool) {
        for early in parts_in(&self.early, blocks.clone()) {
            self.early.remove(early.clone());
            self.logged.remove(early.clone());
            if well {
                self.stamped.insert(early);
            }
        }
        if !well {
            for doubtful in parts_in(&self.logged, blocks) {
                self.doubtful.insert(doubtful);
            }
        }
    }

    /// Both sides are about to be asked to flush, or only this one.
    pub(crate) fn flushes(&mut self, there_too: bool) -> Flushing {
        let settled = there_too.then(|| self.settled.begin());
        Flushing { settled, stamped: self.stamped.begin() }
    }

    /// They have flushed.
    pub(crate) fn flushed(&mut self, flush: Flushing) {
        let settled = flush.settled.map_or_else(Vec::new, |flush| self.settled.end(flush));
        let stamped = self.stamped.end(flush.stamped);
        for blocks in settled.into_iter().chain(stamped) {
            self.dirty.clear(blocks);
        }
    }

    /// The way to the leg is lost: what was on it is owed. The log goes on.
    pub(crate) fn line_lost(&mut self) {
        self.settled.clear();
        self.under_way = 0;
        (self.copying, self.overtaken) = Default::default();
    }

    /// The leg is given up: what was on its way is owed.
    pub(crate) fn lost(&mut self) {
        self.line_lost();
        self.stamped.clear();
        (self.logged, self.early, self.doubtful) = Default::default();
    }

    /// Everything may differ.
    pub(crate) fn all_differ(&mut self) {
        self.lost();
        self.dirty.set(0..self.dirty.blocks());
    }
}

/// The parts of `set` within `blocks`.
fn parts_in(set: &BlockSet, blocks: Range<u64>) -> Vec<Range<u64>> {
    let mut parts = Vec::new();
    let mut from = blocks.start;
    while let Some(part) = set.first_in(from..blocks.end) {
        from = part.end;
        parts.push(part);
    }
    parts
}

/// The parts of `blocks` that are not in `set`.
fn without(blocks: Range<u64>, set: &BlockSet) -> Vec<Range<u64>> {
    let mut parts = Vec::new();
    let mut from = blocks.start;
    for hole in parts_in(set, blocks.clone()) {
        parts.push(from..hole.start);
        from = hole.end;
    }
    parts.push(from..blocks.end);
    parts.retain(|part| !part.is_empty());
    parts
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
        let flush = tracking.flushes(true);
        tracking.sent(10..12, true);
        tracking.flushed(flush);
        assert_eq!((tracking.dirty().count(), tracking.owed()), (2, 0));
        let flush = tracking.flushes(true);
        tracking.flushed(flush);
        assert_eq!(tracking.dirty().count(), 0);
    }

    #[test]
    fn what_is_written_again_while_a_flush_is_under_way_stays_dirty() {
        let mut tracking = tracking();
        write(&mut tracking, 0..4);
        let flush = tracking.flushes(true);
        write(&mut tracking, 1..2);
        tracking.flushed(flush);
        assert_eq!(tracking.dirty().next_run(0, 100), Some(1..2));
        assert_eq!(tracking.owed(), 0);
    }

    #[test]
    fn flushes_that_end_in_another_order_clean_no_more_than_each_covers() {
        let mut tracking = tracking();
        write(&mut tracking, 0..1);
        let first = tracking.flushes(true);
        write(&mut tracking, 1..2);
        let second = tracking.flushes(true);
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
        let flush = tracking.flushes(true);
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
        let _ = tracking.flushes(true);
        tracking.sends(10..12);
        tracking.sent(10..12, true);
        assert_eq!(tracking.first_owed(0..100), Some(3..10));
        assert_eq!(tracking.first_owed(10..100), Some(12..20));
        assert_eq!(tracking.first_owed(20..100), None);
        assert_eq!(tracking.owed(), 15);
    }

    #[test]
    fn what_is_changed_while_a_copy_brings_it_is_owed_again_and_not_sent_before_that_has_ended() {
        let mut tracking = tracking();
        tracking.changes(0..8);
        tracking.copies(0..8);
        assert_eq!((tracking.owed(), tracking.first_to_copy(0..100)), (0, None));
        assert!(tracking.any_owed(0..8), "nothing else may be sent there");
        tracking.changes(2..4);
        assert_eq!((tracking.owed(), tracking.first_to_copy(0..100)), (2, None));
        assert_eq!(tracking.copied(0..8, true), [0..2, 4..8]);
        assert_eq!((tracking.owed(), tracking.first_to_copy(0..100)), (2, Some(2..4)));
        let flush = tracking.flushes(true);
        tracking.flushed(flush);
        assert_eq!(tracking.dirty().next_run(0, 100), Some(2..4));
        assert_eq!(tracking.dirty().count(), 2);
    }

    #[test]
    fn a_copy_that_failed_or_whose_leg_was_lost_leaves_all_of_it_owed() {
        let mut tracking = tracking();
        tracking.changes(0..8);
        tracking.copies(0..4);
        assert!(tracking.copied(0..4, false).is_empty());
        assert_eq!(tracking.first_to_copy(0..100), Some(0..8));
        tracking.copies(0..8);
        tracking.changes(1..2);
        tracking.lost();
        assert_eq!((tracking.owed(), tracking.first_to_copy(0..100)), (8, Some(0..8)));
        assert!(tracking.copied(0..8, true).is_empty(), "an answer of before");
    }

    fn none() -> BlockSet {
        BlockSet::default()
    }

    #[test]
    fn what_the_log_brings_is_clean_when_it_is_stable_on_both_sides() {
        let mut tracking = tracking();
        tracking.changes(0..4);
        tracking.logs(0..4);
        assert_eq!(tracking.owed(), 0);
        let before = tracking.flushes(false);
        tracking.stamped(0..4, &none());
        tracking.flushed(before);
        assert_eq!(tracking.dirty().count(), 4, "that flush was asked for before");
        let flush = tracking.flushes(false);
        tracking.changes(1..2); // written again while the flush is under way
        tracking.logs(1..2);
        tracking.flushed(flush);
        assert_eq!((tracking.dirty().next_run(0, 100), tracking.owed()), (Some(1..2), 0));
        assert!(tracking.any_logged(0..4) && !tracking.any_logged(2..9));
    }

    #[test]
    fn a_leg_that_is_ahead_of_the_local_device_waits_for_it() {
        let mut tracking = tracking();
        tracking.changes(0..4);
        tracking.logs(0..4);
        let mut issuing = BlockSet::default();
        issuing.insert(2..8);
        tracking.stamped(0..4, &issuing);
        let flush = tracking.flushes(false);
        tracking.flushed(flush);
        assert_eq!(tracking.dirty().next_run(0, 100), Some(2..4));
        tracking.ended_here(2..8, true);
        let flush = tracking.flushes(false);
        tracking.flushed(flush);
        assert_eq!((tracking.dirty().count(), tracking.owed()), (0, 0));
    }

    #[test]
    fn what_failed_here_is_owed_once_the_log_has_brought_it() {
        let mut tracking = tracking();
        tracking.changes(0..4);
        tracking.logs(0..4);
        tracking.ended_here(0..2, false);
        assert_eq!(tracking.owed(), 0, "a copy would be overtaken by the log");
        tracking.stamped(0..4, &none());
        assert_eq!(tracking.first_owed(0..100), Some(0..2));
        let mut issuing = BlockSet::default();
        issuing.insert(8..9);
        tracking.changes(8..9);
        tracking.logs(8..9);
        tracking.stamped(8..9, &issuing);
        tracking.ended_here(8..9, false);
        assert_eq!(tracking.first_owed(2..100), Some(8..9));
        let flush = tracking.flushes(false);
        tracking.flushed(flush);
        assert_eq!((tracking.dirty().count(), tracking.owed()), (3, 3));
    }

    #[test]
    fn a_lost_line_leaves_the_log_alone_and_giving_it_up_does_not() {
        let mut tracking = tracking();
        tracking.changes(0..6);
        tracking.logs(0..4);
        tracking.stamped(0..2, &none());
        tracking.sends(4..6);
        tracking.sent(4..6, true);
        assert_eq!(tracking.owed(), 0);
        tracking.line_lost();
        assert_eq!(tracking.first_owed(0..100), Some(4..6));
        tracking.lost();
        assert_eq!(tracking.owed(), 6);
    }
}
