//! Text Request and Text Response (RFC 7143 §11.10, §11.11).

use super::header::FINAL;
use super::{Header, Opcode, PduError};
use crate::ids::{Itt, Lun, Ttt};
use crate::serial::{CmdSn, StatSn};

/// C bit of text and login PDUs: the text goes on in the next PDU.
pub(super) const CONTINUE: u8 = 0x40;

/// F (or T) and C; both at once is an error.
pub(super) fn parse_flags(header: &Header) -> Result<(bool, bool), PduError> {
    let flags = (header.is_final(), header.bhs[1] & CONTINUE != 0);
    //= https://www.rfc-editor.org/rfc/rfc7143#section-6.2
    //# As negotiation text may span PDU boundaries, a Text or Login Request or a Text or Login
    //# Response PDU that has the C bit set to 1 MUST NOT have the F bit or T bit set to 1.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.10.2
    //# A Text Request with the C bit set to 1 MUST have the F bit set to 0.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.11.2
    //# A Text Response with the C bit set to 1 MUST have the F bit set to 0.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.12.2
    //# A Login Request with the C bit set to 1 MUST have the T bit set to 0.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.13.7
    //# A Login Response with the C bit set to 1 MUST have the T bit set to 0.
    if flags == (true, true) {
        return Err(PduError::FinalAndContinue { opcode: header.opcode() });
    }
    Ok(flags)
}

pub(super) fn encode_flags(is_final: bool, continues: bool) -> u8 {
    let is_final = if is_final { FINAL } else { 0 };
    is_final | if continues { CONTINUE } else { 0 }
}

/// Text Request (§11.10). Data segment: text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextRequest {
    /// I: deliver at once, outside CmdSN order.
    pub immediate: bool,
    /// F: the initiator is ready to end the exchange.
    pub is_final: bool,
    /// C: the text goes on in the next PDU.
    pub continues: bool,
    /// Logical unit; what the target sent with `ttt`.
    pub lun: Lun,
    /// Tag of the exchange.
    pub itt: Itt,
    /// What the target sent last, [`Ttt::NONE`] at first.
    pub ttt: Ttt,
    /// Command sequence number.
    pub cmd_sn: CmdSn,
    /// Next StatSN the initiator expects on this connection.
    pub exp_stat_sn: StatSn,
}

impl TextRequest {
    pub(super) fn parse(header: &Header) -> Result<Self, PduError> {
        let (is_final, continues) = parse_flags(header)?;
        Ok(Self {
            immediate: header.immediate(),
            is_final,
            continues,
            lun: header.lun(),
            itt: header.itt(),
            ttt: Ttt(header.be32(20)),
            cmd_sn: header.cmd_sn(),
            exp_stat_sn: header.exp_stat_sn(),
        })
    }

    /// The header for `data_segment_length` bytes of text.
    ///
    /// # Panics
    /// If the data segment does not fit 24 bits.
    pub fn encode(&self, data_segment_length: u32) -> Header {
        let mut header = Header::new(Opcode::TEXT_REQUEST, data_segment_length);
        header.set_immediate(self.immediate);
        header.bhs[1] = encode_flags(self.is_final, self.continues);
        header.put_names(self.lun, self.itt);
        header.put32(20, self.ttt.0);
        header.put_request_numbers(self.cmd_sn, self.exp_stat_sn);
        header
    }
}

/// Text Response (§11.11). Data segment: text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextResponse {
    /// F: the exchange is over.
    pub is_final: bool,
    /// C: the text goes on in the next PDU.
    pub continues: bool,
    /// Logical unit; the initiator sends it back with `ttt`.
    pub lun: Lun,
    /// Tag of the exchange.
    pub itt: Itt,
    /// Tag for the next request, [`Ttt::NONE`] if the exchange is over.
    pub ttt: Ttt,
    /// Status sequence number.
    pub stat_sn: StatSn,
    /// Next CmdSN the target expects.
    pub exp_cmd_sn: CmdSn,
    /// Highest CmdSN the target accepts.
    pub max_cmd_sn: CmdSn,
}

impl TextResponse {
    pub(super) fn parse(header: &Header) -> Result<Self, PduError> {
        let (is_final, continues) = parse_flags(header)?;
        Ok(Self {
            is_final,
            continues,
            lun: header.lun(),
            itt: header.itt(),
            ttt: Ttt(header.be32(20)),
            stat_sn: header.stat_sn(),
            exp_cmd_sn: header.exp_cmd_sn(),
            max_cmd_sn: header.max_cmd_sn(),
        })
    }

    /// The header for `data_segment_length` bytes of text.
    ///
    /// # Panics
    /// If the data segment does not fit 24 bits.
    pub fn encode(&self, data_segment_length: u32) -> Header {
        let mut header = Header::new(Opcode::TEXT_RESPONSE, data_segment_length);
        header.bhs[1] = encode_flags(self.is_final, self.continues);
        header.put_names(self.lun, self.itt);
        header.put32(20, self.ttt.0);
        header.put_window(self.stat_sn, self.exp_cmd_sn, self.max_cmd_sn);
        header
    }
}
