//! What goes out on a connection: replies and control PDUs, then data that was asked for, then
//! new commands (RFC 7143 §4.2.2, §4.2.4, §11.3, §11.7). It never touches payload bytes: a PDU is
//! a header and a slice.

use std::collections::VecDeque;

use bytes::Bytes;

use super::requests::{command, ping, segment_length_max, text_request, unsolicited};
use super::task::{Kind, Task};
use super::{Connection, ConnectionId, Phase, Session, State, Timer};
use crate::connection::Transmit;
use crate::ids::{Cid, Itt, Lun, Ttt};
use crate::pdu::{
    DataOut, LogoutRequest, NopOut, SnackKind, SnackRequest, TaskManagementFunction,
    TaskManagementRequest, TaskManagementResponseCode,
};
use crate::serial::{CmdSn, DataSn, StatSn};
use crate::time::Instant;

/// What waits for a connection's transport, by priority.
#[derive(Debug, Default)]
pub(super) struct Queues {
    pub(super) control: VecDeque<Control>,
    /// Data-Out sequences under way: one unsolicited at the front, then answers to R2Ts in order.
    pub(super) data: VecDeque<Burst>,
    /// Commands to be sent again as they were: they fill holes in CmdSN that stop all others.
    pub(super) retries: VecDeque<Itt>,
    pub(super) commands: VecDeque<Itt>,
}

/// A small PDU that overtakes data.
#[derive(Debug)]
pub(super) enum Control {
    /// Answer to a NOP-In (§11.18).
    NopReply { lun: Lun, ttt: Ttt, data: Bytes },
    /// First (for text: next) PDU of a task.
    Task(Itt),
    /// Asks for PDUs again, or acknowledges data.
    Snack(Snack),
}

/// What a SNACK says (§11.16), but for the ExpStatSN of the moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Snack {
    pub(super) kind: SnackKind,
    pub(super) lun: Lun,
    pub(super) itt: Itt,
    pub(super) tag: Ttt,
    /// First number, and how many.
    pub(super) run: (u32, u32),
}

/// One sequence of Data-Out PDUs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Burst {
    pub(super) itt: Itt,
    pub(super) ttt: Ttt,
    pub(super) lun: Lun,
    pub(super) data_sn: DataSn,
    pub(super) offset: u32,
    pub(super) end: u32,
    /// The target has said that it ends tasks of this unit (FastAbort, §11.9.1).
    pub(super) stopped: bool,
}

impl<T> Session<T> {
    /// The next PDU for this connection's transport; `None` when there is nothing to send now.
    ///
    /// Sequence numbers are assigned here, so everything returned must be sent, in this order.
    pub fn poll_transmit(&mut self, id: ConnectionId, now: Instant) -> Option<Transmit> {
        let connection = self.connection_mut(id)?;
        if connection.closing.is_some() || !connection.state.is_open() {
            return None;
        }
        self.now = now;
        let transmit = self
            .next_control(id, now)
            .or_else(|| self.next_data(id))
            .or_else(|| self.next_retry(id))
            .or_else(|| self.next_command(id))?;
        if let Some(connection) = self.connection_mut(id) {
            connection.transmitted_at = now;
        }
        Some(transmit)
    }

    /// Something could be sent on this connection now.
    pub fn has_transmit(&self, id: ConnectionId) -> bool {
        self.connection(id).is_some_and(|c| {
            let queues = &c.queues;
            let commands = !queues.commands.is_empty() && self.window() > 0;
            c.closing.is_none()
                && c.state.is_open()
                && (!queues.control.is_empty()
                    || queues.data.iter().any(|burst| !self.is_stopped(burst))
                    || commands
                    || !queues.retries.is_empty())
        })
    }

    fn next_control(&mut self, id: ConnectionId, now: Instant) -> Option<Transmit> {
        loop {
            let connection = self.connection_mut(id)?;
            match connection.queues.control.pop_front()? {
                //= https://www.rfc-editor.org/rfc/rfc7143#section-11.18
                //# Upon receipt of a NOP-In with the Target Transfer Tag set to a valid value (not
                //# the reserved value 0xffffffff), the initiator MUST respond with a NOP-Out.
                //= https://www.rfc-editor.org/rfc/rfc7143#section-11.18
                //# In this case, the NOP-Out Target Transfer Tag MUST contain a copy of the NOP-In
                //# Target Transfer Tag.
                //= https://www.rfc-editor.org/rfc/rfc7143#section-11.18.1
                //# Otherwise, the Initiator Task Tag MUST be set to 0xffffffff.
                //= https://www.rfc-editor.org/rfc/rfc7143#section-11.18.1
                //# If the Initiator Task Tag contains 0xffffffff, the I bit MUST be set to 1, and
                //# the CmdSN is not advanced after this PDU is sent.
                //= https://www.rfc-editor.org/rfc/rfc7143#section-11.18.2
                //# The NOP-Out MUST only have the Target Transfer Tag set if it is issued in
                //# response to a NOP-In with a valid Target Transfer Tag.
                //= https://www.rfc-editor.org/rfc/rfc7143#section-11.18.2
                //# When the Target Transfer Tag is set to a value other than 0xffffffff, the LUN
                //# field MUST also be copied from the NOP-In.
                Control::NopReply { lun, ttt, data } => {
                    let exp_stat_sn = connection.status.expected();
                    let (immediate, cmd_sn) = (true, self.cmd_sn);
                    let itt = Itt::NONE;
                    let nop = NopOut { immediate, lun, itt, ttt, cmd_sn, exp_stat_sn };
                    return Some(Transmit {
                        header: nop.encode(data.len() as u32), // cut to our limit when queued
                        payload: data,
                    });
                }
                Control::Snack(snack) => {
                    let Snack { kind, lun, itt, tag, mut run } = snack;
                    // What has come while this waited is acknowledged, and must not be asked for:
                    // a DataACK that waited before this one may say so by now.
                    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.16.1
                    //# Data/R2T SNACK, Status SNACK, or R-Data SNACK for a command MUST precede
                    //# status acknowledgment for the given command.
                    //= https://www.rfc-editor.org/rfc/rfc7143#section-7.2.2
                    //# Initiators MUST NOT subsequently request data retransmission through Data
                    //# SNACK for PDUs numbered less than the ExpDataSN (i.e., prior to the
                    //# acknowledged sequence number).
                    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.16.2
                    //# An initiator MUST NOT request retransmission for any data it had already
                    //# acknowledged.
                    if kind == SnackKind::DATA_OR_R2T {
                        let task = self.tasks.command_mut(itt);
                        let Some(missing) = task.and_then(|task| task.first_missing(run)) else {
                            continue;
                        };
                        run = missing;
                    }
                    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.14
                    //# After sending the Logout Request PDU, an initiator MUST NOT send any new
                    //# iSCSI requests on the closing connection.
                    // No command waits for anything any more.
                    if self.is_leaving(id) {
                        continue;
                    }
                    let connection = self.connection(id)?;
                    let come = |first| !connection.status.is_missing(StatSn(first));
                    while kind == SnackKind::STATUS && run.1 > 0 && come(run.0) {
                        run = (run.0.wrapping_add(1), run.1 - 1);
                    }
                    if kind == SnackKind::STATUS && run.1 == 0 {
                        continue;
                    }
                    let request = SnackRequest {
                        kind,
                        lun,
                        itt,
                        ttt_or_snack_tag: tag.0,
                        exp_stat_sn: connection.status.expected(),
                        beg_run: run.0,
                        run_length: run.1,
                    };
                    return Some(Transmit { header: request.encode(0), payload: Bytes::new() });
                }
                Control::Task(itt) => {
                    if let Some(transmit) = self.control_task(id, itt, now) {
                        return Some(transmit);
                    }
                }
            }
        }
    }

    /// Control PDUs are immediate: they need no room in the command window, and they leave no
    /// hole in it when a connection fails.
    fn control_task(&mut self, id: ConnectionId, itt: Itt, now: Instant) -> Option<Transmit> {
        if self.is_pointless(itt) {
            return None;
        }
        let reassignment = self.prepare_reassignment(itt);
        //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.1
        //# Commands meant for immediate delivery are marked with an immediate delivery flag; they
        //# MUST also carry the current CmdSN.
        //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.1
        //# The CmdSN MUST NOT advance after a command marked for immediate delivery is sent.
        let (cmd_sn, logout_timeout) = (self.cmd_sn, self.config.logout_timeout);
        let connection = self.connection(id)?;
        let exp_stat_sn = connection.status.expected();
        let segment = segment_length_max(&connection.params) as usize;
        let leaving = self.logout_of(itt);
        let (mut timer, mut stops, mut waits) = (None, false, false);
        let task = self.tasks.get_mut(itt)?;
        let cmd_sn = match task.kind {
            Kind::Plug => task.cmd_sn?,
            _ => *task.cmd_sn.insert(cmd_sn),
        };
        let (header, payload) = match &mut task.kind {
            Kind::Ping { sent_at } => {
                *sent_at = Some(now);
                timer = Some((id, Timer::Ping, self.config.ping_timeout));
                (ping(itt, cmd_sn, exp_stat_sn, true), Bytes::new())
            }
            Kind::Plug => (ping(itt, cmd_sn, exp_stat_sn, false), Bytes::new()),
            Kind::Logout { reason, of } => {
                timer = Some((*of, Timer::Logout, logout_timeout));
                let (reason, immediate) = (*reason, true);
                // ExpStatSN is that of the connection that is closed (§11.14.4).
                let (cid, exp_stat_sn) = leaving?;
                let pdu = LogoutRequest { immediate, reason, itt, cid, cmd_sn, exp_stat_sn };
                //= https://www.rfc-editor.org/rfc/rfc7143#section-11.14.2
                //# For this PDU, TotalAHSLength and DataSegmentLength MUST be 0.
                (pdu.encode(0), Bytes::new())
            }
            Kind::Management(management) => {
                //= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.2
                //# For this PDU, TotalAHSLength and DataSegmentLength MUST be 0.
                let (function, lun) = (management.function, management.lun);
                let referenced_task_tag = management.referenced;
                (stops, waits) = (true, true);
                let reassigns = function == TaskManagementFunction::TASK_REASSIGN;
                let named = self.tasks.get(referenced_task_tag).filter(|_| !reassigns);
                let pdu = TaskManagementRequest {
                    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.1
                    //# TASK REASSIGN MUST be issued as an immediate command.
                    immediate: true,
                    function,
                    lun,
                    itt,
                    referenced_task_tag,
                    cmd_sn,
                    exp_stat_sn,
                    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.1
                    //# If an ABORT TASK is issued for a task created by an immediate command, then
                    //# the RefCmdSN MUST be that of the task management request itself (i.e., the
                    //# CmdSN and RefCmdSN are equal); otherwise, the RefCmdSN MUST be set to the
                    //# CmdSN of the task to be aborted (lower than the CmdSN).
                    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.5
                    //# For an ABORT TASK of a task created by a non-immediate command, the RefCmdSN
                    //# MUST be set to the CmdSN of the task identified by the Referenced Task Tag
                    //# field.
                    ref_cmd_sn: named.and_then(|t| t.cmd_sn).unwrap_or_default(),
                    exp_data_sn: reassignment,
                };
                (pdu.encode(0), Bytes::new())
            }
            Kind::Text(text) => {
                waits = true;
                text_request(text, itt, (cmd_sn, exp_stat_sn), segment)
            }
            Kind::Command(_) => return None,
        };
        if let Some((of, timer, delay)) = timer
            && let Some(c) = self.connection_mut(of)
        {
            c.timers.set(timer, now + delay);
        }
        if waits {
            self.await_answer(id, itt, now);
        }
        if stops {
            self.note_abort(itt);
            self.stop_aborted(id, itt);
        }
        Some(Transmit { header, payload })
    }

    /// The command has ended while a function about it waited to be sent. There is no RefCmdSN to
    /// be given any more; a wrong one would make the target skip a command (§11.6.1).
    fn is_pointless(&mut self, itt: Itt) -> bool {
        let Some(Task { connection, kind: Kind::Management(management), .. }) = self.tasks.get(itt)
        else {
            return false;
        };
        let (connection, referenced) = (*connection, management.referenced);
        if referenced == Itt::NONE || self.tasks.get(referenced).is_some() {
            return false;
        }
        let (function, silent) = (management.function, management.silent);
        self.tasks.remove(itt);
        if function == TaskManagementFunction::TASK_REASSIGN {
            self.reassignment_over(itt);
            return true;
        }
        let response = match function {
            TaskManagementFunction::QUERY_TASK => TaskManagementResponseCode::COMPLETE,
            _ => TaskManagementResponseCode::TASK_DOES_NOT_EXIST,
        };
        self.tell_managed(itt, silent, response, [0; 3]);
        self.answered(connection);
        self.wake(connection); // so that the event is looked at
        true
    }

    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.8
    //# If an R2T is answered with a single Data-Out PDU, the buffer offset in the data PDU MUST be
    //# the same as the one specified by the R2T, and the data length of the data PDU MUST be the
    //# same as the Desired Data Transfer Length specified in the R2T.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.8
    //# If the R2T is answered with a sequence of data PDUs, the buffer offset and length MUST be
    //# within the range of those specified by the R2T, and the last PDU MUST have the F bit set to
    //# 1.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.8
    //# If DataPDUInOrder is set to Yes, the buffer offsets and lengths for consecutive PDUs MUST
    //# form a continuous non-overlapping range, and the PDUs MUST be sent in increasing offset
    //# order.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.8
    //# Within a task, outstanding R2Ts MUST be fulfilled by the initiator in the order in which
    //# they were received.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-13.12
    //# An initiator MUST NOT send solicited PDUs exceeding MaxBurstLength nor unsolicited PDUs
    //# exceeding FirstBurstLength (or FirstBurstLength-Immediate Data Length if immediate data were
    //# sent).
    fn next_data(&mut self, id: ConnectionId) -> Option<Transmit> {
        let now = self.now;
        loop {
            let connection = self.connections.get_mut(id.index())?.as_mut()?;
            let segment = segment_length_max(&connection.params);
            let tasks = &mut self.tasks;
            let goes = |burst: &Burst| {
                tasks.command_mut(burst.itt).is_none_or(|t| !t.stopped && !burst.stopped)
            };
            let at = connection.queues.data.iter().position(goes)?;
            let burst = connection.queues.data.get_mut(at)?;
            let Some(task) = self.tasks.command_mut(burst.itt) else {
                connection.queues.data.remove(at); // aborted meanwhile
                continue;
            };
            //= https://www.rfc-editor.org/rfc/rfc7143#section-11.7.1
            //# DataSegmentLength MUST NOT exceed MaxRecvDataSegmentLength for the direction it is
            //# sent, and the total of all the DataSegmentLength of all PDUs in a sequence MUST NOT
            //# exceed MaxBurstLength (or FirstBurstLength for unsolicited data).
            let len = (burst.end - burst.offset).min(segment);
            let is_final = burst.offset + len == burst.end;
            let pdu = DataOut {
                is_final,
                lun: burst.lun,
                itt: burst.itt,
                ttt: burst.ttt,
                exp_stat_sn: connection.status.expected(),
                data_sn: burst.data_sn.take(),
                buffer_offset: burst.offset,
            };
            let start = burst.offset as usize;
            let payload = task.command.data_out.slice(start..start + len as usize);
            burst.offset += len;
            task.moved_at = now;
            if is_final {
                if burst.ttt != Ttt::NONE {
                    task.r2t_outstanding = task.r2t_outstanding.saturating_sub(1);
                }
                connection.queues.data.remove(at);
            }
            return Some(Transmit { header: pdu.encode(len), payload });
        }
    }

    //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.1
    //# iSCSI initiators and targets MUST support the command numbering scheme.
    fn next_command(&mut self, id: ConnectionId) -> Option<Transmit> {
        loop {
            if !self.retried.is_empty() {
                self.end_late_retries();
            }
            let connection = self.connections.get_mut(id.index())?.as_mut()?;
            if connection.state != State::LoggedIn {
                return None;
            }
            let waiting = !connection.queues.commands.is_empty();
            if self.max_cmd_sn.is_before(self.cmd_sn) {
                self.window_blocked |= waiting;
                return None;
            }
            if self.in_order {
                self.take_oldest(id)?;
            } else if !waiting {
                self.take_from_another(id)?;
            }
            let itt = self.connection_mut(id)?.queues.commands.pop_front()?;
            let Some(Task { cmd_sn, kind: Kind::Command(_), .. }) = self.tasks.get_mut(itt) else {
                continue; // aborted before it was sent
            };
            //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.1
            //# Command numbering starts with the first Login Request on the first connection of a
            //# session (the leading login on the leading connection), and the CmdSN MUST be
            //# incremented by 1 in a Serial Number Arithmetic sense, as defined in [RFC1982], for
            //# every non-immediate command issued afterwards.
            //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.1
            //# On any connection, the iSCSI initiator MUST send the commands in increasing order of
            //# CmdSN, except for commands that are retransmitted due to digest error recovery and
            //# connection recovery.
            let sn = self.cmd_sn.take();
            *cmd_sn = Some(sn);
            self.retried.iter_mut().for_each(|retried| retried.note_new(id, sn));
            return self.send_command(id, itt);
        }
    }

    /// A command again, with the CmdSN that it had.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-7.2.1
    //# When an iSCSI command is retried, the command PDU MUST carry the original Initiator Task Tag
    //# and the original operational attributes (e.g., flags, function names, LUN, CDB, etc.) as
    //# well as the original CmdSN.
    fn next_retry(&mut self, id: ConnectionId) -> Option<Transmit> {
        loop {
            let itt = self.connection_mut(id)?.queues.retries.pop_front()?;
            // It may have been taken, answered or aborted, or have moved meanwhile. An abort that
            // was sent counts as the command for the target (§7.11).
            let here = self.tasks.get(itt).is_some_and(|task| task.connection == id);
            let aborted = self.tasks.command_mut(itt).is_some_and(|task| task.abort_sent);
            if here && !aborted && !self.is_taken(itt) {
                self.note_retry(id, itt);
                return self.send_command(id, itt);
            }
        }
    }

    fn send_command(&mut self, id: ConnectionId, itt: Itt) -> Option<Transmit> {
        let now = self.now;
        let connection = self.connections.get_mut(id.index())?.as_mut()?;
        let Some(Task { cmd_sn: Some(cmd_sn), kind: Kind::Command(task), .. }) =
            self.tasks.get_mut(itt)
        else {
            return None;
        };
        let len = task.command.data_out.len() as u32; // checked by `submit`
        let plan = unsolicited(len, &self.params, &connection.params);
        task.solicited = plan.end;
        task.moved_at = now;
        //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.5.2
        //# In addition, iSCSI initiators and targets MUST enforce some ordering rules.
        //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.5.2
        //# When unsolicited data is used, the order of the unsolicited data on each connection MUST
        //# match the order in which the commands on that connection are sent.
        //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.5.2
        //# Command and unsolicited data PDUs may be interleaved on a single connection as long as
        //# the ordering requirements of each are maintained (e.g., command N + 1 MAY be sent before
        //# the unsolicited Data-Out PDUs for command N, but the unsolicited Data-Out PDUs for
        //# command N MUST precede the unsolicited Data-Out PDUs of command N + 1).
        if plan.end > plan.immediate {
            // Nothing else of this connection may come between: §4.2.4.2 wants unsolicited
            // data in the order of its commands.
            connection.queues.data.push_front(Burst {
                itt,
                ttt: Ttt::NONE,
                lun: task.command.lun,
                data_sn: DataSn(0),
                offset: plan.immediate,
                end: plan.end,
                stopped: false,
            });
        }
        let expected = connection.status.expected();
        let header = command(&task.command, itt, *cmd_sn, expected, plan);
        let payload = task.command.data_out.slice(..plan.immediate as usize);
        self.watch_commands(id, self.now);
        Some(Transmit { header, payload })
    }

    /// The command window moved: whoever waited for it goes on.
    pub(super) fn note_window(&mut self, exp_cmd_sn: CmdSn, max_cmd_sn: CmdSn) {
        //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.1
        //# If the PDU MaxCmdSN is less than the PDU ExpCmdSN - 1 (in a Serial Number Arithmetic
        //# sense), they are both ignored.
        if max_cmd_sn.next().is_before(exp_cmd_sn) {
            return;
        }
        // PDUs of several connections arrive in any order: only forward.
        if self.exp_cmd_sn.is_before(exp_cmd_sn) && !self.cmd_sn.is_before(exp_cmd_sn) {
            self.exp_cmd_sn = exp_cmd_sn;
        }
        if self.max_cmd_sn.is_before(max_cmd_sn) {
            self.max_cmd_sn = max_cmd_sn;
            if std::mem::take(&mut self.window_blocked) {
                self.wake_blocked();
            }
        }
    }

    fn wake_blocked(&mut self) {
        for (index, connection) in self.connections.iter().enumerate() {
            if connection.as_ref().is_some_and(|c| !c.queues.commands.is_empty()) {
                self.wakes |= 1 << index;
            }
        }
    }

    /// The target's view of our commands: everything before this CmdSN has arrived there.
    pub const fn exp_cmd_sn(&self) -> CmdSn {
        self.exp_cmd_sn
    }

    pub(super) fn is_ended(&self) -> bool {
        self.phase == Phase::Ended
    }
}

impl Connection {
    /// Answers a NOP-In, or says that too many wait for an answer already.
    pub(super) fn queue_nop_reply(&mut self, lun: Lun, ttt: Ttt, data: &[u8]) -> bool {
        let waiting = |c: &&Control| matches!(c, Control::NopReply { .. });
        if self.queues.control.iter().filter(waiting).count() >= super::receive::NOP_REPLIES_MAX {
            return false;
        }
        let len = data.len().min(segment_length_max(&self.params) as usize);
        let data = Bytes::copy_from_slice(&data[..len]);
        self.queues.control.push_back(Control::NopReply { lun, ttt, data });
        true
    }

    pub(super) const fn cid(&self) -> Cid {
        self.cid
    }
}
