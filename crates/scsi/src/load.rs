//! Which commands are work for what is behind a unit, for a transport that limits how much of it an
//! initiator may ask for. All others tell about the unit, or manage it.

use crate::Cdb;
use crate::opcodes::{self, EXTENDED_COPY};

/// Does a command read the medium, change it, or make earlier changes stable? One that this device
/// does not have does nothing.
pub fn uses_medium(cdb: &Cdb) -> bool {
    opcodes::find(cdb).is_ok_and(|row| row.uses_medium()) || cdb.opcode() == EXTENDED_COPY
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uses(opcode: u8, second: u8) -> bool {
        uses_medium(&Cdb::new(&[opcode, second, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]))
    }

    #[test]
    fn reads_writes_flushes_and_copies_are_work() {
        // READ, WRITE, SYNCHRONIZE CACHE, VERIFY, WRITE SAME, UNMAP, COMPARE AND WRITE.
        for opcode in [0x08, 0x28, 0x88, 0x0a, 0x2a, 0x8a, 0x35, 0x91, 0x2f, 0x93, 0x42, 0x89] {
            assert!(uses(opcode, 0), "{opcode:#04x}");
        }
        assert!(uses(EXTENDED_COPY, 0));
    }

    #[test]
    fn what_tells_about_a_unit_is_none() {
        // TEST UNIT READY, REQUEST SENSE, INQUIRY, MODE SENSE, READ CAPACITY, REPORT LUNS,
        // PERSISTENT RESERVE IN and OUT, and a vendor's command that is not there.
        for opcode in [0x00, 0x03, 0x12, 0x1a, 0x5a, 0x25, 0xa0, 0x5e, 0x5f, 0xc0] {
            assert!(!uses(opcode, 0), "{opcode:#04x}");
        }
        assert!(!uses(0x9e, 0x10), "READ CAPACITY(16)");
    }
}
