//! Many epochs at once: what the log has for a leg, over all ends in between. Right where the leg
//! gets all of it in one moment.

use std::time::Duration;

use super::piece::Pieces;
use super::{Batch, EpochLog};

/// What waits to be sent to a leg.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unsent {
    /// Steps that it takes one after the other: ends that something told complete depends on.
    pub steps: u64,
    /// Bytes of memory of it.
    pub bytes: u64,
}

impl EpochLog {
    /// What was closed and not given out to `leg`.
    #[must_use]
    pub fn unsent(&self, leg: usize) -> Unsent {
        let Some(cursor) = &self.cursors[leg] else { return Unsent::default() };
        let from = self.closed.partition_point(|epoch| epoch.number <= cursor.sent);
        let mine = self.closed.range(from..).filter(|epoch| epoch.legs.contains(leg));
        mine.fold(Unsent::default(), |all, epoch| Unsent {
            steps: all.steps + u64::from(epoch.hard),
            bytes: all.bytes + epoch.pieces.held_bytes(),
        })
    }

    /// All that was closed and not given out to `leg`, folded, as far as it takes `bytes_max` bytes
    /// of memory; `None` where that is less than two steps.
    pub fn next_folded(&mut self, leg: usize, bytes_max: u64) -> Option<Batch> {
        let sent = self.cursors[leg].as_ref()?.sent;
        let mut pieces = Pieces::default();
        let mut end: Option<(u64, Duration)> = None;
        let (mut bytes, mut steps) = (0, 0);
        let from = self.closed.partition_point(|epoch| epoch.number <= sent);
        for epoch in self.closed.range(from..) {
            bytes += epoch.pieces.held_bytes();
            if bytes > bytes_max {
                break;
            }
            pieces.fold(&epoch.pieces, leg);
            steps += u64::from(epoch.hard && epoch.legs.contains(leg));
            end = Some((epoch.number, epoch.closed));
        }
        let (epoch, closed) = end.filter(|_| steps >= 2)?;
        self.cursors[leg].as_mut()?.sent = epoch;
        Some(Batch { epoch, closed, pieces: pieces.into_pieces() })
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::super::Content;
    use super::*;

    const NOW: Duration = Duration::from_secs(1);

    fn data(byte: u8) -> Content {
        Content::Data(Bytes::from(vec![byte; 4096]))
    }

    /// Each write is flushed.
    fn commit(log: &mut EpochLog, offset: u64, byte: u8) {
        log.write(NOW, offset, &data(byte), &[]);
        log.close(NOW, log.covered());
    }

    #[test]
    fn what_was_flushed_many_times_is_one_batch_with_the_newest_of_each() {
        let mut log = EpochLog::new(1);
        log.follow(0, 0, NOW);
        assert_eq!(log.unsent(0), Unsent::default());
        for byte in 1..=5 {
            commit(&mut log, 0, byte);
        }
        commit(&mut log, 8192, 9);
        log.write(NOW, 8192, &data(10), &[]);
        assert_eq!(log.unsent(0).steps, 6);
        let batch = log.next_folded(0, 1 << 20).unwrap();
        assert_eq!(batch.epoch, 6, "what is open is of no epoch that has ended");
        let content: Vec<_> =
            batch.pieces.iter().map(|piece| (piece.offset, piece.content.clone())).collect();
        assert_eq!(content, [(0, data(5)), (8192, data(9))]);
        assert_eq!(log.unsent(0), Unsent::default());
        assert!(log.next_folded(0, 1 << 20).is_none());
        let clean = log.stamped(0, 6);
        assert_eq!((clean.len(), &clean[0]), (1, &(0..4096)), "the other one was written since");
    }

    #[test]
    fn what_has_no_room_is_left_and_one_step_is_no_batch() {
        let mut log = EpochLog::new(1);
        log.follow(0, 0, NOW);
        for byte in 1..=4 {
            commit(&mut log, u64::from(byte) * 4096, byte);
        }
        assert!(log.next_folded(0, 5000).is_none());
        let batch = log.next_folded(0, 10_000).unwrap();
        assert_eq!((batch.epoch, log.unsent(0).steps), (2, 2));
        assert_eq!(log.next(0, NOW).unwrap().epoch, 3);
        assert!(log.next_folded(0, 1 << 20).is_none());
        assert!(log.next_folded(1, 1 << 20).is_none(), "it does not follow");
    }
}
