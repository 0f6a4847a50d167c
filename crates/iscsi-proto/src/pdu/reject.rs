//! Reject (RFC 7143 §11.17).

use super::header::FINAL;
use super::{Header, Opcode, PduError};
use crate::ids::Itt;
use crate::serial::{CmdSn, StatSn};

wire_code! {
    /// Why the PDU was not accepted (§11.17.1).
    RejectReason(u8) {
        /// Data digest error: the initiator may send it again.
        DATA_DIGEST_ERROR = 0x02,
        /// SNACK reject: the initiator may send it again.
        SNACK_REJECT = 0x03,
        /// Protocol error, such as a SNACK for a status that was acknowledged.
        PROTOCOL_ERROR = 0x04,
        /// Command not supported.
        COMMAND_NOT_SUPPORTED = 0x05,
        /// Too many immediate commands.
        IMMEDIATE_COMMAND_REJECT = 0x06,
        /// Task in progress.
        TASK_IN_PROGRESS = 0x07,
        /// Invalid data acknowledgement.
        INVALID_DATA_ACK = 0x08,
        /// Invalid PDU field.
        INVALID_PDU_FIELD = 0x09,
        /// No target transfer tag left: a long operation must be tried again later.
        LONG_OPERATION_REJECT = 0x0a,
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.17.1
        //# Deprecated; MUST NOT be used
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.17.1
        //# Reason code 0x0b ("Negotiation Reset") as defined in Section 10.17.1 of [RFC3720] is
        //# deprecated and MUST NOT be used by implementations.
        /// Was "negotiation reset"; no longer sent.
        DEPRECATED = 0x0b,
        /// The session waits for a logout.
        WAITING_FOR_LOGOUT = 0x0c,
    }
}

/// Reject (§11.17). Data segment: header of the rejected PDU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reject {
    /// Why.
    pub reason: RejectReason,
    /// Status sequence number.
    pub stat_sn: StatSn,
    /// Next CmdSN the target expects.
    pub exp_cmd_sn: CmdSn,
    /// Highest CmdSN the target accepts.
    pub max_cmd_sn: CmdSn,
    /// Next DataSN or R2TSN, where the rejected PDU was a Data-Out's or SNACK's (§11.17.2).
    pub data_sn: u32,
}

impl Reject {
    pub(super) fn parse(header: &Header) -> Result<Self, PduError> {
        Ok(Self {
            reason: RejectReason(header.bhs[2]),
            stat_sn: header.stat_sn(),
            exp_cmd_sn: header.exp_cmd_sn(),
            max_cmd_sn: header.max_cmd_sn(),
            data_sn: header.be32(36),
        })
    }

    /// The header for a data segment that quotes `data_segment_length` bytes of header.
    ///
    /// # Panics
    /// If the data segment does not fit 24 bits.
    pub fn encode(&self, data_segment_length: u32) -> Header {
        let mut header = Header::new(Opcode::REJECT, data_segment_length);
        header.bhs[1] = FINAL;
        header.bhs[2] = self.reason.0;
        header.put32(16, Itt::NONE.0);
        header.put_window(self.stat_sn, self.exp_cmd_sn, self.max_cmd_sn);
        header.put32(36, self.data_sn);
        header
    }
}
