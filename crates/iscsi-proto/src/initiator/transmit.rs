//! What goes out on a connection: replies and control PDUs, then data that was asked for, then
//! new commands (RFC 7143 §4.2.2, §4.2.4, §11.3, §11.7). It never touches payload bytes: a PDU is
//! a header and a slice.

use std::collections::VecDeque;

use bytes::Bytes;

use super::task::{Kind, Task, TextTask};
use super::{Command, Connection, ConnectionId, Event, Phase, Session, State, Timer};
use crate::connection::Transmit;
use crate::ids::{Cid, Itt, Lun, Ttt};
use crate::keys::{ConnectionParams, SessionParams};
use crate::pdu::{
    DATA_SEGMENT_LENGTH_LIMIT, DataOut, Header, LogoutRequest, NopOut, ScsiCommand, SnackKind,
    SnackRequest, TaskManagementFunction, TaskManagementRequest, TaskManagementResponseCode,
    TextRequest,
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
}

/// How much of a write goes out unasked (§13.10, §13.11, §13.14).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Unsolicited {
    /// With the command itself.
    immediate: u32,
    /// End of the Data-Out sequence that follows it, as offset in the data.
    end: u32,
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-13.14
//# FirstBurstLength: the maximum amount in bytes of unsolicited data an iSCSI initiator may send to
//# the target during the execution of a single SCSI command, including immediate data.
fn unsolicited(len: u32, session: &SessionParams, connection: &ConnectionParams) -> Unsolicited {
    let allowed = len.min(session.first_burst_length);
    let segment = segment_length_max(connection);
    let immediate = if session.immediate_data { allowed.min(segment) } else { 0 };
    Unsolicited { immediate, end: if session.initial_r2t { immediate } else { allowed } }
}

fn segment_length_max(connection: &ConnectionParams) -> u32 {
    // 512 is the smallest legal MaxRecvDataSegmentLength (§13.12); never 0, or data would not move.
    connection.max_send_data_segment_length.clamp(512, DATA_SEGMENT_LENGTH_LIMIT)
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
                    || queues.data.iter().any(|burst| !self.is_stopped(burst.itt))
                    || commands
                    || !queues.retries.is_empty())
        })
    }

    fn next_control(&mut self, id: ConnectionId, now: Instant) -> Option<Transmit> {
        loop {
            let connection = self.connection_mut(id)?;
            match connection.queues.control.pop_front()? {
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
                    let Snack { kind, lun, itt, tag, run } = snack;
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
        let (cmd_sn, logout_timeout) = (self.cmd_sn, self.config.logout_timeout);
        let connection = self.connection(id)?;
        let exp_stat_sn = connection.status.expected();
        let segment = segment_length_max(&connection.params) as usize;
        let leaving = self.logout_of(itt);
        let (mut timer, mut stops) = (None, false);
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
                (pdu.encode(0), Bytes::new())
            }
            Kind::Management(management) => {
                let (function, lun) = (management.function, management.lun);
                let referenced_task_tag = management.referenced;
                stops = true;
                let reassigns = function == TaskManagementFunction::TASK_REASSIGN;
                let named = self.tasks.get(referenced_task_tag).filter(|_| !reassigns);
                let pdu = TaskManagementRequest {
                    immediate: true,
                    function,
                    lun,
                    itt,
                    referenced_task_tag,
                    cmd_sn,
                    exp_stat_sn,
                    ref_cmd_sn: named.and_then(|t| t.cmd_sn).unwrap_or_default(),
                    exp_data_sn: reassignment,
                };
                (pdu.encode(0), Bytes::new())
            }
            Kind::Text(text) => text_request(text, itt, (cmd_sn, exp_stat_sn), segment),
            Kind::Command(_) => return None,
        };
        if let Some((of, timer, delay)) = timer
            && let Some(c) = self.connection_mut(of)
        {
            c.timers.set(timer, now + delay);
        }
        if stops {
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
        let function = management.function;
        self.tasks.remove(itt);
        if function == TaskManagementFunction::TASK_REASSIGN {
            self.reassignment_over(itt);
            return true;
        }
        let response = match function {
            TaskManagementFunction::QUERY_TASK => TaskManagementResponseCode::COMPLETE,
            _ => TaskManagementResponseCode::TASK_DOES_NOT_EXIST,
        };
        let information = [0; 3];
        self.events.push_back(Event::TaskManagementDone { itt, response, information });
        self.answered(connection);
        self.wake(connection); // so that the event is looked at
        true
    }

    fn next_data(&mut self, id: ConnectionId) -> Option<Transmit> {
        loop {
            let connection = self.connections.get_mut(id.index())?.as_mut()?;
            let segment = segment_length_max(&connection.params);
            let tasks = &mut self.tasks;
            let goes = |burst: &Burst| tasks.command_mut(burst.itt).is_none_or(|t| !t.stopped);
            let at = connection.queues.data.iter().position(goes)?;
            let burst = connection.queues.data.get_mut(at)?;
            let Some(task) = self.tasks.command_mut(burst.itt) else {
                connection.queues.data.remove(at); // aborted meanwhile
                continue;
            };
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
    //# The target MUST NOT transmit a MaxCmdSN that is less than ExpCmdSN-1. For non-immediate
    //# commands, the CmdSN field can take any value from ExpCmdSN to MaxCmdSN inclusive.
    fn next_command(&mut self, id: ConnectionId) -> Option<Transmit> {
        loop {
            let connection = self.connections.get_mut(id.index())?.as_mut()?;
            if connection.state != State::LoggedIn || connection.queues.commands.is_empty() {
                return None;
            }
            if self.max_cmd_sn.is_before(self.cmd_sn) {
                self.window_blocked = true;
                return None;
            }
            let itt = connection.queues.commands.pop_front()?;
            let Some(Task { cmd_sn, kind: Kind::Command(_), .. }) = self.tasks.get_mut(itt) else {
                continue; // aborted before it was sent
            };
            *cmd_sn = Some(self.cmd_sn.take());
            return self.send_command(id, itt);
        }
    }

    /// A command again, with the CmdSN that it had.
    fn next_retry(&mut self, id: ConnectionId) -> Option<Transmit> {
        loop {
            let itt = self.connection_mut(id)?.queues.retries.pop_front()?;
            // It may have been answered, or aborted, or have moved meanwhile.
            let here = |task: &Task<T>| task.connection == id && task.is_sent();
            if self.tasks.get(itt).is_some_and(here) {
                return self.send_command(id, itt);
            }
        }
    }

    fn send_command(&mut self, id: ConnectionId, itt: Itt) -> Option<Transmit> {
        let connection = self.connections.get_mut(id.index())?.as_mut()?;
        let Some(Task { cmd_sn: Some(cmd_sn), kind: Kind::Command(task), .. }) =
            self.tasks.get_mut(itt)
        else {
            return None;
        };
        let len = task.command.data_out.len() as u32; // checked by `submit`
        let plan = unsolicited(len, &self.params, &connection.params);
        task.solicited = plan.end;
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
        //# If the PDU MaxCmdSN is less than the PDU ExpCmdSN-1 (in serial arithmetic sense), they
        //# are both ignored.
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

fn command(
    command: &Command,
    itt: Itt,
    cmd_sn: CmdSn,
    exp_stat_sn: StatSn,
    plan: Unsolicited,
) -> Header {
    let len = command.data_out.len() as u32; // checked by `submit`
    ScsiCommand {
        immediate: false,
        is_final: plan.end == plan.immediate,
        read: command.data_in_len > 0,
        write: len > 0,
        attribute: command.attribute,
        priority: 0,
        lun: command.lun,
        itt,
        expected_data_transfer_length: len.max(command.data_in_len),
        cmd_sn,
        exp_stat_sn,
        cdb: command.cdb,
        extended_cdb: Bytes::new(),
        bidi_read_length: None,
    }
    .encode(plan.immediate)
}

/// The next piece of a text, or an empty request for more of the answer.
fn text_request(
    text: &mut TextTask,
    itt: Itt,
    (cmd_sn, exp_stat_sn): (CmdSn, StatSn),
    segment: usize,
) -> (Header, Bytes) {
    let rest = text.request.split_off(text.request.len().min(segment));
    let payload = std::mem::replace(&mut text.request, rest);
    let continues = !text.request.is_empty();
    let pdu = TextRequest {
        immediate: true,
        is_final: !continues,
        continues,
        lun: Lun(0),
        itt,
        ttt: text.ttt,
        cmd_sn,
        exp_stat_sn,
    };
    (pdu.encode(payload.len() as u32), payload)
}

fn ping(itt: Itt, cmd_sn: CmdSn, exp_stat_sn: StatSn, immediate: bool) -> Header {
    let (lun, ttt) = (Lun(0), Ttt::NONE);
    NopOut { immediate, lun, itt, ttt, cmd_sn, exp_stat_sn }.encode(0)
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

#[cfg(test)]
mod unsolicited_data {
    use super::*;
    use crate::keys::DigestKind;

    fn plan(len: u32, initial_r2t: bool, immediate_data: bool, segment: u32) -> (u32, u32) {
        let session = SessionParams {
            initial_r2t,
            immediate_data,
            first_burst_length: 65536,
            ..super::super::tests::session_params()
        };
        let connection = ConnectionParams {
            header_digest: DigestKind::None,
            data_digest: DigestKind::None,
            max_recv_data_segment_length: 8192,
            max_send_data_segment_length: segment,
        };
        let plan = unsolicited(len, &session, &connection);
        (plan.immediate, plan.end)
    }

    #[test]
    fn follows_the_four_combinations_of_the_keys() {
        assert_eq!(plan(1 << 20, true, false, 8192), (0, 0));
        assert_eq!(plan(1 << 20, true, true, 8192), (8192, 8192));
        assert_eq!(plan(1 << 20, false, false, 8192), (0, 65536));
        assert_eq!(plan(1 << 20, false, true, 8192), (8192, 65536));
        assert_eq!(plan(4096, false, true, 8192), (4096, 4096));
        assert_eq!(plan(1 << 20, true, true, 262_144), (65536, 65536));
        assert_eq!(plan(0, false, true, 8192), (0, 0));
    }
}
