//! What comes in on a connection: checks every header against the tasks, says where its data
//! belongs, and acts when the data is there. Whatever a hostile target sends ends in an error,
//! never in a write outside a command's buffer (RFC 7143 §11, §7.10).

use bytes::Bytes;

use super::event::{ConnectionError, Event, Violation};
use super::inbound::Rules;
use super::status::Arrival;
use super::task::Kind;
use super::{Command, ConnectionId, Session, State, Timer};
use crate::connection::Placement;
use crate::ids::{Itt, Lun, Ttt};
use crate::pdu::{AsyncMessage, Header, NopIn, Opcode, Pdu, RejectReason, Residual, parse_sense};
use crate::serial::{CmdSn, DataSn, StatSn};
use crate::time::Instant;

/// NOP-In PDUs that may wait for our answer. A target that sends more without reading ours would
/// make us hold their data without end.
pub(super) const NOP_REPLIES_MAX: usize = 32;

/// Largest data segment of a PDU that carries none of a command's data: sense, text, ping data.
/// Sense is at most 2 + 65535 bytes (§11.4.7.1), text and pings as much as one PDU may carry.
const SCRATCH_LEN_MAX: u32 = 1 << 20;

/// A SCSI status with what came beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ending {
    pub(super) status: u8,
    pub(super) residual: Residual,
    pub(super) sense: Bytes,
}

/// A Data-In whose header was accepted.
#[derive(Debug)]
pub(super) struct DataSegment {
    pub(super) itt: Itt,
    pub(super) number: DataSn,
    pub(super) offset: u32,
    pub(super) len: u32,
    /// It has been here before: only its status counts.
    pub(super) again: bool,
    pub(super) status: Option<(u8, Residual)>,
    /// The target asks for an acknowledgement (A bit), for this tag and unit.
    pub(super) ack: Option<(Ttt, Lun)>,
}

/// The PDU of a connection whose data segment is being received.
#[derive(Debug, Default)]
pub(super) enum Receiving {
    #[default]
    Nothing,
    Data(DataSegment),
    Response {
        itt: Itt,
        status: u8,
        residual: Residual,
        /// Data-In that the target says it sent.
        data_in_count: u32,
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
        self.now = now;
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
        if let Some(connection) = self.connection_mut(id) {
            (connection.arriving, connection.arriving_window) = (None, None);
            connection.data_follows = len > 0;
        }
        let receiving = match pdu {
            Pdu::DataIn(pdu) => self.data_in(id, &pdu, len),
            Pdu::ScsiResponse(pdu) => self.scsi_response(id, &pdu),
            Pdu::R2t(pdu) => self.r2t(id, &pdu),
            Pdu::NopIn(pdu) => self.nop_in(id, now, &pdu),
            Pdu::TaskManagementResponse(pdu) => self.management_response(id, &pdu),
            Pdu::TextResponse(pdu) => self.text_response(id, &pdu),
            Pdu::LogoutResponse(pdu) => self.logout_response(id, &pdu),
            Pdu::AsyncMessage(pdu) => {
                let new = self.note_status(id, pdu.stat_sn, pdu.exp_cmd_sn, pdu.max_cmd_sn)?;
                Ok(if new { Receiving::Async(pdu) } else { Receiving::Discard })
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
            (Receiving::Data(data), _) if data.again => Placement::Discard,
            (Receiving::Data(_), Some((itt, offset))) => Placement::Task { itt, offset },
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
        self.now = now;
        let (opcode, itt) = receiving.identity();
        let result = match digest_ok {
            true => self.complete(id, now, receiving, scratch),
            false if self.repairs() => self.damaged(id, &receiving),
            false => {
                //= https://www.rfc-editor.org/rfc/rfc7143#section-7.8
                //# When an initiator receives any iSCSI PDU with a payload digest error, it MUST
                //# discard the PDU.
                let error = ConnectionError::DataDigest { cid };
                self.fail(id, error.clone());
                return Err(error);
            }
        };
        let result =
            result.map_err(|violation| ConnectionError::Protocol { cid, opcode, itt, violation });
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
        let stat_sn = self.connection_mut(id).and_then(|c| c.arriving.take());
        let window = self.connection_mut(id).and_then(|c| c.arriving_window.take());
        if let Some((exp_cmd_sn, max_cmd_sn)) = window {
            self.note_window(exp_cmd_sn, max_cmd_sn);
        }
        let mut held = false;
        match receiving {
            Receiving::Nothing | Receiving::Discard => {}
            Receiving::Data(data) => held = self.data_arrived(id, &data, stat_sn)?,
            Receiving::Response { itt, status, residual, data_in_count } => {
                //= https://www.rfc-editor.org/rfc/rfc7143#section-10.2
                //# "Autosense" refers to the automatic return of sense data to the initiator in
                //# cases where a command did not complete successfully. iSCSI initiators and
                //# targets MUST support and use Autosense.
                let sense = Bytes::copy_from_slice(parse_sense(data));
                let ending = Ending { status, residual, sense };
                held = self.ending_arrived(id, itt, stat_sn, data_in_count, ending)?;
            }
            Receiving::Text { itt, is_final, lun, ttt } => {
                self.text_data(id, itt, is_final, (lun, ttt), data)?
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
        if let Some(stat_sn) = stat_sn {
            self.status_arrived(id, stat_sn, held);
        }
        Ok(())
    }

    /// Takes the sequence numbers of a PDU that carries a status (§4.2.2.2). False if it has been
    /// here before and is to be ignored.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.2
    //# Initiators MUST undertake recovery actions if the difference is greater than an
    //# implementation-defined constant that MUST NOT exceed 2**31 - 1.
    pub(super) fn note_status(
        &mut self,
        id: ConnectionId,
        stat_sn: StatSn,
        exp_cmd_sn: CmdSn,
        max_cmd_sn: CmdSn,
    ) -> Result<bool, Violation> {
        let repairs = self.repairs();
        let Some(connection) = self.connection_mut(id) else { return Ok(false) };
        let expected = connection.status.expected().0;
        let new = match connection.status.check(stat_sn) {
            Arrival::Next => true,
            Arrival::Ahead if repairs => true,
            Arrival::Duplicate if repairs => false,
            _ => return Err(Violation::StatSn { got: stat_sn.0, expected }),
        };
        //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.2
        //# Initiators and targets MUST support the response-numbering scheme.
        connection.arriving = new.then_some(stat_sn);
        self.take_window(id, exp_cmd_sn, max_cmd_sn);
        Ok(new)
    }

    /// Takes the command window of a PDU, once its data is there too: what a damaged PDU says does
    /// not count.
    pub(super) fn take_window(&mut self, id: ConnectionId, exp_cmd_sn: CmdSn, max_cmd_sn: CmdSn) {
        match self.connection_mut(id) {
            Some(c) if c.data_follows => c.arriving_window = Some((exp_cmd_sn, max_cmd_sn)),
            _ => self.note_window(exp_cmd_sn, max_cmd_sn),
        }
    }

    /// Takes the StatSN of a PDU that uses none up: it is the next one (§11.8, §11.19.3). At
    /// levels 1 and 2 it shows that answers are missing.
    pub(super) fn note_next_status(
        &mut self,
        id: ConnectionId,
        next: StatSn,
    ) -> Result<(), Violation> {
        if !self.repairs() {
            return Ok(());
        }
        self.announce_status(id, next)
    }

    /// The target has used every StatSN before `next`: asks for those that were not known of.
    fn announce_status(&mut self, id: ConnectionId, next: StatSn) -> Result<(), Violation> {
        let Some(connection) = self.connection_mut(id) else { return Ok(()) };
        let known = connection.status.next();
        if !known.is_before(next) {
            return Ok(());
        }
        if !connection.status.announce(next) {
            let expected = connection.status.expected().0;
            return Err(Violation::StatSn { got: next.0, expected });
        }
        self.ask_for_status(id, known, next.since(known).unsigned_abs());
        Ok(())
    }

    /// A PDU with a status is complete: it may be acknowledged, unless its data is missing.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-7.9
    //# When an initiator receives an iSCSI status PDU with an out-of-order StatSN that implies
    //# missing responses, it MUST address the one or more missing status PDUs as described in
    //# Section 7.8.
    fn status_arrived(&mut self, id: ConnectionId, stat_sn: StatSn, held: bool) {
        let Some(connection) = self.connection_mut(id) else { return };
        let (ahead, known) = (connection.status.expected() != stat_sn, connection.status.next());
        match held {
            true => connection.status.hold(stat_sn),
            false => connection.status.done(stat_sn),
        }
        if ahead {
            connection.repair_attempts = 0;
            if known.is_before(stat_sn) {
                self.ask_for_status(id, known, stat_sn.since(known).unsigned_abs());
            }
        }
    }

    /// A data segment came with a wrong digest: the PDU has not come (§7.8).
    //= https://www.rfc-editor.org/rfc/rfc7143#section-7.8
    //# If the discarded PDU is an iSCSI data PDU, the initiator MUST do one of the following:
    //= https://www.rfc-editor.org/rfc/rfc7143#section-7.8
    //# If the discarded PDU is a response PDU or an unsolicited PDU (e.g., Async, Reject), the
    //# initiator MUST do one of the following:
    //= https://www.rfc-editor.org/rfc/rfc7143#section-7.8
    //# When an initiator discards one of these PDUs due to a payload digest error, the entire PDU,
    //# including the header, MUST be discarded. Consequently, the initiator MUST treat the
    //# exception like a loss of any other solicited response PDU.
    // Its StatSN is known to be missing, which the next PDU would show as well.
    fn damaged(&mut self, id: ConnectionId, receiving: &Receiving) -> Result<(), Violation> {
        let arriving = self.connection_mut(id).and_then(|c| {
            c.arriving_window = None;
            c.arriving.take()
        });
        if let Some(stat_sn) = arriving {
            self.announce_status(id, stat_sn)?; // what was missing before it
            if let Some(connection) = self.connection_mut(id) {
                connection.status.announce(stat_sn.next());
            }
        }
        match receiving {
            Receiving::Data(data) if !data.again => {
                // The same PDU comes again, with the status that it has.
                if let Some(task) = self.tasks.command_mut(data.itt) {
                    task.inbound.damaged(data.number)?;
                    self.ask_for_data(id, data.itt, (data.number.0, data.number.0 + 1));
                }
            }
            _ => {
                if let Some(stat_sn) = arriving {
                    self.ask_for_status(id, stat_sn, 1);
                }
            }
        }
        Ok(())
    }

    pub(super) fn rules(&self) -> Rules {
        let params = &self.params;
        let in_order = params.data_pdu_in_order && params.data_sequence_in_order;
        Rules { in_order, repairs: self.repairs() }
    }

    /// The sent command that a PDU names. `None` if it is over and the PDU was under
    /// way.
    pub(super) fn named(&self, id: ConnectionId, itt: Itt) -> Result<Option<&Command>, Violation> {
        let Some(task) = self.tasks.get(itt) else {
            let known = self.retired.contains(&itt);
            return if known { Ok(None) } else { Err(Violation::UnknownTask) };
        };
        match &task.kind {
            _ if task.connection != id => Err(Violation::Allegiance),
            Kind::Command(command) if task.is_sent() => Ok(Some(&command.command)),
            _ => Err(Violation::WrongTask),
        }
    }

    fn nop_in(&mut self, id: ConnectionId, now: Instant, pdu: &NopIn) -> Handled {
        if pdu.itt == Itt::NONE {
            // StatSN is the next one and is not used up (§11.19.3).
            self.take_window(id, pdu.exp_cmd_sn, pdu.max_cmd_sn);
            self.note_next_status(id, pdu.stat_sn)?;
            let asked = pdu.ttt != Ttt::NONE;
            return Ok(if asked {
                Receiving::NopIn { lun: pdu.lun, ttt: pdu.ttt }
            } else {
                Receiving::Discard
            });
        }
        if !self.note_status(id, pdu.stat_sn, pdu.exp_cmd_sn, pdu.max_cmd_sn)? {
            return Ok(Receiving::Discard);
        }
        let Some(task) = self.tasks.get(pdu.itt) else {
            let known = self.retired.contains(&pdu.itt);
            return if known { Ok(Receiving::Discard) } else { Err(Violation::UnknownTask) };
        };
        if task.connection != id {
            return Err(Violation::Allegiance);
        }
        let sent_at = match task.kind {
            Kind::Ping { sent_at: Some(sent_at) } => sent_at,
            Kind::Plug if task.is_sent() => {
                self.tasks.remove(pdu.itt);
                return Ok(Receiving::Discard);
            }
            _ => return Err(Violation::WrongTask),
        };
        self.end_ping(id, pdu.itt, now);
        self.events.push_back(Event::Pong { connection: id, rtt: now.since(sent_at) });
        self.probed(id, pdu.exp_cmd_sn);
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

impl Receiving {
    fn identity(&self) -> (Opcode, Itt) {
        match self {
            Self::Data(data) => (Opcode::DATA_IN, data.itt),
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
