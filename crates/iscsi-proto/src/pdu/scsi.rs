//! SCSI Command and SCSI Response (RFC 7143 §11.3, §11.4).

use bytes::{BufMut, Bytes, BytesMut};

use super::ahs::Segments;
use super::header::FINAL;
use super::{Header, Opcode, PduError};
use crate::ids::{Itt, Lun};
use crate::serial::{CmdSn, StatSn};

wire_code! {
    /// Task attribute of a SCSI Command (§11.3.1).
    TaskAttribute(u8) {
        /// No attribute given.
        UNTAGGED = 0,
        /// Simple.
        SIMPLE = 1,
        /// Ordered.
        ORDERED = 2,
        /// Head of queue.
        HEAD_OF_QUEUE = 3,
        /// Auto contingent allegiance.
        ACA = 4,
    }
}

wire_code! {
    /// iSCSI service response (§11.4.3), 0x80–0xff vendor specific.
    ResponseCode(u8) {
        /// Command completed at the target; its SCSI status counts.
        COMPLETED = 0x00,
        /// Target failure; there is no SCSI status.
        TARGET_FAILURE = 0x01,
    }
}

/// How much was transferred more or less than the initiator expected (§11.4.1, §11.4.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Residual {
    /// As expected.
    #[default]
    None,
    /// Bytes that could not be transferred because the initiator expected less.
    Overflow(u32),
    /// Bytes that the initiator expected and that were not transferred.
    Underflow(u32),
}

impl Residual {
    /// Reads the two bits `overflow` and `underflow` of byte 1 and the count at `at`.
    pub(super) fn parse(
        header: &Header,
        overflow: u8,
        underflow: u8,
        at: usize,
    ) -> Result<Self, PduError> {
        let count = header.be32(at);
        match (header.bhs[1] & overflow != 0, header.bhs[1] & underflow != 0) {
            //= https://www.rfc-editor.org/rfc/rfc7143#section-11.4.5.1
            //# The Residual Count field MUST be valid in the case where either the U bit or the O
            //# bit is set.
            //= https://www.rfc-editor.org/rfc/rfc7143#section-11.4.5.1
            //# If neither bit is set, the Residual Count field MUST be ignored on reception and
            //# SHOULD be set to 0 when sending.
            (false, false) => Ok(Self::None),
            (true, false) => Ok(Self::Overflow(count)),
            (false, true) => Ok(Self::Underflow(count)),
            //= https://www.rfc-editor.org/rfc/rfc7143#section-11.4.1
            //# Bits O and U and bits o and u are mutually exclusive (i.e., having both o and u or O
            //# and U set to 1 is a protocol error).
            (true, true) => Err(PduError::Residual { opcode: header.opcode() }),
        }
    }

    pub(super) fn encode(self, header: &mut Header, overflow: u8, underflow: u8, at: usize) {
        match self {
            Self::None => {}
            Self::Overflow(count) => {
                header.bhs[1] |= overflow;
                header.put32(at, count);
            }
            Self::Underflow(count) => {
                header.bhs[1] |= underflow;
                header.put32(at, count);
            }
        }
    }
}

/// SCSI Command (§11.3). Data segment: immediate data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScsiCommand {
    /// I: deliver at once, outside CmdSN order.
    pub immediate: bool,
    /// F: no unsolicited Data-Out follows.
    pub is_final: bool,
    /// R: the command is expected to input data.
    pub read: bool,
    /// W: the command is expected to output data.
    pub write: bool,
    /// ATTR.
    pub attribute: TaskAttribute,
    /// PRI, below 16: task priority (RFC 7144 §5.1.1), 0 below iSCSIProtocolLevel 2.
    pub priority: u8,
    /// Logical unit.
    pub lun: Lun,
    /// Initiator Task Tag.
    pub itt: Itt,
    /// Bytes the initiator expects: of a bidirectional command, the output part.
    pub expected_data_transfer_length: u32,
    /// Command sequence number.
    pub cmd_sn: CmdSn,
    /// Next StatSN the initiator expects on this connection.
    pub exp_stat_sn: StatSn,
    /// First 16 bytes of the CDB, zero filled.
    pub cdb: [u8; 16],
    /// CDB from byte 16 on (AHSType 1), mostly empty; at most [`super::EXTENDED_CDB_MAX`] bytes.
    pub extended_cdb: Bytes,
    /// Expected read length of a bidirectional command (AHSType 2).
    pub bidi_read_length: Option<u32>,
}

const READ: u8 = 0x40;
const WRITE: u8 = 0x20;

impl ScsiCommand {
    pub(super) fn parse(header: &Header) -> Result<Self, PduError> {
        let segments = Segments::parse(&header.ahs)?;
        Ok(Self {
            immediate: header.immediate(),
            is_final: header.is_final(),
            read: header.bhs[1] & READ != 0,
            write: header.bhs[1] & WRITE != 0,
            attribute: TaskAttribute(header.bhs[1] & 0x07),
            priority: header.bhs[2] >> 4,
            lun: header.lun(),
            itt: header.itt(),
            expected_data_transfer_length: header.be32(20),
            cmd_sn: header.cmd_sn(),
            exp_stat_sn: header.exp_stat_sn(),
            cdb: header.array(32),
            extended_cdb: segments.extended_cdb,
            bidi_read_length: segments.bidi_read_length,
        })
    }

    /// The header for this command with `data_segment_length` bytes of immediate data.
    ///
    /// # Panics
    /// If the data segment does not fit 24 bits or the CDB is longer than 260 bytes.
    pub fn encode(&self, data_segment_length: u32) -> Header {
        let mut header = Header::new(Opcode::SCSI_COMMAND, data_segment_length);
        header.set_immediate(self.immediate);
        header.bhs[1] = if self.is_final { FINAL } else { 0 }
            | if self.read { READ } else { 0 }
            | if self.write { WRITE } else { 0 }
            | self.attribute.0 & 0x07;
        header.bhs[2] = self.priority << 4;
        header.put_names(self.lun, self.itt);
        header.put32(20, self.expected_data_transfer_length);
        header.put_request_numbers(self.cmd_sn, self.exp_stat_sn);
        header.put(32, self.cdb);
        if !self.extended_cdb.is_empty() || self.bidi_read_length.is_some() {
            let segments = Segments {
                extended_cdb: self.extended_cdb.clone(),
                bidi_read_length: self.bidi_read_length,
            };
            header.set_ahs(segments.encode());
        }
        header
    }
}

/// SCSI Response (§11.4). Data segment: SenseLength, sense data, response data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScsiResponse {
    /// iSCSI service response.
    pub response: ResponseCode,
    /// SCSI status, valid if `response` is COMPLETED.
    pub status: u8,
    /// More about the status (RFC 7144 §5.2.1), 0 below iSCSIProtocolLevel 2.
    pub status_qualifier: u16,
    /// Residual count of the (write part of the) command.
    pub residual: Residual,
    /// Residual count of the read part of a bidirectional command.
    pub bidi_read_residual: Residual,
    /// Initiator Task Tag.
    pub itt: Itt,
    /// SNACK Tag copied from the last R-Data SNACK, or 0 (§11.4.6).
    pub snack_tag: u32,
    /// Status sequence number.
    pub stat_sn: StatSn,
    /// Next CmdSN the target expects.
    pub exp_cmd_sn: CmdSn,
    /// Highest CmdSN the target accepts.
    pub max_cmd_sn: CmdSn,
    /// Number of Data-In PDUs the target has sent for the command (§11.4.8).
    pub exp_data_sn: u32,
}

const BIDI_OVERFLOW: u8 = 0x10;
const BIDI_UNDERFLOW: u8 = 0x08;
pub(super) const OVERFLOW: u8 = 0x04;
pub(super) const UNDERFLOW: u8 = 0x02;

impl ScsiResponse {
    pub(super) fn parse(header: &Header) -> Result<Self, PduError> {
        Ok(Self {
            response: ResponseCode(header.bhs[2]),
            status: header.bhs[3],
            status_qualifier: header.be16(8),
            residual: Residual::parse(header, OVERFLOW, UNDERFLOW, 44)?,
            bidi_read_residual: Residual::parse(header, BIDI_OVERFLOW, BIDI_UNDERFLOW, 40)?,
            itt: header.itt(),
            snack_tag: header.be32(20),
            stat_sn: header.stat_sn(),
            exp_cmd_sn: header.exp_cmd_sn(),
            max_cmd_sn: header.max_cmd_sn(),
            exp_data_sn: header.be32(36),
        })
    }

    /// The header for this response with a data segment of the given length.
    ///
    /// # Panics
    /// If the data segment does not fit 24 bits.
    pub fn encode(&self, data_segment_length: u32) -> Header {
        let mut header = Header::new(Opcode::SCSI_RESPONSE, data_segment_length);
        header.bhs[1] = FINAL;
        header.bhs[2] = self.response.0;
        header.bhs[3] = self.status;
        header.put(8, self.status_qualifier.to_be_bytes());
        self.residual.encode(&mut header, OVERFLOW, UNDERFLOW, 44);
        self.bidi_read_residual.encode(&mut header, BIDI_OVERFLOW, BIDI_UNDERFLOW, 40);
        header.put32(16, self.itt.0);
        header.put32(20, self.snack_tag);
        header.put_window(self.stat_sn, self.exp_cmd_sn, self.max_cmd_sn);
        header.put32(36, self.exp_data_sn);
        header
    }
}

/// Data segment of a SCSI Response that carries sense data and no response data (§11.4.7);
/// empty for empty sense.
pub fn encode_sense(sense: &[u8]) -> Bytes {
    if sense.is_empty() {
        return Bytes::new();
    }
    // SPC-4 ends sense data at 252 bytes; anything longer than the field is a bug upstream.
    let sense = &sense[..sense.len().min(usize::from(u16::MAX))];
    let mut data = BytesMut::with_capacity(2 + sense.len());
    data.put_u16(sense.len() as u16);
    data.put_slice(sense);
    data.freeze()
}

/// The sense data in a SCSI Response's data segment. A target that announces more than it sent
/// gets what is there.
pub fn parse_sense(data: &[u8]) -> &[u8] {
    match data {
        [high, low, rest @ ..] => {
            let announced = usize::from(u16::from_be_bytes([*high, *low]));
            &rest[..announced.min(rest.len())]
        }
        _ => &[],
    }
}
