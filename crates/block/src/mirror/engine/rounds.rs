//! [`Rounds`]: blocks that a flush will make clean, by the flush that covers them. Pure.
//!
//! Flushes may end in another order than they were asked for; each covers what was put in before it
//! was asked for, and no more.

use std::collections::VecDeque;
use std::ops::Range;

use super::block_set::BlockSet;

/// Blocks by the flush that covers them.
pub(crate) struct Rounds {
    /// The newest is still open. There is always one.
    queue: VecDeque<Round>,
}

struct Round {
    number: u64,
    blocks: BlockSet,
}

impl Default for Rounds {
    fn default() -> Self {
        Self { queue: VecDeque::from([Round { number: 0, blocks: BlockSet::default() }]) }
    }
}

impl Rounds {
    /// Blocks in all of them.
    pub(crate) fn count(&self) -> u64 {
        self.queue.iter().map(|round| round.blocks.count()).sum()
    }

    /// The first range of them within `blocks`.
    pub(crate) fn first_in(&self, blocks: Range<u64>) -> Option<Range<u64>> {
        let each = self.queue.iter().filter_map(|round| round.blocks.first_in(blocks.clone()));
        each.min_by_key(|found| found.start)
    }

    /// The next flush covers these.
    pub(crate) fn insert(&mut self, blocks: Range<u64>) {
        if let Some(open) = self.queue.back_mut() {
            open.blocks.insert(blocks);
        }
    }

    /// No flush that was asked for covers these.
    pub(crate) fn remove(&mut self, blocks: Range<u64>) {
        for round in &mut self.queue {
            round.blocks.remove(blocks.clone());
        }
    }

    /// A flush is about to be asked for: its number.
    pub(crate) fn begin(&mut self) -> u64 {
        let number = self.queue.back().map_or(0, |round| round.number);
        self.queue.push_back(Round { number: number + 1, blocks: BlockSet::default() });
        number
    }

    /// A flush has ended well: what it covers, which is taken out.
    pub(crate) fn end(&mut self, flush: u64) -> Vec<Range<u64>> {
        let mut covered = Vec::new();
        while self.queue.front().is_some_and(|round| round.number <= flush) {
            let Some(round) = self.queue.pop_front() else { break };
            covered.extend(round.blocks.ranges());
        }
        covered
    }

    /// No flush that was asked for covers anything.
    pub(crate) fn clear(&mut self) {
        let number = self.queue.back().map_or(0, |round| round.number + 1);
        self.queue = VecDeque::from([Round { number, blocks: BlockSet::default() }]);
    }
}
