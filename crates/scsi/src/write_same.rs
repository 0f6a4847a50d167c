//! WRITE SAME(10) and WRITE SAME(16) (SBC-3 §5.44, §5.45): one block many times, or zeroes.
//!
//! A block of zeroes becomes the device's own way of zeroing, which may release storage when UNMAP
//! is set. UNMAP with other data writes it: SBC-3 §4.7.3.4 lets a block be unmapped only when it
//! would read back as sent.

use block::range_lock::held;
use block::{BlockError, Buf, WriteFlags, ZeroFlags};
use bytes::Bytes;

use crate::abort::{self, Task};
use crate::context::{Blocks, UnitContext};
use crate::memory::STEP_BYTES;
use crate::read_write::{Fua, failed};
use crate::sense::Sense;
use crate::unit::LogicalUnit;
use crate::verify::too_little_data;
use crate::{Command, Execution, Response};

/// Zeroes written at a time, which a device may have cheaper than by writing them.
const ZERO_STEP_BYTES: u64 = 4 << 20;

/// WRITE SAME(10).
pub(crate) fn write_same_10(context: &UnitContext<'_>, command: Command) -> Execution {
    let (lba, count) = (u64::from(command.cdb.u32(2)), u64::from(command.cdb.u16(7)));
    write_same(context, command, lba, count, 7, false)
}

/// WRITE SAME(16).
pub(crate) fn write_same_16(context: &UnitContext<'_>, command: Command) -> Execution {
    let (lba, count) = (command.cdb.u64(2), u64::from(command.cdb.u32(10)));
    let no_data = command.cdb.bit(1, 0); // NDOB
    write_same(context, command, lba, count, 10, no_data)
}

fn write_same(
    context: &UnitContext<'_>,
    command: Command,
    lba: u64,
    count: u64,
    count_byte: u16,
    no_data: bool,
) -> Execution {
    let unmap = command.cdb.bit(1, 3);
    if unmap && !context.info.can_trim {
        return Sense::invalid_cdb(1, 3).into();
    }
    let blocks = match context.blocks(lba, count) {
        Ok(blocks) => blocks,
        Err(sense) => return sense.into(),
    };
    // 0 would mean all blocks to the end, hardly ever on purpose: WSNZ of VPD page B0h is 1.
    if blocks.count == 0 || blocks.count > context.unit.limits.write_same_blocks {
        return Sense::invalid_cdb(count_byte, 7).into();
    }
    let wanted = if no_data { 0 } else { context.block_size() };
    if !no_data && command.data_out.len() as u64 != wanted {
        return too_little_data(wanted);
    }
    let zero = no_data || command.data_out.iter().all(|byte| *byte == 0);
    let fua = Fua::new(false, context);
    let task = context.task(&command);
    let unit = context.unit.clone();
    let data = command.data_out;
    Execution::later(async move {
        let range = blocks.offset..blocks.offset + blocks.len;
        let Some(guard) = task.unless_aborted(held(unit.ranges.shared(range))).await else {
            return abort::aborted();
        };
        let filling = match zero {
            true => Filling::Zeroes(ZeroFlags::new(fua.flags.fua, unmap)),
            false => Filling::Data(repeated(&data, blocks.len), fua.flags),
        };
        let result = fill(&unit, blocks, &filling, &task).await;
        drop(guard);
        let result = match result {
            Ok(()) if task.is_aborted() => return abort::aborted(),
            Ok(()) => fua.finish(&unit).await,
            Err(error) => Err(error),
        };
        match result {
            Ok(()) => Response::good(),
            Err(error) => failed(&error, true, blocks.lba),
        }
        .wanting(wanted)
    })
}

/// What the blocks are filled with.
enum Filling {
    Zeroes(ZeroFlags),
    /// The block as often as a step needs it.
    Data(Bytes, WriteFlags),
}

fn repeated(block: &[u8], len: u64) -> Bytes {
    let mut buf = Buf::new(len.min(STEP_BYTES) as usize);
    buf.chunks_mut(block.len()).for_each(|part| part.copy_from_slice(block));
    buf.freeze()
}

/// Step by step ([`STEP_BYTES`] or [`ZERO_STEP_BYTES`]), to the end or to the next step after an
/// abort.
async fn fill(
    unit: &LogicalUnit,
    blocks: Blocks,
    filling: &Filling,
    task: &Task,
) -> Result<(), BlockError> {
    let mut done = 0;
    while done < blocks.len && !task.is_aborted() {
        let (offset, rest) = (blocks.offset + done, blocks.len - done);
        done += match filling {
            Filling::Zeroes(flags) => {
                let len = rest.min(ZERO_STEP_BYTES);
                unit.device.zero(offset, len, *flags).await?;
                len
            }
            Filling::Data(data, flags) => {
                let len = rest.min(STEP_BYTES);
                unit.device.write(offset, data.slice(..len as usize), *flags).await?;
                len
            }
        };
    }
    Ok(())
}
