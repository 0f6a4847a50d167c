//! Task management (RFC 7143 §11.5, §11.6; SAM-5 §7).
//!
//! A function is answered only when no task it ended can reach the medium any more: a write that
//! was executing when it was aborted may not land after the initiator was told it is over.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;

use super::event::{ConnId, Event};
use super::order::Held;
use super::session::Session;
use super::task::{Phase, Task, TransferFault};
use super::transmit::{Reply, Sequel};
use crate::ids::{Itt, Lun};
use crate::keys::TaskReporting;
use crate::pdu::{
    AsyncEvent, TaskManagementFunction, TaskManagementRequest, TaskManagementResponseCode,
};
use crate::serial::CmdSn;

/// What an initiator may do to the tasks of others. Asked while a function is carried out, so it
/// must not block.
pub trait Rights: Send + Sync {
    /// May it end the tasks of others on this unit; of all units for `None`?
    fn may_reset(&self, lun: Option<Lun>) -> bool;
}

/// A function whose answer waits for tasks to end.
#[derive(Debug)]
pub(super) struct PendingManagement {
    pub(super) conn: ConnId,
    pub(super) itt: Itt,
    function: TaskManagementFunction,
    lun: Lun,
    response: TaskManagementResponseCode,
    information: [u8; 3],
    /// Connections that lose tasks of a unit, where the initiator is told so (FastAbort).
    terminated: Vec<(ConnId, Lun)>,
    /// Executing tasks that were aborted.
    waits_for: Vec<Itt>,
    /// The shell has still to do its part.
    shell: bool,
}

impl PendingManagement {
    fn new(
        conn: ConnId,
        request: &TaskManagementRequest,
        response: TaskManagementResponseCode,
    ) -> Self {
        let TaskManagementRequest { itt, function, lun, .. } = *request;
        let (terminated, waits_for) = (Vec::new(), Vec::new());
        let (information, shell) = ([0; 3], false);
        Self { conn, itt, function, lun, response, information, terminated, waits_for, shell }
    }
}

impl Session {
    /// Says what its initiator may do to the tasks of others.
    pub fn set_rights(&mut self, rights: Arc<dyn Rights>) {
        self.rights = Some(rights);
    }

    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.1
    //# Task management requests must act on all the commands from the same session having a CmdSN
    //# lower than the task management CmdSN.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.1
    //# If the task management request is marked for immediate delivery, it must be considered
    //# immediately for execution, but the operations involved (all or part of them) may be
    //# postponed to allow the target to receive all relevant tasks.
    pub(super) fn manage(&mut self, conn: ConnId, request: TaskManagementRequest) {
        use TaskManagementFunction as F;
        let one = matches!(request.function, F::ABORT_TASK | F::TASK_REASSIGN | F::QUERY_TASK);
        let limit = self.order.exp_cmd_sn().plus(self.config.command_window);
        // Commands that cannot arrive any more, being outside the window, are not waited for.
        let waits =
            self.order.exp_cmd_sn().is_before(request.cmd_sn) && !limit.is_before(request.cmd_sn);
        //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.3.3
        //# MUST wait (concurrent with the wait in Step a) for all commands of the affected tasks to
        //# be received based on the CmdSN ordering.
        if !one && waits {
            self.postponed.push((conn, request));
        } else {
            self.carry_out(conn, &request);
        }
    }

    /// Carries out functions that waited for commands before them, now that these have arrived.
    pub(super) fn carry_out_postponed(&mut self) {
        let exp_cmd_sn = self.order.exp_cmd_sn();
        let ready = |(_, request): &mut (ConnId, TaskManagementRequest)| {
            !exp_cmd_sn.is_before(request.cmd_sn)
        };
        for (conn, request) in self.postponed.extract_if(.., ready).collect::<Vec<_>>() {
            self.carry_out(conn, &request);
        }
    }

    //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.1
    //# The initiator and target MUST ensure that the SCSI task management functions specified in
    //# [SAM2] act in accordance with the [SAM2] specification.
    fn carry_out(&mut self, conn: ConnId, request: &TaskManagementRequest) {
        use TaskManagementFunction as F;
        use TaskManagementResponseCode as R;
        let itt = request.itt;
        let others_concerned = match request.function {
            F::CLEAR_TASK_SET | F::LOGICAL_UNIT_RESET => Some(Some(request.lun)),
            F::TARGET_WARM_RESET | F::TARGET_COLD_RESET => Some(None),
            _ => None,
        };
        let may = |lun| self.rights.as_ref().is_none_or(|rights| rights.may_reset(lun));
        if others_concerned.is_some_and(|lun| !may(lun)) {
            let refused = R::AUTHORIZATION_FAILED;
            return self.finish_management(conn, request, refused, Vec::new(), false);
        }
        match request.function {
            F::ABORT_TASK => {
                let (response, waits_for) = self.abort_referenced(request);
                self.finish_management(conn, request, response, waits_for, false);
            }
            F::ABORT_TASK_SET => self.abort_many(conn, request, Some(request.lun), false),
            F::CLEAR_TASK_SET | F::LOGICAL_UNIT_RESET => {
                self.abort_many(conn, request, Some(request.lun), true);
            }
            F::TARGET_WARM_RESET | F::TARGET_COLD_RESET => {
                self.abort_many(conn, request, None, true);
            }
            //= https://www.rfc-editor.org/rfc/rfc7143#section-7.2.2
            //# When a target does not support allegiance reassignment, it MUST respond with a task
            //# management response code of "Task allegiance reassignment not supported".
            F::TASK_REASSIGN => self.reassign(conn, request),
            F::QUERY_TASK if self.params.has_rfc7144() => self.query_task(conn, request),
            F::QUERY_TASK_SET if self.params.has_rfc7144() && self.has_task_on(request.lun) => {
                self.answer_query(conn, itt, R::SUCCEEDED);
            }
            F::QUERY_TASK_SET | F::QUERY_ASYNCHRONOUS_EVENT if self.params.has_rfc7144() => {
                self.finish_management(conn, request, R::COMPLETE, Vec::new(), true);
                self.ask_shell(conn, request);
            }
            F::CLEAR_ACA => {
                self.finish_management(conn, request, R::COMPLETE, Vec::new(), true);
                self.ask_shell(conn, request);
            }
            // RFC 7144 §6.5:
            // If an
            // iSCSI implementation supports the I_T NEXUS RESET function, it MUST
            // also support the protocol behavior as defined in those sections and
            // follow the sequence of actions as described in those sections when
            // processing the I_T NEXUS RESET function.
            F::I_T_NEXUS_RESET if self.params.has_rfc7144() => {
                self.abort_many(conn, request, None, true);
            }
            _ => self.finish_management(conn, request, R::NOT_SUPPORTED, Vec::new(), false),
        }
    }

    /// A function that ends many tasks (§4.2.3.3, §4.2.3.4).
    fn abort_many(
        &mut self,
        conn: ConnId,
        request: &TaskManagementRequest,
        lun: Option<Lun>,
        shell: bool,
    ) {
        let hit = self.affected(lun, Some(request.cmd_sn));
        self.silence_answered(lun, request.cmd_sn);
        //= https://www.rfc-editor.org/rfc/rfc7143#section-13.23
        //# The following table describes the semantics that an iSCSI target MUST support for
        //# respective negotiated key values.
        //= https://www.rfc-editor.org/rfc/rfc7143#section-13.23
        //# When TaskReporting is not negotiated to FastAbort, the standard multi-task abort
        //# semantics in Section 4.2.3.3 MUST be used.
        //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.3.3
        //# All iSCSI implementations MUST support the protocol behavior defined in this section as
        //# the default behavior.
        let fast = self.params.task_reporting == TaskReporting::FastAbort;
        let terminated = if fast { self.allegiances(&hit, Some(conn)) } else { Vec::new() };
        //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.3.3
        //# MUST wait for responses on currently valid Target Transfer Tags
        //# of the affected tasks from the issuing initiator.
        let mut waits =
            |itt: &Itt| if fast { self.abort_task(*itt) } else { self.drain_task(*itt) };
        let waits_for: Vec<Itt> = hit.into_iter().filter(|itt| waits(itt)).collect();
        let response = TaskManagementResponseCode::COMPLETE;
        let pending = PendingManagement::new(conn, request, response);
        self.pending_management.push(PendingManagement { terminated, waits_for, shell, ..pending });
        self.settle();
        if shell {
            self.ask_shell(conn, request);
        }
    }

    /// Connections and units of tasks, each pair once, but for those on `but`.
    fn allegiances(&self, itts: &[Itt], but: Option<ConnId>) -> Vec<(ConnId, Lun)> {
        let tasks = itts.iter().filter_map(|itt| self.tasks.get(itt));
        let pairs = tasks.map(|task| (task.conn, task.lun()));
        let pairs: BTreeSet<_> =
            pairs.filter(|(conn, _)| Some(*conn) != but).map(|(c, lun)| (c, lun.0)).collect();
        pairs.into_iter().map(|(conn, lun)| (conn, Lun(lun))).collect()
    }

    //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.3.4
    //# If there are multiple affected LUs (say, due to a target
    //# reset), then one Async Message PDU MUST be sent for each
    //# such LU on each connection that has at least one allegiant
    //# affected task.
    // Transfer tags need nothing to stay valid: data of a task that is no more is thrown away.
    fn tell_terminated(&mut self, terminated: Vec<(ConnId, Lun)>) {
        for (conn, lun) in terminated {
            let event = AsyncEvent::TASK_TERMINATION;
            let reply = Reply::Async { event, lun, parameters: [0; 3], data: Bytes::new() };
            self.push_reply(conn, reply);
        }
    }

    /// Ends one task as [`abort_task`](Self::abort_task) does, but one whose R2Ts are on their way
    /// to the initiator only when their data has come.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.1
    //# The target for its part MUST wait for responses on all affected Target Transfer Tags before
    //# acting on either of these two task management requests.
    fn drain_task(&mut self, itt: Itt) -> bool {
        let clock = self.clock;
        let Some(task) = self.tasks.get_mut(&itt) else { return false };
        if task.phase != Phase::Collecting || task.bursts.is_empty() || task.aborted {
            return task.is_draining() || self.abort_task(itt);
        }
        let Some(connection) = self.connections.get_mut(&task.conn) else {
            return self.abort_task(itt);
        };
        let mut unsent = Vec::new();
        connection.replies.retain(|reply| match reply {
            Reply::R2t(r2t) if r2t.itt == itt => {
                unsent.push(r2t.ttt);
                false
            }
            _ => true,
        });
        task.bursts.retain(|burst| !unsent.contains(&burst.ttt));
        if task.bursts.is_empty() || connection.recovery.is_some() {
            return self.abort_task(itt);
        }
        task.aborted = true;
        task.unsolicited = None;
        task.lost.clear();
        task.fault = Some(TransferFault::Damaged); // its data is thrown away
        self.drains_since = Some(clock);
        true
    }

    /// Data of a task that was aborted has come.
    pub(super) fn end_drained(&mut self, itt: Itt) {
        let drained = |task: &Task| task.is_draining() && task.bursts.is_empty();
        if self.tasks.get(&itt).is_some_and(drained) {
            self.abort_task(itt);
            self.settle();
        }
    }

    //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.3.3
    //# MUST propagate the TMF Request to, and receive the response from, the target SCSI layer.
    fn ask_shell(&mut self, conn: ConnId, request: &TaskManagementRequest) {
        let TaskManagementRequest { itt, function, lun, .. } = *request;
        self.push_event(conn, Event::Management { itt, function, lun });
    }

    /// The shell has done its part of a function.
    pub fn management_done(&mut self, itt: Itt, response: TaskManagementResponseCode) {
        self.query_done(itt, response, [0; 3]);
    }

    /// The same of a query that has more to tell (Additional Response Information).
    pub fn query_done(
        &mut self,
        itt: Itt,
        response: TaskManagementResponseCode,
        information: [u8; 3],
    ) {
        for pending in self.pending_management.iter_mut().filter(|p| p.itt == itt) {
            pending.shell = false;
            (pending.response, pending.information) = (response, information);
        }
        self.settle();
    }

    /// Another session cleared the task set or reset the unit: ends this session's tasks there.
    /// `None` means every unit.
    // §4.2.3.4:
    // each connection of each third-party session to which at
    // least one affected task is allegiant if
    // TaskReporting=FastAbort is operational on that third-party
    // session
    pub fn abort_all(&mut self, lun: Option<Lun>) {
        let hit = self.affected(lun, None);
        if self.params.task_reporting == TaskReporting::FastAbort {
            self.tell_terminated(self.allegiances(&hit, None));
        }
        self.note_abort(lun, true);
        for itt in hit {
            self.abort_task(itt);
        }
        self.settle();
    }

    /// No command is executing: nothing can reach the medium through this session any more.
    pub fn is_quiet(&self) -> bool {
        self.tasks.values().all(|task| task.phase != Phase::Running)
    }

    /// No task that was aborted is still executing.
    pub fn has_no_aborted_tasks(&self) -> bool {
        self.tasks.values().all(|task| !task.aborted || task.phase != Phase::Running)
    }

    fn abort_referenced(
        &mut self,
        request: &TaskManagementRequest,
    ) -> (TaskManagementResponseCode, Vec<Itt>) {
        use TaskManagementResponseCode as R;
        let referenced = request.referenced_task_tag;
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.1
        //# At the target, an ABORT TASK function MUST NOT be executed on a task management request;
        //# such a request MUST result in a task management response of "Function rejected".
        if self.is_managing(referenced) {
            return (R::REJECTED, Vec::new());
        }
        if self.tasks.contains_key(&referenced) {
            let running = self.abort_task(referenced);
            return (R::COMPLETE, running.then_some(referenced).into_iter().collect());
        }
        // §11.6.1: a task that has not arrived counts as received, so that it is never executed
        // and the command order does not wait for it.
        // Only one from before this request can be meant; any other is an initiator's mistake, and
        // to count it as received would make a command disappear that is still to come.
        let ref_cmd_sn = request.ref_cmd_sn;
        if ref_cmd_sn.is_before(request.cmd_sn)
            && self.order.is_in_window(ref_cmd_sn)
            && self.order.accepts(ref_cmd_sn)
        {
            //= https://www.rfc-editor.org/rfc/rfc7143#section-7.11
            //# If the abort request is received and the original command is missing, targets MUST
            //# consider the original command with that RefCmdSN as received and issue a task
            //# management response with the response code "Function complete".
            self.order.hold(ref_cmd_sn, Held::Gap);
            self.deliver_in_order();
            return (R::COMPLETE, Vec::new());
        }
        //= https://www.rfc-editor.org/rfc/rfc7143#section-7.11
        //# If the abort request is received and the target can determine (based on the Referenced
        //# Task Tag) that the command was received and executed, and also that the response was
        //# sent prior to the abort, then the target MUST respond with the response code "Task Does
        //# Not Exist".
        (R::TASK_DOES_NOT_EXIST, Vec::new())
    }

    /// The tasks of a unit that came before `cmd_sn`.
    fn affected(&self, lun: Option<Lun>, cmd_sn: Option<CmdSn>) -> Vec<Itt> {
        let hit = |task: &Task| task.is_affected(lun, cmd_sn);
        self.tasks.iter().filter(|(_, task)| hit(task)).map(|(itt, _)| *itt).collect()
    }

    /// What was answered on a connection that is lost, and would be answered again when it is
    /// reassigned, comes too late behind the answer to a function; unless that is fenced, and waits
    /// for it.
    fn silence_answered(&mut self, lun: Option<Lun>, cmd_sn: CmdSn) {
        if !self.has_many_connections() {
            let affected = self.answered.values_mut();
            let affected = affected.filter(|task| task.is_affected(lun, Some(cmd_sn)));
            affected.for_each(|task| task.aborted = true);
        }
    }

    /// Ends one task without a response. True: it is executing and has to be awaited.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.1
    //# The iSCSI target MUST ensure that no responses for the tasks covered by a task management
    //# function are delivered to the iSCSI initiator after the task management response, except for
    //# a task covered by a TASK REASSIGN.
    pub(super) fn abort_task(&mut self, itt: Itt) -> bool {
        let Some(task) = self.tasks.get_mut(&itt) else { return false };
        let conn = task.conn;
        // Not executing yet if the shell has not fetched it.
        let recalled = self.connections.get_mut(&conn).is_some_and(|c| c.recall(itt));
        match task.phase {
            Phase::Running if !recalled => {
                if !std::mem::replace(&mut task.aborted, true) {
                    self.aborts.push_back(itt);
                }
                true
            }
            Phase::Running | Phase::Collecting | Phase::Responding => {
                self.remove_task(itt);
                if let Some(connection) = self.connections.get_mut(&conn) {
                    connection.responding.retain(|other| *other != itt);
                    connection
                        .replies
                        .retain(|reply| !matches!(reply, Reply::R2t(r2t) if r2t.itt == itt));
                }
                self.push_event(conn, Event::Dropped(itt));
                false
            }
        }
    }

    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.1
    //# For all these functions, the Task Management Function Response MUST be returned as detailed
    //# in Section 11.6.
    pub(super) fn finish_management(
        &mut self,
        conn: ConnId,
        request: &TaskManagementRequest,
        response: TaskManagementResponseCode,
        waits_for: Vec<Itt>,
        shell: bool,
    ) {
        let pending = PendingManagement::new(conn, request, response);
        self.pending_management.push(PendingManagement { waits_for, shell, ..pending });
        self.settle();
    }

    pub(super) fn settle_management(&mut self) {
        if self.drains_since.is_some() && !self.tasks.values().any(Task::is_draining) {
            self.drains_since = None;
        }
        let tasks = &self.tasks;
        let ready = |pending: &mut PendingManagement| {
            pending.waits_for.retain(|itt| tasks.get(itt).is_some_and(|task| task.aborted));
            pending.waits_for.is_empty() && !pending.shell
        };
        let done: Vec<PendingManagement> = self.pending_management.extract_if(.., ready).collect();
        for pending in done {
            self.answer_management(pending);
        }
    }

    fn answer_management(&mut self, pending: PendingManagement) {
        use TaskManagementFunction as F;
        let PendingManagement { conn, itt, function, response, information, .. } = pending;
        let carried_out = response == TaskManagementResponseCode::COMPLETE;
        let sequel = match function {
            //= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.1
            //# Additionally, the target MUST treat the TARGET COLD RESET function as a
            //# power-on event, thus terminating all of its TCP connections to all
            //# initiators (all sessions are terminated).
            //= https://www.rfc-editor.org/rfc/rfc7143#section-11.6.1
            //# For the TARGET COLD RESET function, the target MUST then close all of its
            //# TCP connections to all initiators (terminates all sessions).
            F::TARGET_COLD_RESET if carried_out => Sequel::Close,
            F::I_T_NEXUS_RESET if carried_out => Sequel::EndNexus,
            _ => Sequel::Nothing,
        };
        let reply = Reply::Management { itt, response, information, sequel };
        let (unit, all) = (function.ends_unit(), function.ends_session_tasks());
        if !carried_out || !(unit || all) {
            return self.push_reply(conn, reply);
        }
        self.tell_terminated(pending.terminated);
        //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.3.3
        //# The TMF Response MUST NOT be sent by the target iSCSI layer before the end of Step d)
        //# and MAY be sent at the end of Step d) despite these outstanding data transfers until
        //# after Step e).
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.6.1
        //# The response to ABORT TASK SET and CLEAR TASK SET MUST only be issued by the target
        //# after all of the commands affected have been received by the target, the corresponding
        //# task management functions have been executed by the SCSI target, and the delivery of all
        //# responses delivered until the task management function completion has been confirmed
        //# (acknowledged through the ExpStatSN) by the initiator on all connections of this
        //# session.
        self.note_abort(unit.then_some(pending.lun), false);
        //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.3.3
        //# MUST provide the Response Fence behavior for the TMF Response on the issuing session as
        //# specified in Section 4.2.2.3.2.
        self.push_fenced_management(conn, itt, reply);
    }
}
