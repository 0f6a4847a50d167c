//! Places of commands among each other, for whoever wants to know what was carried out before
//! what: a target delivers the commands of a session in the order of their numbers (RFC 7143
//! §4.2.2.1), and one with the ORDERED attribute is carried out behind all older ones (SAM-5 §8.2).

use iscsi_proto::initiator::Command;
use iscsi_proto::serial::CmdSn;

use crate::initiator::op::{Asked, Origin};

/// What is known of an incarnation's commands that have ended.
#[derive(Debug, Default)]
pub(in crate::initiator) struct Places {
    /// The unit keeps to the ORDERED attribute, once it was asked.
    pub(in crate::initiator) are_kept: Option<bool>,
    /// The greatest number of a read of the user that has ended.
    read_latest: Option<CmdSn>,
}

impl Places {
    /// A command has ended that had this number.
    pub(super) fn note(&mut self, command: &Command, task: &mut Asked, cmd_sn: Option<CmdSn>) {
        task.cmd_sn = cmd_sn;
        let is_read = task.origin == Origin::User && command.data_in_len > 0;
        if let Some(cmd_sn) = cmd_sn.filter(|_| is_read)
            && self.read_latest.is_none_or(|latest| latest.is_before(cmd_sn))
        {
            self.read_latest = Some(cmd_sn);
        }
    }

    /// Every read that has ended was asked for before the command with this number.
    pub(in crate::initiator) fn are_before(&self, cmd_sn: CmdSn) -> bool {
        self.read_latest.is_none_or(|latest| latest.is_before(cmd_sn))
    }
}

#[cfg(test)]
mod tests {
    use iscsi_proto::ids::Lun;
    use iscsi_proto::initiator::durability::{Effect, Ended, Ticket};
    use iscsi_proto::time::Instant;

    use super::super::command;
    use super::*;
    use crate::initiator::cdb;
    use crate::initiator::op::Slot;

    fn note(places: &mut Places, origin: Origin, data_in_len: u32, number: u32) {
        let mut task = Asked {
            slot: Slot::new(&Effect::None),
            origin,
            buf: None,
            effect: Effect::None,
            ticket: Ticket::default(),
            ended: Ended::Good,
            attempts: 0,
            asked_at: Instant::default(),
            submitted_at: Instant::default(),
            cmd_sn: None,
        };
        let command = command(Lun(0), cdb::TEST_UNIT_READY);
        let command = Command { data_in_len, ..command };
        places.note(&command, &mut task, Some(CmdSn(number)));
        assert_eq!(task.cmd_sn, Some(CmdSn(number)));
    }

    #[test]
    fn a_command_is_behind_reads_that_had_lesser_numbers_whichever_ended_last() {
        let mut places = Places::default();
        assert!(places.are_before(CmdSn(0)), "nothing was read");
        note(&mut places, Origin::User, 512, u32::MAX);
        assert!(places.are_before(CmdSn(0)) && !places.are_before(CmdSn(u32::MAX)));
        note(&mut places, Origin::User, 512, 7);
        note(&mut places, Origin::User, 512, 5);
        assert!(places.are_before(CmdSn(8)) && !places.are_before(CmdSn(6)));
        note(&mut places, Origin::User, 0, 20);
        note(&mut places, Origin::UserShort, 192, 21);
        assert!(places.are_before(CmdSn(8)), "these brought nothing of the medium");
    }
}
