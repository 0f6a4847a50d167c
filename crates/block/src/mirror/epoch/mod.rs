//! [`EpochLog`]: what is to be sent to the legs of an asynchronous mirror, and in which steps.
//!
//! Writes are gathered in epochs. An epoch is closed just before a flush or a forced write is told
//! complete, if it covers something of that epoch. A leg gets the epochs one after the other:
//! nothing of one is sent before all of the one before is stable there. Inside an epoch any order,
//! any part, and leaving out what is overwritten are right.
//!
//! Why this keeps a legal image at the leg: let it hold all epochs below k and any part of k. Take
//! the moment just before the end of k was told. A flush told before that moment has ended an epoch
//! below k, and what it covers was written before that end, so it is there. What is there was
//! written before that moment. A disk with a volatile cache may hold just that after a power cut at
//! that moment.
//!
//! Closing early is always right. An epoch that was closed early (for its age, its size) may go
//! together with the next one as if it had not been, so a leg with a long way gets fewer and larger
//! steps than a near one.
//!
//! A stamp at the leg names the last epoch that is stable there. After a loss what follows it is
//! sent again. A leg goes back within the step behind its stamp, so the image stays one of those.
//!
//! Not here: I/O, clocks (`now` is an argument), what a leg lacks besides, when a write waits.

mod cursor;
mod folded;
mod piece;
pub(super) mod range_map;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

pub use cursor::{Backlog, Resume};
pub use folded::Unsent;
pub use piece::{Batch, Content, PIECE_OVERHEAD_BYTES, Piece};

use super::{BLOCK_BYTES, LEGS_MAX};
use cursor::Cursor;
use piece::Pieces;
use range_map::{Cut, RangeMap, intersection, joined, without};

/// An epoch is closed at this age, if a leg has nothing else to send: what a leg that follows
/// without delay is behind. Shorter means a flush at the leg more often.
pub const EPOCH_AGE_MAX: Duration = Duration::from_millis(100);

/// An epoch is closed at this size: memory is given back in such steps.
pub const EPOCH_BYTES_MAX: u64 = 16 << 20;

/// Epochs that were closed early go together up to so many times the size at which one is closed:
/// 64 MiB are half a second of 1 Gbit/s, beside which two round trips of 50 ms are one part in six.
pub const BATCH_EPOCHS: u64 = 4;

/// It is not closed for its size below this: a step costs round trips.
pub const EPOCH_BYTES_MIN: u64 = 64 << 10;

/// A set of legs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Legs(u8);

impl Legs {
    fn one(leg: usize) -> Self {
        Self(1 << leg)
    }

    fn contains(self, leg: usize) -> bool {
        self.0 & (1 << leg) != 0
    }

    fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

/// The newest write of a range: its epoch, and which legs get it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Newest {
    epoch: u64,
    legs: Legs,
}

impl Cut for Newest {
    fn part(&self, _at: u64, _len: u64) -> Self {
        *self
    }
}

/// Writes between two ends.
#[derive(Debug)]
struct Epoch {
    number: u64,
    pieces: Pieces,
    /// Legs that get at least one piece of it.
    legs: Legs,
    /// When its first write was issued.
    opened: Duration,
    /// When it was closed.
    closed: Duration,
    /// A flush or a forced write that is told complete depends on this end.
    hard: bool,
}

impl Epoch {
    fn new(number: u64) -> Self {
        let (pieces, legs) = Default::default();
        Self { number, pieces, legs, opened: Duration::MAX, closed: Duration::MAX, hard: false }
    }
}

/// The writes that are not known to be stable at all legs that follow, in epochs.
#[derive(Debug)]
pub struct EpochLog {
    /// In order of their numbers, none of them empty.
    closed: VecDeque<Epoch>,
    open: Epoch,
    /// No flush or forced write depends on an end after this epoch's.
    hard_through: u64,
    /// Of each byte in the log.
    newest: RangeMap<Newest>,
    cursors: [Option<Cursor>; LEGS_MAX],
    held_bytes: u64,
    /// An epoch is closed at this size.
    epoch_bytes_max: u64,
}

impl EpochLog {
    /// An empty log whose first epoch has the number `first`, at least 1.
    #[must_use]
    pub fn new(first: u64) -> Self {
        Self {
            closed: VecDeque::new(),
            open: Epoch::new(first.max(1)),
            hard_through: 0,
            newest: RangeMap::default(),
            cursors: Default::default(),
            held_bytes: 0,
            epoch_bytes_max: EPOCH_BYTES_MAX,
        }
    }

    /// Epochs are closed at about this size from now on: a slow line gets small steps.
    pub fn set_epoch_bytes_max(&mut self, bytes: u64) {
        self.epoch_bytes_max = bytes.clamp(EPOCH_BYTES_MIN, EPOCH_BYTES_MAX);
    }

    /// `leg` gets what is written from now on, in an epoch whose number is returned. `stamp` is the
    /// one that is durable there, 0 for none.
    pub fn follow(&mut self, leg: usize, stamp: u64, now: Duration) -> u64 {
        self.give_up(leg);
        self.close_open(now, false);
        self.open.number = self.open.number.max(stamp + 1);
        self.cursors[leg] = Some(Cursor::new(stamp, self.open.number - 1));
        self.open.number
    }

    /// `leg` gets the epochs of this log.
    #[must_use]
    pub fn follows(&self, leg: usize) -> bool {
        self.cursors[leg].is_some()
    }

    /// A write, at its issue: before it is begun anywhere, since what is told complete while it is
    /// under way may be kept or lost beside it. Returns its epoch, which [`close`](Self::close)
    /// wants to know for a forced write.
    ///
    /// `lacking` names blocks that differ at a leg for another reason, before this write: such a
    /// block is left to whoever copies it, unless an earlier write of it is on its way to that leg.
    /// Then this one has to follow, or the earlier one would land on what was copied.
    pub fn write(
        &mut self,
        now: Duration,
        offset: u64,
        content: &Content,
        lacking: &[(usize, Range<u64>)],
    ) -> u64 {
        let range = offset..offset + content.len();
        let following = self.following();
        if following == Legs::default() || range.is_empty() {
            return self.open.number;
        }
        let before = self.open.pieces.held_bytes();
        for (part, legs) in self.split(range, following, lacking) {
            self.newest.cut(&part);
            if legs == Legs::default() {
                continue;
            }
            self.open.pieces.insert(part.clone(), offset, content, legs);
            self.open.legs = self.open.legs.union(legs);
            self.newest.insert(part, Newest { epoch: self.open.number, legs });
        }
        let after = self.open.pieces.held_bytes();
        self.held_bytes = self.held_bytes + after - before;
        for cursor in self.cursors.iter_mut().flatten() {
            cursor.held_bytes = cursor.held_bytes + after - before;
        }
        if !self.open.pieces.is_empty() && self.open.opened == Duration::MAX {
            self.open.opened = now;
        }
        let epoch = self.open.number;
        if after >= self.epoch_bytes_max {
            self.close_open(now, false);
        }
        epoch
    }

    /// The last epoch with writes issued until now: a flush remembers it at its issue.
    #[must_use]
    pub fn covered(&self) -> u64 {
        self.open.number - u64::from(self.open.pieces.is_empty())
    }

    /// A flush or a forced write that covers writes up to those of epoch `covered` is about to be
    /// told complete. Whatever is written from now on comes after them at every leg.
    pub fn close(&mut self, now: Duration, covered: u64) {
        if covered <= self.hard_through {
            return;
        }
        if self.open.number <= covered {
            self.close_open(now, true);
        } else if let Some(last) = self.closed.back_mut() {
            // It was closed early, so that what is written from now on is in a later one.
            last.hard = true;
        }
        self.hard_through = self.open.number - 1;
    }

    /// Ends the open epoch, so that [`next`](Self::next) gives it out: before a leg is left, and
    /// when a mirror is closed.
    pub fn close_early(&mut self, now: Duration) {
        self.close_open(now, false);
    }

    /// The next step for `leg`, after all that was given out before.
    pub fn next(&mut self, leg: usize, now: Duration) -> Option<Batch> {
        let sent = self.cursors[leg].as_ref()?.sent;
        let is_idle = self.closed.back().is_none_or(|last| last.number <= sent);
        if is_idle && self.due().is_some_and(|due| due <= now) {
            self.close_open(now, false);
        }
        let mut pieces = Pieces::default();
        let mut end: Option<(u64, Duration)> = None;
        let from = self.closed.partition_point(|epoch| epoch.number <= sent);
        for epoch in self.closed.range(from..) {
            let together = pieces.held_bytes() + epoch.pieces.held_bytes();
            if end.is_some() && together > self.epoch_bytes_max * BATCH_EPOCHS {
                break;
            }
            pieces.fold(&epoch.pieces, leg);
            end = Some((epoch.number, epoch.closed));
            if epoch.hard && !pieces.is_empty() {
                break;
            }
        }
        let (epoch, closed) = end?;
        self.cursors[leg].as_mut()?.sent = epoch;
        if pieces.is_empty() {
            self.skip(leg);
            return None;
        }
        Some(Batch { epoch, closed, pieces: pieces.into_pieces() })
    }

    /// When [`next`](Self::next) will close the open epoch for a leg that has nothing else to send.
    /// None if nothing is in it.
    pub fn due(&self) -> Option<Duration> {
        (!self.open.pieces.is_empty()).then(|| self.open.opened + EPOCH_AGE_MAX)
    }

    /// The stamp `epoch` is durable at `leg`. Returns the blocks that are thereby the same there as
    /// here: those whose newest write is stable. Clears what no leg needs any more.
    pub fn stamped(&mut self, leg: usize, epoch: u64) -> Vec<Range<u64>> {
        let Some(cursor) = &mut self.cursors[leg] else { return Vec::new() };
        // What was never given out cannot be there.
        let epoch = epoch.min(cursor.sent);
        cursor.stamp = cursor.stamp.max(epoch);
        let stable = cursor.stable;
        if epoch <= stable {
            return Vec::new();
        }
        self.advance(leg, epoch);
        let from = self.closed.partition_point(|e| e.number <= stable);
        let behind = self.closed.partition_point(|e| e.number <= epoch);
        let mut written = Vec::new();
        for epoch in self.closed.range(from..behind) {
            written.extend(epoch.pieces.for_leg(leg).map(|(range, _)| blocks(&range)));
        }
        let is_newer = |newest: &Newest| newest.epoch > epoch || !newest.legs.contains(leg);
        let clean = joined(written).into_iter().flat_map(|range| {
            let newer = self.newest.overlapping(&range).filter(|(_, newest)| is_newer(newest));
            without(range.clone(), newer.map(|(range, _)| blocks(&range)).collect())
        });
        let clean = clean.collect();
        self.skip(leg);
        clean
    }

    /// `leg` was connected anew, and `stamp` is durable there: whatever follows it is given out
    /// again.
    pub fn resume(&mut self, leg: usize, stamp: u64) -> Resume {
        let Some(cursor) = &mut self.cursors[leg] else { return Resume::NotFollowing };
        if stamp < cursor.stamp {
            return Resume::Older { found: stamp, known: cursor.stamp };
        }
        if stamp > cursor.sent {
            return Resume::Ahead { found: stamp, sent: cursor.sent };
        }
        let clean = self.stamped(leg, stamp);
        if let Some(cursor) = &mut self.cursors[leg] {
            cursor.sent = cursor.stable;
        }
        Resume::From(clean)
    }

    /// The last epoch that was given out to `leg`, stamped or not. When all of it is stable there,
    /// this is the stamp of an idle leg.
    #[must_use]
    pub fn sent(&self, leg: usize) -> u64 {
        self.cursors[leg].as_ref().map_or(0, |cursor| cursor.sent)
    }

    /// The stamp that is durable at `leg`. None if it does not follow.
    pub fn stamp(&self, leg: usize) -> Option<u64> {
        self.cursors[leg].as_ref().map(|cursor| cursor.stamp)
    }

    /// All epochs through `epoch` are stable at `leg`, or hold nothing for it.
    pub fn is_stable(&self, leg: usize, epoch: u64) -> bool {
        let Some(cursor) = &self.cursors[leg] else { return false };
        let from = self.closed.partition_point(|closed| closed.number <= cursor.stable);
        let next = self.closed.get(from).unwrap_or(&self.open);
        next.number > epoch
    }

    /// Blocks have come to `leg` by a copy, with all that was written to them until now.
    pub fn copied(&mut self, leg: usize, range: &Range<u64>) {
        for (part, mut newest) in self.newest.cut(&blocks(range)) {
            newest.legs = newest.legs.union(Legs::one(leg));
            self.newest.insert(part, newest);
        }
    }

    /// How far `leg` is behind. None if it does not follow.
    #[must_use]
    pub fn backlog(&self, leg: usize, now: Duration) -> Option<Backlog> {
        let cursor = self.cursors[leg].as_ref()?;
        let from = self.closed.partition_point(|epoch| epoch.number <= cursor.stable);
        let open = self.open.legs.contains(leg).then_some(&self.open);
        let oldest = self.closed.get(from).or(open);
        let age = oldest.map_or(Duration::ZERO, |epoch| now.saturating_sub(epoch.opened));
        let epochs = (self.closed.len() - from) as u64 + u64::from(open.is_some());
        Some(Backlog { bytes: cursor.held_bytes, age, epochs })
    }

    /// The newest content of `range` as far as it is in the log, in order: what has to be put over
    /// the content of a leg that follows, where the local device cannot be read.
    #[must_use]
    pub fn overlay(&self, range: &Range<u64>) -> Vec<Piece> {
        let parts = self.newest.parts(range).into_iter();
        let piece = |(part, newest): (Range<u64>, Newest)| {
            self.epoch(newest.epoch).into_iter().flat_map(move |epoch| epoch.pieces.parts(&part))
        };
        parts.flat_map(piece).collect()
    }

    /// `leg` gets nothing more of the log. Returns the blocks that were on their way there.
    pub fn give_up(&mut self, leg: usize) -> Vec<Range<u64>> {
        let Some(cursor) = self.cursors[leg].take() else { return Vec::new() };
        let from = self.closed.partition_point(|epoch| epoch.number <= cursor.stable);
        let epochs = self.closed.range(from..).chain(std::iter::once(&self.open));
        let pieces = epochs.flat_map(|epoch| epoch.pieces.for_leg(leg));
        let lost = joined(pieces.map(|(range, _)| blocks(&range)).collect());
        self.forget();
        lost
    }

    /// Bytes of memory that the log holds.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    fn following(&self) -> Legs {
        let legs = (0..LEGS_MAX).filter(|leg| self.cursors[*leg].is_some());
        legs.map(Legs::one).fold(Legs::default(), Legs::union)
    }

    fn epoch(&self, number: u64) -> Option<&Epoch> {
        let at = self.closed.partition_point(|epoch| epoch.number < number);
        let found = self.closed.get(at).unwrap_or(&self.open);
        (found.number == number).then_some(found)
    }

    /// Cuts a write where the legs that get it change.
    fn split(
        &self,
        range: Range<u64>,
        following: Legs,
        lacking: &[(usize, Range<u64>)],
    ) -> Vec<(Range<u64>, Legs)> {
        let mut map = RangeMap::default();
        let everywhere = Newest { epoch: 0, legs: following };
        map.insert(range.clone(), everywhere);
        for (leg, lacking) in lacking.iter().filter(|(leg, _)| following.contains(*leg)) {
            let lacking = intersection(&blocks(lacking), &blocks(&range));
            if lacking.is_empty() {
                continue;
            }
            for left in without(lacking.clone(), self.on_their_way(*leg, &lacking)) {
                for (part, mut newest) in map.cut(&left) {
                    newest.legs = newest.legs.without(Legs::one(*leg));
                    map.insert(part, newest);
                }
            }
        }
        map.iter().map(|(part, newest)| (part, newest.legs)).collect()
    }

    /// Blocks that have a write in the log which is not known to be stable at `leg`.
    fn on_their_way(&self, leg: usize, range: &Range<u64>) -> Vec<Range<u64>> {
        let Some(cursor) = &self.cursors[leg] else { return Vec::new() };
        let waits = |newest: &Newest| newest.legs.contains(leg) && newest.epoch > cursor.stable;
        let found = self.newest.overlapping(range).filter(|(_, newest)| waits(newest));
        found.map(|(range, _)| blocks(&range)).collect()
    }

    fn close_open(&mut self, now: Duration, hard: bool) {
        if self.open.pieces.is_empty() {
            return;
        }
        let next = Epoch::new(self.open.number + 1);
        let mut epoch = std::mem::replace(&mut self.open, next);
        epoch.closed = now;
        epoch.hard = hard;
        self.closed.push_back(epoch);
        for leg in 0..LEGS_MAX {
            self.skip(leg);
        }
    }

    /// Goes over epochs of which `leg` gets nothing, as long as nothing before them is under way.
    fn skip(&mut self, leg: usize) {
        let Some(cursor) = &self.cursors[leg] else { return };
        let from = self.closed.partition_point(|epoch| epoch.number <= cursor.stable);
        let others = self.closed.range(from..).take_while(|epoch| !epoch.legs.contains(leg));
        if let Some(through) = others.last().map(|epoch| epoch.number) {
            self.advance(leg, through);
        }
        self.forget();
    }

    /// All epochs through `epoch` are stable at `leg`.
    fn advance(&mut self, leg: usize, epoch: u64) {
        let Some(cursor) = &mut self.cursors[leg] else { return };
        let from = self.closed.partition_point(|e| e.number <= cursor.stable);
        let behind = self.closed.partition_point(|e| e.number <= epoch);
        let bytes: u64 = self.closed.range(from..behind).map(|e| e.pieces.held_bytes()).sum();
        cursor.held_bytes -= bytes;
        cursor.stable = cursor.stable.max(epoch);
        cursor.sent = cursor.sent.max(epoch);
    }

    /// Drops what every leg that follows has.
    fn forget(&mut self) {
        let stable = self.cursors.iter().flatten().map(|cursor| cursor.stable).min();
        if stable.is_none() && !self.open.pieces.is_empty() {
            self.held_bytes -= self.open.pieces.held_bytes();
            let number = self.open.number + 1;
            let epoch = std::mem::replace(&mut self.open, Epoch::new(number));
            self.unmark(&epoch);
        }
        let stable = stable.unwrap_or(u64::MAX);
        while self.closed.front().is_some_and(|epoch| epoch.number <= stable) {
            if let Some(epoch) = self.closed.pop_front() {
                self.held_bytes -= epoch.pieces.held_bytes();
                self.unmark(&epoch);
            }
        }
    }

    /// The bytes of an epoch that is dropped have no newest write in the log any more, unless a
    /// later epoch has one.
    fn unmark(&mut self, epoch: &Epoch) {
        for range in epoch.pieces.ranges() {
            for (part, newest) in self.newest.cut(&range) {
                if newest.epoch != epoch.number {
                    self.newest.insert(part, newest);
                }
            }
        }
    }
}

/// The whole blocks that hold a range.
fn blocks(range: &Range<u64>) -> Range<u64> {
    range.start - range.start % BLOCK_BYTES..range.end.next_multiple_of(BLOCK_BYTES)
}
