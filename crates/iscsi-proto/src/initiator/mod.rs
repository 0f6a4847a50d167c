//! The initiator's half of a session (RFC 7143): N connections, the commands on them, one CmdSN
//! window. No login (see `login::initiator`), no sockets, no clock, no retries of its own.
//!
//! [`Session`] lives as long as one TSIH. Its owner keeps it behind one lock, taken for headers
//! only. Four method families:
//!
//! * `handle_*`: what happened. [`Session::handle_header`], then [`Session::handle_data`] if there
//!   was a data segment, per connection; [`Session::handle_connection_lost`] exactly once per
//!   connection, last; [`Session::handle_timeout`].
//! * commands: [`Session::add_connection`], [`Session::submit`], [`Session::manage`],
//!   [`Session::abort`], [`Session::remove_connection`], [`Session::close`], …
//! * `poll_*`: what to do. After every call of the other families, drain [`Session::poll_event`],
//!   wake the connections of [`Session::take_wakes`], and re-arm from [`Session::poll_timeout`].
//!   A connection drains [`Session::poll_transmit`] when its transport takes more, and closes
//!   when [`Session::is_closing`] says so.
//! * getters.
//!
//! Error recovery is as deep as was agreed at login (§7.1.5):
//!
//! * level 0: a failed connection ends the session, because commands it carried may have left a
//!   hole in CmdSN that nothing else can fill. Every unfinished command comes back as
//!   [`Event::TaskRequeue`], to be sent again in a session that reinstates this one (same ISID,
//!   §6.3.5), so that the target is certain to have dropped the first copy.
//! * level 1: PDUs that came damaged are asked for again (`repair`); what cannot be had ends the
//!   connection.
//! * level 2: tasks of a failed connection go on over the others (`failover`), or over one that is
//!   set up as [`Session::reinstatement`] says.

mod config;
mod control;
mod data;
mod dispatch;
mod event;
mod events;
mod failover;
mod inbound;
mod lifecycle;
mod membership;
mod multi_task;
mod receive;
mod recover;
mod repair;
mod requests;
mod stalled;
mod status;
mod task;
#[cfg(test)]
mod tests;
mod timer;
mod transmit;
mod types;
mod unanswered;

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

pub use ::durability; // decides about what is acknowledged and unflushed
pub use config::Config;
pub use dispatch::{COMMAND_COST_BYTES, Candidate, Pace, slowness};
pub use event::{ConnectionError, Event, Recovery, TaskOutcome, Violation};
pub use failover::Reinstatement;
pub use lifecycle::{Input, State};
pub use task::TASKS_MAX;
pub use timer::Timer;
pub use types::{
    CONNECTIONS_MAX, Command, ConnectionId, Established, MembershipError, SubmitError, Wakes,
};

use crate::ids::{Cid, Itt, Lun, Tsih, Ttt};
use crate::keys::{ConnectionParams, SessionParams};
use crate::pdu::{LogoutReason, TaskManagementFunction};
use crate::serial::{CmdSn, StatSn};
use crate::time::Instant;
use events::Events;
use failover::Failed;
use receive::Receiving;
use repair::Retried;
use stalled::Ends;
use status::StatusNumbers;
use task::{CommandTask, Kind, Management, Slab, Task, TextTask};
use timer::TimerTable;
use transmit::Queues;

/// Tags of ended tasks that are remembered, so that what was already under way for them on another
/// connection (§4.2.3.3), or was asked for twice, is not taken for a violation.
const RETIRED_TAGS_KEPT: usize = 256;

/// One connection's part of the session.
struct Connection {
    cid: Cid,
    params: ConnectionParams,
    state: State,
    /// Takes no more commands; logs out when the last one is done.
    draining: bool,
    /// Transport is to be closed. `Err` holds why.
    closing: Option<Result<(), ConnectionError>>,
    status: StatusNumbers,
    /// StatSN of the PDU whose data segment is being received.
    arriving: Option<StatSn>,
    /// ExpCmdSN and MaxCmdSN of that PDU.
    arriving_window: Option<(CmdSn, CmdSn)>,
    /// The PDU whose header is looked at has a data segment.
    data_follows: bool,
    in_flight: u32,
    outstanding_bytes: u64,
    /// As the owner has measured it; 1 unless he has.
    slowness: f64,
    queues: Queues,
    receiving: Receiving,
    timers: TimerTable,
    /// A NOP-Out of ours is unanswered.
    pinging: bool,
    /// The target asked for a logout.
    requested_logout: bool,
    received_at: Instant,
    /// A PDU was handed out, or the peer's TCP is known to have taken some of those before.
    transmitted_at: Instant,
    /// Times that missing PDUs were asked for since one came.
    repair_attempts: u8,
    /// The first command that was not acknowledged when last looked at, and since when it is.
    oldest_unacknowledged: Option<(CmdSn, Instant)>,
    /// The ping under way is to tell whether this command has arrived.
    probing: Option<CmdSn>,
    /// It was lost, and its tasks wait to go on elsewhere.
    failed: Option<Box<Failed>>,
}

/// One session. `T` is what its owner attaches to each command: buffer, waker.
pub struct Session<T> {
    config: Config,
    params: SessionParams,
    tsih: Tsih,
    connections: Vec<Option<Connection>>,
    tasks: Slab<T>,
    submitted: u64,
    /// Commands are numbered in the order in which they were submitted.
    in_order: bool,
    cmd_sn: CmdSn,
    exp_cmd_sn: CmdSn,
    max_cmd_sn: CmdSn,
    /// A connection found the command window closed.
    window_blocked: bool,
    phase: Phase,
    retired: VecDeque<Itt>,
    /// Commands that were sent again, while a copy may still be on its way.
    retried: Vec<Retried>,
    /// Commands to be aborted without being asked to, when fewer of them are under way.
    to_abort: VecDeque<Itt>,
    /// When commands ended.
    ends: Ends,
    /// Of the last call that told the time.
    now: Instant,
    events: Events<T>,
    wakes: u64,
}

/// The session as a whole (§8.3.1: Q3 LOGGED_IN, Q1 FREE; Q4 FAILED passes at once at level 0).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    LoggedIn,
    /// Takes no commands; logs out when the last is done.
    Closing,
    Ended,
}

impl<T> Session<T> {
    /// A session with its leading connection.
    pub fn new(config: Config, leading: &Established, now: Instant) -> (Self, ConnectionId) {
        let mut session = Self {
            config,
            params: leading.session,
            tsih: leading.tsih,
            connections: Vec::new(),
            tasks: Slab::new(),
            submitted: 0,
            in_order: false,
            cmd_sn: leading.cmd_sn,
            exp_cmd_sn: leading.exp_cmd_sn,
            max_cmd_sn: leading.max_cmd_sn,
            window_blocked: false,
            phase: Phase::LoggedIn,
            retired: VecDeque::new(),
            retried: Vec::new(),
            to_abort: VecDeque::new(),
            ends: Ends::default(),
            now,
            events: Events::new(),
            wakes: 0,
        };
        let id = session.attach(0, leading, now);
        (session, id)
    }

    /// Queues a command on the connection that suits it best.
    ///
    /// # Errors
    /// [`SubmitError`], with command and context handed back.
    #[allow(clippy::result_large_err)] // the command comes back by value, as it was given
    pub fn submit(
        &mut self,
        command: Command,
        context: T,
    ) -> Result<Itt, (SubmitError, Command, T)> {
        let bytes = command.data_out.len();
        if u32::try_from(bytes).is_err() || (bytes > 0 && command.data_in_len > 0) {
            return Err((SubmitError::Transfer, command, context));
        }
        let cost = command.cost();
        let Some(connection) = self.dispatch_for(cost).filter(|_| self.phase == Phase::LoggedIn)
        else {
            return Err((SubmitError::NoConnection, command, context));
        };
        if self.tasks.is_full() {
            return Err((SubmitError::NoTag, command, context));
        }
        let kind = Kind::Command(CommandTask::new(command, context));
        let Some(itt) = self.add_task(connection, kind) else {
            unreachable!("the slab has room: checked above") // our bug
        };
        if let Some(c) = self.connection_mut(connection) {
            c.in_flight += 1;
            c.outstanding_bytes += cost;
            c.queues.commands.push_back(itt);
        }
        self.wake(connection);
        Ok(itt)
    }

    fn dispatch(&self) -> Option<ConnectionId> {
        self.dispatch_for(COMMAND_COST_BYTES)
    }

    fn dispatch_for(&self, cost: u64) -> Option<ConnectionId> {
        self.candidate(cost).map(|(id, _)| id)
    }

    /// When a command with this much payload would be done here, for a comparison of sessions: in
    /// the time that the fastest connection of all needs for a byte. `None`: no connection takes
    /// it.
    pub fn completion(&self, bytes: u64) -> Option<f64> {
        let taking = self.phase == Phase::LoggedIn;
        self.candidate(bytes + COMMAND_COST_BYTES).filter(|_| taking).map(|(_, done)| done)
    }

    /// Tells how slow a connection is beside the fastest one ([`slowness`]), from now on.
    pub fn set_slowness(&mut self, id: ConnectionId, slowness: f64) {
        if let Some(c) = self.connection_mut(id).filter(|_| slowness >= 1.0) {
            c.slowness = slowness;
        }
    }

    fn candidate(&self, cost: u64) -> Option<(ConnectionId, f64)> {
        if self.phase == Phase::Closing && self.is_logging_out() {
            return None; // nothing new on any connection (§11.14)
        }
        dispatch::choose(self.taking().map(|(candidate, _)| candidate), cost)
    }

    /// Connections that take commands, with their load.
    fn taking(&self) -> impl Iterator<Item = (Candidate, &Connection)> {
        self.connections.iter().enumerate().filter_map(|(index, c)| {
            let c = c.as_ref().filter(|c| c.takes_commands())?;
            Some((c.candidate(ConnectionId(index as u8)), c)) // below CONNECTIONS_MAX
        })
    }

    /// Ends one task: at once if it was never sent, else by ABORT TASK. Its `TaskDone` says how
    /// it really ended. Nothing happens while the task's connection is being recovered.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-7.11
    //# On a ULP timeout for a command (that carried a CmdSN of n), if the iSCSI initiator intends
    //# to continue the session it MUST abort the command by using either an appropriate Task
    //# Management Function Request for the specific command or a "close the connection" logout.
    pub fn abort(&mut self, itt: Itt) -> Option<Itt> {
        let task = self.tasks.get(itt)?;
        let Kind::Command(CommandTask { command, .. }) = &task.kind else { return None };
        let (lun, connection, sent) = (command.lun, task.connection, task.is_sent());
        if self.connection(connection).is_some_and(|c| c.failed.is_some()) {
            return None; // no connection carries it now
        }
        if !sent {
            self.finish(itt, TaskOutcome::Aborted);
            return None;
        }
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.1
        //# If the connection is still active (i.e., it is not undergoing an implicit or explicit
        //# logout), an ABORT TASK MUST be issued on the same connection to which the task to be
        //# aborted is allegiant at the time the task management request is issued.
        let function = TaskManagementFunction::ABORT_TASK;
        let silent = false;
        self.add_management(connection, Management { function, lun, referenced: itt, silent })
    }

    /// Sends a task management function that names no task (§11.5.1, RFC 7144 §6.3). `None`: it
    /// cannot be sent, or was not agreed on.
    // RFC 7144 §6.3:
    // These task management function requests MUST NOT be sent unless the
    // iSCSIProtocolLevel text key with a value of "2" as defined in Section
    // 7.1.1 was negotiated on the session.
    pub fn manage(&mut self, function: TaskManagementFunction, lun: Lun) -> Option<Itt> {
        if function.is_of_rfc7144() && !self.params.has_rfc7144() {
            return None;
        }
        let connection = self.dispatch()?;
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.4
        //# For all the other functions, this field MUST be set to the reserved value 0xffffffff.
        let (referenced, silent) = (Itt::NONE, false);
        self.add_management(connection, Management { function, lun, referenced, silent })
    }

    /// Asks by QUERY TASK whether the target has this command. `None`: it was not sent, nobody can
    /// be asked now, or RFC 7144 was not agreed on.
    pub fn query_task(&mut self, itt: Itt) -> Option<Itt> {
        let task = self.tasks.get(itt).filter(|task| task.is_sent())?;
        let Kind::Command(CommandTask { command, .. }) = &task.kind else { return None };
        let (lun, connection) = (command.lun, task.connection);
        let lost = self.connection(connection).is_none_or(|c| c.failed.is_some());
        if lost || !self.params.has_rfc7144() {
            return None;
        }
        let (function, silent) = (TaskManagementFunction::QUERY_TASK, false);
        self.add_management(connection, Management { function, lun, referenced: itt, silent })
    }

    fn add_management(&mut self, connection: ConnectionId, task: Management) -> Option<Itt> {
        self.add_request(connection, Kind::Management(task))
    }

    /// Asks the target for text, such as `SendTargets=All` (§11.10). `None` if no connection takes
    /// requests, or the one chosen waits for the answer to an earlier one.
    //= https://www.rfc-editor.org/rfc/rfc7143#appendix-C
    //# The SendTargets command MUST only be sent during the Full Feature Phase of a Normal or
    //# Discovery session.
    pub fn text(&mut self, request: Bytes) -> Option<Itt> {
        let connection = self.dispatch()?;
        self.text_on(connection, request)
    }

    /// The same on one connection; `None` while an exchange is under way there.
    fn text_on(&mut self, connection: ConnectionId, request: Bytes) -> Option<Itt> {
        if self.connection(connection)?.state.is_leaving() {
            return None;
        }
        let is_text = |task: &Task<T>| matches!(task.kind, Kind::Text(_));
        //= https://www.rfc-editor.org/rfc/rfc7143#section-6.2
        //# There MUST NOT be more than one outstanding Text Request, or Text Response PDU on an
        //# iSCSI connection.
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.10
        //# An initiator MUST NOT have more than one outstanding Text Request on a connection at any
        //# given time.
        if self.tasks.iter().any(|(_, task)| task.connection == connection && is_text(task)) {
            return None;
        }
        let (lun, ttt) = (Lun(0), Ttt::NONE);
        let task = TextTask { request, lun, ttt, response: BytesMut::new() };
        self.add_request(connection, Kind::Text(task))
    }

    /// Asks for a sign of life; [`Event::Pong`] tells the round-trip time.
    pub fn ping(&mut self, connection: ConnectionId) {
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.14
        //# After sending the Logout Request PDU, an initiator MUST NOT send any new iSCSI requests
        //# on the closing connection.
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.14
        //# If the Logout Request is intended to close the session, new iSCSI requests MUST NOT be
        //# sent on any of the connections participating in the session.
        let leaving = self.is_leaving(connection);
        let Some(c) = self.connection_mut(connection) else { return };
        if c.pinging || !c.state.is_open() || leaving {
            return;
        }
        if self.add_request(connection, Kind::Ping { sent_at: None }).is_some()
            && let Some(c) = self.connection_mut(connection)
        {
            c.pinging = true;
        }
    }

    /// Gives up the session now: everything unfinished comes back as [`Event::TaskRequeue`].
    pub fn abandon(&mut self) {
        self.end(Some(ConnectionError::Abandoned));
    }

    /// Notes that payload arrived on a connection although no PDU is complete yet, so that a large
    /// PDU on a slow path is not taken for silence.
    pub fn note_progress(&mut self, id: ConnectionId, now: Instant) {
        let Some(c) = self.connection_mut(id) else { return };
        c.received_at = now;
        if let Receiving::Data(data) = &c.receiving {
            let itt = data.itt;
            self.note_moved(itt, now);
        }
    }

    /// Replaces the limits and times; armed timers keep their time.
    pub fn set_config(&mut self, config: Config) {
        self.config = config;
    }

    /// What happened since last asked, oldest first.
    pub fn poll_event(&mut self) -> Option<Event<T>> {
        self.events.pop_front()
    }

    /// Connections that got something to transmit, or to close, since last asked.
    pub fn take_wakes(&mut self) -> Wakes {
        Wakes(std::mem::take(&mut self.wakes))
    }

    /// The owner's part of a command.
    pub fn context_mut(&mut self, itt: Itt) -> Option<&mut T> {
        self.tasks.command_mut(itt).map(|task| &mut task.context)
    }

    /// Transport of this connection is to be closed: `Ok` after a logout, `Err` after a failure.
    pub fn is_closing(&self, id: ConnectionId) -> Option<Result<(), ConnectionError>> {
        match self.connection(id) {
            Some(connection) => connection.closing.clone(),
            None => Some(Err(ConnectionError::NotConnected)),
        }
    }

    /// The session takes commands.
    pub fn is_open(&self) -> bool {
        self.phase == Phase::LoggedIn && self.dispatch().is_some()
    }

    /// Session parameters as agreed at login.
    pub const fn params(&self) -> &SessionParams {
        &self.params
    }

    /// Connection parameters as agreed at login.
    pub fn connection_params(&self, id: ConnectionId) -> Option<ConnectionParams> {
        self.connection(id).map(|c| c.params)
    }

    /// The session's handle.
    pub const fn tsih(&self) -> Tsih {
        self.tsih
    }

    /// CmdSN that the next command will carry; a joining connection's login announces it.
    pub const fn next_cmd_sn(&self) -> CmdSn {
        self.cmd_sn
    }

    /// Free room in the target's command window, in commands.
    pub fn window(&self) -> u32 {
        self.max_cmd_sn.next().since(self.cmd_sn).max(0).unsigned_abs()
    }

    /// Members of the session with their CID and state.
    pub fn connections(&self) -> impl Iterator<Item = (ConnectionId, Cid, State)> {
        let indexed = self.connections.iter().enumerate();
        indexed.filter_map(|(i, c)| c.as_ref().map(|c| (ConnectionId(i as u8), c.cid, c.state)))
    }

    /// Unfinished commands of the session, queued or sent.
    pub fn in_flight(&self) -> u32 {
        self.connections.iter().flatten().map(|c| c.in_flight).sum()
    }

    /// Commands may still be handed to this connection: it is neither leaving nor failed.
    pub fn takes_commands(&self, id: ConnectionId) -> bool {
        self.connection(id).is_some_and(Connection::takes_commands)
    }

    /// Load of one connection.
    pub fn load(&self, id: ConnectionId) -> Option<Candidate> {
        Some(self.connection(id)?.candidate(id))
    }

    /// Takes a command off the books and reports it.
    fn finish(&mut self, itt: Itt, outcome: TaskOutcome) {
        let Some(Task { connection, kind: Kind::Command(task), order, cmd_sn, .. }) =
            self.tasks.remove(itt)
        else {
            return;
        };
        let CommandTask { command, context, .. } = task;
        self.ends.note(order, self.now);
        if let Some(c) = self.connection_mut(connection) {
            c.in_flight -= 1;
            c.outstanding_bytes -= command.cost();
        }
        self.events.push_back(Event::TaskDone { itt, command, context, outcome, cmd_sn });
        self.logout_if_drained(connection);
        self.close_if_idle();
    }

    fn wake(&mut self, id: ConnectionId) {
        self.wakes |= 1 << id.0;
    }

    fn connection(&self, id: ConnectionId) -> Option<&Connection> {
        self.connections.get(id.index())?.as_ref()
    }

    fn connection_mut(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.connections.get_mut(id.index())?.as_mut()
    }
}

impl Connection {
    fn takes_commands(&self) -> bool {
        self.state == State::LoggedIn && !self.draining && self.closing.is_none()
    }

    fn candidate(&self, id: ConnectionId) -> Candidate {
        let Self { outstanding_bytes, in_flight, slowness, .. } = *self;
        Candidate { id, outstanding_bytes, in_flight, slowness }
    }

    /// Follows the lifecycle table; an input without a transition changes nothing.
    fn advance(&mut self, input: Input) {
        match self.state.after(input) {
            Some(next) => self.state = next,
            None => tracing::debug!(cid = %self.cid, ?input, state = ?self.state, "ignored"),
        }
    }
}
