//! The way of a PDU through the session: header, data segment, its turn, execution
//! (RFC 7143 §4.2.2, §4.2.5, §11).

use bytes::Bytes;

use super::event::{ConnId, Event, Received, SessionError};
use super::order::Held;
use super::session::{Connection, Session};
use super::task::{Completion, Execute, Phase, Task};
use crate::connection::Placement;
use crate::ids::{Cid, Itt};
use crate::keys::DigestKind;
use crate::pdu::{DataOut, Header, LogoutReason, NopOut, Pdu, PduError, RejectReason, ScsiCommand};
use crate::serial::{CmdSn, StatSn};
use crate::time::Instant;

/// SCSI status (SAM-5 §5.3.1).
pub(super) const CHECK_CONDITION: u8 = 2;

/// Small answers queued on one connection before further requests are refused. The shell stops
/// reading long before ([`Session::reply_backlog`]).
const REPLIES_MAX: usize = 4096;

/// Data of pings and texts that may wait for their turn behind a CmdSN that has not arrived, in
/// bytes. Without a limit it would be a whole segment for each place in the command window.
const HELD_DATA_MAX: usize = 4 << 20;

/// The PDU whose data segment is being read.
pub(super) enum Receiving {
    Nothing,
    Ignored,
    /// `cmd_sn` unless it is immediate.
    Command {
        itt: Itt,
        cmd_sn: Option<CmdSn>,
    },
    /// Data of a command that counts as received.
    Immediate(Itt),
    DataOut {
        pdu: DataOut,
        len: u32,
    },
    Scratch(Box<Pdu>),
}

impl Session {
    /// A header arrived on `conn`: says where its data segment belongs. Call
    /// [`handle_data`](Self::handle_data) next, also when there is none.
    ///
    /// # Errors
    /// The connection has to be closed ([`handle_connection_lost`](Self::handle_connection_lost)).
    pub fn handle_header(
        &mut self,
        conn: ConnId,
        now: Instant,
        header: &Header,
    ) -> Result<Placement, SessionError> {
        if self.connections.get(&conn).is_some_and(|connection| connection.closing) {
            return Ok(Placement::Discard);
        }
        let pdu = match Pdu::parse(header) {
            Ok(pdu) => pdu,
            Err(PduError::Opcode { .. }) => {
                return self.reject(conn, RejectReason::COMMAND_NOT_SUPPORTED, header);
            }
            Err(error) => {
                tracing::debug!(%error, "PDU with a format error");
                return Err(self.format_error(conn, header.itt(), "PDU with a format error"));
            }
        };
        self.heard(conn, now, &pdu, header)?;
        //= https://www.rfc-editor.org/rfc/rfc7143#appendix-C
        //# A system that contains targets MUST support Discovery sessions on each of its iSCSI IP
        //# address-port pairs and MUST support the SendTargets command on the Discovery session.
        if self.discovery
            && !matches!(pdu, Pdu::TextRequest(_) | Pdu::LogoutRequest(_) | Pdu::NopOut(_))
        {
            return self.reject(conn, RejectReason::PROTOCOL_ERROR, header);
        }
        let data_len = header.data_segment_length();
        if self.is_behind_logout(conn, &pdu) {
            return self.ignore(conn, data_len);
        }
        match pdu {
            Pdu::ScsiCommand(command) => self.handle_command(conn, command, data_len, header),
            Pdu::DataOut(data_out) => self.handle_data_out(conn, &data_out, data_len, header),
            Pdu::NopOut(NopOut { itt: Itt::NONE, .. }) => self.ignore(conn, data_len),
            Pdu::NopOut(_)
            | Pdu::TextRequest(_)
            | Pdu::TaskManagementRequest(_)
            | Pdu::LogoutRequest(_) => self.receive_scratch(conn, pdu, data_len, header),
            Pdu::SnackRequest(snack) => self.snack(conn, &snack, header),
            //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.4
            //# Login Requests and Responses MUST be used exclusively during login.
            //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.4
            //# On any connection, the Login Phase MUST immediately follow TCP connection
            //# establishment, and a subsequent Login Phase MUST NOT occur before tearing down the
            //# connection.
            Pdu::LoginRequest(request) => {
                Err(self.error(conn, request.itt, "login request in full-feature phase"))
            }
            //= https://www.rfc-editor.org/rfc/rfc7143#section-11.2.1.2
            //# Initiators MUST NOT use target Opcodes, and targets MUST NOT use initiator Opcodes.
            _ => self.reject(conn, RejectReason::PROTOCOL_ERROR, header),
        }
    }

    /// The data segment of the last header on `conn` is where it belongs.
    ///
    /// # Errors
    /// The connection has to be closed.
    pub fn handle_data(
        &mut self,
        conn: ConnId,
        received: Received,
        digest_ok: bool,
    ) -> Result<(), SessionError> {
        let Some(connection) = self.connections.get_mut(&conn) else { return Ok(()) };
        let receiving = std::mem::replace(&mut connection.receiving, Receiving::Nothing);
        if !digest_ok && self.digest_error(conn, &receiving) {
            return Ok(());
        }
        match receiving {
            Receiving::Nothing | Receiving::Ignored => {}
            Receiving::Command { itt, cmd_sn } => self.command_received(itt, cmd_sn),
            Receiving::Immediate(itt) => self.immediate_data_received(itt),
            Receiving::DataOut { pdu, len } => self.data_out_received(&pdu, len, digest_ok),
            Receiving::Scratch(pdu) => {
                let data = match received {
                    Received::Scratch(data) => data,
                    Received::Placed => Bytes::new(),
                };
                self.request_received(conn, *pdu, data)?;
            }
        }
        Ok(())
    }

    fn heard(
        &mut self,
        conn: ConnId,
        now: Instant,
        pdu: &Pdu,
        header: &Header,
    ) -> Result<(), SessionError> {
        self.clock = self.clock.max(now);
        // Also one that we are about to close: what still comes in must not be executed, or it
        // would be after the session that replaces this one was told that nothing can be any more.
        let alive = |c: &&mut Connection| c.state.is_alive();
        let Some(connection) = self.connections.get_mut(&conn).filter(alive) else {
            return Err(self.error(conn, Itt::NONE, "PDU on a connection that is over"));
        };
        connection.last_heard = now;
        connection.ping_sent = None;
        connection.last_header = header.bhs;
        if let Some(exp_stat_sn) = exp_stat_sn(pdu, connection.cid)
            && connection.exp_stat_sn.is_before(exp_stat_sn)
            // libiscsi counts the StatSN that an R2T announces as used and runs one ahead.
            && !connection.next_stat_sn.is_before(exp_stat_sn)
        {
            connection.exp_stat_sn = exp_stat_sn;
            self.take_receipts(conn, exp_stat_sn);
            if self.recovers() {
                self.acknowledge(conn, exp_stat_sn);
            }
            if !self.fences.is_empty() {
                self.settle_fences();
            }
        }
        Ok(())
    }

    fn handle_command(
        &mut self,
        conn: ConnId,
        mut command: ScsiCommand,
        data_len: u32,
        header: &Header,
    ) -> Result<Placement, SessionError> {
        // It means nothing unless iSCSIProtocolLevel 2 was agreed (RFC 7144 §5.1.1).
        if !self.params.has_rfc7144() {
            command.priority = 0;
        }
        if !command.immediate && !self.order.accepts(command.cmd_sn) {
            return self.ignore(conn, data_len);
        }
        let itt = command.itt;
        //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.1
        //# Testing for the execution state (represented by identifying the Initiator Task Tag) MUST
        //# precede any other action at the target.
        if itt == Itt::NONE || self.tasks.contains_key(&itt) {
            return self.reject(conn, RejectReason::TASK_IN_PROGRESS, header);
        }
        if command.immediate && self.immediate_tasks() >= self.config.immediate_commands_max {
            return self.reject(conn, RejectReason::IMMEDIATE_COMMAND_REJECT, header);
        }
        let too_long =
            command.write && command.expected_data_transfer_length > self.config.write_length_max;
        self.forget_answer(itt);
        let fault = self.unsolicited_fault(&command, data_len);
        let cmd_sn = (!command.immediate).then_some(command.cmd_sn);
        let mut task = self.tasks.place_anew(Task::new(conn, command, data_len, too_long));
        task.fault = fault;
        let placement = match data_len {
            0 => Placement::None,
            _ if too_long || fault.is_some() => Placement::Discard,
            _ => Placement::Task { itt, offset: 0 },
        };
        let placed = matches!(placement, Placement::Task { .. });
        let at_header = cmd_sn.filter(|_| placed && self.counts_at_header(conn));
        task.arriving = at_header.is_some();
        self.tasks.insert(itt, task);
        if placed {
            self.grant_early(itt);
        }
        if let Some(cmd_sn) = at_header {
            self.set_receiving(conn, Receiving::Immediate(itt));
            self.order.hold(cmd_sn, Held::Command(itt));
            self.deliver_in_order();
            // A function that waited for it may have ended it at once.
            if !self.tasks.get(&itt).is_some_and(Task::takes_data) {
                return Ok(Placement::Discard);
            }
        } else {
            self.set_receiving(conn, Receiving::Command { itt, cmd_sn });
        }
        Ok(placement)
    }

    /// Does a command on `conn` count as received when its header is there? Then those behind it on
    /// other connections need not wait for its data, as they need not for data that is asked for:
    /// it is commands that are delivered in order (§4.2.2.1). Where packets are lost this decides
    /// whether a session's connections wait for the slowest of them.
    ///
    /// Not with data digests: a PDU that arrives damaged must be discarded whole (§7.8), and its
    /// number stays free (§7.3). Nor where tasks outlive their connection: a command that was cut
    /// in two is sent again.
    fn counts_at_header(&self, conn: ConnId) -> bool {
        let digest = |c: &Connection| c.params.data_digest != DigestKind::None;
        !self.reassigns() && !self.connections.get(&conn).is_some_and(digest)
    }

    /// The data that came with a command is complete; the command was before.
    fn immediate_data_received(&mut self, itt: Itt) {
        let Some(task) = self.tasks.get_mut(&itt) else { return };
        task.arriving = false;
        self.start_data_out(itt);
        self.execute_if_complete(itt);
    }

    fn immediate_tasks(&self) -> u32 {
        let count = self.tasks.values().filter(|task| task.command.immediate).count();
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// The command PDU `itt` is complete; `cmd_sn` unless it is immediate.
    fn command_received(&mut self, itt: Itt, cmd_sn: Option<CmdSn>) {
        let aborted = !self.tasks.contains_key(&itt);
        match cmd_sn {
            // It was aborted while its data came in. Its number counts as received all the same.
            Some(cmd_sn) if aborted => self.order.hold(cmd_sn, Held::Gap),
            Some(cmd_sn) => self.order.hold(cmd_sn, Held::Command(itt)),
            None => self.deliver(Held::Command(itt)),
        }
        self.start_data_out(itt);
        self.deliver_in_order();
    }

    /// A request with a scratch data segment is complete.
    fn request_received(
        &mut self,
        conn: ConnId,
        pdu: Pdu,
        data: Bytes,
    ) -> Result<(), SessionError> {
        let Some((immediate, cmd_sn)) = delivery(&pdu) else { return Ok(()) };
        let held = Held::Request { conn, pdu: Box::new(pdu), data };
        if immediate {
            self.deliver(held);
        } else {
            if self.order.held_data_len() + held.data_len() > HELD_DATA_MAX {
                let what = "more data than may wait for a command that is missing";
                return Err(self.error(conn, Itt::NONE, what));
            }
            self.order.hold(cmd_sn, held);
            self.deliver_in_order();
        }
        Ok(())
    }

    //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.1
    //# With the exception of the commands marked for immediate delivery, the iSCSI target layer
    //# MUST deliver the commands for execution in the order specified by the CmdSN.
    pub(super) fn deliver_in_order(&mut self) {
        while let Some(held) = self.order.take_next() {
            self.deliver(held);
        }
        self.carry_out_postponed();
    }

    fn deliver(&mut self, held: Held) {
        match held {
            Held::Command(itt) => {
                if !self.is_held_back(itt) {
                    self.take_turn(itt);
                }
            }
            Held::Gap => {}
            Held::Request { conn, pdu, data } => match *pdu {
                Pdu::NopOut(request) => self.nop_out(conn, &request, data),
                Pdu::TextRequest(request) => self.text_request(conn, &request, &data),
                Pdu::TaskManagementRequest(request) => self.manage(conn, request),
                Pdu::LogoutRequest(request) => self.logout(conn, &request),
                _ => {}
            },
        }
    }

    /// All that has to be before this command is.
    pub(super) fn take_turn(&mut self, itt: Itt) {
        if let Some(task) = self.tasks.get_mut(&itt) {
            task.in_order = true;
            self.execute_if_complete(itt);
            self.grant_waiting();
        }
    }

    /// Hands a command to the shell once its turn has come and its data is there.
    pub(super) fn execute_if_complete(&mut self, itt: Itt) {
        let Some(task) = self.tasks.get(&itt) else { return };
        if task.aborted {
            return self.end_drained(itt);
        }
        if task.phase != Phase::Collecting || !task.in_order || !task.has_all_data() {
            return;
        }
        if self.is_lost(task.conn) {
            return; // nobody is there to execute it before it is taken over
        }
        let reads = task.fault.is_none() && task.read_room() > 0;
        if self.is_admitted(itt) && (!reads || self.may_read(itt)) {
            self.start(itt);
        }
    }

    /// Has a read memory for what it brings? Without, it waits behind those before it.
    fn may_read(&mut self, itt: Itt) -> bool {
        let Some(task) = self.tasks.get_mut(&itt) else { return false };
        let conn = task.conn;
        let Some(connection) = self.connections.get_mut(&conn) else { return false };
        let room = task.read_room();
        if connection.waiting_to_read.is_empty()
            && connection.reserve_read(room, self.config.read_bytes_max)
        {
            task.reading = room;
            return true;
        }
        if !connection.waiting_to_read.contains(&itt) {
            connection.waiting_to_read.push_back(itt);
        }
        if self.recovers() {
            self.ask_for_acknowledgement(conn);
        }
        false
    }

    /// Memory of reads is free again: executes those that waited for it, oldest first.
    pub(super) fn release_read(&mut self, conn: ConnId, freed: u32) {
        if freed == 0 {
            return;
        }
        if let Some(connection) = self.connections.get_mut(&conn) {
            connection.read_bytes -= u64::from(freed);
        }
        while let Some(connection) = self.connections.get_mut(&conn)
            && let Some(itt) = connection.waiting_to_read.front().copied()
        {
            let room = self.tasks.get(&itt).map_or(0, Task::read_room);
            if !connection.reserve_read(room, self.config.read_bytes_max) {
                return;
            }
            connection.waiting_to_read.pop_front();
            if let Some(task) = self.tasks.get_mut(&itt) {
                task.reading = room;
            }
            self.start(itt);
        }
    }

    fn start(&mut self, itt: Itt) {
        let Some(task) = self.tasks.get_mut(&itt) else { return };
        task.phase = Phase::Running;
        let (conn, naca, execute) = (task.conn, task.naca(), task.execute(itt));
        let failed = match task.fault {
            Some(fault) => Some(fault.sense()),
            None => self.take_attention(itt),
        };
        let sense = match failed {
            Some(sense) if !naca => sense,
            failed => return self.push_event(conn, Event::Execute(Execute { failed, ..execute })),
        };
        let completion = Completion { status: CHECK_CONDITION, sense, ..Completion::default() };
        self.push_event(conn, Event::Dropped(itt));
        self.complete(itt, completion);
    }

    pub(super) fn expect_data_out(&mut self, conn: ConnId, pdu: &DataOut, len: u32) {
        self.set_receiving(conn, Receiving::DataOut { pdu: pdu.clone(), len });
    }

    pub(super) fn ignore(
        &mut self,
        conn: ConnId,
        data_len: u32,
    ) -> Result<Placement, SessionError> {
        self.set_receiving(conn, Receiving::Ignored);
        Ok(if data_len == 0 { Placement::None } else { Placement::Discard })
    }

    fn receive_scratch(
        &mut self,
        conn: ConnId,
        pdu: Pdu,
        data_len: u32,
        header: &Header,
    ) -> Result<Placement, SessionError> {
        let (immediate, cmd_sn) = delivery(&pdu).unwrap_or((true, CmdSn(0)));
        if !immediate && !self.order.accepts(cmd_sn) {
            return self.ignore(conn, data_len);
        }
        let waiting = self.postponed.len()
            + self.pending_management.len()
            + self.pending_logouts.len()
            + self.pending_reassignments.len();
        if immediate && waiting >= self.config.immediate_commands_max as usize {
            return self.reject(conn, RejectReason::IMMEDIATE_COMMAND_REJECT, header);
        }
        if self.reply_backlog(conn) > REPLIES_MAX {
            return self.reject(conn, RejectReason::LONG_OPERATION_REJECT, header);
        }
        self.set_receiving(conn, Receiving::Scratch(Box::new(pdu)));
        Ok(if data_len == 0 { Placement::None } else { Placement::Scratch })
    }

    fn set_receiving(&mut self, conn: ConnId, receiving: Receiving) {
        if let Some(connection) = self.connections.get_mut(&conn) {
            connection.receiving = receiving;
        }
    }
}

/// How a request other than a SCSI command is to be delivered: at once, or in its turn.
fn delivery(pdu: &Pdu) -> Option<(bool, CmdSn)> {
    Some(match pdu {
        Pdu::NopOut(p) => (p.immediate, p.cmd_sn),
        Pdu::TextRequest(p) => (p.immediate, p.cmd_sn),
        Pdu::TaskManagementRequest(p) => (p.immediate, p.cmd_sn),
        Pdu::LogoutRequest(p) => (p.immediate, p.cmd_sn),
        _ => return None,
    })
}

/// ExpStatSN of a request on the connection `cid`, where it has one.
fn exp_stat_sn(pdu: &Pdu, cid: Cid) -> Option<StatSn> {
    Some(match pdu {
        Pdu::NopOut(p) => p.exp_stat_sn,
        Pdu::ScsiCommand(p) => p.exp_stat_sn,
        Pdu::TaskManagementRequest(p) => p.exp_stat_sn,
        Pdu::TextRequest(p) => p.exp_stat_sn,
        Pdu::DataOut(p) => p.exp_stat_sn,
        // That of the connection to be closed (§11.14.4), which may be another one.
        Pdu::LogoutRequest(p) => {
            let own = p.reason == LogoutReason::CLOSE_SESSION || p.cid == cid;
            return own.then_some(p.exp_stat_sn);
        }
        Pdu::SnackRequest(p) => p.exp_stat_sn,
        _ => return None,
    })
}
