//! The data phases of a command as they come in: Data-In, R2T, and the status that ends them (RFC
//! 7143 §11.4, §11.7, §11.8). Nothing is taken that lies outside the command's buffer, whatever the
//! target says; a status counts when the data it is about is in place.

use bytes::Bytes;

use super::event::{Recovery, TaskOutcome, Violation};
use super::inbound::Held;
use super::receive::{DataSegment, Ending, Handled, Receiving};
use super::{Command, ConnectionId, Session};
use crate::ids::{Itt, Ttt};
use crate::pdu::{DataIn, R2t, Residual, ResponseCode, ScsiResponse};
use crate::serial::{DataSn, StatSn};

impl<T> Session<T> {
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.7
    //# Although targets MAY choose to send even non-exception status in separate responses,
    //# initiators MUST support non-exception status in Data-In PDUs.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.7.2
    //# The initiator MUST ignore the A bit set to 1 for sessions with ErrorRecoveryLevel=0.
    pub(super) fn data_in(&mut self, id: ConnectionId, pdu: &DataIn, len: u32) -> Handled {
        self.imply_reassignment(id, pdu.itt);
        let new_status = match pdu.status {
            Some(_) => self.note_status(id, pdu.stat_sn, pdu.exp_cmd_sn, pdu.max_cmd_sn)?,
            None => {
                self.take_window(id, pdu.exp_cmd_sn, pdu.max_cmd_sn);
                false
            }
        };
        // A status that was asked for twice comes twice, and ends its command the first time.
        if pdu.status.is_some() && !new_status && self.tasks.get(pdu.itt).is_none() {
            return Ok(Receiving::Discard);
        }
        let named = self.named(id, pdu.itt)?.is_some();
        let (rules, now) = (self.rules(), self.now);
        let Some(task) = self.tasks.command_mut(pdu.itt).filter(|_| named) else {
            return Ok(Receiving::Discard);
        };
        let limit = task.command.data_in_len;
        let offset = pdu.buffer_offset;
        if offset.checked_add(len).is_none_or(|end| end > limit) {
            return Err(Violation::DataOverrun { offset, len, limit });
        }
        let again = !task.inbound.check(pdu.data_sn, offset, len, rules)?;
        task.moved_at = now;
        let status = pdu.status.filter(|_| new_status);
        if let Some(status) = status {
            check_residual(status.residual, &task.command)?;
        } else if again {
            //= https://www.rfc-editor.org/rfc/rfc7143#section-7.9
            //# When an initiator receives duplicate R2TSNs (due to proactive retransmission of R2Ts
            //# by the target) or duplicate DataSNs (due to proactive SNACKs by the initiator), it
            //# MUST discard the duplicates.
            return Ok(Receiving::Discard);
        }
        Ok(Receiving::Data(DataSegment {
            itt: pdu.itt,
            number: pdu.data_sn,
            offset,
            len,
            again,
            status: status.map(|status| (status.status, status.residual)),
            ack: (pdu.acknowledge && rules.repairs).then_some((pdu.ttt, pdu.lun)),
        }))
    }

    pub(super) fn data_arrived(
        &mut self,
        id: ConnectionId,
        data: &DataSegment,
        stat_sn: Option<StatSn>,
    ) -> Result<bool, Violation> {
        let itt = data.itt;
        let Some(task) = self.tasks.command_mut(itt) else { return Ok(false) }; // aborted
        let known = task.inbound.next();
        let gap = !data.again && task.inbound.accept(data.number, data.offset, data.len)?;
        if !task.inbound.is_plain() || data.ack.is_some() {
            let gap = gap.then_some((known, data.number.0));
            self.data_repaired(id, itt, gap, data.ack);
        }
        let Some((status, residual)) = data.status else { return Ok(false) };
        let ending = Ending { status, residual, sense: Bytes::new() };
        self.ending_arrived(id, itt, stat_sn, data.number.0.saturating_add(1), ending)
    }

    /// The command's status is here. It counts when the data is; true if it has to wait for that.
    pub(super) fn ending_arrived(
        &mut self,
        id: ConnectionId,
        itt: Itt,
        stat_sn: Option<StatSn>,
        data_in_count: u32,
        ending: Ending,
    ) -> Result<bool, Violation> {
        let repairs = self.repairs();
        let Some(task) = self.tasks.command_mut(itt) else { return Ok(false) };
        let known = task.inbound.next();
        let mut gap = None;
        if repairs && task.command.data_in_len > 0 && data_in_count > known {
            // More PDUs than bytes cannot have been sent.
            if data_in_count - known > task.command.data_in_len {
                return Err(Violation::DataSn { got: data_in_count, expected: known });
            }
            task.inbound.announce(data_in_count)?;
            gap = Some((known, data_in_count));
        }
        if task.unrecoverable {
            self.requeue(itt);
            return Ok(false);
        }
        if task.inbound.is_complete() {
            self.finish_with(itt, ending);
            return Ok(false);
        }
        //= https://www.rfc-editor.org/rfc/rfc7143#section-7.9
        //# If the initiator wants to recover the missing data for a command, it MUST NOT
        //# acknowledge the received responses that start from the StatSN of the relevant command
        //# until it has completed receiving all the data PDUs of the command.
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.7.2
        //# An initiator also MUST NOT acknowledge the status for the task before those holes are
        //# filled.
        task.inbound.hold(Held { stat_sn, ending });
        if let Some(run) = gap {
            self.ask_for_data(id, itt, run);
        }
        Ok(true)
    }

    pub(super) fn finish_with(&mut self, itt: Itt, ending: Ending) {
        let Some(task) = self.tasks.command_mut(itt) else { return };
        let data_in_len = task.inbound.received();
        if !task.inbound.is_plain() {
            self.retire(itt); // an answer to a second request for its data may be under way
        }
        let Ending { status, residual, sense } = ending;
        self.finish(itt, TaskOutcome::Completed { status, residual, data_in_len, sense });
    }

    pub(super) fn scsi_response(&mut self, id: ConnectionId, pdu: &ScsiResponse) -> Handled {
        self.imply_reassignment(id, pdu.itt);
        if !self.note_status(id, pdu.stat_sn, pdu.exp_cmd_sn, pdu.max_cmd_sn)? {
            return Ok(Receiving::Discard);
        }
        let Some(command) = self.named(id, pdu.itt)? else { return Ok(Receiving::Discard) };
        if pdu.response != ResponseCode::COMPLETED {
            //= https://www.rfc-editor.org/rfc/rfc7143#section-11.4.3
            //# A non-zero response field indicates a failure to execute the command, in which case
            //# the Status and Flag fields are undefined and MUST be ignored on reception.
            // No SCSI status then, and no sense worth reading (§11.4.3).
            self.finish(pdu.itt, TaskOutcome::TargetFailure(pdu.response));
            return Ok(Receiving::Discard);
        }
        // We never send an R-Data SNACK, because we never change what we declared: a SNACK Tag
        // can only be the default.
        if pdu.snack_tag != 0 && self.repairs() {
            return Err(Violation::SnackTag(pdu.snack_tag));
        }
        check_residual(pdu.residual, command)?;
        let (status, residual, data_in_count) = (pdu.status, pdu.residual, pdu.exp_data_sn);
        Ok(Receiving::Response { itt: pdu.itt, status, residual, data_in_count })
    }

    //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.3.3
    //# MUST continue to respond to each TTT received for the affected tasks.
    pub(super) fn r2t(&mut self, id: ConnectionId, pdu: &R2t) -> Handled {
        self.imply_reassignment(id, pdu.itt);
        let named = self.named(id, pdu.itt)?.is_some();
        self.note_window(pdu.exp_cmd_sn, pdu.max_cmd_sn);
        self.note_next_status(id, pdu.stat_sn)?;
        let (max_burst, max_r2t) = (self.params.max_burst_length, self.params.max_outstanding_r2t);
        let (rules, now) = (self.rules(), self.now);
        let Some(task) = self.tasks.command_mut(pdu.itt).filter(|_| named) else {
            return Ok(Receiving::Nothing);
        };
        //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.5.3
        //# As the Initiator Task Tag is used to identify a task during its execution, the iSCSI
        //# initiator and target MUST verify that all other fields used in task-related PDUs have
        //# values that are consistent with the values used at the task instantiation, based on the
        //# Initiator Task Tag (e.g., the LUN used in an R2T PDU MUST be the same as the one used in
        //# the SCSI Command PDU used to instantiate the task).
        if pdu.lun != task.command.lun {
            return Err(Violation::WrongTask);
        }
        let (offset, len) = (pdu.buffer_offset, pdu.desired_data_transfer_length);
        let limit = task.command.data_out.len() as u32; // checked by `submit`
        let end = offset.checked_add(len).filter(|end| *end <= limit && len > 0);
        //= https://www.rfc-editor.org/rfc/rfc7143#section-13.19
        //# If DataSequenceInOrder is set to Yes, data sequences MUST be transferred using
        //# continuously non-decreasing sequence offsets (R2T buffer offset for writes, or the
        //# smallest SCSI Data-In buffer offset within a read data sequence).
        // In order (§13.19), so each R2T begins where the last one, or unsolicited data, ended;
        // unless it asks for something again, or others are missing.
        let in_order = offset == task.solicited || !rules.in_order || rules.repairs;
        let Some(end) = end.filter(|_| in_order && len <= max_burst) else {
            return Err(Violation::R2tRange { offset, len, limit });
        };
        if pdu.ttt == Ttt::NONE {
            return Err(Violation::R2tUnexpected);
        }
        //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.5.2
        //# An initiator MUST honor an R2T data request for a valid outstanding command (i.e.,
        //# carrying a valid Initiator Task Tag) and deliver all the requested data, provided the
        //# command is supposed to deliver outgoing data and the R2T specifies data within the
        //# command bounds.
        let is_new = pdu.r2t_sn.0 >= task.r2t_sn.0;
        let Some(gap) = task.number_r2t(pdu.r2t_sn, rules.repairs)? else {
            return Ok(Receiving::Nothing); // it has been here before
        };
        let again = offset < task.solicited;
        let replaced =
            again && is_new && rules.repairs && self.replace_bursts(id, pdu.itt, offset, end);
        let Some(task) = self.tasks.command_mut(pdu.itt) else { return Ok(Receiving::Nothing) };
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.1
        //# For ABORT TASK SET and CLEAR TASK SET, the issuing initiator MUST continue to respond to
        //# all valid Target Transfer Tags (received via R2T, Text Response, NOP-In, or SCSI Data-In
        //# PDUs) related to the affected task set, even after issuing the task management request.
        let recovery = again && (rules.in_order || replaced);
        task.admit_r2t(max_r2t.max(1), recovery, rules.repairs)?;
        task.solicited = task.solicited.max(end);
        task.moved_at = now;
        let (itt, ttt, lun) = (pdu.itt, pdu.ttt, task.command.lun);
        if let Some(connection) = self.connection_mut(id) {
            let (data_sn, stopped) = (DataSn(0), false);
            let burst = super::transmit::Burst { itt, ttt, lun, data_sn, offset, end, stopped };
            connection.queues.data.push_back(burst);
        }
        if recovery {
            self.report(id, Recovery::R2tAgain { itt, offset, len });
        }
        if let Some(run) = gap {
            //= https://www.rfc-editor.org/rfc/rfc7143#section-7.9
            //# The initiator MUST address these implied digest errors as described in Section 7.8.
            self.ask_for_r2t(id, itt, run);
        }
        self.wake(id);
        Ok(Receiving::Nothing)
    }

    /// The target asks anew for bytes `offset..end` of a command. What waits to be sent of them
    /// goes in answer to that: the R2Ts before are not outstanding any more (§13.17), and data for
    /// them would be thrown away. Data that a function holds back would pile up here. True if some
    /// did.
    fn replace_bursts(&mut self, id: ConnectionId, itt: Itt, offset: u32, end: u32) -> bool {
        let Some(connection) = self.connection_mut(id) else { return false };
        let bursts = &mut connection.queues.data;
        let before = bursts.len();
        bursts.retain(|burst| {
            let covered = offset <= burst.offset && burst.end <= end;
            burst.itt != itt || burst.ttt == Ttt::NONE || !covered
        });
        let replaced = before - bursts.len();
        if let Some(task) = self.tasks.command_mut(itt) {
            let replaced = u16::try_from(replaced).unwrap_or(u16::MAX);
            task.r2t_outstanding = task.r2t_outstanding.saturating_sub(replaced);
        }
        replaced > 0
    }
}

/// A count of bytes that were not moved cannot exceed those that should have been (§11.4.5).
fn check_residual(residual: Residual, command: &Command) -> Result<(), Violation> {
    let limit = command.data_in_len.max(command.data_out.len() as u32); // checked by `submit`
    match residual {
        Residual::Underflow(residual) if residual > limit => {
            Err(Violation::ResidualRange { residual, limit })
        }
        _ => Ok(()),
    }
}
