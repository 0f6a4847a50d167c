//! Places of commands among each other, for whoever wants to know what was carried out before
//! what: a target delivers the commands of a session in the order of their numbers (RFC 7143
//! §4.2.2.1), and one with the ORDERED attribute is carried out behind all older ones (SAM-5
//! §8.2).

use iscsi_proto::initiator::Command;
use iscsi_proto::serial::CmdSn;

use crate::initiator::op::{Asked, Origin};

/// Places of one session are so far from those of another that no command of either is taken for
/// one of the other's.
const APART: u64 = 1 << 33;

/// What is known of commands that have ended. Their numbers are counted on where they wrap around,
/// and from one session to the next: of two commands, the younger one has the greater place.
#[derive(Debug)]
pub(in crate::initiator) struct Places {
    /// The unit keeps to the ORDERED attribute, once it was asked.
    pub(in crate::initiator) are_kept: Option<bool>,
    /// There is more than one session, and each numbers its commands for itself.
    is_mixed: bool,
    /// The youngest command of the session that has ended, and its place.
    latest: Option<(CmdSn, u64)>,
    /// The place of the first command that ends.
    first: u64,
    /// The greatest place of a read of the user that has ended; 0 if none has.
    read_latest: u64,
}

impl Default for Places {
    fn default() -> Self {
        Self { are_kept: None, is_mixed: false, latest: None, first: APART, read_latest: 0 }
    }
}

impl Places {
    /// Other sessions number their commands anew, with a unit that may be another.
    pub(super) fn begin(&mut self, sessions: usize) {
        self.is_mixed = sessions != 1;
        self.first = self.latest.map_or(self.first, |(_, place)| place) + APART;
        (self.are_kept, self.latest) = (None, None);
    }

    /// One more session.
    pub(in crate::initiator) fn mix(&mut self) {
        self.is_mixed = true;
    }

    /// They tell what was carried out before what.
    pub(in crate::initiator) fn tell(&self) -> bool {
        self.are_kept == Some(true) && !self.is_mixed
    }

    /// A command has ended that had this number.
    pub(super) fn note(&mut self, command: &Command, task: &mut Asked, cmd_sn: Option<CmdSn>) {
        task.cmd_sn = cmd_sn;
        let cmd_sn = cmd_sn.filter(|_| !self.is_mixed);
        let Some(place) = cmd_sn.map(|cmd_sn| self.of(cmd_sn)) else { return };
        if task.origin == Origin::User && command.data_in_len > 0 {
            self.read_latest = self.read_latest.max(place);
        }
    }

    /// The place of the command with this number.
    pub(in crate::initiator) fn of(&mut self, cmd_sn: CmdSn) -> u64 {
        let (before, place) = *self.latest.get_or_insert((cmd_sn, self.first));
        // Serial numbers of 32 bits (RFC 1982): less than half of them is ahead or behind.
        let further = cmd_sn.0.wrapping_sub(before.0).cast_signed();
        let place = place.saturating_add_signed(further.into());
        if further > 0 {
            self.latest = Some((cmd_sn, place));
        }
        place
    }

    /// No read that has ended has a greater one.
    pub(in crate::initiator) fn reads_ended(&self) -> u64 {
        self.read_latest
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
        assert_eq!(places.reads_ended(), 0, "nothing was read");
        let is_behind =
            |places: &mut Places, number| places.reads_ended() < places.of(CmdSn(number));
        note(&mut places, Origin::User, 512, u32::MAX);
        assert!(is_behind(&mut places, 0) && !is_behind(&mut places, u32::MAX));
        note(&mut places, Origin::User, 512, 7);
        note(&mut places, Origin::User, 512, 5);
        assert!(is_behind(&mut places, 8) && !is_behind(&mut places, 6));
        note(&mut places, Origin::User, 0, 20);
        note(&mut places, Origin::UserShort, 192, 21);
        assert!(is_behind(&mut places, 8), "these brought nothing of the medium");
        // Whatever numbers the next session has, its commands are younger.
        places.begin(1);
        assert!(is_behind(&mut places, 3));
        note(&mut places, Origin::User, 512, 2);
        assert!(is_behind(&mut places, 3) && !is_behind(&mut places, 1));
    }

    #[test]
    fn places_go_on_where_numbers_wrap_around() {
        let mut places = Places::default();
        let mut before = places.of(CmdSn(1));
        for step in 1..20_u32 {
            let place = places.of(CmdSn(1_u32.wrapping_add(step.wrapping_mul(1 << 30))));
            assert_eq!(place, before + (1 << 30));
            before = place;
        }
    }
}
