//! What leaves on a connection, and the numbers every PDU carries.

use bytes::Bytes;

use super::data_in::segment_length;
use super::session::{ConnId, Session};
use super::state::{ConnectionEvent, ConnectionState};
use super::{Event, logout};
use crate::connection::Transmit;
use crate::ids::{Itt, Lun, Ttt};
use crate::pdu::{
    AsyncEvent, AsyncMessage, LogoutResponse, NopIn, NopOut, R2t, Reject, RejectReason,
    TaskManagementResponse, TaskManagementResponseCode, TextResponse,
};
use crate::serial::{CmdSn, StatSn};
use crate::time::Instant;

/// A small answer. Sequence numbers are stamped when it leaves.
#[derive(Debug)]
pub(super) enum Reply {
    R2t(R2t),
    Nop {
        itt: Itt,
        lun: Lun,
        ttt: Ttt,
        data: Bytes,
    },
    /// `closes`: TARGET COLD RESET, the last thing that is said in this session.
    Management {
        itt: Itt,
        response: TaskManagementResponseCode,
        closes: bool,
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
}

impl Session {
    /// The next PDU to send on `conn`.
    pub fn poll_transmit(&mut self, conn: ConnId) -> Option<Transmit> {
        let connection = self.connections.get_mut(&conn)?;
        if connection.state == ConnectionState::Free {
            return None;
        }
        match connection.replies.pop_front() {
            Some(reply) => {
                connection.reply_data_len -= reply.data_len();
                self.transmit_reply(conn, reply)
            }
            None => self.transmit_response(conn),
        }
    }

    fn transmit_reply(&mut self, conn: ConnId, reply: Reply) -> Option<Transmit> {
        let (exp_cmd_sn, max_cmd_sn) = self.command_window();
        let stat_sn = match &reply {
            // These two announce StatSN without using it up (§11.8.2, §11.19.3 of RFC 7143).
            Reply::R2t(_) | Reply::Nop { itt: Itt::NONE, .. } => {
                self.connections.get(&conn)?.next_stat_sn
            }
            _ => self.take_stat_sn(conn)?,
        };
        Some(match reply {
            Reply::R2t(pdu) => {
                //= https://www.rfc-editor.org/rfc/rfc7143#section-11.8.1
                //# For this PDU, TotalAHSLength and DataSegmentLength MUST be 0.
                let pdu = R2t { stat_sn, exp_cmd_sn, max_cmd_sn, ..pdu };
                Transmit { header: pdu.encode(0), payload: Bytes::new() }
            }
            Reply::Nop { itt, lun, ttt, data } => {
                let pdu = NopIn { lun, itt, ttt, stat_sn, exp_cmd_sn, max_cmd_sn };
                Transmit { header: pdu.encode(segment_length(&data)), payload: data }
            }
            //= https://www.rfc-editor.org/rfc/rfc7143#section-11.6.2
            //# For this PDU, TotalAHSLength and DataSegmentLength MUST be 0.
            Reply::Management { itt, response, closes } => {
                if closes {
                    self.close("target cold reset"); // behind this PDU, which is on its way
                }
                let pdu = TaskManagementResponse { response, itt, stat_sn, exp_cmd_sn, max_cmd_sn };
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
                // The tag names what is unfinished, and nothing else.
                let pdu = TextResponse {
                    is_final: ttt == Ttt::NONE,
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
                self.logout_answered(conn, &answer);
                let pdu = LogoutResponse {
                    response: answer.response,
                    itt: answer.itt,
                    stat_sn,
                    exp_cmd_sn,
                    max_cmd_sn,
                    time2wait: self.params.default_time2wait,
                    time2retain: self.params.default_time2retain,
                };
                Transmit { header: pdu.encode(0), payload: Bytes::new() }
            }
            Reply::Reject { reason, header } => {
                let pdu = Reject { reason, stat_sn, exp_cmd_sn, max_cmd_sn, data_sn: 0 };
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
        })
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

    /// When `handle_timeout` wants to be called for `conn`: to ask whether the initiator is there,
    /// or to give it up.
    pub fn poll_timeout(&self, conn: ConnId) -> Option<Instant> {
        let connection = self.connections.get(&conn)?;
        if connection.state == ConnectionState::Free {
            return None;
        }
        Some(match connection.ping_sent {
            None => connection.last_heard + self.config.ping_after,
            Some(sent) => sent + self.config.ping_timeout,
        })
    }

    /// Time has passed. Returns false when the connection has to be given up.
    pub fn handle_timeout(&mut self, conn: ConnId, now: Instant) -> bool {
        if self.poll_timeout(conn).is_none_or(|due| now < due) {
            return true;
        }
        let Some(connection) = self.connections.get_mut(&conn) else { return true };
        if connection.ping_sent.is_some() {
            return false;
        }
        connection.ping_sent = Some(now);
        self.next_ttt = (self.next_ttt + 1) % u32::MAX;
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.19
        //# Otherwise, when a target sends a NOP-In that is not a response to a NOP-Out received
        //# from the initiator, the Initiator Task Tag MUST be set to 0xffffffff, and the data
        //# segment MUST NOT contain any data (DataSegmentLength MUST be 0).
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.19.3
        //# A LUN MUST be set to a correct value when the Target Transfer Tag is valid (not the
        //# reserved value 0xffffffff).
        let ttt = Ttt(self.next_ttt);
        self.push_reply(conn, Reply::Nop { itt: Itt::NONE, lun: Lun(0), ttt, data: Bytes::new() });
        true
    }

    /// Bytes moved on `conn` without completing a PDU: a slow link is not a dead one.
    pub fn note_progress(&mut self, conn: ConnId, now: Instant) {
        if let Some(connection) = self.connections.get_mut(&conn) {
            connection.last_heard = now;
            if connection.ping_sent.is_some() {
                connection.ping_sent = Some(now);
            }
        }
    }

    /// ExpCmdSN and MaxCmdSN as they would be announced now.
    pub fn command_window(&mut self) -> (CmdSn, CmdSn) {
        let unanswered = self.tasks.len();
        let max_cmd_sn = self.order.max_cmd_sn(unanswered);
        (self.order.exp_cmd_sn(), max_cmd_sn)
    }

    //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.2
    //# Initiators and targets MUST support the response-numbering scheme.
    pub(super) fn take_stat_sn(&mut self, conn: ConnId) -> Option<StatSn> {
        Some(self.connections.get_mut(&conn)?.next_stat_sn.take())
    }

    pub(super) fn close_event(&mut self, conn: ConnId, reason: &'static str) {
        self.push_event(conn, Event::Close { reason });
    }
}
