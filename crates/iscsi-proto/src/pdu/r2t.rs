//! Ready To Transfer (RFC 7143 §11.8).

use super::header::FINAL;
use super::{Header, Opcode, PduError};
use crate::ids::{Itt, Lun, Ttt};
use crate::serial::{CmdSn, R2tSn, StatSn};

/// R2T: the target asks for a piece of a write's data (§11.8). No data segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct R2t {
    /// Logical unit.
    pub lun: Lun,
    /// The command.
    pub itt: Itt,
    /// The target's name for this transfer, never [`Ttt::NONE`].
    pub ttt: Ttt,
    /// Next StatSN of the connection; an R2T does not advance it.
    pub stat_sn: StatSn,
    /// Next CmdSN the target expects.
    pub exp_cmd_sn: CmdSn,
    /// Highest CmdSN the target accepts.
    pub max_cmd_sn: CmdSn,
    /// Number of the R2T within its command.
    pub r2t_sn: R2tSn,
    /// First byte wanted.
    pub buffer_offset: u32,
    /// Bytes wanted: at least 1, at most MaxBurstLength.
    pub desired_data_transfer_length: u32,
}

impl R2t {
    pub(super) fn parse(header: &Header) -> Result<Self, PduError> {
        Ok(Self {
            lun: header.lun(),
            itt: header.itt(),
            ttt: Ttt(header.be32(20)),
            stat_sn: header.stat_sn(),
            exp_cmd_sn: header.exp_cmd_sn(),
            max_cmd_sn: header.max_cmd_sn(),
            r2t_sn: R2tSn(header.be32(36)),
            buffer_offset: header.be32(40),
            desired_data_transfer_length: header.be32(44),
        })
    }

    /// The header; an R2T has no data segment, so the length is 0 in every use but a test's.
    ///
    /// # Panics
    /// If the data segment does not fit 24 bits.
    pub fn encode(&self, data_segment_length: u32) -> Header {
        let mut header = Header::new(Opcode::R2T, data_segment_length);
        header.bhs[1] = FINAL;
        header.put_names(self.lun, self.itt);
        header.put32(20, self.ttt.0);
        header.put_window(self.stat_sn, self.exp_cmd_sn, self.max_cmd_sn);
        header.put32(36, self.r2t_sn.0);
        header.put32(40, self.buffer_offset);
        header.put32(44, self.desired_data_transfer_length);
        header
    }
}
