//! Task management that ends many commands (RFC 7143 §4.2.3): what becomes of their data meanwhile.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::event::Event;
use super::task::{Kind, Management, Task};
use super::transmit::{Burst, Control};
use super::{ConnectionId, Session};
use crate::ids::{Itt, Lun, Ttt};
use crate::keys::TaskReporting;
use crate::pdu::{AsyncMessage, TaskManagementFunction, TaskManagementResponseCode};
use crate::serial::CmdSn;

/// Aborts under way at once that nobody but us asked for. They are immediate, and a target may
/// refuse too many of those (§4.2.2.1).
const SILENT_ABORTS_MAX: usize = 16;

impl<T> Session<T> {
    //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.3.4
    //# MUST NOT send any more Data-Out PDUs for affected tasks on the
    //# issuing connection of the issuing iSCSI session once the TMF is
    //# sent to the target.
    // Without FastAbort, every R2T is answered until the response has come (§4.2.3.3).
    pub(super) fn stop_aborted(&mut self, id: ConnectionId, itt: Itt) {
        if self.params.task_reporting != TaskReporting::FastAbort {
            return;
        }
        if let Some((lun, cmd_sn)) = self.tasks.get(itt).and_then(ends) {
            let hit = self.affected(lun, cmd_sn);
            self.stop_data(id, &hit);
        }
    }

    /// Tasks of a unit are being terminated at the target. What becomes of them is told by the
    /// answer to our own task management or by a unit attention.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.9.1
    //# The
    //# receiving initiator iSCSI layer MUST respond to this message
    //# by taking the following steps, in order:
    pub(super) fn task_termination(&mut self, id: ConnectionId, pdu: &AsyncMessage) {
        // - Stop Data-Out transfers on that connection for all active
        // TTTs for the affected LUN quoted in the Async Message PDU.
        // Not for tags that come later: they belong to tasks that live on, whatever their CmdSN.
        if let Some(connection) = self.connection_mut(id) {
            let active = |burst: &&mut Burst| burst.ttt != Ttt::NONE && burst.lun == pdu.lun;
            connection.queues.data.iter_mut().filter(active).for_each(|burst| burst.stopped = true);
        }
        // - Acknowledge the StatSN of the Async Message PDU via a
        // NOP-Out PDU with ITT=0xffffffff (i.e., non-ping flavor),
        // while copying the LUN field from the Async Message to
        // NOP-Out.
        // Sent when this PDU's StatSN is taken: nothing is transmitted before that.
        if let Some(connection) = self.connection_mut(id) {
            let (lun, ttt, data) = (pdu.lun, Ttt::NONE, Bytes::new());
            connection.queues.control.push_back(Control::NopReply { lun, ttt, data });
        }
        self.wake(id);
    }

    /// Holds back the Data-Out of commands on one connection.
    fn stop_data(&mut self, id: ConnectionId, itts: &[Itt]) {
        for itt in itts {
            if self.tasks.get(*itt).is_some_and(|task| task.connection == id)
                && let Some(task) = self.tasks.command_mut(*itt)
            {
                task.stopped = true;
            }
        }
    }

    /// A function has ended its tasks, or was not carried out: the data of all others is wanted
    /// after all, unless another function is to end them.
    pub(super) fn resume_data(&mut self) {
        let functions: Vec<(Option<Lun>, CmdSn)> =
            self.tasks.iter().filter_map(|(_, task)| ends(task)).collect();
        let ending: BTreeSet<Itt> =
            functions.into_iter().flat_map(|(lun, cmd_sn)| self.affected(lun, cmd_sn)).collect();
        let itts: Vec<Itt> = self.tasks.iter().map(|(itt, _)| itt).collect();
        for itt in itts {
            if let Some(task) = self.tasks.command_mut(itt) {
                task.stopped &= ending.contains(&itt);
            }
        }
        for connection in self.connections.iter_mut().flatten() {
            for burst in &mut connection.queues.data {
                burst.stopped &= ending.contains(&burst.itt);
            }
        }
        for index in 0..self.connections.len() {
            self.wake(ConnectionId(index as u8)); // below CONNECTIONS_MAX
        }
    }

    pub(super) fn is_stopped(&self, burst: &Burst) -> bool {
        let kind = self.tasks.get(burst.itt).map(|task| &task.kind);
        matches!(kind, Some(Kind::Command(command)) if command.stopped || burst.stopped)
    }

    /// A function is being sent: remembers that it is to end a command.
    pub(super) fn note_abort(&mut self, itt: Itt) {
        if let Some(Kind::Management(management)) = self.tasks.get(itt).map(|task| &task.kind)
            && management.function == TaskManagementFunction::ABORT_TASK
        {
            let referenced = management.referenced;
            if let Some(task) = self.tasks.command_mut(referenced) {
                task.abort_sent = true;
            }
        }
    }

    /// The answer to a function is there, or will never be.
    pub(super) fn tell_managed(
        &mut self,
        itt: Itt,
        silent: bool,
        response: TaskManagementResponseCode,
        information: [u8; 3],
    ) {
        if !silent {
            self.events.push_back(Event::TaskManagementDone { itt, response, information });
        }
    }

    /// The answer to a function was lost with its connection, which is logged out by now. It may
    /// have ended tasks of other connections at the target, which would be waited for for ever:
    /// each of them is aborted.
    pub(super) fn abort_again(&mut self, lost: &Management, cmd_sn: CmdSn) {
        let (unit, all) = (lost.function.ends_unit(), lost.function.ends_session_tasks());
        if !(unit || all) {
            return;
        }
        for itt in self.affected((!all).then_some(lost.lun), cmd_sn) {
            self.abort_silently(itt);
        }
    }

    /// Aborts a command that was sent, without telling of more than its end. One of a connection
    /// that is being recovered is asked about there.
    pub(super) fn abort_silently(&mut self, itt: Itt) {
        self.to_abort.push_back(itt);
        self.abort_more();
    }

    /// As many of those that wait to be aborted as a target takes at once.
    pub(super) fn abort_more(&mut self) {
        while self.silent_aborts() < SILENT_ABORTS_MAX
            && let Some(itt) = self.to_abort.pop_front()
        {
            let Some(task) = self.tasks.get(itt) else { continue };
            let Kind::Command(command) = &task.kind else { continue };
            let (lun, connection) = (command.command.lun, task.connection);
            if self.connection(connection).is_some_and(|c| c.failed.is_none()) {
                let (function, silent) = (TaskManagementFunction::ABORT_TASK, true);
                let request = Management { function, lun, referenced: itt, silent };
                self.add_management(connection, request);
            }
        }
    }

    fn silent_aborts(&self) -> usize {
        let abort = TaskManagementFunction::ABORT_TASK;
        let silent = |task: &Task<T>| matches!(&task.kind, Kind::Management(m) if m.silent && m.function == abort);
        self.tasks.iter().filter(|(_, task)| silent(task)).count()
    }

    /// Commands sent before `cmd_sn`, to one unit or to all.
    pub(super) fn affected(&self, lun: Option<Lun>, cmd_sn: CmdSn) -> Vec<Itt> {
        self.tasks
            .iter()
            .filter(|(_, task)| task.cmd_sn.is_some_and(|sn| sn.is_before(cmd_sn)))
            .filter(|(_, task)| match &task.kind {
                Kind::Command(command) => lun.is_none_or(|lun| command.command.lun == lun),
                _ => false,
            })
            .map(|(itt, _)| itt)
            .collect()
    }
}

/// Which commands a function that was sent is to end: those of a unit, or of all, before a CmdSN.
fn ends<T>(task: &Task<T>) -> Option<(Option<Lun>, CmdSn)> {
    let (Kind::Management(management), Some(cmd_sn)) = (&task.kind, task.cmd_sn) else {
        return None;
    };
    let (unit, all) = (management.function.ends_unit(), management.function.ends_session_tasks());
    (unit || all).then_some((unit.then_some(management.lun), cmd_sn))
}
