//! [`Session`]: the state all connections of a session share, and the way of a PDU through it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::attributes::Attributes;
use super::config::SessionConfig;
use super::connections::Connections;
use super::event::{ConnId, Event, SessionError};
use super::fence::{Aborted, Fence};
use super::logout::PendingLogout;
use super::management::{PendingManagement, Rights};
use super::order::CommandOrder;
use super::reassign::Waiting;
use super::receipt::{Delivery, Receipt};
use super::receive::Receiving;
use super::retain::Numbered;
use super::snack::Run;
use super::state::{ConnectionEvent, ConnectionState};
use super::task::{Completion, Phase, Task};
use super::tasks::Tasks;
use super::text::TextExchange;
use super::transmit::Reply;
use crate::ids::{Cid, Itt};
use crate::keys::{ConnectionParams, SessionParams};
use crate::login::Outcome;
use crate::pdu::{BHS_LEN, TaskManagementRequest};
use crate::serial::StatSn;
use crate::time::Instant;

pub(super) struct Connection {
    pub(super) cid: Cid,
    pub(super) params: ConnectionParams,
    pub(super) state: ConnectionState,
    pub(super) next_stat_sn: StatSn,
    pub(super) exp_stat_sn: StatSn,
    pub(super) events: VecDeque<Event>,
    /// It closes once its answers are sent: what still comes is dropped.
    pub(super) closing: bool,
    /// Small answers, sent before data.
    pub(super) replies: VecDeque<Reply>,
    /// Bytes of ping data in them.
    pub(super) reply_data_len: usize,
    /// Reads that are not executed before others have been sent.
    pub(super) waiting_to_read: VecDeque<Itt>,
    /// Memory of reads that execute or are being sent.
    pub(super) read_bytes: u64,
    /// Tasks in [`Phase::Responding`], in the order of their completion.
    pub(super) responding: VecDeque<Itt>,
    /// What is sent again, before anything new.
    pub(super) runs: VecDeque<Run>,
    /// Unacknowledged uses of StatSN, the last being the one before `next_stat_sn`; empty at error
    /// recovery level 0.
    pub(super) sent: VecDeque<Numbered>,
    /// Bytes of data in them.
    pub(super) sent_bytes: usize,
    /// Answers whose arrival matters, by StatSN: as many as units have news, once each.
    pub(super) receipts: VecDeque<(StatSn, Receipt)>,
    /// When the initiator was asked to acknowledge, until it does.
    pub(super) ack_asked: Option<Instant>,
    /// When to look for Data-Out that does not come.
    pub(super) data_timer: Option<Instant>,
    /// When data, or a part of it, last moved.
    pub(super) last_data: Instant,
    /// Data-In is among the PDUs that were handed out last, in one go.
    pub(super) sends_data: bool,
    /// All there was to send has been handed out: what comes next is not of that go any more.
    pub(super) sent_all: bool,
    /// In [`ConnectionState::CleanupWait`]: how far that has got.
    pub(super) recovery: Option<Waiting>,
    /// The PDU whose data segment is being read.
    pub(super) receiving: Receiving,
    /// Its header, for a Reject.
    pub(super) last_header: [u8; BHS_LEN],
    pub(super) text: Option<TextExchange>,
    pub(super) last_heard: Instant,
    pub(super) ping_sent: Option<Instant>,
}

impl Connection {
    /// Takes back [`Event::Execute`] of a task. True if the shell had not seen it.
    pub(super) fn recall(&mut self, itt: Itt) -> bool {
        let asks = |event: &Event| matches!(event, Event::Admit(of) if of.itt == itt);
        self.events.retain(|event| !asks(event));
        let before = self.events.len();
        self.events.retain(|event| !matches!(event, Event::Execute(execute) if execute.itt == itt));
        self.events.len() < before
    }

    /// Takes memory for what a read brings, if there is some.
    pub(super) fn reserve_read(&mut self, len: u32, read_bytes_max: u64) -> bool {
        let wanted = self.read_bytes + u64::from(len);
        let fits = self.read_bytes == 0 || wanted <= read_bytes_max;
        if fits {
            self.read_bytes = wanted;
        }
        fits
    }

    /// What goes with the transport: nothing of it can be sent any more.
    pub(super) fn clear_output(&mut self) {
        self.replies.clear();
        self.reply_data_len = 0;
        self.runs.clear();
        self.responding.clear();
    }

    pub(super) fn step(&mut self, event: ConnectionEvent) {
        if let Some(next) = self.state.after(event) {
            self.state = next;
        }
    }
}

/// A full-feature session.
pub struct Session {
    pub(super) config: SessionConfig,
    /// Without any, everything is allowed.
    pub(super) rights: Option<Arc<dyn Rights>>,
    pub(super) params: SessionParams,
    pub(super) discovery: bool,
    /// Commands are held back until the shell admits them.
    pub(super) holds: bool,
    pub(super) order: CommandOrder,
    pub(super) connections: Connections,
    pub(super) tasks: Tasks,
    /// Tasks whose status was sent and is not acknowledged; empty at error recovery level 0.
    pub(super) answered: BTreeMap<Itt, Box<Task>>,
    /// Writes that are not solicited before others have completed.
    pub(super) waiting_for_buffer: VecDeque<Itt>,
    /// Memory promised to writes that have not completed.
    pub(super) granted_bytes: u64,
    pub(super) next_ttt: u32,
    pub(super) pending_management: Vec<PendingManagement>,
    /// Functions that wait for commands sent before them.
    pub(super) postponed: Vec<(ConnId, TaskManagementRequest)>,
    pub(super) pending_logouts: Vec<PendingLogout>,
    /// Reassignments of tasks whose connection is not quite gone.
    pub(super) pending_reassignments: Vec<(ConnId, TaskManagementRequest)>,
    pub(super) wakes: VecDeque<ConnId>,
    pub(super) aborts: VecDeque<Itt>,
    pub(super) deliveries: VecDeque<Delivery>,
    pub(super) attributes: Attributes,
    /// Answers that others must not pass, the first one being under way.
    pub(super) fences: VecDeque<Fence>,
    pub(super) aborted: Vec<Aborted>,
    /// Units whose tasks ended with their connection, until a command tells.
    pub(super) cleared: BTreeSet<u64>,
    /// When tasks were aborted last that wait for data, while there are such.
    pub(super) drains_since: Option<Instant>,
    /// The latest time that was told.
    pub(super) clock: Instant,
    next_conn: u32,
    closed: bool,
}

impl Session {
    /// A session as its leading login agreed on it. Add that connection with
    /// [`add_connection`](Self::add_connection).
    pub fn new(config: SessionConfig, leading: &Outcome) -> Self {
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.12.8
        //# If the Login Request is a leading Login Request, the target MUST use the value presented
        //# in the CmdSN as the target value for the ExpCmdSN.
        let order = CommandOrder::new(leading.cmd_sn, config.command_window);
        Self {
            config,
            rights: None,
            params: leading.session,
            discovery: leading.discovery,
            holds: false,
            order,
            connections: Connections::default(),
            tasks: Tasks::default(),
            answered: BTreeMap::new(),
            waiting_for_buffer: VecDeque::new(),
            granted_bytes: 0,
            next_ttt: 1,
            pending_management: Vec::new(),
            postponed: Vec::new(),
            pending_logouts: Vec::new(),
            pending_reassignments: Vec::new(),
            wakes: VecDeque::new(),
            aborts: VecDeque::new(),
            deliveries: VecDeque::new(),
            attributes: Attributes::default(),
            fences: VecDeque::new(),
            aborted: Vec::new(),
            cleared: BTreeSet::new(),
            drains_since: None,
            clock: Instant::default(),
            next_conn: 0,
            closed: false,
        }
    }

    /// A connection enters the full-feature phase. One with the same CID is reinstated: it ends as
    /// by an implicit logout (§6.3.4), at level 2 with its tasks kept to be reassigned.
    ///
    /// `next_stat_sn` is the one after that of the final login response.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.1
    //# iSCSI targets and initiators MUST support at least one TCP connection and MAY support
    //# several connections in a session.
    pub fn add_connection(
        &mut self,
        outcome: &Outcome,
        next_stat_sn: StatSn,
        now: Instant,
    ) -> ConnId {
        self.clock = self.clock.max(now);
        if let Some(old) = self.find_cid(outcome.cid) {
            if self.reassigns() {
                self.remove_for_recovery(old, "connection reinstated");
            } else {
                self.end_connection(old, "connection reinstated");
            }
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
            reply_data_len: 0,
            waiting_to_read: VecDeque::new(),
            read_bytes: 0,
            responding: VecDeque::new(),
            runs: VecDeque::new(),
            sent: VecDeque::new(),
            sent_bytes: 0,
            receipts: VecDeque::new(),
            ack_asked: None,
            data_timer: None,
            last_data: now,
            sends_data: false,
            sent_all: true,
            recovery: None,
            closing: false,
            receiving: Receiving::Nothing,
            last_header: [0; BHS_LEN],
            text: None,
            last_heard: now,
            ping_sent: None,
        };
        self.connections.insert(id, connection);
        self.reap_recovered();
        id
    }

    /// The transport of `conn` is gone, and what the shell holds for its tasks lies where other
    /// connections find it. At error recovery level 2 the tasks wait to be reassigned
    /// ([`is_recoverable`](Self::is_recoverable)). Below that they end, and the session with them
    /// (§7.1.4), unless the connection was logged out, replaced or closed by us.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-7.1.5
    //# Implementations MUST support error recovery level "0", while the rest are OPTIONAL to
    //# implement.
    pub fn handle_connection_lost(&mut self, conn: ConnId, now: Instant) {
        self.clock = self.clock.max(now);
        let Some(connection) = self.connections.get(&conn) else { return };
        let state = connection.state;
        let orderly = matches!(state, ConnectionState::InLogout | ConnectionState::Free);
        let recoverable = state == ConnectionState::CleanupWait
            || state.is_alive() && connection.recovery.is_some()
            || !orderly && self.reassigns() && self.params.default_time2retain > 0;
        if recoverable && !self.closed {
            return self.detach(conn);
        }
        self.end_connection(conn, "connection lost");
        let last = self.connection_count() == 0 && !self.awaits_recovery();
        if self.closed || !orderly && (last || !self.reassigns()) {
            //= https://www.rfc-editor.org/rfc/rfc7143#section-7.14
            //# On connection failure, the initiator and target MUST do one of the following:
            self.close("a connection of the session was lost");
        }
    }

    /// A login succeeded, but its last response could not be sent: the connection never was.
    pub fn handle_login_lost(&mut self, conn: ConnId) {
        self.end_connection(conn, "login lost");
        self.connections.remove(&conn);
        let last = self.connection_count() == 0 && !self.awaits_recovery();
        if last || !self.reassigns() {
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
        self.pending_reassignments.clear();
        self.answered.clear();
        // Of those that wait for recovery nobody else takes care.
        self.connections.retain(|_, c| c.recovery.as_ref().is_none_or(|waiting| !waiting.detached));
    }

    /// What the shell has to do for `conn`.
    pub fn poll_event(&mut self, conn: ConnId) -> Option<Event> {
        self.connections.get_mut(&conn)?.events.pop_front()
    }

    /// A connection that has output now because of something that happened on another one.
    pub fn poll_wake(&mut self) -> Option<ConnId> {
        self.wakes.pop_front()
    }

    /// A command that executes and whose answer nobody waits for any more: it may end early, and is
    /// completed when it has.
    pub fn poll_abort(&mut self) -> Option<Itt> {
        self.aborts.pop_front()
    }

    /// The session is over; no new connection may join.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// This is a discovery session.
    pub fn is_discovery(&self) -> bool {
        self.discovery
    }

    /// Connections in the full-feature phase.
    pub fn connection_count(&self) -> usize {
        self.connections.values().filter(|c| c.state.is_alive()).count()
    }

    /// May a connection of this CID join?
    pub fn admits(&self, cid: Cid) -> bool {
        // A connection that is replaced does not count, and at level 2 one more may come with no
        // other purpose than to clean up.
        //= https://www.rfc-editor.org/rfc/rfc7143#section-6.3.4
        //# Targets MUST support opening a second connection even when they do not support multiple
        //# connections in the Full Feature Phase if ErrorRecoveryLevel is 2 and SHOULD support
        //# opening a second connection if ErrorRecoveryLevel is less than 2.
        let spare = usize::from(self.reassigns());
        let limit = usize::from(self.params.max_connections) + spare;
        let alive = self.connection_count();
        // As many may wait for recovery; a peer that loses one after another, each with a CID of
        // its own, has to come back with one of those.
        let waiting = if self.reassigns() { self.connections.len() - alive } else { 0 };
        let has_room = alive < limit && waiting < limit;
        !self.closed && (self.find_cid(cid).is_some() || has_room)
    }

    /// Tasks that are not finished.
    pub fn task_count(&self) -> usize {
        self.tasks.len()
    }

    /// The agreed session-wide parameters.
    pub fn params(&self) -> &SessionParams {
        &self.params
    }

    /// Has `conn` been closed in good order, by us, or by its initiator on another connection? What
    /// still comes in on it is an error of nobody.
    pub fn is_connection_over(&self, conn: ConnId) -> bool {
        self.connections.get(&conn).is_none_or(|c| !c.state.is_alive())
    }

    /// Is the task there, with data still to come or to be executed?
    pub fn has_task(&self, itt: Itt) -> bool {
        self.tasks.contains_key(&itt)
    }

    /// A command has ended; its answer is sent unless it was aborted meanwhile.
    pub fn complete(&mut self, itt: Itt, completion: Completion) {
        let running = |task: &&mut Task| task.phase == Phase::Running;
        let Some(task) = self.tasks.get_mut(&itt).filter(running) else {
            return self.lose_answer(&completion);
        };
        if task.aborted {
            self.lose_answer(&completion);
            self.remove_task(itt);
            self.settle();
            return;
        }
        let kept = u32::try_from(completion.data_in.len()).unwrap_or(u32::MAX).min(task.reading);
        let freed = std::mem::replace(&mut task.reading, kept) - kept;
        task.completion = completion;
        if !self.params.has_rfc7144() {
            task.completion.status_qualifier = 0; // RFC 7144 §5.2.1
        }
        task.phase = Phase::Responding;
        let conn = task.conn;
        self.release(itt);
        self.release_read(conn, freed);
        // The answers of a lost connection wait for the one that takes them over.
        if let Some(connection) = self.connections.get_mut(&conn)
            && connection.state.is_alive()
            && connection.recovery.is_none()
        {
            connection.responding.push_back(itt);
            self.wakes.push_back(conn);
        }
        self.fence_response(itt);
        self.ended(itt);
    }

    /// Forgets a task and opens the command window for another.
    pub(super) fn remove_task(&mut self, itt: Itt) {
        if let Some(task) = self.take_task(itt) {
            self.lose_answer(&task.completion);
            self.release_read(task.conn, task.reading);
            self.tasks.recycle(task);
            self.ended(itt);
        }
    }

    /// Takes a task out, with the memory it holds as a read.
    pub(super) fn take_task(&mut self, itt: Itt) -> Option<Box<Task>> {
        self.release(itt);
        let task = self.tasks.remove(&itt)?;
        // The tag may come again for another task: nothing may be left under it.
        self.waiting_for_buffer.retain(|waiting| *waiting != itt);
        if let Some(connection) = self.connections.get_mut(&task.conn) {
            connection.waiting_to_read.retain(|waiting| *waiting != itt);
        }
        if !task.command.immediate && !task.in_order {
            self.order.forget(task.cmd_sn());
        }
        Some(task)
    }

    pub(super) fn mark_closed(&mut self) {
        self.closed = true;
    }

    pub(super) fn abort_connection_tasks(&mut self, conn: ConnId) {
        self.note_cleared(conn);
        let itts: Vec<Itt> =
            self.tasks.iter().filter(|(_, task)| task.conn == conn).map(|(itt, _)| *itt).collect();
        for itt in itts {
            self.abort_task(itt);
        }
    }

    /// Ends a connection's tasks and the connection. Executing tasks stay until they complete.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-7.14
    //# On a connection failure, a target MUST terminate and/or discard all of the active immediate
    //# commands, regardless of which of the above options is used (i.e., immediate commands are not
    //# recoverable across connection failures).
    pub(super) fn end_connection(&mut self, conn: ConnId, reason: &'static str) {
        self.abort_connection_tasks(conn);
        self.lose_receipts(conn);
        if let Some(connection) = self.connections.get_mut(&conn)
            && connection.state != ConnectionState::Free
        {
            let event = match connection.state {
                ConnectionState::CleanupWait => ConnectionEvent::CleanedUp,
                _ => ConnectionEvent::Failed,
            };
            connection.step(event);
            connection.clear_output();
            connection.sent.clear();
            connection.sent_bytes = 0;
            connection.events.push_back(Event::Close { reason, at_once: false });
            self.wakes.push_back(conn);
        }
        self.answered.retain(|_, task| task.conn != conn);
        self.settle();
    }

    /// Forgets a connection whose driver is gone, unless its tasks wait to be reassigned.
    pub fn remove_connection(&mut self, conn: ConnId) {
        if self.connections.get(&conn).is_some_and(|c| c.state != ConnectionState::CleanupWait) {
            self.connections.remove(&conn);
        }
    }

    /// Looks whether task management and logouts that waited for tasks can go on.
    pub(super) fn settle(&mut self) {
        self.settle_management();
        self.settle_fences();
        self.settle_logouts();
        self.announce_window();
    }

    /// The connection with this CID that is not logged out: one that works, or one that was lost.
    pub(super) fn find_cid(&self, cid: Cid) -> Option<ConnId> {
        let known = |c: &Connection| match &c.recovery {
            Some(waiting) => !waiting.logged_out,
            None => c.state != ConnectionState::Free,
        };
        let mut known = self.connections.iter().filter(|(_, c)| known(c));
        known.find(|(_, c)| c.cid == cid).map(|(id, _)| *id)
    }

    pub(super) fn error(&self, conn: ConnId, itt: Itt, what: &'static str) -> SessionError {
        let cid = self.connections.get(&conn).map_or(Cid(0), |c| c.cid);
        SessionError { what, cid, itt, exp_cmd_sn: self.order.exp_cmd_sn() }
    }
}
