//! Task management (RFC 7143 §11.5, §11.6; SAM-5 §7).
//!
//! A function is answered only when no task it ended can reach the medium any more: a write that
//! was executing when it was aborted may not land after the initiator was told it is over.

use super::event::{ConnId, Event};
use super::order::Held;
use super::session::Session;
use super::task::Phase;
use super::transmit::Reply;
use crate::ids::{Itt, Lun};
use crate::pdu::{TaskManagementFunction, TaskManagementRequest, TaskManagementResponseCode};
use crate::serial::CmdSn;

/// A function whose answer waits for tasks to end.
#[derive(Debug)]
pub(super) struct PendingManagement {
    pub(super) conn: ConnId,
    pub(super) itt: Itt,
    response: TaskManagementResponseCode,
    /// Executing tasks that were aborted.
    waits_for: Vec<Itt>,
    /// The shell has still to do its part.
    shell: bool,
    /// The session ends with the answer.
    closes: bool,
}

impl Session {
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.1
    //# Task management requests must act on all the commands from the same session having a CmdSN
    //# lower than the task management CmdSN.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.1
    //# If the task management request is marked for immediate delivery, it must be considered
    //# immediately for execution, but the operations involved (all or part of them) may be
    //# postponed to allow the target to receive all relevant tasks.
    pub(super) fn manage(&mut self, conn: ConnId, request: TaskManagementRequest) {
        use TaskManagementFunction as F;
        let one = matches!(request.function, F::ABORT_TASK | F::TASK_REASSIGN);
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
        match request.function {
            F::ABORT_TASK => {
                let (response, waits_for) = self.abort_referenced(request);
                self.finish_management(conn, itt, response, waits_for, false);
            }
            F::ABORT_TASK_SET => {
                let waits_for = self.abort_lun(Some(request.lun), Some(request.cmd_sn));
                self.finish_management(conn, itt, R::COMPLETE, waits_for, false);
            }
            F::CLEAR_TASK_SET | F::LOGICAL_UNIT_RESET => {
                let waits_for = self.abort_lun(Some(request.lun), Some(request.cmd_sn));
                self.finish_management(conn, itt, R::COMPLETE, waits_for, true);
                self.ask_shell(conn, request);
            }
            F::TARGET_WARM_RESET | F::TARGET_COLD_RESET => {
                let waits_for = self.abort_lun(None, Some(request.cmd_sn));
                self.finish_management(conn, itt, R::COMPLETE, waits_for, true);
                if let Some(pending) = self.pending_management.last_mut() {
                    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.1
                    //# Additionally, the target MUST treat the TARGET COLD RESET function as a
                    //# power-on event, thus terminating all of its TCP connections to all
                    //# initiators (all sessions are terminated).
                    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.6.1
                    //# For the TARGET COLD RESET function, the target MUST then close all of its
                    //# TCP connections to all initiators (terminates all sessions).
                    // It waits for the shell, so it is still the last one.
                    pending.closes = request.function == F::TARGET_COLD_RESET;
                }
                self.ask_shell(conn, request);
            }
            //= https://www.rfc-editor.org/rfc/rfc7143#section-7.2.2
            //# When a target does not support allegiance reassignment, it MUST respond with a task
            //# management response code of "Task allegiance reassignment not supported".
            F::TASK_REASSIGN => self.reassign(conn, request),
            _ => self.finish_management(conn, itt, R::NOT_SUPPORTED, Vec::new(), false),
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
        for pending in self.pending_management.iter_mut().filter(|p| p.itt == itt) {
            pending.shell = false;
            pending.response = response;
        }
        self.settle_management();
    }

    /// Another session cleared the task set or reset the unit: ends this session's tasks there.
    /// `None` means every unit.
    pub fn abort_all(&mut self, lun: Option<Lun>) {
        self.abort_lun(lun, None);
        self.settle();
    }

    fn abort_referenced(
        &mut self,
        request: &TaskManagementRequest,
    ) -> (TaskManagementResponseCode, Vec<Itt>) {
        use TaskManagementResponseCode as R;
        let referenced = request.referenced_task_tag;
        let mut functions = self.pending_management.iter().map(|pending| pending.itt);
        let mut postponed = self.postponed.iter().map(|(_, request)| request.itt);
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.1
        //# At the target, an ABORT TASK function MUST NOT be executed on a task management request;
        //# such a request MUST result in a task management response of "Function rejected".
        if functions.any(|itt| itt == referenced) || postponed.any(|itt| itt == referenced) {
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

    /// Aborts the tasks of a unit that came before `cmd_sn`; returns those still executing.
    fn abort_lun(&mut self, lun: Option<Lun>, cmd_sn: Option<CmdSn>) -> Vec<Itt> {
        let hit = |task: &super::task::Task| {
            lun.is_none_or(|lun| task.lun() == lun)
                && cmd_sn.is_none_or(|sn| task.command.immediate || task.cmd_sn().is_before(sn))
        };
        let itts: Vec<Itt> =
            self.tasks.iter().filter(|(_, task)| hit(task)).map(|(itt, _)| *itt).collect();
        itts.into_iter().filter(|itt| self.abort_task(*itt)).collect()
    }

    /// Ends one task without a response. True: it is executing and has to be awaited.
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
    fn finish_management(
        &mut self,
        conn: ConnId,
        itt: Itt,
        response: TaskManagementResponseCode,
        waits_for: Vec<Itt>,
        shell: bool,
    ) {
        let closes = false;
        let pending = PendingManagement { conn, itt, response, waits_for, shell, closes };
        self.pending_management.push(pending);
        self.settle();
    }

    pub(super) fn settle_management(&mut self) {
        let tasks = &self.tasks;
        let mut done = Vec::new();
        self.pending_management.retain_mut(|pending| {
            pending.waits_for.retain(|itt| tasks.get(itt).is_some_and(|task| task.aborted));
            let ready = pending.waits_for.is_empty() && !pending.shell;
            if ready {
                done.push((pending.conn, pending.itt, pending.response, pending.closes));
            }
            !ready
        });
        for (conn, itt, response, closes) in done {
            self.push_reply(conn, Reply::Management { itt, response, closes });
        }
    }
}
