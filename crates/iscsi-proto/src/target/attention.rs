//! Tasks that end with their connection while the session goes on (RFC 7143 §11.14.5): nobody
//! answers them, so the next command to their unit is answered with a unit attention. What the
//! device server has to tell by itself (resets, aborts by others) is its own business.

use bytes::Bytes;

use super::event::ConnId;
use super::session::Session;
use super::task::{Task, fixed_sense};
use crate::ids::{Itt, Lun};

/// Units that are remembered. A peer that names others each time must not fill memory.
const UNITS_MAX: usize = 1024;

/// Sense key UNIT ATTENTION (SPC-4 §4.5).
const UNIT_ATTENTION: u8 = 0x06;
/// SOME COMMANDS CLEARED BY ISCSI PROTOCOL EVENT.
const CLEARED_BY_ISCSI: [u8; 2] = [0x47, 0x7f];

/// Operation codes of commands that neither report nor clear a unit attention (SAM-5 §5.14):
/// REQUEST SENSE, INQUIRY, REPORT LUNS.
const SILENT: [u8; 3] = [0x03, 0x12, 0xa0];

impl Session {
    /// Tasks of a connection are about to end without an answer.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.14.5
    //# After the tasks are terminated, the target MUST report a Unit Attention condition on the next
    //# command processed on any connection for each affected I_T_L nexus with the status of CHECK
    //# CONDITION, the ASC/ASCQ value of 47h/7Fh ("SOME COMMANDS CLEARED BY ISCSI PROTOCOL EVENT"),
    //# etc.; see [SPC3].
    pub(super) fn note_cleared(&mut self, conn: ConnId) {
        // One that was never acknowledged has not been received: it may come again.
        let exp_cmd_sn = self.order.exp_cmd_sn();
        let taken = |task: &&Task| task.command.immediate || task.cmd_sn().is_before(exp_cmd_sn);
        let active = self.tasks.values().filter(|task| task.conn == conn && !task.aborted);
        for Lun(lun) in active.filter(taken).map(Task::lun) {
            if self.cleared.len() < UNITS_MAX {
                self.cleared.insert(lun);
            }
        }
    }

    /// The sense data of a command that has to tell of ended tasks instead of being executed.
    pub(super) fn take_attention(&mut self, itt: Itt) -> Option<Bytes> {
        let task = self.tasks.get(&itt)?;
        let silent = SILENT.contains(&task.command.cdb[0]);
        if silent || !self.cleared.remove(&task.lun().0) {
            return None;
        }
        Some(fixed_sense(UNIT_ATTENTION, CLEARED_BY_ISCSI))
    }
}
