//! COMPARE AND WRITE (SBC-3 §5.2): the lock of clustered file systems.
//!
//! The blocks are read, compared and written under an exclusive range, so that no other write
//! comes in between, whichever nexus sent it. A device that compares by itself is asked to, for one
//! block: then none comes in between that reaches the data by another way, either.

use block::{BlockError, Buf, Compared};

use crate::context::Blocks;
use crate::context::UnitContext;
use crate::read_write::{Fua, failed, fua};
use crate::sense::Sense;
use crate::unit::LogicalUnit;
use crate::verify::{first_difference, too_little_data};
use crate::{Command, Execution, Response};

/// COMPARE AND WRITE. Data-out is the expected content, then the new one.
pub(crate) fn compare_and_write(context: &UnitContext<'_>, command: Command) -> Execution {
    let count = command.cdb.byte(13);
    let blocks = match context.blocks(command.cdb.u64(2), u64::from(count)) {
        Ok(blocks) => blocks,
        Err(sense) => return sense.into(),
    };
    if count > context.unit.compare_blocks(context.info) {
        return Sense::invalid_cdb(13, 7).into();
    }
    if count == 0 {
        // No blocks, but data for some: more of them than the field can say.
        let agrees = command.data_out.is_empty();
        return if agrees { Response::good().into() } else { Sense::invalid_cdb(13, 7).into() };
    }
    let wanted = 2 * blocks.len;
    // Neither half can be guessed, so the length must be right.
    if command.data_out.len() as u64 != wanted {
        return too_little_data(wanted);
    }
    let fua = Fua::new(fua(&command.cdb), context);
    let unit = context.unit.clone();
    let data = command.data_out;
    Execution::later(async move {
        swap(&unit, blocks, data, fua).await.unwrap_or_else(|response| response).wanting(wanted)
    })
}

async fn swap(
    unit: &LogicalUnit,
    blocks: Blocks,
    data: bytes::Bytes,
    fua: Fua,
) -> Result<Response, Response> {
    let range = blocks.offset..blocks.offset + blocks.len;
    let guard = match unit.ranges.exclusive(range) {
        Ok(guard) => guard,
        Err(waiting) => waiting.await,
    };
    let device = &unit.device;
    let len = blocks.len as usize;
    let info = device.info();
    // More than a block is compared here, where all who reach the data come by this target.
    if info.can_compare_and_write && len == info.block_size as usize {
        let (expected, new) = (data.slice(..len), data.slice(len..));
        let compared = device.compare_and_write(blocks.offset, expected, new).await;
        drop(guard);
        return match compared {
            Ok(Compared::Written) => Ok(Response::good()),
            Ok(Compared::Differs { at }) => Err(Response::check_condition(Sense::miscompare(at))),
            // This range is none that the storage can do in one step; others are.
            Err(BlockError::Unsupported(_)) => {
                Err(Response::check_condition(Sense::invalid_cdb(2, 7)))
            }
            Err(error) => Err(failed(&error, true, blocks.lba)),
        };
    }
    let found = device.read(blocks.offset, Buf::new(len)).await;
    let found = found.map_err(|error| failed(&error, false, blocks.lba))?;
    if let Some(at) = first_difference(&found, &data[..len]) {
        return Err(Response::check_condition(Sense::miscompare(at as u64)));
    }
    let written = device.write(blocks.offset, data.slice(len..), fua.flags).await;
    drop(guard);
    written.map_err(|error| failed(&error, true, blocks.lba))?;
    fua.finish(unit).await.map_err(|error| failed(&error, true, blocks.lba))?;
    Ok(Response::good())
}
