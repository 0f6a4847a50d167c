//! SCSI Data-Out and SCSI Data-In (RFC 7143 §11.7).

use super::header::FINAL;
use super::scsi::{OVERFLOW, Residual, UNDERFLOW};
use super::{Header, Opcode, PduError};
use crate::ids::{Itt, Lun, Ttt};
use crate::serial::{CmdSn, DataSn, StatSn};

/// SCSI Data-Out: payload of a write (§11.7).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataOut {
    /// F: last PDU of this sequence (unsolicited data, or the answer to one R2T).
    pub is_final: bool,
    /// Logical unit; valid with a target transfer tag.
    pub lun: Lun,
    /// The command.
    pub itt: Itt,
    /// The R2T this answers, [`Ttt::NONE`] for unsolicited data.
    pub ttt: Ttt,
    /// Next StatSN the initiator expects on this connection.
    pub exp_stat_sn: StatSn,
    /// Number of the PDU within its sequence.
    pub data_sn: DataSn,
    /// Where the payload belongs in the command's data.
    pub buffer_offset: u32,
}

impl DataOut {
    pub(super) fn parse(header: &Header) -> Result<Self, PduError> {
        Ok(Self {
            is_final: header.is_final(),
            lun: header.lun(),
            itt: header.itt(),
            ttt: Ttt(header.be32(20)),
            exp_stat_sn: header.exp_stat_sn(),
            data_sn: DataSn(header.be32(36)),
            buffer_offset: header.be32(40),
        })
    }

    /// The header for `data_segment_length` bytes of payload.
    ///
    /// # Panics
    /// If the data segment does not fit 24 bits.
    pub fn encode(&self, data_segment_length: u32) -> Header {
        let mut header = Header::new(Opcode::DATA_OUT, data_segment_length);
        header.bhs[1] = if self.is_final { FINAL } else { 0 };
        header.put_names(self.lun, self.itt);
        header.put32(20, self.ttt.0);
        header.put32(28, self.exp_stat_sn.0);
        header.put32(36, self.data_sn.0);
        header.put32(40, self.buffer_offset);
        header
    }
}

/// Status of a command that ends with its last Data-In ("phase collapse", §11.7.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataInStatus {
    /// SCSI status, without sense data.
    pub status: u8,
    /// Residual count.
    pub residual: Residual,
}

/// SCSI Data-In: payload of a read (§11.7).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataIn {
    /// F: last PDU of this sequence.
    pub is_final: bool,
    /// A: the target asks for a DataACK SNACK (§11.7.2).
    pub acknowledge: bool,
    /// S: the command's status, if it ends here.
    pub status: Option<DataInStatus>,
    /// Logical unit; valid with `acknowledge`.
    pub lun: Lun,
    /// The command.
    pub itt: Itt,
    /// Tag to copy into the SNACK; valid with `acknowledge`, else [`Ttt::NONE`].
    pub ttt: Ttt,
    /// Status sequence number; valid with `status`.
    pub stat_sn: StatSn,
    /// Next CmdSN the target expects.
    pub exp_cmd_sn: CmdSn,
    /// Highest CmdSN the target accepts.
    pub max_cmd_sn: CmdSn,
    /// Number of the PDU within its command.
    pub data_sn: DataSn,
    /// Where the payload belongs in the command's data.
    pub buffer_offset: u32,
}

const ACKNOWLEDGE: u8 = 0x40;
const STATUS: u8 = 0x01;

impl DataIn {
    pub(super) fn parse(header: &Header) -> Result<Self, PduError> {
        let flags = header.bhs[1];
        let status = if flags & STATUS != 0 {
            //= https://www.rfc-editor.org/rfc/rfc7143#section-11.7.3
            //# If this bit is set to 1, the F bit MUST also be set to 1.
            if !header.is_final() {
                return Err(PduError::DataInFlags { flags });
            }
            let residual = Residual::parse(header, OVERFLOW, UNDERFLOW, 44)?;
            Some(DataInStatus { status: header.bhs[3], residual })
        } else {
            //= https://www.rfc-editor.org/rfc/rfc7143#section-11
            //# Any compliant receiver MUST ignore any bit not defined and all reserved fields
            //# unless specified otherwise.
            // O, U and the residual count are defined with S only; without it they are reserved.
            None
        };
        Ok(Self {
            is_final: header.is_final(),
            acknowledge: flags & ACKNOWLEDGE != 0,
            status,
            lun: header.lun(),
            itt: header.itt(),
            ttt: Ttt(header.be32(20)),
            stat_sn: header.stat_sn(),
            exp_cmd_sn: header.exp_cmd_sn(),
            max_cmd_sn: header.max_cmd_sn(),
            data_sn: DataSn(header.be32(36)),
            buffer_offset: header.be32(40),
        })
    }

    /// The header for `data_segment_length` bytes of payload. A status implies the F bit.
    ///
    /// # Panics
    /// If the data segment does not fit 24 bits.
    pub fn encode(&self, data_segment_length: u32) -> Header {
        let mut header = Header::new(Opcode::DATA_IN, data_segment_length);
        header.bhs[1] =
            if self.is_final { FINAL } else { 0 } | if self.acknowledge { ACKNOWLEDGE } else { 0 };
        if let Some(status) = self.status {
            header.bhs[1] |= FINAL | STATUS;
            header.bhs[3] = status.status;
            status.residual.encode(&mut header, OVERFLOW, UNDERFLOW, 44);
        }
        header.put_names(self.lun, self.itt);
        header.put32(20, self.ttt.0);
        header.put_window(self.stat_sn, self.exp_cmd_sn, self.max_cmd_sn);
        header.put32(36, self.data_sn.0);
        header.put32(40, self.buffer_offset);
        header
    }
}
