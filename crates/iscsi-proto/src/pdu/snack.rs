//! SNACK Request: asks for PDUs again, or acknowledges data (RFC 7143 §11.16).

use super::header::FINAL;
use super::{Header, Opcode, PduError};
use crate::ids::{Itt, Lun};
use crate::serial::StatSn;

wire_code! {
    /// What is asked for (§11.16.1).
    SnackKind(u8) {
        /// Data-In or R2T PDUs again, as they were.
        DATA_OR_R2T = 0,
        /// Status PDUs again.
        STATUS = 1,
        /// Data up to BegRun has arrived.
        DATA_ACK = 2,
        /// Data-In PDUs again, cut for a new MaxRecvDataSegmentLength.
        R_DATA = 3,
    }
}

/// SNACK Request (§11.16). No data segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnackRequest {
    /// What is asked for.
    pub kind: SnackKind,
    /// Logical unit; with DATA_ACK as in the Data-In.
    pub lun: Lun,
    /// The command; [`Itt::NONE`] with STATUS and DATA_ACK.
    pub itt: Itt,
    /// SNACK Tag with R_DATA, the Data-In's tag with DATA_ACK, else all ones.
    pub ttt_or_snack_tag: u32,
    /// Next StatSN the initiator expects on this connection.
    pub exp_stat_sn: StatSn,
    /// First number wanted.
    pub beg_run: u32,
    /// How many; 0 for all from `beg_run` on.
    pub run_length: u32,
}

impl SnackRequest {
    pub(super) fn parse(header: &Header) -> Result<Self, PduError> {
        Ok(Self {
            kind: SnackKind(header.bhs[1] & 0x0f),
            lun: header.lun(),
            itt: header.itt(),
            ttt_or_snack_tag: header.be32(20),
            exp_stat_sn: header.exp_stat_sn(),
            beg_run: header.be32(40),
            run_length: header.be32(44),
        })
    }

    /// The header; this PDU has no data segment.
    ///
    /// # Panics
    /// If the data segment does not fit 24 bits.
    pub fn encode(&self, data_segment_length: u32) -> Header {
        let mut header = Header::new(Opcode::SNACK_REQUEST, data_segment_length);
        header.bhs[1] = FINAL | self.kind.0 & 0x0f;
        header.put_names(self.lun, self.itt);
        header.put32(20, self.ttt_or_snack_tag);
        header.put32(28, self.exp_stat_sn.0);
        header.put32(40, self.beg_run);
        header.put32(44, self.run_length);
        header
    }
}
