//! [`Session`]: the state all connections of a session share, and the way of a PDU through it.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use super::config::SessionConfig;
use super::logout::PendingLogout;
use super::management::PendingManagement;
use super::order::{CommandOrder, Held};
use super::state::{ConnectionEvent, ConnectionState};
use super::task::{Completion, Execute, Phase, Task};
use super::text::TextExchange;
use super::transmit::Reply;
use crate::connection::Placement;
use crate::ids::{Cid, Itt, Lun, Ttt};
use crate::keys::{ConnectionParams, SessionParams};
use crate::login::Outcome;
use crate::pdu::{
    Header, NopOut, Pdu, PduError, RejectReason, ScsiCommand, TaskManagementFunction, TaskManagementRequest,
};
use crate::serial::{CmdSn, StatSn};
use crate::time::Instant;

/// A connection within its session; never used twice in one session (a CID may be).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnId(pub u32);

/// The peer broke the protocol so that the connection cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} (CID {cid}, ITT {itt}, ExpCmdSN {exp_cmd_sn})")]
pub struct SessionError {
    /// What was wrong.
    pub what: &'static str,
    /// Connection it came on.
    pub cid: Cid,
    /// Task it named.
    pub itt: Itt,
    /// Where the session stood.
    pub exp_cmd_sn: CmdSn,
}

/// What the shell has to do for a connection.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// Execute a SCSI command, then call [`Session::complete`].
    Execute(Execute),
    /// The task is over without a response: drop its buffer.
    Dropped(Itt),
    /// Answer a text request, then call [`Session::text_reply`].
    Text {
        /// The request's task.
        itt: Itt,
        /// Its whole text.
        text: Bytes,
    },
    /// Carry out what a task management function means beyond this session (other sessions'
    /// tasks, the logical unit's state), then call [`Session::management_done`].
    Management {
        /// The request's task.
        itt: Itt,
        /// What to do.
        function: TaskManagementFunction,
        /// Where.
        lun: Lun,
    },
    /// Close the connection, after what is queued has been sent.
    Close {
        /// Why.
        reason: &'static str,
    },
}

/// The data segment of the PDU under way, as [`Placement`] asked for it.
#[derive(Clone, Debug)]
pub enum Received {
    /// No data, or it lies where it was placed, or it was thrown away.
    Placed,
    /// A scratch segment.
    Scratch(Bytes),
}

pub(super) struct Connection {
    pub(super) cid: Cid,
    pub(super) params: ConnectionParams,
    pub(super) state: ConnectionState,
    pub(super) next_stat_sn: StatSn,
    pub(super) exp_stat_sn: StatSn,
    pub(super) events: VecDeque<Event>,
    /// Small answers, sent before data.
    pub(super) replies: VecDeque<Reply>,
    /// Tasks in [`Phase::Responding`], in the order of their completion.
    pub(super) responding: VecDeque<Itt>,
    /// The PDU whose data segment is being read.
    receiving: Receiving,
    pub(super) text: Option<TextExchange>,
    pub(super) last_heard: Instant,
    pub(super) ping_sent: Option<Instant>,
}

impl Connection {
    /// Takes back [`Event::Execute`] of a task. True if the shell had not seen it.
    pub(super) fn recall(&mut self, itt: Itt) -> bool {
        let before = self.events.len();
        self.events
            .retain(|event| !matches!(event, Event::Execute(execute) if execute.itt == itt));
        self.events.len() < before
    }

    pub(super) fn step(&mut self, event: ConnectionEvent) {
        if let Some(next) = self.state.after(event) {
            self.state = next;
        }
    }
}

enum Receiving {
    Nothing,
    Ignored,
    Command { itt: Itt, cmd_sn: Option<CmdSn> },
    DataOut { itt: Itt, ttt: Ttt, len: u32, is_final: bool },
    Scratch(Box<Pdu>),
}

/// A full-feature session.
pub struct Session {
    pub(super) config: SessionConfig,
    pub(super) params: SessionParams,
    pub(super) discovery: bool,
    pub(super) order: CommandOrder,
    pub(super) connections: BTreeMap<ConnId, Connection>,
    pub(super) tasks: BTreeMap<Itt, Task>,
    /// Writes whose R2Ts wait until others have received their data.
    pub(super) waiting_for_buffer: VecDeque<Itt>,
    pub(super) solicited_bytes: u64,
    pub(super) next_ttt: u32,
    pub(super) pending_management: Vec<PendingManagement>,
    /// Functions that wait for commands sent before them.
    pub(super) postponed: Vec<(ConnId, TaskManagementRequest)>,
    pub(super) pending_logouts: Vec<PendingLogout>,
    pub(super) wakes: VecDeque<ConnId>,
    next_conn: u32,
    closed: bool,
}

impl Session {
    /// A session as its leading login agreed on it. Add that connection with
    /// [`add_connection`](Self::add_connection).
    pub fn new(config: SessionConfig, leading: &Outcome) -> Self {
        let order = CommandOrder::new(leading.cmd_sn, config.command_window);
        Self {
            config,
            params: leading.session,
            discovery: leading.discovery,
            order,
            connections: BTreeMap::new(),
            tasks: BTreeMap::new(),
            waiting_for_buffer: VecDeque::new(),
            solicited_bytes: 0,
            next_ttt: 1,
            pending_management: Vec::new(),
            postponed: Vec::new(),
            pending_logouts: Vec::new(),
            wakes: VecDeque::new(),
            next_conn: 0,
            closed: false,
        }
    }

    /// A connection enters the full-feature phase. A connection with the same CID is reinstated:
    /// the old one ends as by an implicit logout (§6.3.4).
    ///
    /// `next_stat_sn` is the one after that of the final login response.
    pub fn add_connection(&mut self, outcome: &Outcome, next_stat_sn: StatSn, now: Instant) -> ConnId {
        if let Some(old) = self.find_cid(outcome.cid) {
            self.end_connection(old, "connection reinstated");
        }
        let id = ConnId(self.next_conn);
        self.next_conn += 1;
        let connection = Connection {
            cid: outcome.cid,
            params: outcome.connection,
            state: ConnectionState::LoggedIn,
            next_stat_sn,
            exp_stat_sn: next_stat_sn,
            events: VecDeque::new(),
            replies: VecDeque::new(),
            responding: VecDeque::new(),
            receiving: Receiving::Nothing,
            text: None,
            last_heard: now,
            ping_sent: None,
        };
        self.connections.insert(id, connection);
        id
    }

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
        let pdu = match Pdu::parse(header) {
            Ok(pdu) => pdu,
            Err(error) => {
                let reason = if matches!(error, PduError::Opcode { .. }) {
                    RejectReason::COMMAND_NOT_SUPPORTED
                } else {
                    RejectReason::INVALID_PDU_FIELD
                };
                return self.reject(conn, reason, header);
            }
        };
        self.heard(conn, now, &pdu)?;
        if self.discovery && !matches!(pdu, Pdu::TextRequest(_) | Pdu::LogoutRequest(_) | Pdu::NopOut(_))
        {
            return self.reject(conn, RejectReason::PROTOCOL_ERROR, header);
        }
        let data_len = header.data_segment_length();
        match pdu {
            Pdu::ScsiCommand(command) => self.handle_command(conn, command, data_len, header),
            Pdu::DataOut(data_out) => self.handle_data_out(conn, &data_out, data_len, header),
            Pdu::NopOut(NopOut { itt: Itt::NONE, .. }) => self.ignore(conn, data_len),
            Pdu::NopOut(_)
            | Pdu::TextRequest(_)
            | Pdu::TaskManagementRequest(_)
            | Pdu::LogoutRequest(_) => self.receive_scratch(conn, pdu, data_len, header),
            Pdu::SnackRequest(_) => self.reject(conn, RejectReason::SNACK_REJECT, header),
            Pdu::LoginRequest(request) => {
                Err(self.error(conn, request.itt, "login request in full-feature phase"))
            }
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
        if !digest_ok && !matches!(receiving, Receiving::Nothing | Receiving::Ignored) {
            // Level 0: nothing can be asked for again, so the session recovers (§7.8).
            return Err(self.error(conn, Itt::NONE, "data digest error"));
        }
        match receiving {
            Receiving::Nothing | Receiving::Ignored => {}
            Receiving::Command { itt, cmd_sn } => self.command_received(itt, cmd_sn),
            Receiving::DataOut { itt, ttt, len, is_final } => {
                self.data_out_received(itt, ttt, len, is_final);
            }
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

    /// The transport of `conn` is gone. At error recovery level 0 that ends its tasks and the
    /// session with it (§7.1.4), unless the connection was logged out, replaced or closed by us.
    pub fn handle_connection_lost(&mut self, conn: ConnId) {
        let Some(connection) = self.connections.get(&conn) else { return };
        let orderly =
            matches!(connection.state, ConnectionState::InLogout | ConnectionState::Free);
        self.end_connection(conn, "connection lost");
        if !orderly {
            self.close("a connection of the session was lost");
        }
    }

    /// Ends the session: every connection is asked to close, every task is aborted. Tasks still
    /// executing are awaited by [`is_quiet`](Self::is_quiet).
    pub fn close(&mut self, reason: &'static str) {
        self.closed = true;
        let conns: Vec<ConnId> = self.connections.keys().copied().collect();
        for conn in conns {
            self.end_connection(conn, reason);
        }
    }

    /// What the shell has to do for `conn`.
    pub fn poll_event(&mut self, conn: ConnId) -> Option<Event> {
        self.connections.get_mut(&conn)?.events.pop_front()
    }

    /// A connection that has output now because of something that happened on another one.
    pub fn poll_wake(&mut self) -> Option<ConnId> {
        self.wakes.pop_front()
    }

    /// No command is executing: nothing can reach the medium through this session any more.
    pub fn is_quiet(&self) -> bool {
        self.tasks.values().all(|task| task.phase != Phase::Running)
    }

    /// No task that was aborted is still executing.
    pub fn has_no_aborted_tasks(&self) -> bool {
        self.tasks.values().all(|task| !task.aborted)
    }

    /// The session is over; no new connection may join.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Connections in the full-feature phase.
    pub fn connection_count(&self) -> usize {
        self.connections.values().filter(|c| c.state != ConnectionState::Free).count()
    }

    /// Tasks that are not finished.
    pub fn task_count(&self) -> usize {
        self.tasks.len()
    }

    /// Bytes of data the write `itt` brings along: the size of its buffer.
    pub fn write_length(&self, itt: Itt) -> u32 {
        self.tasks.get(&itt).map_or(0, Task::write_length)
    }

    /// The agreed session-wide parameters.
    pub fn params(&self) -> &SessionParams {
        &self.params
    }

    /// Has `conn` been closed in good order or by us?
    pub fn is_connection_over(&self, conn: ConnId) -> bool {
        self.connections.get(&conn).is_none_or(|c| c.state == ConnectionState::Free)
    }

    fn heard(&mut self, conn: ConnId, now: Instant, pdu: &Pdu) -> Result<(), SessionError> {
        // Also one that we are about to close: what still comes in must not be executed, or it would
        // be after the session that replaces this one was told that nothing can be any more.
        let alive = |c: &&mut Connection| c.state != ConnectionState::Free;
        let Some(connection) = self.connections.get_mut(&conn).filter(alive) else {
            return Err(self.error(conn, Itt::NONE, "PDU on a connection that is over"));
        };
        connection.last_heard = now;
        connection.ping_sent = None;
        if let Some(exp_stat_sn) = exp_stat_sn(pdu)
            && connection.exp_stat_sn.is_before(exp_stat_sn)
        {
            if connection.next_stat_sn.is_before(exp_stat_sn) {
                return Err(self.error(conn, Itt::NONE, "ExpStatSN beyond what was sent"));
            }
            connection.exp_stat_sn = exp_stat_sn;
        }
        Ok(())
    }

    fn handle_command(
        &mut self,
        conn: ConnId,
        command: ScsiCommand,
        data_len: u32,
        header: &Header,
    ) -> Result<Placement, SessionError> {
        if !command.immediate && !self.order.accepts(command.cmd_sn) {
            return self.ignore(conn, data_len);
        }
        let itt = command.itt;
        if itt == Itt::NONE || self.tasks.contains_key(&itt) {
            return self.reject(conn, RejectReason::TASK_IN_PROGRESS, header);
        }
        if command.immediate && self.immediate_tasks() >= self.config.immediate_commands_max {
            return self.reject(conn, RejectReason::IMMEDIATE_COMMAND_REJECT, header);
        }
        let too_long = command.write
            && command.expected_data_transfer_length > self.config.write_length_max;
        if let Some(what) = self.unsolicited_fault(&command, data_len) {
            return Err(self.error(conn, itt, what));
        }
        let cmd_sn = (!command.immediate).then_some(command.cmd_sn);
        self.tasks.insert(itt, Task::new(conn, command, data_len, too_long));
        self.set_receiving(conn, Receiving::Command { itt, cmd_sn });
        Ok(match data_len {
            0 => Placement::None,
            _ if too_long => Placement::Discard,
            _ => Placement::Task { itt, offset: 0 },
        })
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
        let (immediate, cmd_sn) = match &pdu {
            Pdu::NopOut(p) => (p.immediate, p.cmd_sn),
            Pdu::TextRequest(p) => (p.immediate, p.cmd_sn),
            Pdu::TaskManagementRequest(p) => (p.immediate, p.cmd_sn),
            Pdu::LogoutRequest(p) => (p.immediate, p.cmd_sn),
            _ => return Ok(()),
        };
        let held = Held::Request { conn, pdu: Box::new(pdu), data };
        if immediate {
            self.deliver(held);
        } else {
            self.order.hold(cmd_sn, held);
            self.deliver_in_order();
        }
        Ok(())
    }

    pub(super) fn deliver_in_order(&mut self) {
        while let Some(held) = self.order.take_next() {
            self.deliver(held);
        }
        self.carry_out_postponed();
    }

    fn deliver(&mut self, held: Held) {
        match held {
            Held::Command(itt) => {
                if let Some(task) = self.tasks.get_mut(&itt) {
                    task.in_order = true;
                    self.execute_if_complete(itt);
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

    /// Hands a command to the shell once its turn has come and its data is there.
    pub(super) fn execute_if_complete(&mut self, itt: Itt) {
        let Some(task) = self.tasks.get_mut(&itt) else { return };
        if task.phase != Phase::Collecting || !task.in_order || !task.has_all_data() {
            return;
        }
        task.phase = Phase::Running;
        let (conn, execute) = (task.conn, task.execute(itt));
        self.push_event(conn, Event::Execute(execute));
    }

    /// A command has ended; its answer is sent unless it was aborted meanwhile.
    pub fn complete(&mut self, itt: Itt, completion: Completion) {
        let Some(task) = self.tasks.get_mut(&itt) else { return };
        if task.phase != Phase::Running {
            return;
        }
        if task.aborted {
            self.remove_task(itt);
            self.settle();
            return;
        }
        task.completion = completion;
        task.phase = Phase::Responding;
        let conn = task.conn;
        if let Some(connection) = self.connections.get_mut(&conn) {
            connection.responding.push_back(itt);
        }
    }

    /// Forgets a task and opens the command window for another.
    pub(super) fn remove_task(&mut self, itt: Itt) {
        if let Some(task) = self.tasks.remove(&itt) {
            // The tag may come again for another task: nothing may be left under it.
            self.waiting_for_buffer.retain(|waiting| *waiting != itt);
            if !task.command.immediate && !task.in_order {
                self.order.forget(task.cmd_sn());
            }
            let outstanding = task.outstanding_bytes();
            self.solicited_bytes = self.solicited_bytes.saturating_sub(outstanding);
            if outstanding > 0 {
                self.grant_waiting();
            }
        }
    }

    pub(super) fn mark_closed(&mut self) {
        self.closed = true;
    }

    pub(super) fn abort_connection_tasks(&mut self, conn: ConnId) {
        let itts: Vec<Itt> =
            self.tasks.iter().filter(|(_, task)| task.conn == conn).map(|(itt, _)| *itt).collect();
        for itt in itts {
            self.abort_task(itt);
        }
    }

    /// Ends a connection's tasks and the connection. Executing tasks stay until they complete.
    pub(super) fn end_connection(&mut self, conn: ConnId, reason: &'static str) {
        self.abort_connection_tasks(conn);
        if let Some(connection) = self.connections.get_mut(&conn)
            && connection.state != ConnectionState::Free
        {
            connection.step(ConnectionEvent::Failed);
            connection.replies.clear();
            connection.events.push_back(Event::Close { reason });
            self.wakes.push_back(conn);
        }
        self.settle();
    }

    /// Forgets a connection whose driver is gone.
    pub fn remove_connection(&mut self, conn: ConnId) {
        self.connections.remove(&conn);
    }

    /// Looks whether task management and logouts that waited for tasks can go on.
    pub(super) fn settle(&mut self) {
        self.settle_management();
        self.settle_logouts();
    }

    pub(super) fn push_event(&mut self, conn: ConnId, event: Event) {
        if let Some(connection) = self.connections.get_mut(&conn) {
            connection.events.push_back(event);
            self.wakes.push_back(conn);
        }
    }

    pub(super) fn push_reply(&mut self, conn: ConnId, reply: Reply) {
        if let Some(connection) = self.connections.get_mut(&conn) {
            connection.replies.push_back(reply);
            self.wakes.push_back(conn);
        }
    }

    pub(super) fn find_cid(&self, cid: Cid) -> Option<ConnId> {
        let mut live = self.connections.iter().filter(|(_, c)| c.state != ConnectionState::Free);
        live.find(|(_, c)| c.cid == cid).map(|(id, _)| *id)
    }

    pub(super) fn error(&self, conn: ConnId, itt: Itt, what: &'static str) -> SessionError {
        let cid = self.connections.get(&conn).map_or(Cid(0), |c| c.cid);
        SessionError { what, cid, itt, exp_cmd_sn: self.order.exp_cmd_sn() }
    }

    pub(super) fn expect_data_out(&mut self, conn: ConnId, itt: Itt, ttt: Ttt, len: u32, is_final: bool) {
        self.set_receiving(conn, Receiving::DataOut { itt, ttt, len, is_final });
    }

    pub(super) fn ignore(&mut self, conn: ConnId, data_len: u32) -> Result<Placement, SessionError> {
        self.set_receiving(conn, Receiving::Ignored);
        Ok(if data_len == 0 { Placement::None } else { Placement::Discard })
    }

    pub(super) fn reject(
        &mut self,
        conn: ConnId,
        reason: RejectReason,
        header: &Header,
    ) -> Result<Placement, SessionError> {
        self.push_reply(conn, Reply::Reject { reason, header: Bytes::copy_from_slice(&header.bhs) });
        self.ignore(conn, header.data_segment_length())
    }

    fn receive_scratch(
        &mut self,
        conn: ConnId,
        pdu: Pdu,
        data_len: u32,
        header: &Header,
    ) -> Result<Placement, SessionError> {
        let (immediate, cmd_sn) = match &pdu {
            Pdu::NopOut(p) => (p.immediate, p.cmd_sn),
            Pdu::TextRequest(p) => (p.immediate, p.cmd_sn),
            Pdu::TaskManagementRequest(TaskManagementRequest { immediate, cmd_sn, .. }) => {
                (*immediate, *cmd_sn)
            }
            Pdu::LogoutRequest(p) => (p.immediate, p.cmd_sn),
            _ => (true, CmdSn(0)),
        };
        if !immediate && !self.order.accepts(cmd_sn) {
            return self.ignore(conn, data_len);
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

    /// Answers that wait to be sent on `conn`: the shell stops reading while there are many, so
    /// that a peer that asks and never reads costs bounded memory.
    pub fn reply_backlog(&self, conn: ConnId) -> usize {
        self.connections.get(&conn).map_or(0, |c| c.replies.len())
    }
}

/// Small answers queued on one connection before further requests are refused. The shell stops
/// reading long before ([`Session::reply_backlog`]).
const REPLIES_MAX: usize = 4096;

/// ExpStatSN of a request, where it has one.
fn exp_stat_sn(pdu: &Pdu) -> Option<StatSn> {
    Some(match pdu {
        Pdu::NopOut(p) => p.exp_stat_sn,
        Pdu::ScsiCommand(p) => p.exp_stat_sn,
        Pdu::TaskManagementRequest(p) => p.exp_stat_sn,
        Pdu::TextRequest(p) => p.exp_stat_sn,
        Pdu::DataOut(p) => p.exp_stat_sn,
        Pdu::LogoutRequest(p) => p.exp_stat_sn,
        Pdu::SnackRequest(p) => p.exp_stat_sn,
        _ => return None,
    })
}
