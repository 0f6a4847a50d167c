//! Error recovery level 2 (RFC 7143 §6.3.4, §7.1.4.3, §7.2.2, §11.5.6, §11.14): a connection is
//! lost, its session is not. The connection is logged out "for recovery" over another one, or
//! reinstated by a login with its CID; then each of its tasks goes on elsewhere: by TASK REASSIGN
//! if the target has it, by sending it again as it was if not. Without any connection left the
//! session waits for one, as [`Session::reinstatement`] says; opening it is the owner's part.

use std::collections::VecDeque;
use std::time::Duration;

use super::event::{ConnectionError, Event, Recovery};
use super::task::{Kind, Management};
use super::{Connection, ConnectionId, Input, LogoutReason, Phase, Session, Timer};
use crate::ids::{Cid, Itt};
use crate::pdu::{
    LogoutResponse, LogoutResponseCode, TaskManagementFunction, TaskManagementResponseCode,
};
use crate::serial::{CmdSn, StatSn};
use crate::time::Instant;

/// TASK REASSIGN requests under way at once for one lost connection. They are immediate, and a
/// target may refuse too many of those (§4.2.2.1).
const REASSIGNMENTS_MAX: u32 = 16;

/// How often a target may say that a task is still bound to the lost connection, or that it takes
/// no more immediate requests, and how long we wait before the next try.
const LATER_MAX: u32 = 20;
const LATER_DELAY: Duration = Duration::from_millis(200);

/// A lost connection whose tasks wait to go on elsewhere.
#[derive(Debug, Default)]
pub(super) struct Failed {
    stage: Stage,
    /// Its transport is gone, and with it whoever could still fill a task's buffer: its tasks may
    /// go on elsewhere, and then its slot is free.
    pub(super) gone: bool,
    /// Not before this may the target be asked for anything about it (Time2Wait).
    not_before: Instant,
    /// Tasks to be reassigned, oldest first.
    waiting: VecDeque<Itt>,
    /// Requests under way.
    asked: u32,
    later: u32,
    reassigned: u32,
    retried: u32,
    requeued: u32,
    /// Functions whose answers were lost with it, with their CmdSNs.
    unanswered: Vec<(Management, CmdSn)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// For Time2Wait to pass, or for a connection that can carry the logout.
    #[default]
    Waiting,
    /// Logout "for recovery" under way; this is its tag.
    LoggingOut(Itt),
    /// Logged out: for Time2Wait to pass.
    LoggedOut,
    /// Tasks are being reassigned.
    Reassigning,
}

/// How a session without any connection is continued: a login with its ISID, TSIH and this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reinstatement {
    /// The CID that the new connection is to have.
    pub cid: Cid,
    /// What its login requests give as ExpStatSN (§11.12.9).
    pub exp_stat_sn: StatSn,
    /// Not before this (Time2Wait, §13.15).
    pub not_before: Instant,
}

impl<T> Session<T> {
    /// How to continue the session if it has lost every connection and is worth it (§6.3.4). Events
    /// tell if it is given up meanwhile.
    pub fn reinstatement(&self) -> Option<Reinstatement> {
        if self.phase == Phase::Ended || self.connections().any(|(.., state)| state.is_open()) {
            return None;
        }
        self.connections.iter().flatten().find_map(|c| {
            let not_before = c.failed.as_ref().filter(|failed| failed.gone)?.not_before;
            Some(Reinstatement { cid: c.cid, exp_stat_sn: c.status.expected(), not_before })
        })
    }

    /// Lost connections whose tasks do not go on yet. Their CIDs are in use until then.
    pub fn recovering(&self) -> impl Iterator<Item = Cid> {
        self.connections.iter().flatten().filter(|c| c.failed.is_some()).map(|c| c.cid)
    }

    /// Whether what ended a connection leaves its session worth going on with. A target that breaks
    /// the protocol on one connection would do so on the next one.
    pub(super) fn can_fail_over(&self, error: &ConnectionError) -> bool {
        let honest = matches!(
            error,
            ConnectionError::TransportLost { .. }
                | ConnectionError::Dropped { .. }
                | ConnectionError::PingTimeout { .. }
                | ConnectionError::NotRepaired { .. }
                | ConnectionError::NotAnswered { .. }
                | ConnectionError::LogoutRequested { .. }
        );
        // With Time2Retain 0 the target keeps no tasks (§13.16).
        self.params.error_recovery_level >= 2
            && self.params.default_time2retain > 0
            && self.phase != Phase::Ended
            && !self.is_logging_out()
            && honest
    }

    /// The connection is lost: its tasks wait.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-7.5
    //# Recovery attempts for the connection and/or task(s) SHOULD NOT be made before Time2Wait
    //# seconds but MUST be completed within Time2Retain seconds after that initial Time2Wait
    //# waiting period.
    pub(super) fn start_failover(&mut self, id: ConnectionId) {
        let wait = Duration::from_secs(self.params.default_time2wait.into());
        let retain = Duration::from_secs(self.params.default_time2retain.into());
        let not_before = self.now + wait;
        let Some(c) = self.connection_mut(id) else { return };
        let unsent = std::mem::take(&mut c.queues).commands;
        c.queues.commands = unsent;
        c.receiving = Default::default();
        c.arriving = None;
        c.timers.stop_all();
        c.timers.set(Timer::Time2Wait, not_before);
        c.timers.set(Timer::Time2Retain, not_before + retain);
        c.failed = Some(Box::new(Failed { not_before, ..Failed::default() }));
        self.drop_requests(id);
        self.abort_more();
        let of_id = self.tasks.iter().filter(|(_, task)| task.connection == id && task.is_sent());
        let tasks = of_id.count() as u32; // at most TASKS_MAX
        self.report(id, Recovery::Started { tasks });
        if self.dispatch().is_some() {
            let unsent = self.connection_mut(id).map(|c| std::mem::take(&mut c.queues.commands));
            unsent.into_iter().flatten().for_each(|itt| self.move_task(itt));
        }
        self.fail_over();
    }

    /// The target has said itself for how long it keeps the tasks of a connection that it dropped
    /// (§11.9.1), which counts more than what was agreed at login. If it keeps none, it says so of
    /// each when asked, and the session goes on.
    pub(super) fn set_recovery_times(
        &mut self,
        id: ConnectionId,
        time2wait: u16,
        time2retain: u16,
    ) {
        let (now, agreed) = (self.now, self.params.default_time2retain);
        let Some(c) = self.connection_mut(id) else { return };
        let Some(failed) = &mut c.failed else { return };
        let retain = if time2retain == 0 { agreed } else { time2retain };
        let not_before = now + Duration::from_secs(time2wait.into());
        failed.not_before = not_before;
        c.timers.set(Timer::Time2Wait, not_before);
        c.timers.set(Timer::Time2Retain, not_before + Duration::from_secs(retain.into()));
    }

    /// Requests other than commands end with their connection; those that were about the recovery
    /// of another one are made again.
    fn drop_requests(&mut self, id: ConnectionId) {
        let requests: Vec<Itt> = self
            .tasks
            .iter()
            .filter(|(_, task)| task.connection == id && !matches!(task.kind, Kind::Command(_)))
            .map(|(itt, _)| itt)
            .collect();
        for itt in requests {
            let Some(task) = self.tasks.remove(itt) else { continue };
            match task.kind {
                Kind::Management(Management { function, referenced, .. })
                    if function == TaskManagementFunction::TASK_REASSIGN =>
                {
                    let Some(failed) = self.failed_of(referenced) else { continue };
                    failed.asked = failed.asked.saturating_sub(1);
                    // It may be allegiant to this connection by now: it waits until that is
                    // logged out too.
                    self.bind(referenced, id);
                }
                Kind::Text(_) => self.events.push_back(Event::TextLost { itt }),
                Kind::Management(request) => {
                    let response = TaskManagementResponseCode::REJECTED;
                    self.tell_managed(itt, request.silent, response, [0; 3]);
                    self.resume_data(); // nobody knows whether it was carried out
                    let failed = self.connection_mut(id).and_then(|c| c.failed.as_mut());
                    if let (Some(cmd_sn), Some(failed)) = (task.cmd_sn, failed) {
                        failed.unanswered.push((request, cmd_sn));
                    }
                }
                Kind::Logout { of, .. } if of != id => {
                    let Some(c) = self.connection_mut(of) else { continue };
                    // Unless a login with its CID was faster: a logout would be one of its holder.
                    if let Some(failed) = &mut c.failed
                        && failed.stage == Stage::LoggingOut(itt)
                    {
                        failed.stage = Stage::Waiting;
                        c.timers.stop(Timer::Logout);
                    }
                }
                _ => {}
            }
        }
    }

    /// The recovery that a task waits in.
    fn failed_of(&mut self, itt: Itt) -> Option<&mut Failed> {
        let connection = self.tasks.get(itt)?.connection;
        self.connection_mut(connection)?.failed.as_deref_mut()
    }

    /// Goes on with the recovery of every lost connection as far as possible now.
    pub(super) fn fail_over(&mut self) {
        for index in 0..self.connections.len() {
            let id = ConnectionId(index as u8); // below CONNECTIONS_MAX
            self.fail_over_one(id);
        }
    }

    //= https://www.rfc-editor.org/rfc/rfc7143#section-7.1.4.3
    //# It then MUST either implicitly or explicitly log out the failed connection with the reason
    //# code "remove the connection for recovery" and reassign connection allegiance for all
    //# commands still in progress associated with the failed connection on one or more connections
    //# (some or all of which MAY be newly established connections) using the "TASK REASSIGN" task
    //# management function (see Section 11.5.1).
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.14
    //# If an initiator intends to start recovery for a failing connection, it MUST use the Logout
    //# Request to "clean up" the target end of a failing connection and enable recovery to start,
    //# or use the Login Request with a non-zero TSIH and the same CID on a new connection for the
    //# same effect.
    fn fail_over_one(&mut self, id: ConnectionId) {
        let Some(carrier) = self.dispatch() else { return };
        let now = self.now;
        let Some(failed) = self.connection_mut(id).and_then(|c| c.failed.as_mut()) else { return };
        match failed.stage {
            _ if !failed.gone => {}
            Stage::Waiting | Stage::LoggedOut | Stage::Reassigning if now < failed.not_before => {}
            Stage::Waiting => {
                let reason = LogoutReason::REMOVE_CONNECTION_FOR_RECOVERY;
                let Some(itt) = self.add_request(carrier, Kind::Logout { reason, of: id }) else {
                    return; // the timer of Time2Retain decides
                };
                if let Some(failed) = self.connection_mut(id).and_then(|c| c.failed.as_mut()) {
                    failed.stage = Stage::LoggingOut(itt);
                }
            }
            Stage::LoggingOut(_) => {}
            Stage::LoggedOut => self.sort_out(id),
            Stage::Reassigning => self.reassign_more(id),
        }
    }

    /// Logout Response about a lost connection.
    pub(super) fn removed_for_recovery(&mut self, of: ConnectionId, pdu: &LogoutResponse) {
        let now = self.now;
        let Some(c) = self.connection_mut(of) else { return };
        let cid = c.cid;
        let Some(failed) = &mut c.failed else { return };
        if failed.stage != Stage::LoggingOut(pdu.itt) {
            return; // a login with its CID was faster
        }
        c.timers.stop(Timer::Logout);
        let wait = Duration::from_secs(pdu.time2wait.into());
        match pdu.response {
            LogoutResponseCode::CLOSED if pdu.time2retain > 0 => {
                failed.stage = Stage::LoggedOut;
                failed.not_before = now + wait;
                let retain = Duration::from_secs(pdu.time2retain.into());
                c.timers.set(Timer::Time2Wait, now + wait);
                c.timers.set(Timer::Time2Retain, now + wait + retain);
                self.fail_over_one(of);
            }
            // The target keeps nothing of it (§11.15.4), or has forgotten it.
            LogoutResponseCode::CLOSED | LogoutResponseCode::CID_NOT_FOUND => {
                failed.stage = Stage::LoggedOut;
                failed.not_before = now;
                self.fail_over_one(of);
            }
            response => self.end(Some(ConnectionError::Logout { cid, response: Some(response) })),
        }
    }

    /// A connection has joined with the CID of a lost one: an implicit logout "for recovery".
    pub(super) fn reinstated(&mut self, cid: Cid) {
        let now = self.now;
        // More than one, if the one that had taken over was lost too. To log out any of them would
        // close the new one.
        for c in self.connections.iter_mut().flatten().filter(|c| c.cid == cid) {
            let Some(failed) = &mut c.failed else { continue };
            c.timers.stop(Timer::Logout);
            if matches!(failed.stage, Stage::Waiting | Stage::LoggingOut(_)) {
                failed.stage = Stage::LoggedOut;
                failed.not_before = now;
            }
        }
        self.fail_over();
    }

    /// The connection is logged out: says of each of its tasks how it goes on.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-7.2.2
    //# Before the allegiance reassignment is attempted for a task, an implicit or explicit Logout
    //# with the reason code "remove the connection for recovery" (see Section 11.14.1) MUST be
    //# successfully completed for the previous connection to which the task was allegiant.
    fn sort_out(&mut self, id: ConnectionId) {
        let mut tasks: Vec<(u64, Itt)> = self
            .tasks
            .iter()
            .filter(|(_, task)| task.connection == id && matches!(task.kind, Kind::Command(_)))
            .filter(|(_, task)| task.is_sent())
            .map(|(itt, task)| (task.order, itt))
            .collect();
        tasks.sort_unstable();
        // Which of them the target has, only the target knows: ExpCmdSN says nothing about those
        // behind a gap, and a task whose reassignment was interrupted may be bound to an older
        // connection. Sent again, such a command would be ignored.
        let waiting = tasks.into_iter().map(|(_, itt)| itt).collect();
        let Some(c) = self.connection_mut(id) else { return };
        let unsent = std::mem::take(&mut c.queues.commands);
        if let Some(failed) = &mut c.failed {
            failed.stage = Stage::Reassigning;
            failed.waiting = waiting;
        }
        unsent.into_iter().for_each(|itt| self.move_task(itt));
        self.reassign_more(id);
    }

    /// A command that never arrived fills its hole in CmdSN from another connection.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-7.2.1
    //# The command being retried MUST be sent on the same connection as the original command,
    //# unless the original connection was already successfully logged out.
    fn retry_elsewhere(&mut self, itt: Itt) {
        let Some(to) = self.dispatch() else { return };
        if let Some(task) = self.tasks.command_mut(itt) {
            task.restart();
        }
        self.bind(itt, to);
        if let Some(c) = self.connection_mut(to) {
            c.queues.retries.push_back(itt);
        }
        self.wake(to);
    }

    fn reassign_more(&mut self, id: ConnectionId) {
        loop {
            let Some(carrier) = self.dispatch() else { return };
            let Some(failed) = self.connection_mut(id).and_then(|c| c.failed.as_mut()) else {
                return;
            };
            if failed.asked >= REASSIGNMENTS_MAX {
                return;
            }
            let Some(referenced) = failed.waiting.pop_front() else { break };
            let Some(task) = self.tasks.get(referenced).filter(|task| task.connection == id) else {
                continue; // ended by a task management function meanwhile
            };
            let Kind::Command(command) = &task.kind else { continue };
            let lun = command.command.lun;
            let (function, silent) = (TaskManagementFunction::TASK_REASSIGN, true);
            let request = Management { function, lun, referenced, silent };
            let asked = self.add_management(carrier, request);
            let Some(failed) = self.connection_mut(id).and_then(|c| c.failed.as_mut()) else {
                return;
            };
            match asked {
                Some(_) => failed.asked += 1,
                None => {
                    failed.waiting.push_front(referenced);
                    return; // the timer of Time2Retain decides
                }
            }
        }
        let done = |c: &Connection| c.failed.as_ref().is_some_and(|failed| failed.asked == 0);
        if self.connection(id).is_some_and(done) {
            self.recovered(id);
        }
    }

    /// ExpDataSN of a TASK REASSIGN that is being sent, 0 for everything else. What came on the
    /// lost connection behind it is forgotten.
    pub(super) fn prepare_reassignment(&mut self, itt: Itt) -> u32 {
        let rules = self.rules();
        let referenced = match self.tasks.get(itt).map(|task| &task.kind) {
            Some(Kind::Management(m)) if m.function == TaskManagementFunction::TASK_REASSIGN => {
                m.referenced
            }
            _ => return 0,
        };
        let Some(task) = self.tasks.command_mut(referenced) else { return 0 };
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.6
        //# The value of ExpDataSN MUST be 0 or higher than the DataSN of the last acknowledged
        //# Data-In PDU, but not larger than DataSN + 1 of the last Data-IN PDU sent by the target.
        // A write has no Data-In; its R2Ts begin anew.
        match task.command.data_in_len {
            0 => 0,
            _ => task.inbound.reassign(rules),
        }
    }

    /// Response to a TASK REASSIGN.
    pub(super) fn reassigned(
        &mut self,
        to: ConnectionId,
        request: Itt,
        referenced: Itt,
        response: TaskManagementResponseCode,
    ) {
        use TaskManagementResponseCode as R;
        let now = self.now;
        let Some(task) = self.tasks.get(referenced) else {
            return self.reassignment_over(request);
        };
        let from = task.connection;
        let never_arrived = task.cmd_sn.is_some_and(|sn| !sn.is_before(self.exp_cmd_sn));
        let aborted = matches!(&task.kind, Kind::Command(command) if command.abort_sent);
        let Some(c) = self.connection_mut(from) else { return };
        let cid = c.cid;
        let Some(failed) = &mut c.failed else { return };
        failed.asked = failed.asked.saturating_sub(1);
        match response {
            R::COMPLETE => {
                failed.reassigned += 1;
                if let Some(task) = self.tasks.command_mut(referenced) {
                    task.move_on();
                }
                self.bind(referenced, to);
            }
            // Sent again it would be ignored if its abort has arrived: the abort fills the hole in
            // CmdSN in any case.
            R::TASK_DOES_NOT_EXIST if never_arrived && aborted => {
                self.bind(referenced, to);
                self.abort_silently(referenced);
            }
            R::TASK_DOES_NOT_EXIST if never_arrived => {
                failed.retried += 1;
                self.retry_elsewhere(referenced);
            }
            // The target has lost it with the connection: nothing more happens about it there.
            R::TASK_DOES_NOT_EXIST | R::LUN_DOES_NOT_EXIST => {
                failed.requeued += 1;
                self.requeue(referenced);
            }
            R::TASK_STILL_ALLEGIANT if failed.later < LATER_MAX => {
                failed.later += 1;
                failed.waiting.push_back(referenced);
                failed.not_before = now + LATER_DELAY;
                c.timers.set(Timer::Time2Wait, now + LATER_DELAY);
                return;
            }
            response => return self.end(Some(ConnectionError::NotReassigned { cid, response })),
        }
        self.reassign_more(from);
    }

    /// A PDU of a task comes on the connection that it is to go on on: the answer to its TASK
    /// REASSIGN, which was sent before (§7.2.2), is lost, and can only have been "complete".
    pub(super) fn imply_reassignment(&mut self, id: ConnectionId, itt: Itt) {
        if self.tasks.get(itt).is_none_or(|task| task.connection == id) {
            return;
        }
        let request = self.tasks.iter().find(|(_, task)| match &task.kind {
            Kind::Management(m) if m.function == TaskManagementFunction::TASK_REASSIGN => {
                m.referenced == itt && task.connection == id && task.is_sent()
            }
            _ => false,
        });
        if let Some((request, _)) = request {
            self.reassigned(id, request, itt, TaskManagementResponseCode::COMPLETE);
        }
    }

    /// A TASK REASSIGN has become pointless: its task ended meanwhile. Which recovery it belonged
    /// to is not known any more; the numbers of all are taken anew.
    pub(super) fn reassignment_over(&mut self, _request: Itt) {
        for index in 0..self.connections.len() {
            let id = ConnectionId(index as u8); // below CONNECTIONS_MAX
            let asked = self.tasks.iter().filter(|(_, task)| match &task.kind {
                Kind::Management(m) if m.function == TaskManagementFunction::TASK_REASSIGN => {
                    self.tasks.get(m.referenced).is_some_and(|task| task.connection == id)
                }
                _ => false,
            });
            let asked = asked.count() as u32; // at most TASKS_MAX
            let Some(failed) = self.connection_mut(id).and_then(|c| c.failed.as_mut()) else {
                continue;
            };
            if failed.stage == Stage::Reassigning {
                failed.asked = asked;
                self.fail_over_one(id);
            }
        }
    }

    /// Everything about a lost connection is dealt with. The target knows that it is lost, so that
    /// functions it may have kept waiting for commands are not carried out from here on.
    fn recovered(&mut self, id: ConnectionId) {
        let Some(c) = self.connection_mut(id) else { return };
        let Some(failed) = c.failed.take() else { return };
        c.advance(Input::CleanedUp);
        c.timers.stop_all();
        let Failed { reassigned, retried, requeued, gone, unanswered, .. } = *failed;
        self.report(id, Recovery::Finished { reassigned, retried, requeued });
        if gone && let Some(slot) = self.connections.get_mut(id.index()) {
            *slot = None;
        }
        unanswered.iter().for_each(|(request, cmd_sn)| self.abort_again(request, *cmd_sn));
        self.close_if_idle();
    }

    /// Too late: the target has forgotten the tasks, or does not answer the logout.
    pub(super) fn failover_expired(&mut self, id: ConnectionId) {
        let Some(cid) = self.connection(id).map(Connection::cid) else { return };
        self.end(Some(ConnectionError::RecoveryTimeout { cid }));
    }
}
