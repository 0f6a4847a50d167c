//! Deliberate mistakes, to see that the checkers see them.

use iscsi_proto::pdu::{Header, Opcode};

/// What is done wrong, on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Sabotage {
    /// An acknowledged write takes effect once more, later.
    StaleExecution,
    /// The same, behind everybody's back: only a read can tell.
    StaleData,
    /// A command is never completed.
    LoseCommand,
    /// A command is executed twice.
    DuplicateExecution,
    /// A command is executed after its successor.
    ReorderExecution,
    /// A status of the target skips a StatSN.
    StatSn,
    /// The target takes back a part of the command window.
    MaxCmdSn,
    /// A Data-In or R2T PDU skips a number.
    DataSn,
    /// The initiator numbers a command beyond the window.
    CmdSn,
    /// Padding is not zero.
    Padding,
    /// A status names a task that does not exist.
    Task,
    /// The target believes data whose digest is wrong.
    CorruptedData,
    /// The initiator acknowledges a status that it has not got.
    EarlyAcknowledgement,
    /// The initiator asks for more than was sent.
    SnackBeyond,
    /// A recovery R2T asks for the wrong bytes.
    RecoveryR2tOffset,
    /// A status that is sent again is not what it was.
    StatusChanged,
    /// A read that goes on over another connection goes on in the wrong place.
    ReassignedOffset,
    /// A command that limits hold back goes on at once.
    NotHeld,
}

/// What a PDU is about, where that matters to a mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Occasion {
    Ordinary,
    DataSnack,
    RecoveryR2t,
    StatusAgain,
    /// The first Data-In after a reassignment.
    Resumed,
}

impl Sabotage {
    /// All kinds.
    pub const ALL: [Self; 18] = [
        Self::StaleExecution,
        Self::StaleData,
        Self::LoseCommand,
        Self::DuplicateExecution,
        Self::ReorderExecution,
        Self::StatSn,
        Self::MaxCmdSn,
        Self::DataSn,
        Self::CmdSn,
        Self::Padding,
        Self::Task,
        Self::CorruptedData,
        Self::EarlyAcknowledgement,
        Self::SnackBeyond,
        Self::RecoveryR2tOffset,
        Self::StatusChanged,
        Self::ReassignedOffset,
        Self::NotHeld,
    ];

    /// Needs a session that recovers, and something to recover from.
    pub const fn is_about_recovery(self) -> bool {
        matches!(
            self,
            Self::CorruptedData
                | Self::EarlyAcknowledgement
                | Self::SnackBeyond
                | Self::RecoveryR2tOffset
                | Self::StatusChanged
                | Self::ReassignedOffset
        )
    }

    /// Changes a header before its digest is computed.
    pub(crate) fn distort(self, header: &mut Header, occasion: Occasion) {
        let opcode = header.opcode();
        let bhs = &mut header.bhs;
        let mut bump = |at: usize, by: u32| {
            let old = u32::from_be_bytes(std::array::from_fn(|i| bhs[at + i]));
            bhs[at..at + 4].copy_from_slice(&old.wrapping_add(by).to_be_bytes());
        };
        match (self, occasion) {
            (Self::EarlyAcknowledgement, _) if opcode == Opcode::DATA_OUT => bump(28, 3),
            (Self::SnackBeyond, Occasion::DataSnack) => bump(44, 1000),
            (Self::RecoveryR2tOffset, Occasion::RecoveryR2t) => bump(40, 4),
            (Self::StatusChanged, Occasion::StatusAgain) => bump(44, 1),
            (Self::ReassignedOffset, Occasion::Resumed) => bump(40, 4),
            _ => {}
        }
    }

    /// Damages a PDU on its way out, if it is one of those. True if it did.
    pub(crate) fn damage(self, pdu: &mut [u8]) -> bool {
        let opcode = pdu[0] & 0x3f;
        let bump = |pdu: &mut [u8], at: usize, by: u32| {
            let old = u32::from_be_bytes(std::array::from_fn(|i| pdu[at + i]));
            pdu[at..at + 4].copy_from_slice(&old.wrapping_add(by).to_be_bytes());
        };
        let data_len = u32::from_be_bytes([0, pdu[5], pdu[6], pdu[7]]);
        match self {
            Self::StatSn if opcode == 0x21 => bump(pdu, 24, 1),
            Self::MaxCmdSn if opcode == 0x21 => bump(pdu, 32, u32::MAX - 500),
            Self::DataSn if opcode == 0x25 || opcode == 0x31 => bump(pdu, 36, 1),
            Self::CmdSn if opcode == 0x01 => bump(pdu, 24, 1),
            Self::Task if opcode == 0x21 => bump(pdu, 16, 0x7000_0000),
            Self::Padding if !data_len.is_multiple_of(4) => {
                if let Some(last) = pdu.last_mut() {
                    *last = 1;
                }
            }
            _ => return false,
        }
        true
    }
}
