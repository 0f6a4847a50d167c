//! One run of Data-Out PDUs, unsolicited or asked for with an R2T: what of it has arrived
//! (RFC 7143 §4.2.2.3, §7.8, §7.9, §13.18). Knows nothing of tasks, timers or answers.

use super::task::TransferFault;
use crate::ids::Ttt;
use crate::pdu::DataOut;
use crate::serial::{DataSn, R2tSn};

/// Gaps in one sequence. Damage leaves few; a peer that sends every other word must not make us
/// remember each.
const HOLES_MAX: usize = 256;

/// What the session allows inside a sequence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// DataPDUInOrder (§13.18).
    pub(super) in_order: bool,
    /// Lost PDUs are asked for again (error recovery level 1 and up).
    pub(super) recovers: bool,
}

/// What is to be done with a PDU of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Its data belongs into the task's buffer.
    Take,
    /// It was here before: throw it away.
    Duplicate,
}

/// A sequence that is not over.
#[derive(Clone, Debug)]
pub(super) struct Sequence {
    /// [`Ttt::NONE`] for unsolicited data.
    pub(super) ttt: Ttt,
    /// Of the R2T that asked for it.
    pub(super) r2t_sn: R2tSn,
    pub(super) offset: u32,
    /// Where it ends; unsolicited data may end earlier.
    pub(super) end: u32,
    /// Everything before this offset has arrived, except for the holes.
    frontier: u32,
    /// Bytes before the frontier that are missing: from, to.
    holes: Vec<(u32, u32)>,
    data_sn: DataSn,
    /// A PDU is known to be missing or damaged.
    lost: bool,
}

impl Sequence {
    pub(super) fn new(ttt: Ttt, r2t_sn: R2tSn, offset: u32, end: u32) -> Self {
        let (frontier, holes, data_sn) = (offset, Vec::new(), DataSn(0));
        Self { ttt, r2t_sn, offset, end, frontier, holes, data_sn, lost: false }
    }

    /// End of what has arrived, whatever is missing before it.
    pub(super) fn frontier(&self) -> u32 {
        self.frontier
    }

    /// Bytes it asks for or may bring.
    pub(super) fn len(&self) -> u32 {
        self.end - self.offset
    }

    /// May this PDU come now? Nothing is changed yet: its data has still to be read.
    pub(super) fn check(
        &self,
        pdu: &DataOut,
        len: u32,
        rules: Rules,
    ) -> Result<Verdict, TransferFault> {
        let ahead = pdu.data_sn.since(self.data_sn);
        let at = pdu.buffer_offset;
        if rules.recovers && ahead < 0 {
            return Ok(Verdict::Duplicate);
        }
        let gap = ahead != 0 || rules.in_order && at != self.frontier;
        if gap && !rules.recovers {
            return Err(TransferFault::Damaged);
        }
        let end = at.checked_add(len).filter(|end| *end <= self.end && at >= self.offset);
        let end = end.ok_or(TransferFault::IncorrectAmount)?;
        if self.holes.len() >= HOLES_MAX && at != self.frontier {
            return Err(TransferFault::Damaged);
        }
        let new = self.missing_within(at, end);
        if new < len {
            // Bytes that are here already. Were they taken, a damaged PDU would replace good data,
            // and nobody would know that it has to be asked for again.
            return Err(TransferFault::IncorrectAmount);
        }
        let left = self.missing() - new;
        let skipped = rules.in_order && (gap || !self.holes.is_empty());
        let explained = self.lost || ahead != 0 || rules.recovers && skipped;
        if self.ttt == Ttt::NONE {
            // It may end where it likes, but not with a hole that no loss explains.
            let holes = left > self.end - self.frontier.max(end);
            if pdu.is_final && holes && !explained {
                return Err(TransferFault::Damaged);
            }
        } else if pdu.is_final && left > 0 && !explained || !pdu.is_final && left == 0 {
            return Err(TransferFault::IncorrectAmount);
        }
        Ok(Verdict::Take)
    }

    /// The PDU that was checked is here; its data is useless if not `intact`.
    pub(super) fn take(&mut self, data_sn: DataSn, at: u32, len: u32, intact: bool) {
        self.lost |= data_sn != self.data_sn || !intact;
        self.data_sn = data_sn.next();
        let end = at + len;
        if !intact {
            if end > self.frontier {
                match self.holes.last_mut() {
                    // One damaged PDU after the other must not make a hole each.
                    Some(last) if last.1 == self.frontier => last.1 = end,
                    _ => self.holes.push((self.frontier, end)),
                }
                self.frontier = end;
            }
            return;
        }
        if at > self.frontier {
            self.holes.push((self.frontier, at));
        } else if !self.holes.is_empty() {
            self.fill(at, end);
        }
        self.frontier = self.frontier.max(end);
    }

    fn fill(&mut self, from: u32, to: u32) {
        let holes = std::mem::take(&mut self.holes);
        for (start, end) in holes {
            if end <= from || start >= to {
                self.holes.push((start, end));
                continue;
            }
            if start < from {
                self.holes.push((start, from));
            }
            if end > to {
                self.holes.push((to, end));
            }
        }
    }

    /// Bytes between its start and its end that have not arrived.
    pub(super) fn missing(&self) -> u32 {
        let holes: u32 = self.holes.iter().map(|(from, to)| to - from).sum();
        self.end - self.frontier + holes
    }

    fn missing_within(&self, from: u32, to: u32) -> u32 {
        let beyond = to.saturating_sub(from.max(self.frontier));
        let overlap = |(start, end): &(u32, u32)| {
            to.min(*end).saturating_sub(from.max(*start)).min(end - start)
        };
        beyond + self.holes.iter().map(overlap).sum::<u32>()
    }

    /// What has not arrived before the frontier, by offset.
    pub(super) fn holes(&self) -> Vec<(u32, u32)> {
        let mut ranges = self.holes.clone();
        ranges.sort_unstable();
        ranges.dedup_by(|next, last| {
            let adjacent = last.1 == next.0;
            if adjacent {
                last.1 = next.1;
            }
            adjacent
        });
        ranges
    }

    /// What has not arrived up to the end, by offset.
    pub(super) fn rest(mut self) -> Vec<(u32, u32)> {
        if self.frontier < self.end {
            self.holes.push((self.frontier, self.end));
            self.frontier = self.end;
        }
        self.holes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Itt, Lun};
    use crate::serial::StatSn;

    const LOOSE: Rules = Rules { in_order: false, recovers: true };

    fn pdu(data_sn: u32, buffer_offset: u32, is_final: bool) -> DataOut {
        let (lun, itt, ttt, exp_stat_sn) = (Lun(0), Itt(1), Ttt(1), StatSn(0));
        let data_sn = DataSn(data_sn);
        DataOut { is_final, lun, itt, ttt, exp_stat_sn, data_sn, buffer_offset }
    }

    fn sequence() -> Sequence {
        Sequence::new(Ttt(1), R2tSn(0), 1000, 2000)
    }

    /// Every order of four pieces, one of them damaged: the rest is that piece.
    #[test]
    fn any_order_leaves_what_is_damaged() {
        for damaged in 0..4u32 {
            for order in 0..24u32 {
                let mut pieces = vec![0, 1, 2, 3];
                let mut picked = Vec::new();
                let mut code = order;
                for left in (1..=4).rev() {
                    picked.push(pieces.remove((code % left) as usize));
                    code /= left;
                }
                let mut sequence = sequence();
                for (n, piece) in (0u32..).zip(&picked) {
                    let at = 1000 + piece * 250;
                    let checked = sequence.check(&pdu(n, at, n == 3), 250, LOOSE);
                    assert_eq!(checked, Ok(Verdict::Take), "{picked:?}");
                    sequence.take(DataSn(n), at, 250, *piece != damaged);
                }
                assert_eq!(sequence.missing(), 250);
                let at = 1000 + damaged * 250;
                assert_eq!(sequence.rest(), [(at, at + 250)], "{picked:?}");
            }
        }
    }

    #[test]
    fn neighbouring_holes_are_one() {
        let mut sequence = sequence();
        sequence.take(DataSn(0), 1000, 200, false);
        sequence.take(DataSn(1), 1200, 200, false);
        sequence.take(DataSn(2), 1500, 100, true);
        assert_eq!(sequence.holes(), [(1000, 1500)]);
        assert_eq!(sequence.rest(), [(1000, 1500), (1600, 2000)]);
    }

    #[test]
    fn holes_are_limited() {
        let mut sequence = Sequence::new(Ttt(1), R2tSn(0), 0, 1 << 20);
        let taken = (0..1000u32).take_while(|n| {
            let ok = sequence.check(&pdu(*n, n * 8 + 4, false), 4, LOOSE).is_ok();
            if ok {
                sequence.take(DataSn(*n), n * 8 + 4, 4, true);
            }
            ok
        });
        assert_eq!(taken.count(), HOLES_MAX);
    }

    #[test]
    fn damaged_neighbours_are_one_hole() {
        let mut sequence = Sequence::new(Ttt(1), R2tSn(0), 0, 1 << 20);
        for n in 0..1000 {
            assert_eq!(sequence.check(&pdu(n, n * 4, false), 4, LOOSE), Ok(Verdict::Take));
            sequence.take(DataSn(n), n * 4, 4, false);
        }
        assert_eq!(sequence.holes.len(), 1);
        assert_eq!(sequence.holes(), [(0, 4000)]);
    }

    #[test]
    fn what_is_here_is_not_written_over() {
        let mut sequence = sequence();
        sequence.take(DataSn(0), 1000, 200, true);
        sequence.take(DataSn(1), 1300, 100, true);
        let fault = Err(TransferFault::IncorrectAmount);
        for (offset, len) in [(1000, 200), (1100, 100), (1199, 2), (1250, 60), (1399, 10)] {
            assert_eq!(sequence.check(&pdu(2, offset, false), len, LOOSE), fault, "{offset}");
        }
        for (offset, len) in [(1200, 100), (1400, 10), (1250, 50), (1200, 0)] {
            let checked = sequence.check(&pdu(2, offset, false), len, LOOSE);
            assert_eq!(checked, Ok(Verdict::Take), "{offset}");
        }
    }

    #[test]
    fn an_end_that_no_loss_explains_is_the_senders_mistake() {
        let fault = Err(TransferFault::IncorrectAmount);
        assert_eq!(sequence().check(&pdu(0, 1000, true), 500, LOOSE), fault);
        assert_eq!(sequence().check(&pdu(1, 1500, true), 500, LOOSE), Ok(Verdict::Take));
        assert_eq!(sequence().check(&pdu(0, 900, false), 500, LOOSE), fault);
        assert_eq!(sequence().check(&pdu(0, 1900, false), 101, LOOSE), fault);
    }
}
