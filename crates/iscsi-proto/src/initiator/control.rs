//! What moves no data: how requests get their tags, and what comes in, answers to task management,
//! text and logout, Reject, and asynchronous messages (RFC 7143 §11.6, §11.9, §11.11, §11.15,
//! §11.17).

use bytes::Bytes;

use super::event::{ConnectionError, Event, TaskOutcome, Violation};
use super::receive::{Handled, Receiving};
use super::task::{Kind, Management, Task};
use super::transmit::Control;
use super::{Connection, ConnectionId, Input, Session, State};
use crate::ids::{Cid, Itt, Lun, Ttt};
use crate::pdu::{
    AsyncEvent, AsyncMessage, BHS_LEN, LogoutReason, LogoutResponse, LogoutResponseCode, Opcode,
    Reject, RejectReason, TaskManagementFunction, TaskManagementResponse,
    TaskManagementResponseCode, TextResponse, parse_sense,
};
use crate::serial::CmdSn;
use crate::time::Instant;

impl<T> Session<T> {
    /// A request that is no command: it is sent as soon as possible. `None` if there are too many.
    pub(super) fn add_request(&mut self, connection: ConnectionId, kind: Kind<T>) -> Option<Itt> {
        let itt = self.add_task(connection, kind)?;
        self.connection_mut(connection)?.queues.control.push_back(Control::Task(itt));
        self.wake(connection);
        Some(itt)
    }

    /// `None` if there are too many.
    pub(super) fn add_task(&mut self, connection: ConnectionId, kind: Kind<T>) -> Option<Itt> {
        self.submitted += 1;
        let order = self.submitted;
        self.tasks.insert(Task { order, connection, cmd_sn: None, asked_at: None, kind })
    }

    pub(super) fn management_response(
        &mut self,
        id: ConnectionId,
        pdu: &TaskManagementResponse,
    ) -> Handled {
        if !self.note_status(id, pdu.stat_sn, pdu.exp_cmd_sn, pdu.max_cmd_sn)? {
            return Ok(Receiving::Discard);
        }
        let Some(task) = self.tasks.get(pdu.itt) else {
            let known = self.retired.contains(&pdu.itt);
            return if known { Ok(Receiving::Discard) } else { Err(Violation::UnknownTask) };
        };
        if task.connection != id {
            return Err(Violation::Allegiance);
        }
        let (Kind::Management(request), Some(cmd_sn)) = (&task.kind, task.cmd_sn) else {
            return Err(Violation::WrongTask);
        };
        let (function, lun, referenced) = (request.function, request.lun, request.referenced);
        let silent = request.silent;
        self.tasks.remove(pdu.itt);
        if function == TaskManagementFunction::TASK_REASSIGN {
            self.reassigned(id, pdu.itt, referenced, pdu.response);
            self.answered(id);
            return Ok(Receiving::Nothing);
        }
        let (response, information) = (pdu.response, pdu.information);
        self.end_managed(function, lun, referenced, cmd_sn, response);
        self.tell_managed(pdu.itt, silent, response, information);
        self.abort_more();
        self.answered(id);
        if function == TaskManagementFunction::I_T_NEXUS_RESET
            && response == TaskManagementResponseCode::COMPLETE
        {
            // The target drops every connection and keeps nothing (RFC 7144 §6.3): there is
            // nothing to recover.
            self.end(Some(ConnectionError::NexusReset));
        }
        Ok(Receiving::Nothing)
    }

    /// Ends the tasks that a task management function has ended at the target.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.3.3
    //# The initiator MUST thus conclude all affected tasks as part of this step in either case and
    //# MUST discard any TMF Response received after the affected tasks are concluded.
    fn end_managed(
        &mut self,
        function: TaskManagementFunction,
        lun: Lun,
        referenced: Itt,
        cmd_sn: CmdSn,
        response: TaskManagementResponseCode,
    ) {
        use TaskManagementFunction as F;
        use TaskManagementResponseCode as R;
        // A task that "does not exist" at the target has either answered before this response,
        // on the same connection, or will never do so (§11.6.1).
        let gone = response == R::COMPLETE || response == R::TASK_DOES_NOT_EXIST;
        if function == F::ABORT_TASK && gone {
            self.finish_aborted(referenced);
            return;
        }
        let (unit, target) = (function.ends_unit(), function.ends_session_tasks());
        if !(unit || target) {
            return;
        }
        if response != R::COMPLETE {
            return self.resume_data();
        }
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.1
        //# Task management requests must act on all the commands from the same session having a
        //# CmdSN lower than the task management CmdSN.
        // Not on commands that were only queued when the function was sent: they live on.
        let hit = self.affected((!target).then_some(lun), cmd_sn);
        hit.into_iter().for_each(|itt| self.finish_aborted(itt));
        self.resume_data();
    }

    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.1
    //# According to [SAM2], for all the tasks covered by the task management response (i.e., with a
    //# CmdSN lower than the task management command CmdSN), except for the task management response
    //# to a TASK REASSIGN, additional responses MUST NOT be delivered to the SCSI layer after the
    //# task management response.
    fn finish_aborted(&mut self, itt: Itt) {
        if self.tasks.command_mut(itt).is_none() {
            return;
        }
        self.retire(itt);
        self.finish(itt, TaskOutcome::Aborted);
    }

    pub(super) fn text_response(&mut self, id: ConnectionId, pdu: &TextResponse) -> Handled {
        if !self.note_status(id, pdu.stat_sn, pdu.exp_cmd_sn, pdu.max_cmd_sn)? {
            return Ok(Receiving::Discard);
        }
        let Some(task) = self.tasks.get(pdu.itt) else {
            let known = self.retired.contains(&pdu.itt);
            return if known { Ok(Receiving::Discard) } else { Err(Violation::UnknownTask) };
        };
        if task.connection != id {
            return Err(Violation::Allegiance);
        }
        if !matches!(task.kind, Kind::Text(_)) || !task.is_sent() {
            return Err(Violation::WrongTask);
        }
        let (itt, is_final, lun, ttt) = (pdu.itt, pdu.is_final, pdu.lun, pdu.ttt);
        Ok(Receiving::Text { itt, is_final, lun, ttt })
    }

    pub(super) fn text_data(
        &mut self,
        id: ConnectionId,
        itt: Itt,
        is_final: bool,
        (lun, ttt): (Lun, Ttt),
        data: &[u8],
    ) -> Result<(), Violation> {
        let limit = self.config.text_len_max;
        let Some(Kind::Text(text)) = self.tasks.get_mut(itt).map(|task| &mut task.kind) else {
            return Err(Violation::UnknownTask);
        };
        if text.response.len() + data.len() > limit {
            return Err(Violation::TextTooLong { limit });
        }
        text.response.extend_from_slice(data);
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.10.4
        //# The initiator MUST ignore the Target Transfer Tag in the Text Response when the F bit is
        //# set to 1.
        if is_final {
            let response = std::mem::take(&mut text.response).freeze();
            self.tasks.remove(itt);
            self.events.push_back(Event::TextDone { itt, text: response });
            self.answered(id);
            return Ok(());
        }
        //= https://www.rfc-editor.org/rfc/rfc7143#section-6.2
        //# An initiator receiving a Text or Login Response with the C bit set to 1 MUST answer with
        //# a Text or Login Request with no data segment (DataSegmentLength 0).
        // An empty request asks for more (§11.10.2); a tag is needed to name the exchange.
        if ttt == Ttt::NONE && text.request.is_empty() {
            return Err(Violation::WrongTask);
        }
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.11.4
        //# The initiator MUST copy the Target Transfer Tag and LUN in its next request to indicate
        //# that it wants the rest of the data.
        (text.lun, text.ttt) = (lun, ttt);
        if let Some(connection) = self.connection_mut(id) {
            connection.queues.control.push_back(Control::Task(itt));
        }
        self.wake(id);
        Ok(())
    }

    pub(super) fn logout_response(&mut self, id: ConnectionId, pdu: &LogoutResponse) -> Handled {
        if !self.note_status(id, pdu.stat_sn, pdu.exp_cmd_sn, pdu.max_cmd_sn)? {
            return Ok(Receiving::Discard);
        }
        let Some(task) = self.tasks.get(pdu.itt) else {
            let known = self.retired.contains(&pdu.itt);
            return if known { Ok(Receiving::Discard) } else { Err(Violation::UnknownTask) };
        };
        if task.connection != id {
            return Err(Violation::Allegiance);
        }
        let (Kind::Logout { reason, of }, true) = (&task.kind, task.is_sent()) else {
            return Err(Violation::WrongTask);
        };
        let (reason, of) = (*reason, *of);
        self.tasks.remove(pdu.itt);
        if reason == LogoutReason::REMOVE_CONNECTION_FOR_RECOVERY {
            self.removed_for_recovery(of, pdu);
        } else if pdu.response == LogoutResponseCode::CLOSED {
            self.logged_out(id, reason);
        } else if let Some(connection) = self.connection_mut(id) {
            connection.advance(Input::LogoutFailed);
            let cid = connection.cid();
            self.fail(id, ConnectionError::Logout { cid, response: Some(pdu.response) });
        }
        Ok(Receiving::Nothing)
    }

    pub(super) fn reject(&mut self, id: ConnectionId, pdu: &Reject) -> Handled {
        let new = self.note_status(id, pdu.stat_sn, pdu.exp_cmd_sn, pdu.max_cmd_sn)?;
        Ok(if new { Receiving::Reject(pdu.reason) } else { Receiving::Discard })
    }

    /// Acts on a Reject, whose data segment quotes the header it is about (§11.17.1).
    pub(super) fn rejected(
        &mut self,
        id: ConnectionId,
        reason: RejectReason,
        quoted: &[u8],
    ) -> Result<(), Violation> {
        let Some(bhs) = quoted.get(..BHS_LEN) else {
            return Err(Violation::DataSegment { len: quoted.len() as u32 });
        };
        let opcode = Opcode(bhs[0] & 0x3f);
        if opcode == Opcode::SNACK_REQUEST && self.repairs() {
            self.snack_rejected(id, bhs, reason);
            return Ok(());
        }
        let itt = Itt(u32::from_be_bytes([bhs[16], bhs[17], bhs[18], bhs[19]]));
        let Some(task) = self.tasks.get(itt).filter(|t| t.connection == id && t.is_sent()) else {
            // A late word on a finished task, or a NOP reply (which has no tag): nothing is lost.
            return match opcode {
                Opcode::NOP_OUT => Ok(()),
                // A Reject that was lost may come again long after what it was about.
                _ if self.repairs() && reason == RejectReason::DATA_DIGEST_ERROR => Ok(()),
                _ if self.retired.contains(&itt) => Ok(()),
                _ => Err(Violation::Rejected(reason)),
            };
        };
        match (opcode, &task.kind) {
            (Opcode::SCSI_COMMAND, Kind::Command(_)) => {
                let cmd_sn = task.cmd_sn;
                self.command_rejected(id, itt, cmd_sn, reason);
                Ok(())
            }
            // A recovery R2T or the command's status follows (§7.8).
            (Opcode::DATA_OUT, Kind::Command(_)) if self.repairs() => Ok(()),
            (Opcode::NOP_OUT, Kind::Plug) => {
                self.tasks.remove(itt);
                Ok(())
            }
            // The target is alive and says so, in its way.
            (Opcode::NOP_OUT, Kind::Ping { .. }) => {
                let now = self.connection(id).map_or(Instant::default(), |c| c.received_at);
                self.end_ping(id, itt, now);
                Ok(())
            }
            (Opcode::TASK_MANAGEMENT_REQUEST, Kind::Management(management)) => {
                let response = TaskManagementResponseCode::REJECTED;
                let Management { function, referenced, silent, .. } = *management;
                self.tasks.remove(itt);
                let later = reason == RejectReason::IMMEDIATE_COMMAND_REJECT;
                if function == TaskManagementFunction::TASK_REASSIGN {
                    let later = later.then_some(TaskManagementResponseCode::TASK_STILL_ALLEGIANT);
                    self.reassigned(id, itt, referenced, later.unwrap_or(response));
                    return Ok(());
                }
                self.resume_data();
                self.tell_managed(itt, silent, response, [0; 3]);
                if silent && later {
                    // It may have ended at the target already: without an abort nobody tells.
                    self.abort_silently(referenced);
                }
                self.answered(id);
                Ok(())
            }
            _ => Err(Violation::Rejected(reason)),
        }
    }

    fn command_rejected(
        &mut self,
        id: ConnectionId,
        itt: Itt,
        cmd_sn: Option<CmdSn>,
        reason: RejectReason,
    ) {
        let repairs = self.repairs();
        // A Reject that was lost comes late: a later copy is there.
        let taken = self.is_taken(itt);
        // Its number counts as received when the abort arrives (§7.11), which at level 0 nothing
        // but the end of the session can prevent: the answer to that says how the command ends.
        let filled = !repairs && self.tasks.command_mut(itt).is_some_and(|task| task.abort_sent);
        if reason == RejectReason::DATA_DIGEST_ERROR && (filled || taken) {
            return;
        }
        // Its immediate data came damaged: it can be sent again as it was (§11.17.1).
        if reason == RejectReason::DATA_DIGEST_ERROR && self.retry(itt) {
            return;
        }
        // It was sent again, and the first copy is there after all.
        if reason == RejectReason::TASK_IN_PROGRESS && self.repairs() {
            return;
        }
        self.retire(itt);
        self.finish(itt, TaskOutcome::Rejected(reason));
        if let Some(cmd_sn) = cmd_sn.filter(|_| !filled) {
            self.plug(id, cmd_sn);
        }
    }

    pub(super) fn async_message(
        &mut self,
        id: ConnectionId,
        now: Instant,
        pdu: &AsyncMessage,
        data: &[u8],
    ) {
        let (event, parameters) = (pdu.event, pdu.parameters);
        let data = match event {
            AsyncEvent::SCSI_EVENT => Bytes::copy_from_slice(parse_sense(data)),
            _ => Bytes::copy_from_slice(data),
        };
        self.events.push_back(Event::Async { connection: id, event, parameters, data });
        match event {
            AsyncEvent::LOGOUT_REQUEST => self.leave_as_requested(id, now, parameters[2]),
            AsyncEvent::CONNECTION_DROP | AsyncEvent::SESSION_DROP => {
                self.dropped(event == AsyncEvent::SESSION_DROP, pdu.parameters);
            }
            //= https://www.rfc-editor.org/rfc/rfc7143#section-11.9.1
            //# The initiator MUST honor this request by issuing a Text Request (that can be empty)
            //# on the same connection as early as possible, but no later than Parameter3 seconds,
            //# unless a Text Request is already pending on the connection, or by issuing a Logout
            //# Request.
            AsyncEvent::NEGOTIATION_REQUEST => {
                // An empty negotiation answers it: what was agreed stays (§11.9.1).
                self.text_on(id, Bytes::new());
            }
            AsyncEvent::TASK_TERMINATION => self.task_termination(id, pdu),
            _ => {}
        }
    }

    /// The target has dropped, or is about to drop, one connection or `all` of them. Parameters:
    /// CID, Time2Wait, Time2Retain.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-7.1.4.3
    //# The initiator MUST handle it as a TCP connection failure for the connection(s) referred to
    //# in the message.
    // It may be another connection than the one that brings the message, and one whose transport
    // says nothing for a long time: without this, its tasks would wait for a ping to fail.
    fn dropped(&mut self, all: bool, [cid, time2wait, time2retain]: [u16; 3]) {
        let hit = |(id, of, state): (ConnectionId, Cid, State)| {
            (state.is_open() && (all || of == Cid(cid))).then_some((id, of))
        };
        let hit: Vec<(ConnectionId, Cid)> = self.connections().filter_map(hit).collect();
        for (id, cid) in hit {
            self.fail(id, ConnectionError::Dropped { cid });
            self.set_recovery_times(id, time2wait, time2retain);
        }
    }

    /// A logout that was accepted.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.15
    //# After Logout, the TCP connection referred by the CID MUST be closed at both ends (or all
    //# connections must be closed if the logout reason was session close).
    fn logged_out(&mut self, id: ConnectionId, reason: LogoutReason) {
        let requested = self.connection(id).is_some_and(|c| c.requested_logout);
        let cid = self.connection(id).map(Connection::cid);
        if let Some(connection) = self.connection_mut(id) {
            connection.advance(Input::LogoutAccepted);
            connection.timers.stop_all();
            //= https://www.rfc-editor.org/rfc/rfc7143#section-11.14
            //# After receiving the Logout Response and attempting to receive the FIN (if still
            //# possible), the initiator MUST completely close the logging-out connection.
            connection.closing = Some(Ok(()));
        }
        self.wake(id);
        self.events.push_back(Event::LoggedOut { connection: id, reason });
        let open = self.connections().any(|(_, _, state)| state.is_open());
        if reason == LogoutReason::CLOSE_SESSION || !open {
            let error = cid.filter(|_| requested);
            self.end(error.map(|cid| ConnectionError::LogoutRequested { cid }));
        }
        self.close_if_idle(); // it may have waited for this logout
    }
}
