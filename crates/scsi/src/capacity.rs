//! READ CAPACITY(10) and READ CAPACITY(16) (SBC-3 §5.15, §5.16).

use block::DeviceInfo;

use crate::context::UnitContext;
use crate::data;
use crate::unit::LogicalUnit;
use crate::{Command, Execution};

/// READ CAPACITY(10): the last block, or all ones when it needs more than 32 bits.
pub(crate) fn read_capacity_10(context: &UnitContext<'_>, command: Command) -> Execution {
    let last = u32::try_from(context.capacity().saturating_sub(1)).unwrap_or(u32::MAX);
    let mut out = Vec::with_capacity(8);
    out.extend(last.to_be_bytes());
    out.extend(context.info.block_size.to_be_bytes());
    data::respond(&command, out, 8).into()
}

/// READ CAPACITY(16).
pub(crate) fn read_capacity_16(context: &UnitContext<'_>, command: Command) -> Execution {
    let info = context.info;
    let mut out = vec![0; 32];
    out[..8].copy_from_slice(&context.capacity().saturating_sub(1).to_be_bytes());
    out[8..12].copy_from_slice(&info.block_size.to_be_bytes());
    out[13] = physical_exponent(context.unit, info);
    out[14] = u8::from(info.can_trim) << 7 | u8::from(info.can_trim && info.trim_zeroes) << 6;
    data::respond(&command, out, command.cdb.u32(10)).into()
}

/// LOGICAL BLOCKS PER PHYSICAL BLOCK EXPONENT: a field of four bits.
pub(crate) fn physical_exponent(unit: &LogicalUnit, info: &DeviceInfo) -> u8 {
    let physical = unit.physical_block_size.unwrap_or(info.preferred_block_size);
    let ratio = (physical / info.block_size.max(1)).max(1);
    (ratio.ilog2() as u8).min(15)
}
