//! What comes in on a connection: checks every header against the tasks, says where its data
//! belongs, and acts when the data is there. Whatever a hostile target sends ends in an error,
//! never in a write outside a command's buffer (RFC 7143 §11, §7.10).

use bytes::Bytes;

use super::event::{ConnectionError, Event, TaskOutcome, Violation};
use super::task::Kind;
use super::{Command, ConnectionId, Session, State, Timer};
use crate::connection::Placement;
use crate::ids::{Itt, Lun, Ttt};
use crate::pdu::{
    AsyncMessage, DataIn, Header, NopIn, Opcode, Pdu, R2t, RejectReason, Residual, ResponseCode,
    ScsiResponse, parse_sense,
};
use crate::serial::{CmdSn, StatSn};
use crate::time::Instant;

/// NOP-In PDUs that may wait for our answer. A target that sends more without reading ours would
/// make us hold their data without end.
pub(super) const NOP_REPLIES_MAX: usize = 32;

/// Largest data segment of a PDU that carries none of a command's data: sense, text, ping data.
/// Sense is at most 2 + 65535 bytes (§11.4.7.1), text and pings as much as one PDU may carry.
const SCRATCH_LEN_MAX: u32 = 1 << 20;

/// The PDU of a connection whose data segment is being received.
#[derive(Debug, Default)]
pub(super) enum Receiving {
    #[default]
    Nothing,
    /// Data-In, with the task's outcome if it carried the status.
    Data {
        itt: Itt,
        outcome: Option<TaskOutcome>,
    },
    Response {
        itt: Itt,
        status: u8,
        residual: Residual,
    },
    Text {
        itt: Itt,
        is_final: bool,
        lun: Lun,
        ttt: Ttt,
    },
    NopIn {
        lun: Lun,
        ttt: Ttt,
    },
    Async(AsyncMessage),
    Reject(RejectReason),
    /// Data that nobody asked for.
    Discard,
}

/// What a header handler wants: the state to hold while the data segment comes in.
pub(super) type Handled = Result<Receiving, Violation>;

impl<T> Session<T> {
    /// Takes a header; says where its data segment belongs. [`Placement::None`] means that the
    /// PDU is complete; otherwise [`Self::handle_data`] follows.
    ///
    /// # Errors
    /// Why the connection is closed; the session has ended with it.
    pub fn handle_header(
        &mut self,
        id: ConnectionId,
        now: Instant,
        header: &Header,
    ) -> Result<Placement, ConnectionError> {
        let Some(connection) = self.connection_mut(id) else {
            return Err(ConnectionError::NotConnected);
        };
        if let Some(closing) = &connection.closing {
            return Err(closing.clone().err().unwrap_or(ConnectionError::NotConnected));
        }
        connection.received_at = now;
        let cid = connection.cid();
        let result = self.dispatch_header(id, now, header).map_err(|violation| {
            let (opcode, itt) = (header.opcode(), header.itt());
            ConnectionError::Protocol { cid, opcode, itt, violation }
        });
        if let Err(error) = &result {
            self.fail(id, error.clone());
        }
        result
    }

    fn dispatch_header(
        &mut self,
        id: ConnectionId,
        now: Instant,
        header: &Header,
    ) -> Result<Placement, Violation> {
        let len = header.data_segment_length();
        //= https://www.rfc-editor.org/rfc/rfc7143#section-7.7
        //# All initiator-detected PDU construction errors MUST be considered as format errors.
        let pdu = Pdu::parse(header)?;
        let data_in = match &pdu {
            Pdu::DataIn(pdu) => Some((pdu.itt, pdu.buffer_offset)),
            _ => None,
        };
        let receiving = match pdu {
            Pdu::DataIn(pdu) => self.data_in(id, &pdu, len),
            Pdu::ScsiResponse(pdu) => self.scsi_response(id, &pdu),
            Pdu::R2t(pdu) => self.r2t(id, &pdu),
            Pdu::NopIn(pdu) => self.nop_in(id, now, &pdu),
            Pdu::TaskManagementResponse(pdu) => self.management_response(id, &pdu),
            Pdu::TextResponse(pdu) => self.text_response(id, &pdu),
            Pdu::LogoutResponse(pdu) => self.logout_response(id, &pdu),
            Pdu::AsyncMessage(pdu) => {
                self.note_status(id, pdu.stat_sn, pdu.exp_cmd_sn, pdu.max_cmd_sn)?;
                Ok(Receiving::Async(pdu))
            }
            Pdu::Reject(pdu) => self.reject(id, &pdu),
            //= https://www.rfc-editor.org/rfc/rfc7143#section-11.2.1.2
            //# Initiators MUST NOT use target Opcodes, and targets MUST NOT use initiator Opcodes.
            _ => Err(Violation::UnexpectedPdu),
        }?;
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.7.7
        //# The sending of 0-length data segments should be avoided, but initiators and targets MUST
        //# be able to properly receive 0-length data segments.
        if len == 0 {
            self.complete(id, now, receiving, &[])?;
            return Ok(Placement::None);
        }
        let placement = match (&receiving, data_in) {
            (Receiving::Data { .. }, Some((itt, offset))) => Placement::Task { itt, offset },
            (Receiving::Discard, _) => Placement::Discard,
            (Receiving::Nothing, _) => return Err(Violation::DataSegment { len }),
            _ if len > SCRATCH_LEN_MAX => return Err(Violation::DataSegment { len }),
            _ => Placement::Scratch,
        };
        if let Some(connection) = self.connection_mut(id) {
            connection.receiving = receiving;
        }
        Ok(placement)
    }

    /// The data segment announced by the last header is in place: in the task's buffer, in
    /// `scratch`, or thrown away.
    ///
    /// # Errors
    /// Why the connection is closed; the session has ended with it.
    pub fn handle_data(
        &mut self,
        id: ConnectionId,
        now: Instant,
        scratch: &[u8],
        digest_ok: bool,
    ) -> Result<(), ConnectionError> {
        let Some(connection) = self.connection_mut(id) else {
            return Err(ConnectionError::NotConnected);
        };
        if let Some(closing) = &connection.closing {
            return Err(closing.clone().err().unwrap_or(ConnectionError::NotConnected));
        }
        connection.received_at = now;
        let cid = connection.cid();
        let receiving = std::mem::take(&mut connection.receiving);
        let result = if digest_ok {
            let (opcode, itt) = receiving.identity();
            self.complete(id, now, receiving, scratch)
                .map_err(|violation| ConnectionError::Protocol { cid, opcode, itt, violation })
        } else {
            //= https://www.rfc-editor.org/rfc/rfc7143#section-7.8
            //# When an initiator receives any iSCSI PDU with a payload digest error, it MUST
            //# discard the PDU.
            Err(ConnectionError::DataDigest { cid })
        };
        if let Err(error) = &result {
            self.fail(id, error.clone());
        }
        result
    }

    fn complete(
        &mut self,
        id: ConnectionId,
        now: Instant,
        receiving: Receiving,
        data: &[u8],
    ) -> Result<(), Violation> {
        match receiving {
            Receiving::Nothing | Receiving::Discard => {}
            Receiving::Data { itt, outcome } => {
                if let Some(outcome) = outcome {
                    self.finish(itt, outcome);
                }
            }
            Receiving::Response { itt, status, residual } => {
                //= https://www.rfc-editor.org/rfc/rfc7143#section-10.2
                //# "Autosense" refers to the automatic return of sense data to the initiator in
                //# cases where a command did not complete successfully. iSCSI initiators and
                //# targets MUST support and use Autosense.
                let sense = Bytes::copy_from_slice(parse_sense(data));
                let data_in_len = self.tasks.command_mut(itt).map_or(0, |task| task.received);
                let outcome = TaskOutcome::Completed { status, residual, data_in_len, sense };
                self.finish(itt, outcome);
            }
            Receiving::Text { itt, is_final, lun, ttt } => {
                self.text_data(id, itt, is_final, (lun, ttt), data)?;
            }
            Receiving::NopIn { lun, ttt } => {
                let room =
                    self.connection_mut(id).is_none_or(|c| c.queue_nop_reply(lun, ttt, data));
                if !room {
                    return Err(Violation::NopFlood { limit: NOP_REPLIES_MAX });
                }
                self.wake(id);
            }
            Receiving::Async(message) => self.async_message(id, now, &message, data),
            Receiving::Reject(reason) => self.rejected(id, reason, data)?,
        }
        Ok(())
    }

    /// Takes the sequence numbers of a PDU that carries a status (§4.2.2.2).
    //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.2
    //# Initiators MUST undertake recovery actions if the difference is greater than an
    //# implementation-defined constant that MUST NOT exceed 2**31 - 1.
    pub(super) fn note_status(
        &mut self,
        id: ConnectionId,
        stat_sn: StatSn,
        exp_cmd_sn: CmdSn,
        max_cmd_sn: CmdSn,
    ) -> Result<(), Violation> {
        if let Some(connection) = self.connection_mut(id) {
            let expected = connection.exp_stat_sn;
            if stat_sn != expected {
                return Err(Violation::StatSn { got: stat_sn.0, expected: expected.0 });
            }
            //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.2
            //# Initiators and targets MUST support the response-numbering scheme.
            connection.exp_stat_sn = expected.next();
        }
        self.note_window(exp_cmd_sn, max_cmd_sn);
        Ok(())
    }

    /// The sent command that a PDU names. `None` if it was aborted and the PDU was under way.
    fn named(&self, id: ConnectionId, itt: Itt) -> Result<Option<&Command>, Violation> {
        let Some(task) = self.tasks.get(itt) else {
            let aborted = self.aborted.contains(&itt);
            return if aborted { Ok(None) } else { Err(Violation::UnknownTask) };
        };
        match &task.kind {
            _ if task.connection != id => Err(Violation::Allegiance),
            Kind::Command(command) if task.is_sent() => Ok(Some(&command.command)),
            _ => Err(Violation::WrongTask),
        }
    }

    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.7.2
    //# The initiator MUST ignore the A bit set to 1 for sessions with ErrorRecoveryLevel=0.
    fn data_in(&mut self, id: ConnectionId, pdu: &DataIn, len: u32) -> Handled {
        let named = self.named(id, pdu.itt)?.is_some();
        match pdu.status {
            Some(_) => self.note_status(id, pdu.stat_sn, pdu.exp_cmd_sn, pdu.max_cmd_sn)?,
            None => self.note_window(pdu.exp_cmd_sn, pdu.max_cmd_sn),
        }
        let Some(task) = self.tasks.command_mut(pdu.itt).filter(|_| named) else {
            return Ok(Receiving::Discard);
        };
        let limit = task.command.data_in_len;
        let offset = pdu.buffer_offset;
        if offset.checked_add(len).is_none_or(|end| end > limit) {
            return Err(Violation::DataOverrun { offset, len, limit });
        }
        //= https://www.rfc-editor.org/rfc/rfc7143#section-13.19
        //# If DataSequenceInOrder is set to Yes, data sequences MUST be transferred using
        //# continuously non-decreasing sequence offsets (R2T buffer offset for writes, or the
        //# smallest SCSI Data-In buffer offset within a read data sequence).
        // DataPDUInOrder and DataSequenceInOrder are always Yes here: our offer says Yes, and Yes
        // wins (§13.18, §13.19). So data is contiguous and `received` tells what is in place.
        if offset != task.received {
            return Err(Violation::DataOffset { got: offset, expected: task.received });
        }
        if pdu.data_sn != task.data_sn {
            return Err(Violation::DataSn { got: pdu.data_sn.0, expected: task.data_sn.0 });
        }
        task.data_sn = task.data_sn.next();
        task.received += len;
        let data_in_len = task.received;
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.7
        //# Although targets MAY choose to send even non-exception status in separate responses,
        //# initiators MUST support non-exception status in Data-In PDUs.
        let outcome = match pdu.status {
            Some(status) => {
                check_residual(status.residual, &task.command)?;
                let (status, residual) = (status.status, status.residual);
                let sense = Bytes::new();
                Some(TaskOutcome::Completed { status, residual, data_in_len, sense })
            }
            None => None,
        };
        Ok(Receiving::Data { itt: pdu.itt, outcome })
    }

    fn scsi_response(&mut self, id: ConnectionId, pdu: &ScsiResponse) -> Handled {
        let command = self.named(id, pdu.itt)?;
        let residual = command.map(|command| check_residual(pdu.residual, command));
        self.note_status(id, pdu.stat_sn, pdu.exp_cmd_sn, pdu.max_cmd_sn)?;
        let Some(residual_checked) = residual else { return Ok(Receiving::Discard) };
        if pdu.response != ResponseCode::COMPLETED {
            //= https://www.rfc-editor.org/rfc/rfc7143#section-11.4.3
            //# A non-zero response field indicates a failure to execute the command, in which case
            //# the Status and Flag fields are undefined and MUST be ignored on reception.
            // No SCSI status then, and no sense worth reading (§11.4.3).
            self.finish(pdu.itt, TaskOutcome::TargetFailure(pdu.response));
            return Ok(Receiving::Discard);
        }
        residual_checked?;
        Ok(Receiving::Response { itt: pdu.itt, status: pdu.status, residual: pdu.residual })
    }

    //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.3.3
    //# MUST continue to respond to each TTT received for the affected tasks.
    fn r2t(&mut self, id: ConnectionId, pdu: &R2t) -> Handled {
        let named = self.named(id, pdu.itt)?.is_some();
        self.note_window(pdu.exp_cmd_sn, pdu.max_cmd_sn);
        let (max_burst, max_r2t) = (self.params.max_burst_length, self.params.max_outstanding_r2t);
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
        if pdu.r2t_sn != task.r2t_sn {
            return Err(Violation::DataSn { got: pdu.r2t_sn.0, expected: task.r2t_sn.0 });
        }
        let (offset, len) = (pdu.buffer_offset, pdu.desired_data_transfer_length);
        let limit = task.command.data_out.len() as u32; // checked by `submit`
        let end = offset.checked_add(len).filter(|end| *end <= limit);
        // In order (§13.19), so each R2T begins where the last one, or unsolicited data, ended.
        let in_order = offset == task.solicited && len > 0 && len <= max_burst;
        let Some(end) = end.filter(|_| in_order) else {
            return Err(Violation::R2tRange { offset, len, limit });
        };
        if task.r2t_outstanding >= max_r2t.max(1) || pdu.ttt == Ttt::NONE {
            return Err(Violation::R2tUnexpected);
        }
        task.r2t_sn = task.r2t_sn.next();
        //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.5.2
        //# An initiator MUST honor an R2T data request for a valid outstanding command (i.e.,
        //# carrying a valid Initiator Task Tag) and deliver all the requested data, provided the
        //# command is supposed to deliver outgoing data and the R2T specifies data within the
        //# command bounds.
        task.r2t_outstanding += 1;
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.1
        //# For ABORT TASK SET and CLEAR TASK SET, the issuing initiator MUST continue to respond to
        //# all valid Target Transfer Tags (received via R2T, Text Response, NOP-In, or SCSI Data-In
        //# PDUs) related to the affected task set, even after issuing the task management request.
        task.solicited = end;
        let (itt, ttt, lun) = (pdu.itt, pdu.ttt, task.command.lun);
        if let Some(connection) = self.connection_mut(id) {
            let data_sn = crate::serial::DataSn(0);
            let burst = super::transmit::Burst { itt, ttt, lun, data_sn, offset, end };
            connection.queues.data.push_back(burst);
        }
        self.wake(id);
        Ok(Receiving::Nothing)
    }

    fn nop_in(&mut self, id: ConnectionId, now: Instant, pdu: &NopIn) -> Handled {
        if pdu.itt == Itt::NONE {
            // StatSN is the next one and is not used up (§11.19.3).
            self.note_window(pdu.exp_cmd_sn, pdu.max_cmd_sn);
            let asked = pdu.ttt != Ttt::NONE;
            return Ok(if asked {
                Receiving::NopIn { lun: pdu.lun, ttt: pdu.ttt }
            } else {
                Receiving::Discard
            });
        }
        let task = self.tasks.get(pdu.itt).ok_or(Violation::UnknownTask)?;
        if task.connection != id {
            return Err(Violation::Allegiance);
        }
        let Kind::Ping { sent_at: Some(sent_at) } = task.kind else {
            return Err(Violation::WrongTask);
        };
        self.note_status(id, pdu.stat_sn, pdu.exp_cmd_sn, pdu.max_cmd_sn)?;
        self.end_ping(id, pdu.itt, now);
        self.events.push_back(Event::Pong { connection: id, rtt: now.since(sent_at) });
        Ok(Receiving::Discard)
    }

    pub(super) fn end_ping(&mut self, id: ConnectionId, itt: Itt, now: Instant) {
        self.tasks.remove(itt);
        let keepalive = now + self.config.keepalive_interval;
        if let Some(connection) = self.connection_mut(id) {
            connection.pinging = false;
            connection.timers.stop(Timer::Ping);
            connection.timers.set(Timer::Keepalive, keepalive);
        }
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

impl Receiving {
    fn identity(&self) -> (Opcode, Itt) {
        match self {
            Self::Data { itt, .. } => (Opcode::DATA_IN, *itt),
            Self::Response { itt, .. } => (Opcode::SCSI_RESPONSE, *itt),
            Self::Text { itt, .. } => (Opcode::TEXT_RESPONSE, *itt),
            Self::Async(_) => (Opcode::ASYNC_MESSAGE, Itt::NONE),
            Self::Reject(_) => (Opcode::REJECT, Itt::NONE),
            Self::NopIn { .. } | Self::Nothing | Self::Discard => (Opcode::NOP_IN, Itt::NONE),
        }
    }
}

impl State {
    /// A logout of ours is under way.
    pub(super) const fn is_leaving(self) -> bool {
        matches!(self, Self::InLogout)
    }
}
