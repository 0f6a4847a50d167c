//! Which numbered commands the target has, as far as somebody who sees each copy leave can know.
//! One that is damaged or lost leaves a hole in CmdSN (RFC 7143 §7.3), but only where no other has
//! come.

use std::collections::BTreeMap;

use iscsi_proto::serial::CmdSn;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Had {
    /// No copy has come.
    No,
    Yes,
    /// A copy has come unless its connection ended first.
    Perhaps,
}

/// Commands from ExpCmdSN on that were sent.
#[derive(Debug)]
pub(super) struct Received {
    exp_cmd_sn: CmdSn,
    had: BTreeMap<u32, Had>,
}

impl Received {
    pub(super) const fn new(exp_cmd_sn: CmdSn) -> Self {
        Self { exp_cmd_sn, had: BTreeMap::new() }
    }

    /// A copy arrives, or an ABORT TASK for which the target counts it as received (§7.11).
    pub(super) fn comes(&mut self, cmd_sn: CmdSn) {
        if !cmd_sn.is_before(self.exp_cmd_sn) {
            self.had.insert(cmd_sn.0, Had::Yes);
        }
    }

    /// A copy does not arrive as it was sent.
    pub(super) fn is_lost(&mut self, cmd_sn: CmdSn) {
        if !cmd_sn.is_before(self.exp_cmd_sn) {
            self.had.entry(cmd_sn.0).or_insert(Had::No);
        }
    }

    /// It is sent again on another connection than before, which has ended.
    pub(super) fn moves(&mut self, cmd_sn: CmdSn) {
        let had = self.had.get_mut(&cmd_sn.0);
        if let Some(had) = had.filter(|had| **had == Had::Yes) {
            *had = Had::Perhaps;
        }
    }

    pub(super) fn is_missing(&self, cmd_sn: CmdSn) -> bool {
        self.had.get(&cmd_sn.0) == Some(&Had::No)
    }

    pub(super) fn is_in_doubt(&self, cmd_sn: CmdSn) -> bool {
        self.had.get(&cmd_sn.0) == Some(&Had::Perhaps)
    }

    /// The target says that it has everything before `exp_cmd_sn`. Returns a command that it cannot
    /// have.
    pub(super) fn acknowledge(&mut self, exp_cmd_sn: CmdSn) -> Option<CmdSn> {
        if exp_cmd_sn == self.exp_cmd_sn {
            return None;
        }
        let before = |sn: u32| CmdSn(sn).is_before(exp_cmd_sn);
        let missing = self.had.iter().find(|(sn, had)| **had == Had::No && before(**sn));
        let missing = missing.map(|(sn, _)| CmdSn(*sn));
        self.exp_cmd_sn = exp_cmd_sn;
        self.had.retain(|sn, _| !before(*sn));
        missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: CmdSn = CmdSn(u32::MAX);
    const NEXT: CmdSn = CmdSn(0);

    fn sent(copies: &[bool]) -> Received {
        let mut received = Received::new(FIRST);
        for comes in copies {
            if *comes { received.comes(FIRST) } else { received.is_lost(FIRST) }
        }
        received
    }

    #[test]
    fn a_command_is_missing_until_a_copy_comes() {
        assert_eq!(sent(&[false, false]).acknowledge(NEXT), Some(FIRST));
        assert_eq!(sent(&[false, true]).acknowledge(NEXT), None);
    }

    /// As when an ABORT TASK has filled the hole, and the command is sent again before that is
    /// known.
    #[test]
    fn a_copy_that_is_lost_makes_no_hole_where_another_has_come() {
        let mut received = sent(&[false, true, false]);
        assert!(!received.is_missing(FIRST));
        assert_eq!(received.acknowledge(NEXT), None);
        received.is_lost(FIRST); // it is acknowledged: nobody waits for it
        assert_eq!(received.acknowledge(CmdSn(1)), None);
    }

    #[test]
    fn what_an_ended_connection_carried_may_have_come() {
        let mut received = sent(&[true]);
        received.moves(FIRST);
        received.is_lost(FIRST);
        assert!(received.is_in_doubt(FIRST) && !received.is_missing(FIRST));
        let mut received = sent(&[false]);
        received.moves(FIRST);
        received.is_lost(FIRST);
        assert!(received.is_missing(FIRST), "the first copy was not even under way");
    }
}
