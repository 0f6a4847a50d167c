//! [`Memory`]: what a command may need of it, told before it is executed, so that a transport can
//! charge whoever sent it. An upper bound from the CDB and the data that came; the unit is not
//! asked.
//!
//! Left out is what is small and bounded by the number of commands: CDBs, parameter lists of a few
//! pages, one block of a write that ends within it.

use crate::{Command, extended_copy};

/// Most that one READ brings, whatever the initiator expects: MAXIMUM TRANSFER LENGTH.
const READ_BYTES_MAX: u64 = crate::limits::TRANSFER_BYTES_MAX as u64;

/// Most that any other command returns: the registrations of a unit, as READ FULL STATUS tells
/// them.
const PARAMETER_BYTES_MAX: u64 = 512 << 10;

/// Bytes that VERIFY, WRITE SAME and EXTENDED COPY work on at a time.
pub(crate) const STEP_BYTES: u64 = 1 << 20;

/// Memory that a command may need, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Memory {
    /// For the data that it returns.
    pub data_in: u64,
    /// To work with, until it ends, beside that and beside the data that came with it.
    pub working: u64,
}

impl Command {
    /// What executing this command may need, beside the data that came with it.
    pub fn memory(&self) -> Memory {
        let returned_max = match self.cdb.opcode() {
            0x08 | 0x28 | 0xa8 | 0x88 => READ_BYTES_MAX,
            _ => PARAMETER_BYTES_MAX,
        };
        Memory { data_in: (self.data_in_max as u64).min(returned_max), working: self.working() }
    }

    fn working(&self) -> u64 {
        let sent = self.data_out.len() as u64;
        match self.cdb.opcode() {
            // WRITE SAME: the one block sent, as often as a step needs it. Zeroes need none.
            0x41 | 0x93 if self.data_out.iter().all(|byte| *byte == 0) => 0,
            0x41 => STEP_BYTES.min(sent * u64::from(self.cdb.u16(7))),
            0x93 => STEP_BYTES.min(sent * u64::from(self.cdb.u32(10))),
            // COMPARE AND WRITE reads the half that it compares, ORWRITE what it changes.
            0x89 => sent / 2,
            0x8b => sent,
            // WRITE AND VERIFY reads back what it wrote, VERIFY what it is told to.
            0x2e | 0xae | 0x8e => STEP_BYTES.min(sent),
            0x2f | 0xaf | 0x8f => STEP_BYTES,
            // EXTENDED COPY(LID1).
            0x83 => extended_copy::working(&self.data_out),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cdb;

    fn memory(cdb: &[u8], sent: usize, data_in_max: usize) -> (u64, u64) {
        let command = Command::new(0, Cdb::new(cdb)).with_data_out(vec![1; sent].into());
        let Memory { data_in, working } = command.with_data_in_max(data_in_max).memory();
        (data_in, working)
    }

    #[test]
    fn what_commands_need() {
        let mut cdb = [0; 16];
        let mut of = |opcode, count: u32, sent, data_in_max| {
            cdb[0] = opcode;
            cdb[10..14].copy_from_slice(&count.to_be_bytes());
            memory(&cdb, sent, data_in_max)
        };
        assert_eq!(of(0x88, 8, 0, 4096), (4096, 0), "READ(16)");
        assert_eq!(of(0x88, 8, 0, 1 << 30), (16 << 20, 0));
        assert_eq!(of(0x9e, 0, 0, 1 << 30), (512 << 10, 0), "GET LBA STATUS");
        assert_eq!(of(0x8a, 8, 4096, 0), (0, 0), "WRITE(16)");
        assert_eq!(of(0x93, 8, 512, 0), (0, 4096), "WRITE SAME(16)");
        assert_eq!(of(0x93, 32_768, 512, 0), (0, 1 << 20));
        assert_eq!(of(0x89, 0, 1024, 0), (0, 512), "COMPARE AND WRITE");
        assert_eq!(of(0x8b, 8, 4096, 0), (0, 4096), "ORWRITE");
        assert_eq!(of(0x8f, 8, 0, 0), (0, 1 << 20), "VERIFY(16)");
        assert_eq!(of(0x8e, 8, 4096, 0), (0, 4096), "WRITE AND VERIFY(16)");
        cdb[0] = 0x93;
        let zeroes = Command::new(0, Cdb::new(&cdb)).with_data_out(vec![0; 512].into());
        assert_eq!(zeroes.memory().working, 0);
    }
}
