//! What was acknowledged to us but may still sit in the target's volatile cache.
//!
//! A target with WCE = 1 may lose acknowledged writes when it loses power; a flush that succeeds
//! after its restart would then vouch for data that is gone. So every such write is kept (a
//! shared handle, not a copy) until a flush covers it.
//!
//! Kept as disjoint pieces with the newest content: an older overlapped part is cut away when a
//! newer write is acknowledged, so the order in which they are written again does not matter. Two
//! writes that overlap while both are under way have no order; writing again may settle on the
//! other one than the target did.
//!
//! Not here: when anything is written again. Not kept: writes with FUA.

use std::collections::BTreeMap;

use bytes::Bytes;

/// What a piece reads as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// This data.
    Data(Bytes),
    /// Zeroes, this many bytes.
    Zeroes(u64),
}

impl Content {
    /// Length in bytes.
    pub fn len(&self) -> u64 {
        match self {
            Self::Data(data) => data.len() as u64,
            Self::Zeroes(len) => *len,
        }
    }

    /// No bytes at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn slice(&self, from: u64, to: u64) -> Self {
        match self {
            Self::Data(data) => Self::Data(data.slice(from as usize..to as usize)),
            Self::Zeroes(_) => Self::Zeroes(to - from),
        }
    }

    fn cost(&self) -> u64 {
        PIECE_COST
            + match self {
                Self::Data(data) => data.len() as u64,
                Self::Zeroes(_) => 0,
            }
    }
}

/// Bookkeeping per piece in bytes, so that many small ones also reach the limit.
const PIECE_COST: u64 = 128;

#[derive(Clone, Debug)]
struct Piece {
    content: Content,
    /// When it was acknowledged, in the series of `Unflushed::clock`.
    acknowledged: u64,
}

/// A point in the order of acknowledgements: what came before it is covered by a flush begun now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark(u64);

/// Acknowledged, unflushed content by offset.
#[derive(Clone, Debug)]
pub struct Unflushed {
    pieces: BTreeMap<u64, Piece>,
    cost: u64,
    clock: u64,
    limit: u64,
}

impl Unflushed {
    /// Keeps up to about `limit` bytes.
    pub fn new(limit: u64) -> Self {
        Self { pieces: BTreeMap::new(), cost: 0, clock: 0, limit }
    }

    /// A write, or zeroing, was acknowledged without being stable.
    pub fn acknowledged(&mut self, offset: u64, content: Content) {
        self.cut(offset, content.len());
        if content.is_empty() {
            return;
        }
        self.clock += 1;
        self.cost += content.cost();
        self.pieces.insert(offset, Piece { content, acknowledged: self.clock });
    }

    /// The range is stable, or its content no longer matters.
    pub fn forget(&mut self, offset: u64, len: u64) {
        self.cut(offset, len);
    }

    /// Of the range, forgets what was acknowledged before `mark` was taken.
    pub fn forget_before(&mut self, offset: u64, len: u64, mark: Mark) {
        self.cut_if(offset, len, |piece| piece.acknowledged <= mark.0);
    }

    /// To be taken before a flush is sent.
    pub const fn mark(&self) -> Mark {
        Mark(self.clock)
    }

    /// A flush that was sent after `mark` was taken has succeeded.
    pub fn flushed(&mut self, mark: Mark) {
        let cost = &mut self.cost;
        self.pieces.retain(|_, piece| {
            let stays = piece.acknowledged > mark.0;
            if !stays {
                *cost -= piece.content.cost();
            }
            stays
        });
    }

    /// Half full: time for a flush of our own.
    pub const fn wants_flush(&self) -> bool {
        self.cost > self.limit / 2
    }

    /// Full: writes wait for a flush.
    pub const fn is_full(&self) -> bool {
        self.cost > self.limit
    }

    /// Bytes that are kept at most, about.
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// Nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.pieces.clear();
        self.cost = 0;
    }

    /// Pieces that begin at `from` or later, of about `cost` bytes and at least one, and where the
    /// next ones begin.
    pub fn portion(&self, from: u64, cost: u64) -> (Vec<(u64, Content)>, u64) {
        let (mut found, mut sum) = (Vec::new(), 0);
        for (offset, piece) in self.pieces.range(from..) {
            if sum >= cost {
                return (found, *offset);
            }
            sum += piece.content.cost();
            found.push((*offset, piece.content.clone()));
        }
        (found, u64::MAX)
    }

    /// Forgets the pieces that begin in the range.
    pub fn forget_beginning_in(&mut self, range: std::ops::Range<u64>) {
        let gone: Vec<u64> = self.pieces.range(range).map(|(offset, _)| *offset).collect();
        for offset in gone {
            if let Some(piece) = self.pieces.remove(&offset) {
                self.cost -= piece.content.cost();
            }
        }
    }

    /// Everything to be written again, by offset.
    pub fn pieces(&self) -> Vec<(u64, Content)> {
        self.pieces.iter().map(|(offset, piece)| (*offset, piece.content.clone())).collect()
    }

    /// Bytes held, with bookkeeping.
    pub const fn cost(&self) -> u64 {
        self.cost
    }

    /// Cuts a range out of all pieces.
    fn cut(&mut self, offset: u64, len: u64) {
        self.cut_if(offset, len, |_| true);
    }

    /// Cuts a range out of those pieces.
    fn cut_if(&mut self, offset: u64, len: u64, which: impl Fn(&Piece) -> bool) {
        let end = offset.saturating_add(len);
        let before = self.pieces.range(..offset).next_back();
        let from = match before {
            Some((start, piece)) if start + piece.content.len() > offset => *start,
            _ => offset,
        };
        let hit: Vec<u64> = self.pieces.range(from..end).map(|(start, _)| *start).collect();
        for start in hit {
            let Some(piece) = self.pieces.get(&start).filter(|piece| which(piece)).cloned() else {
                continue;
            };
            self.pieces.remove(&start);
            self.cost -= piece.content.cost();
            let len = piece.content.len();
            if start < offset {
                self.put_back(start, &piece, 0, offset - start);
            }
            if start + len > end {
                self.put_back(end, &piece, end - start, len);
            }
        }
    }

    fn put_back(&mut self, at: u64, piece: &Piece, from: u64, to: u64) {
        let content = piece.content.slice(from, to);
        self.cost += content.cost();
        self.pieces.insert(at, Piece { content, acknowledged: piece.acknowledged });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn data(byte: u8, len: usize) -> Content {
        Content::Data(Bytes::from(vec![byte; len]))
    }

    #[test]
    fn a_newer_write_cuts_the_older_one() {
        let mut log = Unflushed::new(1 << 20);
        log.acknowledged(0, data(1, 100));
        log.acknowledged(40, data(2, 20));
        assert_eq!(log.pieces(), [(0, data(1, 40)), (40, data(2, 20)), (60, data(1, 40))]);
        log.acknowledged(30, Content::Zeroes(50));
        assert_eq!(log.pieces(), [(0, data(1, 30)), (30, Content::Zeroes(50)), (80, data(1, 20))]);
    }

    #[test]
    fn a_flush_covers_what_was_acknowledged_before_it_began() {
        let mut log = Unflushed::new(1 << 20);
        log.acknowledged(0, data(1, 10));
        let mark = log.mark();
        log.acknowledged(5, data(2, 10));
        log.flushed(mark);
        assert_eq!(log.pieces(), [(5, data(2, 10))]);
        log.flushed(log.mark());
        assert_eq!((log.pieces().len(), log.cost()), (0, 0));
    }

    #[test]
    fn a_stable_write_is_never_overwritten_by_an_older_one() {
        let mut log = Unflushed::new(1 << 20);
        log.acknowledged(0, data(1, 30));
        log.forget(10, 10);
        assert_eq!(log.pieces(), [(0, data(1, 10)), (20, data(1, 10))]);
    }

    #[test]
    fn limits_are_reached() {
        let mut log = Unflushed::new(1000);
        log.acknowledged(0, data(1, 300));
        assert!(!log.wants_flush() && !log.is_full());
        log.acknowledged(1000, data(1, 300));
        assert!(log.wants_flush() && !log.is_full());
        log.acknowledged(2000, data(1, 300));
        assert!(log.is_full());
    }

    #[derive(Clone, Debug)]
    enum Step {
        Write(u64, usize),
        Zero(u64, u64),
        Stable(u64, usize),
        Flush,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..90u64, 1..30usize).prop_map(|(o, l)| Step::Write(o, l)),
            1 => (0..90u64, 1..30u64).prop_map(|(o, l)| Step::Zero(o, l)),
            1 => (0..90u64, 1..30usize).prop_map(|(o, l)| Step::Stable(o, l)),
            1 => Just(Step::Flush),
        ]
    }

    proptest! {
        /// The disk loses its cache at the end; replay must restore every acknowledged byte.
        #[test]
        fn replay_restores_what_was_acknowledged(steps in prop::collection::vec(step(), 1..60)) {
            let mut log = Unflushed::new(1 << 20);
            let (mut stable, mut seen) = ([0u8; 128], [0u8; 128]);
            for (n, step) in steps.into_iter().enumerate() {
                let byte = n as u8 + 1;
                match step {
                    Step::Write(at, len) => {
                        seen[at as usize..][..len].fill(byte);
                        log.acknowledged(at, data(byte, len));
                    }
                    Step::Zero(at, len) => {
                        seen[at as usize..][..len as usize].fill(0);
                        log.acknowledged(at, Content::Zeroes(len));
                    }
                    Step::Stable(at, len) => {
                        seen[at as usize..][..len].fill(byte);
                        stable[at as usize..][..len].fill(byte);
                        log.forget(at, len as u64);
                    }
                    Step::Flush => {
                        stable = seen;
                        log.flushed(log.mark());
                    }
                }
                let cost: u64 = log.pieces().iter().map(|(_, c)| c.cost()).sum();
                prop_assert_eq!(cost, log.cost());
            }
            for (at, content) in log.pieces() {
                let range = at as usize..(at + content.len()) as usize;
                match content {
                    Content::Data(data) => stable[range].copy_from_slice(&data),
                    Content::Zeroes(_) => stable[range].fill(0),
                }
            }
            prop_assert_eq!(stable, seen);
        }
    }
}
