//! NOP-Out and NOP-In: ping and answer, or just sequence numbers (RFC 7143 §11.18, §11.19).

use super::header::FINAL;
use super::{Header, Opcode, PduError};
use crate::ids::{Itt, Lun, Ttt};
use crate::serial::{CmdSn, StatSn};

/// NOP-Out (§11.18). Data segment: ping data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NopOut {
    /// I: deliver at once, outside CmdSN order.
    pub immediate: bool,
    /// Logical unit; as in the NOP-In that is answered.
    pub lun: Lun,
    /// Tag of this ping; [`Itt::NONE`] if no answer is wanted.
    pub itt: Itt,
    /// Tag of the NOP-In that is answered, else [`Ttt::NONE`].
    pub ttt: Ttt,
    /// Command sequence number.
    pub cmd_sn: CmdSn,
    /// Next StatSN the initiator expects on this connection.
    pub exp_stat_sn: StatSn,
}

impl NopOut {
    pub(super) fn parse(header: &Header) -> Result<Self, PduError> {
        Ok(Self {
            immediate: header.immediate(),
            lun: header.lun(),
            itt: header.itt(),
            ttt: Ttt(header.be32(20)),
            cmd_sn: header.cmd_sn(),
            exp_stat_sn: header.exp_stat_sn(),
        })
    }

    /// The header for `data_segment_length` bytes of ping data.
    ///
    /// # Panics
    /// If the data segment does not fit 24 bits.
    pub fn encode(&self, data_segment_length: u32) -> Header {
        let mut header = Header::new(Opcode::NOP_OUT, data_segment_length);
        header.set_immediate(self.immediate);
        header.bhs[1] = FINAL;
        header.put_names(self.lun, self.itt);
        header.put32(20, self.ttt.0);
        header.put_request_numbers(self.cmd_sn, self.exp_stat_sn);
        header
    }
}

/// NOP-In (§11.19). Data segment: ping data sent back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NopIn {
    /// Logical unit; valid with `ttt`.
    pub lun: Lun,
    /// Tag of the NOP-Out that is answered, else [`Itt::NONE`].
    pub itt: Itt,
    /// Tag to be sent back if an answer is wanted, else [`Ttt::NONE`].
    pub ttt: Ttt,
    /// Status sequence number; advances only if `itt` is valid (§11.19.3).
    pub stat_sn: StatSn,
    /// Next CmdSN the target expects.
    pub exp_cmd_sn: CmdSn,
    /// Highest CmdSN the target accepts.
    pub max_cmd_sn: CmdSn,
}

impl NopIn {
    pub(super) fn parse(header: &Header) -> Result<Self, PduError> {
        Ok(Self {
            lun: header.lun(),
            itt: header.itt(),
            ttt: Ttt(header.be32(20)),
            stat_sn: header.stat_sn(),
            exp_cmd_sn: header.exp_cmd_sn(),
            max_cmd_sn: header.max_cmd_sn(),
        })
    }

    /// The header for `data_segment_length` bytes of ping data.
    ///
    /// # Panics
    /// If the data segment does not fit 24 bits.
    pub fn encode(&self, data_segment_length: u32) -> Header {
        let mut header = Header::new(Opcode::NOP_IN, data_segment_length);
        header.bhs[1] = FINAL;
        header.put_names(self.lun, self.itt);
        header.put32(20, self.ttt.0);
        header.put_window(self.stat_sn, self.exp_cmd_sn, self.max_cmd_sn);
        header
    }
}
