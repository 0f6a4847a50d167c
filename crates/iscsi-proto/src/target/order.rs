//! The command window and delivery in CmdSN order across connections (RFC 7143 §4.2.2.1).

use std::collections::VecDeque;

use bytes::Bytes;

use super::event::ConnId;
use crate::ids::Itt;
use crate::pdu::Pdu;
use crate::serial::CmdSn;

/// A command that has arrived and waits for its turn.
#[derive(Debug)]
pub(super) enum Held {
    /// A SCSI command; its task is in the session's table.
    Command(Itt),
    /// Any other request with its data.
    Request { conn: ConnId, pdu: Box<Pdu>, data: Bytes },
    /// Counted as received by an ABORT TASK that came before it (§11.6.1).
    Gap,
}

impl Held {
    /// Bytes of data that it keeps.
    pub(super) fn data_len(&self) -> usize {
        match self {
            Self::Request { data, .. } => data.len(),
            Self::Command(_) | Self::Gap => 0,
        }
    }
}

/// ExpCmdSN, MaxCmdSN and what has arrived between them.
//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.1
//# iSCSI initiators and targets MUST support the command numbering scheme.
#[derive(Debug)]
pub(super) struct CommandOrder {
    exp_cmd_sn: CmdSn,
    max_cmd_sn: CmdSn,
    window: u32,
    /// `held[i]` is the command with CmdSN `exp_cmd_sn + i`, if it has arrived.
    held: VecDeque<Option<Held>>,
}

impl CommandOrder {
    /// The first command will carry `first`.
    pub(super) fn new(first: CmdSn, window: u32) -> Self {
        let window = window.max(1);
        let max_cmd_sn = first.plus(window - 1);
        Self { exp_cmd_sn: first, max_cmd_sn, window, held: VecDeque::new() }
    }

    pub(super) fn exp_cmd_sn(&self) -> CmdSn {
        self.exp_cmd_sn
    }

    /// The MaxCmdSN to announce while `unanswered` commands are being worked on. It never moves
    /// backwards (§4.2.2.1).
    //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.1
    //# The target MUST NOT transmit a MaxCmdSN that is less than ExpCmdSN - 1.
    pub(super) fn max_cmd_sn(&mut self, unanswered: usize) -> CmdSn {
        if self.has_grown(unanswered) {
            self.max_cmd_sn = self.wanted(unanswered);
        }
        self.max_cmd_sn
    }

    fn wanted(&self, unanswered: usize) -> CmdSn {
        let unanswered = u32::try_from(unanswered).unwrap_or(u32::MAX);
        let free = self.window.saturating_sub(unanswered);
        self.exp_cmd_sn.plus(free).plus(u32::MAX) // plus(MAX) is minus one
    }

    /// Is MaxCmdSN larger now than when it was last announced?
    pub(super) fn has_grown(&self, unanswered: usize) -> bool {
        self.max_cmd_sn.is_before(self.wanted(unanswered))
    }

    /// ExpCmdSN and MaxCmdSN to announce.
    pub(super) fn window(&mut self, unanswered: usize) -> (CmdSn, CmdSn) {
        (self.exp_cmd_sn, self.max_cmd_sn(unanswered))
    }

    /// Is the number inside the window and new? Others are to be ignored silently.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.1
    //# The target MUST silently ignore any non-immediate command outside of this range or
    //# non-immediate duplicates within the range.
    pub(super) fn accepts(&self, cmd_sn: CmdSn) -> bool {
        !cmd_sn.is_before(self.exp_cmd_sn)
            && !self.max_cmd_sn.is_before(cmd_sn)
            && self
                .slot(cmd_sn)
                .is_none_or(|index| self.held.get(index).is_none_or(Option::is_none))
    }

    /// Is the number inside the window, arrived or not?
    pub(super) fn is_in_window(&self, cmd_sn: CmdSn) -> bool {
        !cmd_sn.is_before(self.exp_cmd_sn) && !self.max_cmd_sn.is_before(cmd_sn)
    }

    /// Keeps a command until its turn. The number must have been accepted.
    pub(super) fn hold(&mut self, cmd_sn: CmdSn, held: Held) {
        let Some(index) = self.slot(cmd_sn) else { return };
        if self.held.len() <= index {
            self.held.resize_with(index + 1, || None);
        }
        if self.held[index].is_none() {
            self.held[index] = Some(held);
        }
    }

    /// A held command was aborted: its turn comes, and passes.
    pub(super) fn forget(&mut self, cmd_sn: CmdSn) {
        if let Some(index) = self.slot(cmd_sn)
            && let Some(held @ Some(_)) = self.held.get_mut(index)
        {
            *held = Some(Held::Gap);
        }
    }

    /// A held command is dropped as if it had never arrived.
    pub(super) fn release(&mut self, cmd_sn: CmdSn) {
        if let Some(index) = self.slot(cmd_sn)
            && let Some(held) = self.held.get_mut(index)
        {
            *held = None;
        }
    }

    /// The command whose turn it is, if it has arrived.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.1
    //# There MUST NOT be any holes in the acknowledged CmdSN sequence.
    pub(super) fn take_next(&mut self) -> Option<Held> {
        if !matches!(self.held.front(), Some(Some(_))) {
            return None;
        }
        self.exp_cmd_sn = self.exp_cmd_sn.next();
        self.held.pop_front().flatten()
    }

    /// Bytes of data kept by what waits for its turn.
    pub(super) fn held_data_len(&self) -> usize {
        self.held.iter().flatten().map(Held::data_len).sum()
    }

    fn slot(&self, cmd_sn: CmdSn) -> Option<usize> {
        let distance = usize::try_from(cmd_sn.since(self.exp_cmd_sn)).ok()?;
        (distance < self.window as usize).then_some(distance)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(itt: u32) -> Held {
        Held::Command(Itt(itt))
    }

    //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.1
    //= type=test
    //# There MUST NOT be any holes in the acknowledged CmdSN sequence.
    #[test]
    fn delivers_in_order_whatever_the_order_of_arrival() {
        let mut order = CommandOrder::new(CmdSn(u32::MAX), 4);
        order.hold(CmdSn(1), held(3));
        assert!(order.take_next().is_none());
        order.hold(CmdSn(u32::MAX), held(1));
        order.hold(CmdSn(0), held(2));
        let mut taken = Vec::new();
        while let Some(Held::Command(itt)) = order.take_next() {
            taken.push(itt.0);
        }
        assert_eq!(taken, [1, 2, 3]);
        assert_eq!(order.exp_cmd_sn(), CmdSn(2));
    }

    #[test]
    fn accepts_each_number_of_the_window_once() {
        let mut order = CommandOrder::new(CmdSn(10), 4);
        assert!(!order.accepts(CmdSn(9)));
        assert!(!order.accepts(CmdSn(14)));
        assert!(order.accepts(CmdSn(13)));
        order.hold(CmdSn(13), held(1));
        assert!(!order.accepts(CmdSn(13)));
    }

    //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.1
    //= type=test
    //# The target MUST NOT transmit a MaxCmdSN that is less than ExpCmdSN - 1.
    #[test]
    fn window_shrinks_by_waiting_never_by_moving_back() {
        let mut order = CommandOrder::new(CmdSn(10), 4);
        assert_eq!(order.max_cmd_sn(0), CmdSn(13));
        order.hold(CmdSn(10), held(1));
        assert!(order.take_next().is_some());
        assert_eq!(order.max_cmd_sn(1), CmdSn(13));
        assert_eq!(order.max_cmd_sn(4), CmdSn(13));
        assert_eq!(order.max_cmd_sn(0), CmdSn(14));
    }
}
