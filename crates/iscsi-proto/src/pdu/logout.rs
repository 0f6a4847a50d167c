//! Logout Request and Logout Response (RFC 7143 §11.14, §11.15).

use super::header::FINAL;
use super::{Header, Opcode, PduError};
use crate::ids::{Cid, Itt};
use crate::serial::{CmdSn, StatSn};

wire_code! {
    /// What to close and why (§11.14.1).
    LogoutReason(u8) {
        /// End the session with all its connections.
        CLOSE_SESSION = 0,
        /// End connection `cid`; its commands end with it.
        CLOSE_CONNECTION = 1,
        /// End connection `cid`; its commands will be reassigned.
        REMOVE_CONNECTION_FOR_RECOVERY = 2,
    }
}

wire_code! {
    /// What came of it (§11.15.1).
    LogoutResponseCode(u8) {
        /// Closed.
        CLOSED = 0,
        /// CID not found.
        CID_NOT_FOUND = 1,
        /// Connection recovery is not supported.
        RECOVERY_NOT_SUPPORTED = 2,
        /// Cleanup failed.
        CLEANUP_FAILED = 3,
    }
}

/// Logout Request (§11.14). No data segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogoutRequest {
    /// I: deliver at once, outside CmdSN order.
    pub immediate: bool,
    /// What to close and why.
    pub reason: LogoutReason,
    /// Tag of this request.
    pub itt: Itt,
    /// Connection to close; not valid with CLOSE_SESSION.
    pub cid: Cid,
    /// Command sequence number.
    pub cmd_sn: CmdSn,
    /// Next StatSN the initiator expects on this connection.
    pub exp_stat_sn: StatSn,
}

impl LogoutRequest {
    pub(super) fn parse(header: &Header) -> Result<Self, PduError> {
        Ok(Self {
            immediate: header.immediate(),
            reason: LogoutReason(header.bhs[1] & 0x7f),
            itt: header.itt(),
            cid: Cid(header.be16(20)),
            cmd_sn: header.cmd_sn(),
            exp_stat_sn: header.exp_stat_sn(),
        })
    }

    /// The header; this PDU has no data segment.
    ///
    /// # Panics
    /// If the data segment does not fit 24 bits.
    pub fn encode(&self, data_segment_length: u32) -> Header {
        let mut header = Header::new(Opcode::LOGOUT_REQUEST, data_segment_length);
        header.set_immediate(self.immediate);
        header.bhs[1] = FINAL | self.reason.0 & 0x7f;
        header.put32(16, self.itt.0);
        header.put(20, self.cid.0.to_be_bytes());
        header.put_request_numbers(self.cmd_sn, self.exp_stat_sn);
        header
    }
}

/// Logout Response (§11.15). No data segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogoutResponse {
    /// What came of it.
    pub response: LogoutResponseCode,
    /// Tag of the request.
    pub itt: Itt,
    /// Status sequence number.
    pub stat_sn: StatSn,
    /// Next CmdSN the target expects.
    pub exp_cmd_sn: CmdSn,
    /// Highest CmdSN the target accepts.
    pub max_cmd_sn: CmdSn,
    /// Seconds to wait before a new connection or a reassignment (§11.15.3).
    pub time2wait: u16,
    /// Seconds from then on for which the tasks are kept (§11.15.4).
    pub time2retain: u16,
}

impl LogoutResponse {
    pub(super) fn parse(header: &Header) -> Result<Self, PduError> {
        Ok(Self {
            response: LogoutResponseCode(header.bhs[2]),
            itt: header.itt(),
            stat_sn: header.stat_sn(),
            exp_cmd_sn: header.exp_cmd_sn(),
            max_cmd_sn: header.max_cmd_sn(),
            time2wait: header.be16(40),
            time2retain: header.be16(42),
        })
    }

    /// The header; this PDU has no data segment.
    ///
    /// # Panics
    /// If the data segment does not fit 24 bits.
    pub fn encode(&self, data_segment_length: u32) -> Header {
        let mut header = Header::new(Opcode::LOGOUT_RESPONSE, data_segment_length);
        header.bhs[1] = FINAL;
        header.bhs[2] = self.response.0;
        header.put32(16, self.itt.0);
        header.put_window(self.stat_sn, self.exp_cmd_sn, self.max_cmd_sn);
        header.put(40, self.time2wait.to_be_bytes());
        header.put(42, self.time2retain.to_be_bytes());
        header
    }
}
