//! What a handler gets to see, and the checks that all of them share.

use std::sync::Arc;

use block::DeviceInfo;

use crate::Command;
use crate::abort::Task;
use crate::cdb::Cdb;
use crate::nexus::NexusState;
use crate::opcodes::Access;
use crate::sense::Sense;
use crate::unit::LogicalUnit;

/// For commands that are answered without a logical unit, too.
pub(crate) struct Context<'a> {
    pub(crate) nexus: &'a Arc<NexusState>,
    pub(crate) unit: Option<&'a Arc<LogicalUnit>>,
}

/// For commands to a logical unit.
pub(crate) struct UnitContext<'a> {
    pub(crate) nexus: &'a Arc<NexusState>,
    pub(crate) unit: &'a Arc<LogicalUnit>,
    /// The device as of the start of this command.
    pub(crate) info: &'a DeviceInfo,
}

/// A run of blocks that exists, in blocks and in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Blocks {
    pub(crate) lba: u64,
    pub(crate) count: u64,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

impl UnitContext<'_> {
    /// For a command that takes long enough to look whether it was aborted.
    pub(crate) fn task(&self, command: &Command) -> Task {
        self.nexus.abortable.task(command.tag)
    }

    /// No reservation of another nexus keeps such a command out.
    pub(crate) fn admits(&self, access: Access) -> bool {
        self.unit.reservations.admits(self.nexus.id, &self.nexus.registrant, access)
    }

    pub(crate) fn block_size(&self) -> u64 {
        u64::from(self.info.block_size)
    }

    /// Number of blocks of the unit.
    pub(crate) fn capacity(&self) -> u64 {
        self.info.size >> self.info.block_size.ilog2()
    }

    /// The run, if it lies inside the unit. An empty run may start right behind the last block.
    pub(crate) fn blocks(&self, lba: u64, count: u64) -> Result<Blocks, Sense> {
        let capacity = self.capacity();
        if lba > capacity || count > capacity - lba {
            return Err(Sense::lba_out_of_range(lba.max(capacity)));
        }
        let shift = self.info.block_size.ilog2();
        Ok(Blocks { lba, count, offset: lba << shift, len: count << shift })
    }

    /// The run that a READ, WRITE, VERIFY … names, if it lies inside the unit.
    pub(crate) fn addressed(&self, cdb: &Cdb) -> Result<Blocks, Sense> {
        let address = Address::of(cdb);
        self.blocks(address.lba, u64::from(address.count))
    }

    /// As [`addressed`](Self::addressed), for blocks that go over the wire: not more than MAXIMUM
    /// TRANSFER LENGTH (SBC-3 §6.6.4: otherwise INVALID FIELD IN CDB).
    pub(crate) fn transferred(&self, cdb: &Cdb) -> Result<Blocks, Sense> {
        let address = Address::of(cdb);
        let blocks = self.blocks(address.lba, u64::from(address.count))?;
        if address.count > self.unit.limits.transfer_blocks {
            return Err(Sense::invalid_cdb(address.count_byte, 7));
        }
        Ok(blocks)
    }
}

/// LOGICAL BLOCK ADDRESS and TRANSFER LENGTH of the 6-, 10-, 12- and 16-byte forms that READ and
/// its relatives share.
struct Address {
    lba: u64,
    count: u32,
    count_byte: u16,
}

impl Address {
    fn of(cdb: &Cdb) -> Self {
        // The top three bits of the opcode tell the length (SPC-4 §4.2.5.1).
        match cdb.opcode() >> 5 {
            0 => {
                // SBC-3 §5.10: 0 means 256 blocks in the 6-byte form only.
                let count = if cdb.byte(4) == 0 { 256 } else { u32::from(cdb.byte(4)) };
                Self { lba: u64::from(cdb.u24(1) & 0x1f_ffff), count, count_byte: 4 }
            }
            4 => Self { lba: cdb.u64(2), count: cdb.u32(10), count_byte: 10 },
            5 => Self { lba: u64::from(cdb.u32(2)), count: cdb.u32(6), count_byte: 6 },
            _ => Self { lba: u64::from(cdb.u32(2)), count: u32::from(cdb.u16(7)), count_byte: 7 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_all_lengths() {
        let cases: [(&[u8], u64, u32); 5] = [
            (&[0x08, 0xff, 0x01, 0x02, 0, 0], 0x1f_0102, 256),
            (&[0x0a, 0x00, 0x01, 0x02, 9, 0], 0x0102, 9),
            (&[0x28, 0, 1, 2, 3, 4, 0, 5, 6, 0], 0x0102_0304, 0x0506),
            (&[0xa8, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0], 0x0102_0304, 0x0506_0708),
            (
                &[0x88, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0, 0],
                0x0102_0304_0506_0708,
                0x090a_0b0c,
            ),
        ];
        for (bytes, lba, count) in cases {
            let address = Address::of(&Cdb::new(bytes));
            assert_eq!((address.lba, address.count), (lba, count), "{bytes:x?}");
        }
    }
}
