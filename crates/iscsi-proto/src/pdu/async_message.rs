//! Asynchronous Message (RFC 7143 §11.9).

use super::header::FINAL;
use super::{Header, Opcode, PduError};
use crate::ids::{Itt, Lun};
use crate::serial::{CmdSn, StatSn};

wire_code! {
    /// What happened (§11.9.1), 248–255 vendor specific.
    AsyncEvent(u8) {
        /// A SCSI event; the data segment holds sense data.
        SCSI_EVENT = 0,
        /// The target asks for a logout within Parameter3 seconds.
        LOGOUT_REQUEST = 1,
        /// The target will drop connection Parameter1.
        CONNECTION_DROP = 2,
        /// The target will drop every connection of the session.
        SESSION_DROP = 3,
        /// The target asks for parameter negotiation within Parameter3 seconds.
        NEGOTIATION_REQUEST = 4,
        /// Every task on the logical unit is being terminated (FastAbort, §4.2.3.4).
        TASK_TERMINATION = 5,
        /// Vendor specific, named by AsyncVCode.
        VENDOR = 255,
    }
}

/// Asynchronous Message (§11.9). Data segment: sense data or vendor data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AsyncMessage {
    /// What happened.
    pub event: AsyncEvent,
    /// AsyncVCode, valid with [`AsyncEvent::VENDOR`].
    pub vendor_code: u8,
    /// Logical unit, valid with SCSI_EVENT and TASK_TERMINATION.
    pub lun: Lun,
    /// Status sequence number.
    pub stat_sn: StatSn,
    /// Next CmdSN the target expects.
    pub exp_cmd_sn: CmdSn,
    /// Highest CmdSN the target accepts.
    pub max_cmd_sn: CmdSn,
    /// Parameter1 to Parameter3: for a drop CID, Time2Wait, Time2Retain.
    pub parameters: [u16; 3],
}

impl AsyncMessage {
    pub(super) fn parse(header: &Header) -> Result<Self, PduError> {
        Ok(Self {
            event: AsyncEvent(header.bhs[36]),
            vendor_code: header.bhs[37],
            lun: header.lun(),
            stat_sn: header.stat_sn(),
            exp_cmd_sn: header.exp_cmd_sn(),
            max_cmd_sn: header.max_cmd_sn(),
            parameters: [header.be16(38), header.be16(40), header.be16(42)],
        })
    }

    /// The header for a data segment of the given length.
    ///
    /// # Panics
    /// If the data segment does not fit 24 bits.
    pub fn encode(&self, data_segment_length: u32) -> Header {
        let mut header = Header::new(Opcode::ASYNC_MESSAGE, data_segment_length);
        header.bhs[1] = FINAL;
        header.put_names(self.lun, Itt::NONE);
        header.put_window(self.stat_sn, self.exp_cmd_sn, self.max_cmd_sn);
        header.bhs[36] = self.event.0;
        header.bhs[37] = self.vendor_code;
        for (i, parameter) in self.parameters.iter().enumerate() {
            header.put(38 + 2 * i, parameter.to_be_bytes());
        }
        header
    }
}
