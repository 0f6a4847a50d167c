//! VERIFY and WRITE AND VERIFY of all lengths (SBC-3 §5.31 to §5.43).
//!
//! BYTCHK 00b reads the blocks to see whether they can be read; 01b compares them with data of the
//! same length; 11b compares every block with the one block sent (VERIFY only). MAXIMUM TRANSFER
//! LENGTH holds for all of them, so that no command keeps the device busy for minutes.

use std::sync::Arc;

use block::{Buf, WriteFlags};
use bytes::Bytes;

use crate::abort::{self, Task};
use crate::context::{Blocks, UnitContext};
use crate::memory::STEP_BYTES;
use crate::read_write::{Fua, failed};
use crate::sense::{AdditionalSense, Sense};
use crate::unit::LogicalUnit;
use crate::{Command, Execution, Response};

/// What the blocks are compared with.
enum Expected {
    Nothing,
    /// As many bytes as the blocks have, or the front part of them.
    Data(Bytes),
    /// Every block is this one.
    Repeated(Bytes),
}

/// VERIFY(10), VERIFY(12), VERIFY(16).
pub(crate) fn verify(context: &UnitContext<'_>, command: Command) -> Execution {
    let byte_check = command.cdb.byte(1) >> 1 & 3;
    if byte_check == 2 {
        return Sense::invalid_cdb(1, 2).into();
    }
    let blocks = match context.transferred(&command.cdb) {
        Ok(blocks) if blocks.count == 0 => return Response::good().into(),
        Ok(blocks) => blocks,
        Err(sense) => return sense.into(),
    };
    let wanted = match byte_check {
        0 => 0,
        1 => blocks.len,
        _ => context.block_size(),
    };
    if (command.data_out.len() as u64) < wanted {
        return too_little_data(wanted);
    }
    let data = command.data_out.slice(..wanted as usize);
    let expected = match byte_check {
        0 => Expected::Nothing,
        1 => Expected::Data(data),
        _ => Expected::Repeated(data),
    };
    let task = context.task(&command);
    let unit = context.unit.clone();
    Execution::later(async move { compare(&unit, blocks, expected, &task).await.wanting(wanted) })
}

/// WRITE AND VERIFY(10), (12), (16): written through to stable storage, then as VERIFY.
pub(crate) fn write_and_verify(context: &UnitContext<'_>, command: Command) -> Execution {
    let byte_check = command.cdb.byte(1) >> 1 & 3;
    if byte_check > 1 {
        return Sense::invalid_cdb(1, 2).into();
    }
    let blocks = match context.transferred(&command.cdb) {
        Ok(blocks) => blocks,
        Err(sense) => return sense.into(),
    };
    // Byte 1 bit 3 is reserved here, so the write below sees no FUA; it is part of the command.
    let stable = Fua::new(true, context);
    let mut sent = command.data_out.clone();
    sent.truncate(blocks.len.min(sent.len() as u64) as usize);
    let written = (sent.len() as u64).next_multiple_of(context.block_size());
    let task = context.task(&command);
    let write = crate::read_write::write(context, command);
    let verified = Blocks { len: written, ..blocks };
    let unit = context.unit.clone();
    Execution::later(async move {
        let response = write.await;
        if response.sense.is_some() || sent.is_empty() {
            return response;
        }
        if let Err(error) = make_stable(&unit, stable).await {
            return failed(&error, true, blocks.lba).wanting(blocks.len);
        }
        let expected = if byte_check == 1 { Expected::Data(sent) } else { Expected::Nothing };
        compare(&unit, verified, expected, &task).await.wanting(blocks.len)
    })
}

async fn make_stable(unit: &Arc<LogicalUnit>, stable: Fua) -> block::Result<()> {
    match stable.flags == WriteFlags::FUA || stable.flush_after {
        true => unit.device.flush().await,
        false => Ok(()),
    }
}

/// Reads `blocks` step by step, looking between two steps whether it is aborted; CHECK CONDITION
/// with MISCOMPARE tells the offset of the first byte that differs.
async fn compare(
    unit: &Arc<LogicalUnit>,
    blocks: Blocks,
    expected: Expected,
    task: &Task,
) -> Response {
    let mut done = 0;
    while done < blocks.len {
        if task.is_aborted() {
            return abort::aborted();
        }
        let len = (blocks.len - done).min(STEP_BYTES);
        let found = match unit.device.read(blocks.offset + done, Buf::new(len as usize)).await {
            Ok(found) => found,
            Err(error) => return failed(&error, false, blocks.lba),
        };
        let difference = match &expected {
            Expected::Nothing => None,
            Expected::Data(data) => {
                let start = (done as usize).min(data.len());
                let end = ((done + len) as usize).min(data.len());
                first_difference(&found, &data[start..end])
            }
            Expected::Repeated(block) => found
                .chunks(block.len())
                .enumerate()
                .find_map(|(i, part)| Some(i * block.len() + first_difference(part, block)?)),
        };
        if let Some(at) = difference {
            return Response::check_condition(Sense::miscompare(done + at as u64));
        }
        done += len;
    }
    Response::good()
}

/// Position of the first difference in the bytes that both have.
pub(crate) fn first_difference(found: &[u8], expected: &[u8]) -> Option<usize> {
    let len = found.len().min(expected.len());
    if found[..len] == expected[..len] {
        return None; // memcmp is many times faster than the search below
    }
    found.iter().zip(expected).position(|(found, expected)| found != expected)
}

/// The transport has brought fewer bytes than the command needs to make sense.
pub(crate) fn too_little_data(wanted: u64) -> Execution {
    let sense = Sense::illegal(AdditionalSense::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT);
    Response::check_condition(sense).wanting(wanted).into()
}
