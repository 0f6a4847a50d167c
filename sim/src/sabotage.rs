//! Deliberate mistakes, to see that the checkers see them.

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
}

impl Sabotage {
    /// All kinds.
    pub const ALL: [Self; 11] = [
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
    ];

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
