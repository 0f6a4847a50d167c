//! WRITE ATOMIC(16) (SBC-4 §5.48): all of the blocks or none of them, for every reader and after
//! every failure.
//!
//! Readers are kept out by an exclusive range, which plain reads respect on units that have the
//! command at all. What a loss of power leaves behind only the storage below can promise, so there
//! is no WRITE ATOMIC unless the operator says how much that is
//! ([`LunOptions::atomic_write_bytes`](crate::LunOptions)).

use crate::context::UnitContext;
use crate::read_write::{Fua, failed, fua};
use crate::sense::Sense;
use crate::verify::too_little_data;
use crate::{Command, Execution, Response};

/// WRITE ATOMIC(16).
pub(crate) fn write_atomic(context: &UnitContext<'_>, command: Command) -> Execution {
    let (boundary, count) = (command.cdb.u16(10), command.cdb.u16(12));
    let blocks = match context.blocks(command.cdb.u64(2), u64::from(count)) {
        Ok(blocks) => blocks,
        Err(sense) => return sense.into(),
    };
    if boundary != 0 {
        return Sense::invalid_cdb(10, 7).into(); // MAXIMUM ATOMIC BOUNDARY SIZE is 0
    }
    if u32::from(count) > context.unit.atomic_blocks {
        return Sense::invalid_cdb(12, 7).into();
    }
    if count == 0 {
        return Response::good().into();
    }
    if (command.data_out.len() as u64) < blocks.len {
        return too_little_data(blocks.len);
    }
    let data = command.data_out.slice(..blocks.len as usize);
    let fua = Fua::new(fua(&command.cdb), context);
    let unit = context.unit.clone();
    Execution::later(async move {
        let guard = match unit.ranges.exclusive(blocks.offset..blocks.offset + blocks.len) {
            Ok(guard) => guard,
            Err(waiting) => waiting.await,
        };
        let mut result = unit.device.write(blocks.offset, data, fua.flags).await;
        drop(guard);
        if result.is_ok() {
            result = fua.finish(&unit).await;
        }
        match result {
            Ok(()) => Response::good(),
            Err(error) => failed(&error, true, blocks.lba),
        }
        .wanting(blocks.len)
    })
}
