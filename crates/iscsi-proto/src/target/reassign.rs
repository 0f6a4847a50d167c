//! Connections that are lost while their tasks live on (error recovery level 2): how long they are
//! kept, and how another connection takes them over (RFC 7143 §6.3.4, §7.2.2, §7.13, §8.1.5).
//!
//! A connection that is lost, or logged out "for recovery", goes through three steps, in either
//! order of the first two: its driver ends (*detached*: nothing uses its buffers any more), and
//! the initiator gives it up by an explicit or implicit logout (*logged out*: from then on its
//! tasks may be reassigned). When no task is left, or when the time is over, it is forgotten.

use std::time::Duration;

use super::admission::Standing;
use super::event::{ConnId, Event, Recovery};
use super::receive::Receiving;
use super::retain::Numbered;
use super::session::{Connection, Session};
use super::state::ConnectionEvent;
use super::task::{Phase, Task};
use crate::ids::Itt;
use crate::pdu::{TaskManagementRequest, TaskManagementResponseCode};
use crate::time::Instant;

/// How far the end of a connection has got.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    /// Its driver is gone.
    pub(super) detached: bool,
    /// The initiator has given it up.
    pub(super) logged_out: bool,
    /// Its tasks end then.
    pub(super) deadline: Instant,
}

impl Connection {
    /// Nobody fetches its events any more.
    pub(super) fn is_detached(&self) -> bool {
        self.recovery.as_ref().is_some_and(|waiting| waiting.detached)
    }
}

impl Session {
    /// Do tasks of `conn` wait, or may they, for another connection to take them over?
    pub fn is_recoverable(&self, conn: ConnId) -> bool {
        self.connections.get(&conn).is_some_and(|c| c.recovery.is_some() && c.is_detached())
    }

    /// Does any connection wait for recovery? The session lives until the last has given up.
    pub fn awaits_recovery(&self) -> bool {
        self.connections.values().any(Connection::is_detached)
    }

    /// Tasks that belong to `conn`, those whose answer is not acknowledged included.
    pub fn tasks_of(&self, conn: ConnId) -> usize {
        let all = self.tasks.values().chain(self.answered.values().map(Box::as_ref));
        all.filter(|task| task.conn == conn).count()
    }

    /// Does this unfinished task belong to `conn`?
    pub(super) fn is_task_of(&self, conn: ConnId, itt: Itt) -> bool {
        self.tasks.get(&itt).is_some_and(|task| task.conn == conn)
    }

    /// Tasks of this connection go on only when another one takes them over.
    pub(super) fn is_lost(&self, conn: ConnId) -> bool {
        self.connections.get(&conn).is_none_or(|c| c.recovery.is_some())
    }

    /// Time2Wait and Time2Retain from now on (§13.15, §13.16).
    fn recovery_deadline(&self) -> Instant {
        let wait = u64::from(self.params.default_time2wait);
        let retain = u64::from(self.params.default_time2retain);
        self.clock + Duration::from_secs(wait + retain)
    }

    /// The initiator gives up `conn` on another connection, which closes it here too.
    pub(super) fn remove_for_recovery(&mut self, conn: ConnId, reason: &'static str) {
        let deadline = self.recovery_deadline();
        self.suspend(conn);
        let Some(connection) = self.connections.get_mut(&conn) else { return };
        if let Some(waiting) = &mut connection.recovery {
            (waiting.logged_out, waiting.deadline) = (true, deadline);
        }
        if !connection.is_detached() {
            connection.step(ConnectionEvent::FailedRecoverable);
            connection.clear_output();
            connection.events.push_back(Event::Close { reason, at_once: true });
            self.wakes.push_back(conn);
        }
        self.reap_recovered();
    }

    /// The initiator has given up the connection that this very answer went out on.
    pub(super) fn logged_out_for_recovery(&mut self, conn: ConnId) {
        let deadline = self.recovery_deadline();
        if let Some(connection) = self.connections.get_mut(&conn) {
            connection.step(ConnectionEvent::FailedRecoverable);
            if let Some(waiting) = &mut connection.recovery {
                (waiting.logged_out, waiting.deadline) = (true, deadline);
            }
        }
        self.close_event(conn, "logged out");
    }

    /// The driver of `conn` is gone.
    pub(super) fn detach(&mut self, conn: ConnId) {
        let deadline = self.recovery_deadline();
        self.suspend(conn);
        let Some(connection) = self.connections.get_mut(&conn) else { return };
        connection.step(ConnectionEvent::FailedRecoverable);
        connection.clear_output();
        connection.events.clear();
        if let Some(waiting) = &mut connection.recovery {
            (waiting.detached, waiting.deadline) = (true, deadline);
        }
        self.settle();
        for (conn, request) in std::mem::take(&mut self.pending_reassignments) {
            self.reassign(conn, &request);
        }
        self.grant_waiting();
        self.reap_recovered();
    }

    /// Stops everything of `conn` but what already executes. Data that is still missing will be
    /// asked for anew.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.14
    //# When receiving a Logout Request with the reason code "remove the connection for recovery",
    //# the target MUST discard all requests not yet acknowledged via the ExpCmdSN that were issued
    //# on the specified connection and suspend all data/status/R2T transfers on behalf of pending
    //# commands on the specified connection.
    pub(super) fn suspend(&mut self, conn: ConnId) {
        let deadline = self.recovery_deadline();
        self.lose_receipts(conn);
        let Some(connection) = self.connections.get_mut(&conn) else { return };
        if connection.recovery.is_some() {
            return;
        }
        let (detached, logged_out) = (false, false);
        connection.recovery = Some(Waiting { detached, logged_out, deadline });
        connection.responding.clear();
        connection.runs.clear();
        connection.waiting_to_read.clear();
        connection.text = None;
        let receiving = std::mem::replace(&mut connection.receiving, Receiving::Nothing);
        let mut recalled = Vec::new();
        let mut unfetched = Vec::new();
        connection.events.retain(|event| {
            match event {
                Event::Execute(execute) => recalled.push(execute.itt),
                Event::Management { itt, .. } => unfetched.push(*itt),
                Event::Text { .. } | Event::Admit(_) => {}
                _ => return true,
            }
            false
        });
        if let Receiving::Command { itt, .. } = receiving {
            self.discard_command(conn, itt); // its initiator will send it again
        }
        self.pending_management.retain(|p| !(p.conn == conn && unfetched.contains(&p.itt)));
        self.fences.retain(|fence| !fence.is_of(conn));
        self.postponed.retain(|(of, _)| *of != conn);
        self.suspend_tasks(conn, &recalled);
    }

    fn suspend_tasks(&mut self, conn: ConnId, recalled: &[Itt]) {
        let mut freed = 0;
        for (itt, task) in self.tasks.iter_mut().filter(|(_, task)| task.conn == conn) {
            if task.standing == Standing::Asked {
                task.standing = Standing::Unasked; // who takes it over asks again
            }
            if recalled.contains(itt) {
                task.phase = Phase::Collecting;
                freed += std::mem::take(&mut task.reading);
            } else if task.phase == Phase::Collecting {
                let missing = task.close_sequences();
                task.lost.extend(missing);
                task.fruitless = 0;
            }
        }
        // Before anything below frees memory: whoever got it now would count as having asked for
        // its data, and who takes it over would ask for nothing.
        let tasks = &self.tasks;
        self.waiting_for_buffer.retain(|itt| tasks.get(itt).is_some_and(|t| t.conn != conn));
        // Nobody will send what these wait for, nor take them over.
        let drained = |(_, task): &(&Itt, &Task)| {
            task.conn == conn && task.aborted && task.phase == Phase::Collecting
        };
        let drained: Vec<Itt> = self.tasks.iter().filter(drained).map(|(itt, _)| *itt).collect();
        drained.into_iter().for_each(|itt| {
            self.abort_task(itt);
        });
        if let Some(connection) = self.connections.get_mut(&conn) {
            connection.read_bytes -= u64::from(freed);
        }
    }

    /// TASK REASSIGN. Its LUN is reserved (§11.5.3) and says nothing.
    pub(super) fn reassign(&mut self, conn: ConnId, request: &TaskManagementRequest) {
        use TaskManagementResponseCode as R;
        if self.is_lost(conn) {
            return; // it waited, and who asked is gone: a task would move to nobody
        }
        let itt = request.referenced_task_tag;
        if self.reassigns() && self.tasks.get(&itt).is_some_and(|task| task.aborted) {
            // It is no more when it has ended: until then it may still reach the medium, and its
            // initiator would do it again before.
            let (response, waits_for) = (R::TASK_DOES_NOT_EXIST, vec![itt]);
            return self.finish_management(conn, request, response, waits_for, false);
        }
        let silenced = |task: &Task| task.aborted && self.is_lost(task.conn);
        if self.answered.get(&itt).map(Box::as_ref).is_some_and(silenced) {
            self.forget_answer(itt);
        }
        let task = self.tasks.get(&itt);
        let task = task.or_else(|| self.answered.get(&itt).map(Box::as_ref));
        let waiting = |conn| self.connections.get(&conn).and_then(|c: &Connection| c.recovery);
        let response = match task.map(|task| waiting(task.conn)) {
            _ if !self.reassigns() => R::REASSIGNMENT_NOT_SUPPORTED,
            //= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.1
            //# At the target, a TASK REASSIGN function request MUST NOT be executed
            //# to reassign the connection allegiance of a Task Management Function
            //# Request, an active text negotiation task, or a Logout task; such a
            //# request MUST result in a task management response of "Function
            //# rejected".
            None if self.is_bound(itt) => R::REJECTED,
            None => R::TASK_DOES_NOT_EXIST,
            //= https://www.rfc-editor.org/rfc/rfc7143#section-7.2.2
            //# If allegiance reassignment is supported by the target but the task is still
            //# allegiant to a different connection, or a successful recovery Logout of the
            //# previously allegiant connection was not performed, the target MUST respond with a
            //# task management response code of "Task still allegiant".
            //= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.1
            //# TASK REASSIGN MUST ONLY be received by the target after the connection on which the
            //# command was previously executing has been successfully logged out.
            Some(None) => R::TASK_STILL_ALLEGIANT,
            Some(Some(waiting)) if !waiting.logged_out => R::TASK_STILL_ALLEGIANT,
            // One request for it waits already; more of them must not fill memory.
            Some(Some(waiting)) if !waiting.detached && self.is_to_be_reassigned(itt) => {
                R::TASK_STILL_ALLEGIANT
            }
            Some(Some(waiting)) if !waiting.detached => {
                // Its buffer may still be in use there; the driver has been told to end.
                return self.pending_reassignments.push((conn, request.clone()));
            }
            Some(_) => R::COMPLETE,
        };
        //= https://www.rfc-editor.org/rfc/rfc7143#section-7.2.2
        //# If allegiance reassignment is supported by the target, the task management response to
        //# the reassignment request MUST be issued before the reassignment becomes effective.
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.1
        //# The task management response MUST be issued before the reassignment becomes effective.
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.6
        //# For TASK REASSIGN, the new connection allegiance MUST ONLY become effective at the
        //# target after the target issues the task management response.
        // §7.2.2: the answer comes before anything of the task.
        self.answer_query(conn, request.itt, response);
        if response == R::COMPLETE {
            //= https://www.rfc-editor.org/rfc/rfc7143#section-7.2.2
            //# This might possibly involve retransmission of data/R2T/status PDUs as necessary but
            //# MUST involve the (re)transmission of the status PDU.
            self.take_over(conn, itt, request.exp_data_sn);
            self.reap_recovered();
        }
    }

    /// Is this the tag of a request that is no SCSI command, and stays where it came from?
    fn is_bound(&self, itt: Itt) -> bool {
        let text = |c: &Connection| c.text.as_ref().is_some_and(|exchange| exchange.is_of(itt));
        self.is_managing(itt) || self.is_logging_out(itt) || self.connections.values().any(text)
    }

    /// Does a TASK REASSIGN for this task wait until its connection has ended?
    fn is_to_be_reassigned(&self, itt: Itt) -> bool {
        self.pending_reassignments.iter().any(|(_, other)| other.referenced_task_tag == itt)
    }

    /// Moves a task to `conn` and goes on with it where its initiator stands.
    pub(super) fn take_over(&mut self, conn: ConnId, itt: Itt, exp_data_sn: u32) {
        let answered = self.answered.remove(&itt);
        let sent = answered.is_some();
        if let Some(task) = answered {
            self.tasks.insert(itt, task);
        }
        if !self.has_task(itt) {
            return;
        }
        // Before it may be executed: the driver has to fetch its data ([`super::Orphans`]).
        self.note(conn, Recovery::Reassigned { itt });
        let burst_max = self.params.max_burst_length;
        let Some(task) = self.tasks.get_mut(&itt) else { return };
        let old = std::mem::replace(&mut task.conn, conn);
        if let Some(old) = self.connections.get_mut(&old) {
            old.read_bytes -= u64::from(task.reading);
            let of_task = |numbered: &&mut Numbered| matches!(numbered, Numbered::Response(answered) if *answered == itt);
            old.sent.iter_mut().filter(of_task).for_each(|entry| *entry = Numbered::Nothing);
        }
        let Some(connection) = self.connections.get_mut(&conn) else { return };
        connection.read_bytes += u64::from(task.reading);
        //= https://www.rfc-editor.org/rfc/rfc7143#section-7.2.2
        //# If a SCSI command that involves data input is reassigned, any SNACK Tag it holds for a
        //# final response from the original connection is deleted, and the default value of 0 MUST
        //# be used instead.
        (task.stat_sn, task.snack_tag, task.ack_ttt) = (None, 0, None);
        match task.phase {
            Phase::Running => {}
            Phase::Responding => {
                if task.cut.segment_max > 0 {
                    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.6
                    //# Any other value MUST be ignored by the target.
                    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.6
                    //# The initiator MUST discard any data PDUs from the previous execution that it
                    //# did not acknowledge, and the target MUST transmit all Data-In PDUs (if any)
                    //# starting with the data acknowledgment reference number.
                    if task.acked_data_sn < exp_data_sn && exp_data_sn <= task.next_data_sn {
                        task.acked_offset = task.offset_of(exp_data_sn, burst_max);
                        task.acked_data_sn = exp_data_sn;
                    }
                    task.rewind(connection.params.max_send_data_segment_length.max(1));
                }
                connection.responding.push_back(itt);
                self.wakes.push_back(conn);
                self.precede_fences(itt, sent);
            }
            Phase::Collecting => {
                self.solicit(itt);
                self.execute_if_complete(itt);
            }
        }
    }

    /// Forgets connections that were given up and have no tasks left.
    pub(super) fn reap_recovered(&mut self) {
        let done = |c: &Connection| c.recovery.is_some_and(|w| w.detached && w.logged_out);
        let conns: Vec<ConnId> =
            self.connections.iter().filter(|(_, c)| done(c)).map(|(id, _)| *id).collect();
        for conn in conns {
            // The session itself waits for a connection too, as long as it has none.
            if self.tasks_of(conn) == 0 && self.connection_count() > 0 {
                self.connections.remove(&conn);
            }
        }
    }

    /// Nobody came in time: the tasks end, without an answer, and perhaps the session.
    pub(super) fn give_up_recovery(&mut self, conn: ConnId) {
        // What waits for a command before it was never acknowledged: it counts as not received, so
        // that its initiator can send it again.
        let early = |task: &&Task| task.conn == conn && !task.in_order && !task.command.immediate;
        for task in self.tasks.values().filter(early) {
            self.order.release(task.cmd_sn());
        }
        self.abort_connection_tasks(conn);
        self.answered.retain(|_, task| task.conn != conn);
        if let Some(connection) = self.connections.get_mut(&conn) {
            connection.step(ConnectionEvent::CleanedUp);
        }
        self.connections.remove(&conn);
        if self.connection_count() == 0 && !self.awaits_recovery() {
            self.close("no connection came back in time");
        }
        self.settle();
        self.grant_waiting();
    }
}
