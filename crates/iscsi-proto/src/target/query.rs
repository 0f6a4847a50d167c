//! The task management functions of RFC 7144: they tell what is there and end nothing, but for
//! I_T NEXUS RESET. Carried out where iSCSIProtocolLevel 2 was agreed.

use super::event::ConnId;
use super::reassign::Waiting;
use super::session::Session;
use super::task::Task;
use super::transmit::{Reply, Sequel};
use crate::ids::{Itt, Lun};
use crate::pdu::{TaskManagementRequest, TaskManagementResponseCode};

impl Session {
    /// Is this the tag of a task management request that is not answered?
    pub(super) fn is_managing(&self, itt: Itt) -> bool {
        self.pending_management.iter().any(|pending| pending.itt == itt)
            || self.postponed.iter().any(|(_, request)| request.itt == itt)
            || self.pending_reassignments.iter().any(|(_, request)| request.itt == itt)
    }

    /// A task that nobody has ended.
    fn is_in_task_set(task: &Task, lun: Lun) -> bool {
        task.lun() == lun && !task.aborted
    }

    /// QUERY TASK. A command that has not arrived is not in the task set; a query does not fill its
    /// place in CmdSN, which would end it.
    pub(super) fn query_task(&mut self, conn: ConnId, request: &TaskManagementRequest) {
        use TaskManagementResponseCode as R;
        let referenced = request.referenced_task_tag;
        // RFC 7144 §6.3:
        // At the target, a QUERY TASK function MUST NOT be executed on a Task
        // Management request; such a request MUST result in Task Management
        // response of "Function rejected".
        if self.is_managing(referenced) {
            return self.answer_query(conn, request.itt, R::REJECTED);
        }
        let task = self.tasks.get(&referenced);
        let task = task.filter(|task| Self::is_in_task_set(task, request.lun));
        let Some(of) = task.map(|task| task.conn) else {
            return self.answer_query(conn, request.itt, R::COMPLETE);
        };
        self.answer_query(conn, request.itt, R::SUCCEEDED);
        // §6.3: asked on another connection than the one that is logged out, it moves the task.
        let over = |waiting: Waiting| waiting.detached && waiting.logged_out;
        if self.connections.get(&of).is_some_and(|c| c.recovery.is_some_and(over)) {
            self.take_over(conn, referenced, 0);
            self.reap_recovered();
        }
    }

    /// QUERY TASK SET, where some task is there; without one the shell says if there is a unit.
    pub(super) fn has_task_on(&self, lun: Lun) -> bool {
        self.tasks.values().any(|task| Self::is_in_task_set(task, lun))
    }

    pub(super) fn answer_query(
        &mut self,
        conn: ConnId,
        itt: Itt,
        response: TaskManagementResponseCode,
    ) {
        let (information, sequel) = ([0; 3], Sequel::Nothing);
        self.push_reply(conn, Reply::Management { itt, response, information, sequel });
    }

    /// The answer to I_T NEXUS RESET is made: nothing of the session is kept.
    // RFC 7144 §6.3:
    // Independent of
    // the DefaultTime2Wait and DefaultTime2Retain values applicable to the
    // session over which this function is received, the target device MUST
    // consider each participating connection in the session to have
    // immediately timed out, leading to FREE state.
    pub(super) fn end_nexus(&mut self, conn: ConnId) {
        const REASON: &str = "I_T nexus reset";
        self.mark_closed();
        let others: Vec<ConnId> =
            self.connections.keys().copied().filter(|other| *other != conn).collect();
        for other in others {
            self.end_connection(other, REASON);
        }
        self.connections.retain(|_, c| c.recovery.as_ref().is_none_or(|waiting| !waiting.detached));
        self.close_event(conn, REASON);
    }
}
