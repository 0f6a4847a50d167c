//! The raw header of a PDU: basic header segment and additional header segments, before anybody
//! asks what they mean (RFC 7143 §11.2). It can hold anything; `Pdu::parse` says whether it makes
//! sense.

use bytes::Bytes;

use crate::ids::{Itt, Lun};
use crate::serial::{CmdSn, StatSn};

/// Length of the basic header segment in bytes (§11.2.1).
pub const BHS_LEN: usize = 48;

/// Largest data segment that DataSegmentLength can express: 24 bits (§11.2.1.6).
pub const DATA_SEGMENT_LENGTH_LIMIT: u32 = (1 << 24) - 1;

/// The final bit, and in login the transit bit: bit 0 of byte 1.
pub(super) const FINAL: u8 = 0x80;

wire_code! {
    /// What kind of PDU this is: low six bits of byte 0 (§11.2.1.2).
    Opcode(u8) {
        /// NOP-Out (§11.18).
        NOP_OUT = 0x00,
        /// SCSI Command (§11.3).
        SCSI_COMMAND = 0x01,
        /// Task Management Function Request (§11.5).
        TASK_MANAGEMENT_REQUEST = 0x02,
        /// Login Request (§11.12).
        LOGIN_REQUEST = 0x03,
        /// Text Request (§11.10).
        TEXT_REQUEST = 0x04,
        /// SCSI Data-Out (§11.7).
        DATA_OUT = 0x05,
        /// Logout Request (§11.14).
        LOGOUT_REQUEST = 0x06,
        /// SNACK Request (§11.16).
        SNACK_REQUEST = 0x10,
        /// NOP-In (§11.19).
        NOP_IN = 0x20,
        /// SCSI Response (§11.4).
        SCSI_RESPONSE = 0x21,
        /// Task Management Function Response (§11.6).
        TASK_MANAGEMENT_RESPONSE = 0x22,
        /// Login Response (§11.13).
        LOGIN_RESPONSE = 0x23,
        /// Text Response (§11.11).
        TEXT_RESPONSE = 0x24,
        /// SCSI Data-In (§11.7).
        DATA_IN = 0x25,
        /// Logout Response (§11.15).
        LOGOUT_RESPONSE = 0x26,
        /// Ready To Transfer (§11.8).
        R2T = 0x31,
        /// Asynchronous Message (§11.9).
        ASYNC_MESSAGE = 0x32,
        /// Reject (§11.17).
        REJECT = 0x3f,
    }
}

/// BHS and AHS as they are on the wire, without header digest.
#[derive(Clone, PartialEq, Eq)]
pub struct Header {
    /// Basic header segment.
    pub bhs: [u8; BHS_LEN],
    /// Additional header segments with their padding; as long as [`Self::total_ahs_length`] says.
    pub ahs: Bytes,
}

impl Header {
    /// The opcode, without the immediate bit.
    pub fn opcode(&self) -> Opcode {
        Opcode(self.bhs[0] & 0x3f)
    }

    /// I bit: immediate delivery (§11.2.1.1).
    pub fn immediate(&self) -> bool {
        self.bhs[0] & 0x40 != 0
    }

    /// F bit (T bit in login PDUs) (§11.2.1.3).
    pub fn is_final(&self) -> bool {
        self.bhs[1] & FINAL != 0
    }

    /// Length of all AHSs with their padding, in bytes (§11.2.1.5; on the wire: in words).
    pub fn total_ahs_length(&self) -> usize {
        usize::from(self.bhs[4]) * 4
    }

    /// Length of the data segment without padding, in bytes (§11.2.1.6).
    pub fn data_segment_length(&self) -> u32 {
        u32::from_be_bytes([0, self.bhs[5], self.bhs[6], self.bhs[7]])
    }

    /// Initiator Task Tag (§11.2.1.8); has this meaning or is reserved (all ones) in every PDU.
    pub fn itt(&self) -> Itt {
        Itt(self.be32(16))
    }

    /// Bytes 8–15 as LUN; login PDUs keep ISID and TSIH there (§11.2.1.7).
    pub fn lun(&self) -> Lun {
        Lun(u64::from_be_bytes(self.array(8)))
    }

    /// BHS and AHS.
    pub fn as_bytes(&self) -> [&[u8]; 2] {
        [&self.bhs, &self.ahs]
    }

    /// BHS and AHS in one piece, as a Reject PDU quotes them (§11.17).
    pub fn to_bytes(&self) -> Bytes {
        self.as_bytes().concat().into()
    }

    /// Empty header of the given opcode and lengths, every other byte zero.
    ///
    /// # Panics
    /// If the data segment does not fit 24 bits: whoever builds a PDU cuts its data first.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11
    //# Any compliant sender MUST set all bits not defined and all reserved fields to 0, unless
    //# specified otherwise.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.2.1.6
    //# The DataSegmentLength MUST be 0 whenever the PDU has no data segment.
    pub(super) fn new(opcode: Opcode, data_segment_length: u32) -> Self {
        assert!(data_segment_length <= DATA_SEGMENT_LENGTH_LIMIT, "data segment over 24 bits");
        let mut bhs = [0; BHS_LEN];
        bhs[0] = opcode.0;
        bhs[4..8].copy_from_slice(&data_segment_length.to_be_bytes());
        Self { bhs, ahs: Bytes::new() }
    }

    /// Attaches AHSs; `ahs` is padded to words and at most 255 words long.
    pub(super) fn set_ahs(&mut self, ahs: Bytes) {
        debug_assert!(ahs.len().is_multiple_of(4) && ahs.len() <= 1020);
        self.bhs[4] = (ahs.len() / 4) as u8;
        self.ahs = ahs;
    }

    pub(super) fn set_immediate(&mut self, immediate: bool) {
        if immediate {
            self.bhs[0] |= 0x40;
        }
    }

    pub(super) fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        std::array::from_fn(|i| self.bhs[at + i])
    }

    pub(super) fn be16(&self, at: usize) -> u16 {
        u16::from_be_bytes(self.array(at))
    }

    pub(super) fn be32(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.array(at))
    }

    pub(super) fn put<const N: usize>(&mut self, at: usize, bytes: [u8; N]) {
        self.bhs[at..at + N].copy_from_slice(&bytes);
    }

    pub(super) fn put32(&mut self, at: usize, value: u32) {
        self.put(at, value.to_be_bytes());
    }

    /// LUN, ITT: the fields that most PDUs share.
    pub(super) fn put_names(&mut self, lun: Lun, itt: Itt) {
        self.put(8, lun.0.to_be_bytes());
        self.put32(16, itt.0);
    }

    /// StatSN, ExpCmdSN and MaxCmdSN, at the same place in every PDU of a target.
    pub(super) fn put_window(&mut self, stat_sn: StatSn, exp_cmd_sn: CmdSn, max_cmd_sn: CmdSn) {
        self.put32(24, stat_sn.0);
        self.put32(28, exp_cmd_sn.0);
        self.put32(32, max_cmd_sn.0);
    }

    /// CmdSN and ExpStatSN, at the same place in every request of an initiator.
    pub(super) fn put_request_numbers(&mut self, cmd_sn: CmdSn, exp_stat_sn: StatSn) {
        self.put32(24, cmd_sn.0);
        self.put32(28, exp_stat_sn.0);
    }

    /// CmdSN of a request.
    pub(super) fn cmd_sn(&self) -> CmdSn {
        CmdSn(self.be32(24))
    }

    /// ExpStatSN of a request.
    pub(super) fn exp_stat_sn(&self) -> StatSn {
        StatSn(self.be32(28))
    }

    /// StatSN of a PDU from the target.
    pub(super) fn stat_sn(&self) -> StatSn {
        StatSn(self.be32(24))
    }

    /// ExpCmdSN of a PDU from the target.
    pub(super) fn exp_cmd_sn(&self) -> CmdSn {
        CmdSn(self.be32(28))
    }

    /// MaxCmdSN of a PDU from the target.
    pub(super) fn max_cmd_sn(&self) -> CmdSn {
        CmdSn(self.be32(32))
    }
}

impl std::fmt::Debug for Header {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Header {{ {}, itt {}, AHS {} B, data {} B }}",
            self.opcode(),
            self.itt(),
            self.total_ahs_length(),
            self.data_segment_length()
        )
    }
}
