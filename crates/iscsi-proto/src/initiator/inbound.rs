//! Which Data-In of a command have arrived, by number and by place (RFC 7143 §4.2.2.3, §11.7).
//! Plain bookkeeping; two integers as long as all comes in order.

use super::event::Violation;
use crate::ids::{Lun, Ttt};
use crate::serial::{DataSn, StatSn};

/// Separate runs of missing PDUs of one command. A link that loses more than this at once is not
/// worth its connection.
const RUNS_MAX: usize = 256;

/// Separate pieces of one command's buffer that are filled ahead of others. Where order was not
/// agreed on, that is 32 MiB of data in segments of 8 KiB that come backwards.
const PIECES_MAX: usize = 4096;

/// A run of numbers or bytes: first one, and the one behind the last.
pub(super) type Run = (u32, u32);

/// What was agreed about order and repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rules {
    /// DataPDUInOrder and DataSequenceInOrder: each PDU begins where the last one ended.
    pub(super) in_order: bool,
    /// Error recovery level 1 or 2: numbers may be missing for a while.
    pub(super) repairs: bool,
}

/// The read data of one command.
#[derive(Debug, Default)]
pub(super) struct Inbound {
    /// Bytes in place, contiguous from 0.
    received: u32,
    /// One behind the highest DataSN that is known of.
    next: u32,
    apart: Option<Box<Apart>>,
}

/// What does not fit two integers.
#[derive(Debug, Default)]
struct Apart {
    /// DataSN below `next` that have not come, in order.
    missing: Vec<Run>,
    /// Bytes in place behind `received`, in order, with gaps between.
    pieces: Vec<Run>,
    /// The status has come, and waits for the data.
    held: Option<Held>,
    /// A data acknowledgement is due when nothing is missing any more.
    ack: Option<(Ttt, Lun)>,
    /// After a reassignment the target may send again what is in place.
    overlaps: bool,
    /// What was in place when data was acknowledged last, where order was not agreed on.
    acked: Acked,
}

/// Data that is acknowledged: it does not come again.
#[derive(Clone, Debug, Default)]
struct Acked {
    /// The first DataSN behind it.
    next: u32,
    received: u32,
    pieces: Vec<Run>,
}

/// A status that cannot be reported yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) stat_sn: Option<StatSn>,
    pub(super) ending: super::receive::Ending,
}

impl Inbound {
    pub(super) const fn received(&self) -> u32 {
        self.received
    }

    pub(super) fn is_complete(&self) -> bool {
        self.apart.as_ref().is_none_or(|apart| apart.missing.is_empty())
    }

    /// Nothing but two integers: no status waits, no acknowledgement is due.
    pub(super) const fn is_plain(&self) -> bool {
        self.apart.is_none()
    }

    pub(super) fn missing(&self) -> &[Run] {
        self.apart.as_ref().map_or(&[], |apart| &apart.missing)
    }

    /// Checks a Data-In; false for one that has been here before.
    pub(super) fn check(
        &self,
        number: DataSn,
        offset: u32,
        len: u32,
        rules: Rules,
    ) -> Result<bool, Violation> {
        let number = number.0;
        if !rules.repairs && number != self.next {
            return Err(Violation::DataSn { got: number, expected: self.next });
        }
        // The last number of all: no command has that many PDUs, and there is none behind it.
        if number == u32::MAX {
            return Err(Violation::DataSn { got: number, expected: self.next });
        }
        if number < self.next && !contains(self.missing(), number) {
            return Ok(false);
        }
        let misplaced = Violation::DataOffset { got: offset, expected: self.received };
        let in_turn = rules.in_order && number == self.next && self.is_complete();
        if in_turn && offset != self.received {
            return Err(misplaced);
        }
        let end = offset + len; // inside the command's buffer, checked by the caller
        let overlaps = self.apart.as_ref().is_some_and(|apart| apart.overlaps);
        let taken = |(from, to): Run| len > 0 && offset < to && from < end;
        if !overlaps && (taken((0, self.received)) || self.pieces().iter().any(|p| taken(*p))) {
            return Err(misplaced);
        }
        Ok(true)
    }

    fn pieces(&self) -> &[Run] {
        self.apart.as_ref().map_or(&[], |apart| &apart.pieces)
    }

    /// The Data-In is in place. True if that shows that others before it are missing.
    pub(super) fn accept(
        &mut self,
        number: DataSn,
        offset: u32,
        len: u32,
    ) -> Result<bool, Violation> {
        self.place(offset, offset + len)?;
        let number = number.0;
        if number == self.next {
            self.next += 1;
            return Ok(false);
        }
        if number > self.next {
            self.announce(number)?;
            self.next = number + 1;
            return Ok(true);
        }
        if let Some(apart) = &mut self.apart {
            remove(&mut apart.missing, number);
        }
        Ok(false)
    }

    /// A Data-In came and was damaged: it is missing.
    pub(super) fn damaged(&mut self, number: DataSn) -> Result<(), Violation> {
        self.announce(number.0.saturating_add(1))
    }

    /// There are Data-In up to, but not including, `next`.
    pub(super) fn announce(&mut self, next: u32) -> Result<(), Violation> {
        if next <= self.next {
            return Ok(());
        }
        let run = (self.next, next);
        self.next = next;
        let missing = &mut self.apart.get_or_insert_default().missing;
        let runs = missing.len();
        match missing.last_mut() {
            Some(last) if last.1 == run.0 => last.1 = run.1,
            _ if runs >= RUNS_MAX => return Err(Violation::TooManyHoles(RUNS_MAX)),
            _ => missing.push(run),
        }
        Ok(())
    }

    /// One behind the highest DataSN that is known of.
    pub(super) const fn next(&self) -> u32 {
        self.next
    }

    fn place(&mut self, from: u32, to: u32) -> Result<(), Violation> {
        if from <= self.received {
            self.received = self.received.max(to);
            let Some(apart) = &mut self.apart else { return Ok(()) };
            let joined = apart.pieces.iter().take_while(|piece| piece.0 <= self.received).count();
            for piece in apart.pieces.drain(..joined) {
                self.received = self.received.max(piece.1);
            }
            // What the last one reached may touch the next ones.
            while apart.pieces.first().is_some_and(|piece| piece.0 <= self.received) {
                self.received = self.received.max(apart.pieces.remove(0).1);
            }
            return Ok(());
        }
        let pieces = &mut self.apart.get_or_insert_default().pieces;
        let first = pieces.partition_point(|piece| piece.1 < from);
        let behind = pieces.partition_point(|piece| piece.0 <= to);
        let mut joined = (from, to);
        for piece in &pieces[first..behind] {
            joined = (joined.0.min(piece.0), joined.1.max(piece.1));
        }
        if first == behind && pieces.len() >= PIECES_MAX {
            return Err(Violation::TooManyHoles(PIECES_MAX));
        }
        pieces.splice(first..behind, [joined]);
        Ok(())
    }

    /// Keeps the status until the data is complete.
    pub(super) fn hold(&mut self, held: Held) {
        self.apart.get_or_insert_default().held = Some(held);
    }

    /// The status that waited, if the data is complete now.
    pub(super) fn release(&mut self) -> Option<Held> {
        self.apart.as_mut().filter(|apart| apart.missing.is_empty())?.held.take()
    }

    /// The status that waits, although data is missing.
    pub(super) fn give_up(&mut self) -> Option<Held> {
        let apart = self.apart.as_mut()?;
        apart.missing.clear();
        apart.held.take()
    }

    /// The target asks for an acknowledgement. What is to be answered now: tag, unit, and the
    /// first DataSN that is not acknowledged.
    pub(super) fn ask_ack(&mut self, tag: Ttt, lun: Lun, rules: Rules) -> Option<(Ttt, Lun, u32)> {
        if self.is_complete() {
            self.note_acked(rules);
            return Some((tag, lun, self.next));
        }
        self.apart.get_or_insert_default().ack = Some((tag, lun));
        None
    }

    /// An acknowledgement that waited for missing data, if there is one and none is missing.
    pub(super) fn due_ack(&mut self, rules: Rules) -> Option<(Ttt, Lun, u32)> {
        let next = self.next;
        let apart = self.apart.as_mut().filter(|apart| apart.missing.is_empty())?;
        let (tag, lun) = apart.ack.take()?;
        self.note_acked(rules);
        Some((tag, lun, next))
    }

    /// Nothing is missing, and that is being said. In order the numbers tell what it is about.
    fn note_acked(&mut self, rules: Rules) {
        if !rules.in_order {
            let pieces = self.pieces().to_vec();
            let acked = Acked { next: self.next, received: self.received, pieces };
            self.apart.get_or_insert_default().acked = acked;
        }
    }

    /// The command moves to another connection: the first DataSN that is to come there.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.6
    //# The initiator MUST discard any data PDUs from the previous execution that it did not
    //# acknowledge, and the target MUST transmit all Data-In PDUs (if any) starting with the data
    //# acknowledgment reference number.
    // In order all before the first hole is acknowledged by that number. Out of order numbers say
    // nothing about places, so that only what was in place at the last acknowledgement stays.
    pub(super) fn reassign(&mut self, rules: Rules) -> u32 {
        let first = self.missing().first().map_or(self.next, |run| run.0);
        let apart = self.apart.get_or_insert_default();
        let acked = std::mem::take(&mut apart.acked);
        **apart = Apart { overlaps: true, ..Apart::default() };
        if rules.in_order {
            self.next = first;
            return first;
        }
        (self.next, self.received) = (acked.next, acked.received);
        (apart.pieces, apart.acked) = (acked.pieces.clone(), acked);
        self.next
    }
}

fn contains(runs: &[Run], number: u32) -> bool {
    runs.iter().any(|run| run.0 <= number && number < run.1)
}

/// Takes one number out of a list of runs.
pub(super) fn remove(runs: &mut Vec<Run>, number: u32) -> bool {
    let Some(at) = runs.iter().position(|run| run.0 <= number && number < run.1) else {
        return false;
    };
    let (from, to) = runs[at];
    let rest = [(from, number), (number + 1, to)];
    runs.splice(at..=at, rest.into_iter().filter(|run| run.0 < run.1));
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRICT: Rules = Rules { in_order: true, repairs: true };
    const LOOSE: Rules = Rules { in_order: false, repairs: true };

    fn take(inbound: &mut Inbound, rules: Rules, n: u32, offset: u32, len: u32) -> bool {
        assert_eq!(inbound.check(DataSn(n), offset, len, rules), Ok(true), "{n} at {offset}");
        inbound.accept(DataSn(n), offset, len).unwrap()
    }

    #[test]
    fn in_order_two_integers_are_enough() {
        let mut inbound = Inbound::default();
        (0..9).for_each(|n| assert!(!take(&mut inbound, STRICT, n, n * 10, 10)));
        assert_eq!((inbound.received(), inbound.next(), inbound.is_plain()), (90, 9, true));
    }

    #[test]
    fn a_damaged_one_is_filled_in_later() {
        let mut inbound = Inbound::default();
        take(&mut inbound, STRICT, 0, 0, 10);
        inbound.damaged(DataSn(1)).unwrap();
        take(&mut inbound, STRICT, 2, 20, 10);
        assert!(take(&mut inbound, STRICT, 5, 50, 10), "3 and 4 are missing");
        assert_eq!(inbound.missing(), [(1, 2), (3, 5)]);
        assert_eq!(inbound.received(), 10);
        assert_eq!(inbound.check(DataSn(2), 20, 10, STRICT), Ok(false));
        assert!(inbound.check(DataSn(1), 20, 10, STRICT).is_err(), "over what is in place");
        for n in [4, 1, 3] {
            take(&mut inbound, STRICT, n, n * 10, 10);
        }
        assert_eq!((inbound.received(), inbound.is_complete()), (60, true));
    }

    #[test]
    fn without_agreed_order_pieces_join() {
        let mut inbound = Inbound::default();
        for (n, offset) in [30, 10, 40, 0, 20].into_iter().enumerate() {
            take(&mut inbound, LOOSE, n as u32, offset, 10);
        }
        assert_eq!(inbound.received(), 50);
        assert!(inbound.check(DataSn(5), 45, 10, LOOSE).is_err());
    }

    #[test]
    fn a_reassignment_starts_with_the_first_missing_one() {
        let mut inbound = Inbound::default();
        take(&mut inbound, STRICT, 0, 0, 10);
        take(&mut inbound, STRICT, 2, 20, 10);
        assert_eq!(inbound.reassign(STRICT), 1);
        assert_eq!(inbound.check(DataSn(0), 0, 10, STRICT), Ok(false), "all of it, again");
        take(&mut inbound, STRICT, 1, 10, 10);
        take(&mut inbound, STRICT, 2, 20, 10);
        assert_eq!((inbound.received(), inbound.is_complete()), (30, true));
    }

    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.6
    //= type=test
    //# The initiator MUST discard any data PDUs from the previous execution that it did not
    //# acknowledge, and the target MUST transmit all Data-In PDUs (if any) starting with the data
    //# acknowledgment reference number.
    #[test]
    fn out_of_order_only_acknowledged_data_outlives_a_reassignment() {
        let mut inbound = Inbound::default();
        take(&mut inbound, LOOSE, 0, 30, 10);
        take(&mut inbound, LOOSE, 1, 0, 10);
        assert_eq!(inbound.reassign(LOOSE), 0, "nothing was acknowledged: all of it again");
        assert_eq!((inbound.received(), inbound.pieces()), (0, &[][..]));
        take(&mut inbound, LOOSE, 0, 30, 10);
        take(&mut inbound, LOOSE, 1, 0, 10);
        assert_eq!(inbound.ask_ack(Ttt(7), Lun(0), LOOSE), Some((Ttt(7), Lun(0), 2)));
        take(&mut inbound, LOOSE, 2, 10, 10);
        for _ in 0..2 {
            assert_eq!(inbound.reassign(LOOSE), 2);
            assert_eq!((inbound.received(), inbound.pieces()), (10, &[(30, 40)][..]));
        }
        take(&mut inbound, LOOSE, 2, 20, 10);
        take(&mut inbound, LOOSE, 3, 10, 10);
        assert_eq!(inbound.received(), 40);
    }

    #[test]
    fn no_number_is_behind_the_last_one() {
        let violation = Violation::DataSn { got: u32::MAX, expected: 0 };
        for rules in [STRICT, LOOSE] {
            let inbound = Inbound::default();
            assert_eq!(inbound.check(DataSn(u32::MAX), 0, 10, rules), Err(violation.clone()));
        }
    }

    #[test]
    fn holes_are_bounded() {
        let mut inbound = Inbound::default();
        let refused = (0..2000).find(|n| inbound.accept(DataSn(2 * n + 1), 0, 0).is_err());
        assert_eq!(refused, Some(RUNS_MAX as u32));
        let mut inbound = Inbound::default();
        let refused = (0..9000).find(|n| inbound.accept(DataSn(*n), 2 * n + 1, 1).is_err());
        assert_eq!(refused, Some(PIECES_MAX as u32));
    }
}
