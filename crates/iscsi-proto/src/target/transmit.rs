//! What leaves on a connection, and the numbers every PDU carries.

use bytes::Bytes;

use super::data_in::segment_length;
use super::event::ConnId;
use super::retain::Numbered;
use super::session::{Connection, Session};
use super::state::ConnectionEvent;
use super::{Event, logout};
use crate::connection::Transmit;
use crate::ids::{Itt, Lun, Ttt};
use crate::pdu::{
    AsyncEvent, AsyncMessage, LogoutResponse, LogoutResponseCode, NopIn, NopOut, Opcode, R2t,
    Reject, RejectReason, TaskManagementResponse, TaskManagementResponseCode, TextResponse,
};
use crate::serial::{CmdSn, StatSn};

/// What becomes of the session once task management is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sequel {
    Nothing,
    /// TARGET COLD RESET: the answer is the last thing that is said in this session.
    Close,
    /// I_T NEXUS RESET.
    EndNexus,
}

/// A small answer. Sequence numbers are stamped when it leaves.
#[derive(Clone, Debug)]
pub(super) enum Reply {
    R2t(R2t),
    Nop {
        itt: Itt,
        lun: Lun,
        ttt: Ttt,
        data: Bytes,
    },
    Management {
        itt: Itt,
        response: TaskManagementResponseCode,
        information: [u8; 3],
        sequel: Sequel,
    },
    Text {
        itt: Itt,
        lun: Lun,
        ttt: Ttt,
        text: Bytes,
        continues: bool,
    },
    Logout(logout::Answer),
    Reject {
        reason: RejectReason,
        data_sn: u32,
        header: Bytes,
    },
    Async {
        event: AsyncEvent,
        lun: Lun,
        parameters: [u16; 3],
        data: Bytes,
    },
}

impl Reply {
    /// Bytes of the initiator's own that it carries back: what makes an answer big.
    pub(super) fn data_len(&self) -> usize {
        match self {
            Self::Nop { data, .. } => data.len(),
            _ => 0,
        }
    }

    /// Bytes of data that it keeps.
    pub(super) fn payload_len(&self) -> usize {
        match self {
            Self::Nop { data, .. } | Self::Async { data, .. } => data.len(),
            Self::Text { text, .. } => text.len(),
            Self::Reject { header, .. } => header.len(),
            Self::R2t(_) | Self::Management { .. } | Self::Logout(_) => 0,
        }
    }
}

impl Session {
    /// Bytes of ping data in the answers that wait to be sent on `conn`.
    pub fn reply_data_len(&self, conn: ConnId) -> usize {
        self.connections.get(&conn).map_or(0, |c| c.reply_data_len)
    }

    /// Answers that wait to be sent on `conn`: the shell stops reading while there are many, so
    /// that a peer that asks and never reads costs bounded memory.
    pub fn reply_backlog(&self, conn: ConnId) -> usize {
        self.connections.get(&conn).map_or(0, |c| c.replies.len())
    }

    /// The next PDU to send on `conn`.
    pub fn poll_transmit(&mut self, conn: ConnId) -> Option<Transmit> {
        let transmit = self.next_transmit(conn);
        if let Some(connection) = self.connections.get_mut(&conn) {
            let is_data = |transmit: &Transmit| transmit.header.opcode() == Opcode::DATA_IN;
            let goes_on = connection.sends_data && !connection.sent_all;
            if let Some(transmit) = &transmit {
                connection.sends_data = goes_on || is_data(transmit);
            }
            connection.sent_all = transmit.is_none();
        }
        transmit
    }

    fn next_transmit(&mut self, conn: ConnId) -> Option<Transmit> {
        let connection = self.connections.get_mut(&conn)?;
        if !connection.state.is_alive() {
            return None;
        }
        if let Some(reply) = connection.replies.pop_front() {
            connection.reply_data_len -= reply.data_len();
            return self.transmit_reply(conn, reply);
        }
        if !connection.runs.is_empty()
            && let Some(transmit) = self.transmit_again(conn)
        {
            return Some(transmit);
        }
        self.transmit_response(conn)
    }

    fn transmit_reply(&mut self, conn: ConnId, reply: Reply) -> Option<Transmit> {
        let stat_sn = match &reply {
            // These two announce StatSN without using it up (§11.8.2, §11.19.3 of RFC 7143).
            Reply::R2t(_) | Reply::Nop { itt: Itt::NONE, .. } => {
                self.connections.get(&conn)?.next_stat_sn
            }
            _ if self.recovers() => self.take_stat_sn(conn, Numbered::Reply(reply.clone()))?,
            _ => self.take_stat_sn(conn, Numbered::Nothing)?,
        };
        match &reply {
            Reply::Logout(answer) => self.logout_answered(conn, answer),
            Reply::Management { itt, sequel, .. } => {
                self.fenced_sent(conn, *itt, stat_sn);
                match sequel {
                    Sequel::Nothing => {}
                    // Behind this PDU, which is on its way.
                    Sequel::Close => self.close("target cold reset"),
                    Sequel::EndNexus => self.end_nexus(conn),
                }
            }
            _ => {}
        }
        Some(self.encode_reply(reply, stat_sn))
    }

    /// The PDU with the command window of now.
    pub(super) fn encode_reply(&mut self, reply: Reply, stat_sn: StatSn) -> Transmit {
        let (exp_cmd_sn, max_cmd_sn) = self.command_window();
        match reply {
            Reply::R2t(pdu) => {
                //= https://www.rfc-editor.org/rfc/rfc7143#section-11.8.1
                //# For this PDU, TotalAHSLength and DataSegmentLength MUST be 0.
                let header = R2t { stat_sn, exp_cmd_sn, max_cmd_sn, ..pdu }.encode(0);
                Transmit { header, payload: Bytes::new() }
            }
            Reply::Nop { itt, lun, ttt, data } => {
                let pdu = NopIn { lun, itt, ttt, stat_sn, exp_cmd_sn, max_cmd_sn };
                Transmit { header: pdu.encode(segment_length(&data)), payload: data }
            }
            //= https://www.rfc-editor.org/rfc/rfc7143#section-11.6.2
            //# For this PDU, TotalAHSLength and DataSegmentLength MUST be 0.
            Reply::Management { itt, response, information, .. } => {
                let pdu = TaskManagementResponse {
                    response,
                    information,
                    itt,
                    stat_sn,
                    exp_cmd_sn,
                    max_cmd_sn,
                };
                Transmit { header: pdu.encode(0), payload: Bytes::new() }
            }
            Reply::Text { itt, lun, ttt, text, continues } => {
                //= https://www.rfc-editor.org/rfc/rfc7143#section-6.4
                //# Whenever the target responds with the F bit set to 0, it MUST set the Target
                //# Transfer Tag to a value other than the default 0xffffffff.
                //= https://www.rfc-editor.org/rfc/rfc7143#section-11.10.4
                //# It MUST do so whenever it sets the F bit to 0 in the response.
                //= https://www.rfc-editor.org/rfc/rfc7143#section-11.11.1
                //# A Text Response with the F bit set to 1 MUST have a Target Transfer Tag field
                //# set to the reserved value 0xffffffff.
                //= https://www.rfc-editor.org/rfc/rfc7143#section-11.11.1
                //# A Text Response with the F bit set to 0 MUST have a Target Transfer Tag field
                //# set to a value other than the reserved value 0xffffffff.
                //= https://www.rfc-editor.org/rfc/rfc7143#section-11.11.4
                //# When a target has more work to do (e.g., cannot transfer all the remaining text
                //# data in a single Text Response or has to continue the negotiation) and has
                //# enough resources to proceed, it MUST set the Target Transfer Tag to a value
                //# other than the reserved value 0xffffffff.
                //= https://www.rfc-editor.org/rfc/rfc7143#section-11.11.4
                //# Otherwise, the Target Transfer Tag MUST be set to 0xffffffff.
                let pdu = TextResponse {
                    is_final: ttt == Ttt::NONE, // the tag names what is unfinished
                    continues,
                    lun,
                    itt,
                    ttt,
                    stat_sn,
                    exp_cmd_sn,
                    max_cmd_sn,
                };
                Transmit { header: pdu.encode(segment_length(&text)), payload: text }
            }
            //= https://www.rfc-editor.org/rfc/rfc7143#section-11.15.2
            //# For this PDU, TotalAHSLength and DataSegmentLength MUST be 0.
            Reply::Logout(answer) => {
                // They mean something if tasks are kept or another logout may come (§11.15.3).
                let found = answer.response != LogoutResponseCode::CID_NOT_FOUND;
                let time2wait = u16::from(found) * self.params.default_time2wait;
                let retains = self.reassigns() && answer.response == LogoutResponseCode::CLOSED;
                let time2retain = if retains { self.params.default_time2retain } else { 0 };
                let pdu = LogoutResponse {
                    response: answer.response,
                    itt: answer.itt,
                    stat_sn,
                    exp_cmd_sn,
                    max_cmd_sn,
                    time2wait,
                    time2retain,
                };
                Transmit { header: pdu.encode(0), payload: Bytes::new() }
            }
            Reply::Reject { reason, data_sn, header } => {
                let pdu = Reject { reason, stat_sn, exp_cmd_sn, max_cmd_sn, data_sn };
                Transmit { header: pdu.encode(segment_length(&header)), payload: header }
            }
            Reply::Async { event, lun, parameters, data } => {
                let pdu = AsyncMessage {
                    event,
                    vendor_code: 0,
                    lun,
                    stat_sn,
                    exp_cmd_sn,
                    max_cmd_sn,
                    parameters,
                };
                Transmit { header: pdu.encode(segment_length(&data)), payload: data }
            }
        }
    }

    /// Answers a NOP-Out with its own data (§11.19).
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.18.1
    //# When a target receives the NOP-Out with a valid Initiator Task Tag, it MUST respond with a
    //# NOP-In Response (see Section 4.6.3.6).
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.19
    //# When a target receives the NOP-Out with a valid Initiator Task Tag (not the reserved value
    //# 0xffffffff), it MUST respond with a NOP-In with the same Initiator Task Tag that was
    //# provided in the NOP-Out request.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.19
    //# It MUST also duplicate up to the first MaxRecvDataSegmentLength bytes of the
    //# initiator-provided Ping Data.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.19
    //# For such a response, the Target Transfer Tag MUST be 0xffffffff.
    pub(super) fn nop_out(&mut self, conn: ConnId, request: &NopOut, data: Bytes) {
        let Some(connection) = self.connections.get(&conn) else { return };
        let limit = connection.params.max_send_data_segment_length as usize;
        let data = data.slice(..data.len().min(limit));
        self.push_reply(
            conn,
            Reply::Nop { itt: request.itt, lun: request.lun, ttt: Ttt::NONE, data },
        );
    }

    /// Tells the initiator on `conn` of `event` (§11.9).
    pub fn send_async(&mut self, conn: ConnId, event: AsyncEvent, parameters: [u16; 3]) {
        if event == AsyncEvent::LOGOUT_REQUEST
            && let Some(connection) = self.connections.get_mut(&conn)
        {
            connection.step(ConnectionEvent::LogoutAsked);
        }
        let reply = Reply::Async { event, lun: Lun(0), parameters, data: Bytes::new() };
        self.push_reply(conn, reply);
    }

    /// ExpCmdSN and MaxCmdSN as they would be announced now.
    pub fn command_window(&mut self) -> (CmdSn, CmdSn) {
        self.order.window(self.tasks.len())
    }

    /// Tasks have ended, perhaps without a word: tells of the places that are free by that.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.4.11
    //# When the MaxCmdSN changes at the target while the target has no pending PDUs to convey this
    //# information to the initiator, it MUST generate a NOP-In to carry the new MaxCmdSN.
    pub(super) fn announce_window(&mut self) {
        // An answer to a function or a logout that waits for tasks to end is going to tell, too.
        let answers = !(self.pending_management.is_empty() && self.pending_logouts.is_empty());
        if answers || !self.order.has_grown(self.tasks.len()) {
            return;
        }
        let carries = |c: &Connection| c.state.is_alive() && c.recovery.is_none();
        let says = |c: &Connection| {
            !(c.replies.is_empty() && c.runs.is_empty() && c.responding.is_empty())
        };
        let carrier = self.connections.iter().find(|(_, c)| carries(c)).map(|(conn, _)| *conn);
        let Some(conn) = carrier else { return };
        if !self.connections.values().any(says) {
            let (itt, ttt, lun, data) = (Itt::NONE, Ttt::NONE, Lun(0), Bytes::new());
            self.push_reply(conn, Reply::Nop { itt, lun, ttt, data });
        }
    }

    /// The next target transfer tag, never [`Ttt::NONE`].
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.8.5
    //# There is no protocol rule about the Target Transfer Tag except that the value 0xffffffff is
    //# reserved and MUST NOT be sent by a target in an R2T.
    pub(super) fn take_ttt(&mut self) -> Ttt {
        self.next_ttt = (self.next_ttt + 1) % u32::MAX;
        Ttt(self.next_ttt)
    }

    pub(super) fn push_event(&mut self, conn: ConnId, event: Event) {
        if let Some(connection) = self.connections.get_mut(&conn)
            && !connection.is_detached()
        {
            connection.events.push_back(event);
            self.wakes.push_back(conn);
        }
    }

    pub(super) fn push_reply(&mut self, conn: ConnId, reply: Reply) {
        if let Some(connection) = self.connections.get_mut(&conn)
            && connection.state.is_alive()
        {
            connection.reply_data_len += reply.data_len();
            connection.replies.push_back(reply);
            self.wakes.push_back(conn);
        }
    }

    pub(super) fn close_event(&mut self, conn: ConnId, reason: &'static str) {
        self.push_event(conn, Event::Close { reason, at_once: false });
    }
}
