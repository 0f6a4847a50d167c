//! ORWRITE(16) (SBC-3 §5.7): sets bits on the medium, atomically against other changes.

use block::{BlockError, Buf};
use bytes::Bytes;

use crate::context::{Blocks, UnitContext};
use crate::read_write::{Fua, failed, fua};
use crate::unit::LogicalUnit;
use crate::verify::too_little_data;
use crate::{Command, Execution, Response};

/// ORWRITE(16).
pub(crate) fn or_write(context: &UnitContext<'_>, command: Command) -> Execution {
    let blocks = match context.transferred(&command.cdb) {
        Ok(blocks) => blocks,
        Err(sense) => return sense.into(),
    };
    if blocks.count == 0 {
        return Response::good().into();
    }
    if (command.data_out.len() as u64) < blocks.len {
        return too_little_data(blocks.len);
    }
    let fua = Fua::new(fua(&command.cdb), context);
    let unit = context.unit.clone();
    let data = command.data_out.slice(..blocks.len as usize);
    Execution::later(async move {
        match combine(&unit, blocks, data, fua).await {
            Ok(()) => Response::good(),
            Err((error, writing)) => failed(&error, writing, blocks.lba),
        }
        .wanting(blocks.len)
    })
}

/// On failure, whether it was the writing half.
async fn combine(
    unit: &LogicalUnit,
    blocks: Blocks,
    data: Bytes,
    fua: Fua,
) -> Result<(), (BlockError, bool)> {
    let guard = match unit.ranges.exclusive(blocks.offset..blocks.offset + blocks.len) {
        Ok(guard) => guard,
        Err(waiting) => waiting.await,
    };
    let device = &unit.device;
    let found = device.read(blocks.offset, Buf::new(data.len())).await;
    let mut combined = found.map_err(|error| (error, false))?;
    combined.iter_mut().zip(&data).for_each(|(found, new)| *found |= new);
    let written = device.write(blocks.offset, combined.freeze(), fua.flags).await;
    drop(guard);
    written.map_err(|error| (error, true))?;
    fua.finish(unit).await.map_err(|error| (error, true))
}
