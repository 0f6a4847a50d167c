//! READ and WRITE of all lengths, SYNCHRONIZE CACHE and PRE-FETCH (SBC-3 §5.8 to §5.39).
//!
//! This is the hot path: a device that answers at once is served without a box, a lock held across
//! I/O or a copy; a read allocates its data buffer and nothing else.
//!
//! FUA on a write: the data is stable before GOOD, by the device's own means or by a flush. FUA on
//! a read: what a volatile cache holds for the blocks must be stable before it is returned, so such
//! a device is flushed first. DPO is advice and ignored.
//!
//! When the initiator sends less than the CDB asks for, what came is written and the residual
//! overflow tells the rest (RFC 7143 §11.4.5.1); a last block of which a part came keeps its tail.

use std::sync::Arc;

use block::range_lock::RangeGuard;
use block::{BlockError, Buf, WriteFlags};
use bytes::Bytes;

use crate::cdb::Cdb;
use crate::context::{Blocks, UnitContext};
use crate::sense::Sense;
use crate::unit::LogicalUnit;
use crate::{Command, Execution, Response};

/// FUA; the 6-byte forms have none.
pub(crate) fn fua(cdb: &Cdb) -> bool {
    cdb.opcode() >> 5 != 0 && cdb.bit(1, 3)
}

/// READ(6), READ(10), READ(12), READ(16).
pub(crate) fn read(context: &UnitContext<'_>, command: Command) -> Execution {
    let blocks = match context.transferred(&command.cdb) {
        Ok(blocks) => blocks,
        Err(sense) => return sense.into(),
    };
    // Whole blocks, and no more of them than the initiator has room for.
    let room = blocks.len.min(command.data_in_max as u64);
    let len = room.next_multiple_of(context.block_size());
    if len == 0 {
        return Response::good().wanting(blocks.len).into();
    }
    let device = &context.unit.device;
    if fua(&command.cdb) && context.info.volatile_cache && context.info.can_flush {
        let flushed = device.flush();
        let read = read_whole(context, blocks, len, room);
        return Execution::later(async move {
            match flushed.await {
                Ok(()) => read.await,
                Err(error) => failed(&error, true, blocks.lba),
            }
        });
    }
    if context.unit.atomic_blocks > 0 {
        return read_whole(context, blocks, len, room);
    }
    match device.read(blocks.offset, Buf::new(len as usize)).try_ready() {
        Ok(result) => read_response(result, room, blocks).into(),
        Err(io) => Execution::later(async move { read_response(io.await, room, blocks) }),
    }
}

/// READ on a unit with WRITE ATOMIC: never sees half of one.
fn read_whole(context: &UnitContext<'_>, blocks: Blocks, len: u64, room: u64) -> Execution {
    let unit = context.unit.clone();
    Execution::later(async move {
        let guard = match unit.ranges.shared(blocks.offset..blocks.offset + len) {
            Ok(guard) => guard,
            Err(waiting) => waiting.await,
        };
        let result = unit.device.read(blocks.offset, Buf::new(len as usize)).await;
        drop(guard);
        read_response(result, room, blocks)
    })
}

fn read_response(result: Result<Buf, BlockError>, room: u64, blocks: Blocks) -> Response {
    match result {
        Ok(mut buf) => {
            buf.truncate(room as usize);
            Response { data_in: buf.freeze(), ..Response::good() }.wanting(blocks.len)
        }
        Err(error) => failed(&error, false, blocks.lba),
    }
}

pub(crate) fn failed(error: &BlockError, writing: bool, lba: u64) -> Response {
    tracing::debug!(%error, writing, lba, "device error");
    Response::check_condition(Sense::from_block(error, writing, lba))
}

/// WRITE(6), WRITE(10), WRITE(12), WRITE(16).
pub(crate) fn write(context: &UnitContext<'_>, command: Command) -> Execution {
    let blocks = match context.transferred(&command.cdb) {
        Ok(blocks) => blocks,
        Err(sense) => return sense.into(),
    };
    let mut data = command.data_out;
    data.truncate(blocks.len.min(data.len() as u64) as usize);
    if data.is_empty() {
        return Response::good().wanting(blocks.len).into();
    }
    let unit = context.unit;
    let write = WriteRun { blocks, data, fua: Fua::new(fua(&command.cdb), context) };
    if !(write.data.len() as u64).is_multiple_of(context.block_size()) {
        return Execution::later(write_partial(unit.clone(), write, context.block_size()));
    }
    let range = blocks.offset..blocks.offset + write.data.len() as u64;
    let guard = match unit.ranges.shared(range) {
        Ok(guard) => guard,
        Err(waiting) => {
            let unit = unit.clone();
            return Execution::later(async move {
                let guard = waiting.await;
                write_guarded(&unit, write, guard).await
            });
        }
    };
    if write.fua.flush_after {
        let unit = unit.clone();
        return Execution::later(async move { write_guarded(&unit, write, guard).await });
    }
    let fua = write.fua;
    match unit.device.write(blocks.offset, write.data, fua.flags).try_ready() {
        Ok(result) if result.is_err() || !fua.is_to_flush(unit) => {
            write_response(result, blocks).into()
        }
        Ok(written) => finish_later(unit.clone(), async move { written }, fua, guard, blocks),
        Err(io) => finish_later(unit.clone(), io, fua, guard, blocks),
    }
}

fn finish_later(
    unit: Arc<LogicalUnit>,
    writing: impl Future<Output = Result<(), BlockError>> + Send + 'static,
    fua: Fua,
    guard: RangeGuard,
    blocks: Blocks,
) -> Execution {
    Execution::later(async move {
        let written = writing.await;
        write_response(finish_write(&unit, written, fua, guard).await, blocks)
    })
}

/// How a write becomes stable.
#[derive(Clone, Copy)]
pub(crate) struct Fua {
    pub(crate) flags: WriteFlags,
    pub(crate) flush_after: bool,
    /// Nobody wants more than the device's volatile cache, as long as WCE stays on.
    cached: bool,
}

impl Fua {
    /// As the command wants it, or as WCE of the Caching mode page does.
    pub(crate) fn new(wanted: bool, context: &UnitContext<'_>) -> Self {
        let info = context.info;
        let wanted = wanted || info.volatile_cache && context.unit.mode.write_through();
        let by_device = wanted && info.can_fua;
        let flags = if by_device { WriteFlags::FUA } else { WriteFlags::NONE };
        let flush_after = wanted && !by_device && info.can_flush;
        Self { flags, flush_after, cached: !wanted && info.volatile_cache && info.can_flush }
    }

    /// What was written has to be flushed before GOOD. Asked when it has been written: MODE SELECT
    /// may have turned WCE off in the meantime, and its own flush may have come too early for this
    /// write, whose initiator takes GOOD for stable once it knows.
    pub(crate) fn is_to_flush(self, unit: &LogicalUnit) -> bool {
        self.flush_after || self.cached && unit.mode.write_through()
    }

    /// Second half of a write.
    pub(crate) async fn finish(self, unit: &LogicalUnit) -> Result<(), BlockError> {
        if self.is_to_flush(unit) { unit.device.flush().await } else { Ok(()) }
    }
}

/// Data on its way to the device.
struct WriteRun {
    blocks: Blocks,
    data: Bytes,
    fua: Fua,
}

async fn write_guarded(unit: &LogicalUnit, write: WriteRun, guard: RangeGuard) -> Response {
    let written = unit.device.write(write.blocks.offset, write.data, write.fua.flags).await;
    let result = finish_write(unit, written, write.fua, guard).await;
    write_response(result, write.blocks)
}

/// Lets others have the range, then makes the write stable.
async fn finish_write(
    unit: &LogicalUnit,
    written: Result<(), BlockError>,
    fua: Fua,
    guard: RangeGuard,
) -> Result<(), BlockError> {
    drop(guard);
    written?;
    fua.finish(unit).await
}

/// Completes the last block from the medium. Exclusive, so that no write gets lost in between.
async fn write_partial(unit: Arc<LogicalUnit>, write: WriteRun, block_size: u64) -> Response {
    let offset = write.blocks.offset;
    let whole = (write.data.len() as u64).next_multiple_of(block_size);
    let guard = match unit.ranges.exclusive(offset..offset + whole) {
        Ok(guard) => guard,
        Err(waiting) => waiting.await,
    };
    let last = (whole - block_size) as usize;
    let mut tail = match unit.device.read(offset + last as u64, Buf::new(block_size as usize)).await
    {
        Ok(tail) => tail,
        Err(error) => return failed(&error, false, write.blocks.lba),
    };
    tail[..write.data.len() - last].copy_from_slice(&write.data[last..]);
    // Whole blocks as they came, then the last one: no second copy of a long write.
    let front = write.data.slice(..last);
    if !front.is_empty()
        && let Err(error) = unit.device.write(offset, front, write.fua.flags).await
    {
        return failed(&error, true, write.blocks.lba).wanting(write.blocks.len);
    }
    let tail_write = unit.device.write(offset + last as u64, tail.freeze(), write.fua.flags);
    let result = finish_write(&unit, tail_write.await, write.fua, guard).await;
    write_response(result, write.blocks)
}

fn write_response(result: Result<(), BlockError>, blocks: Blocks) -> Response {
    match result {
        Ok(()) => Response::good(),
        Err(error) => failed(&error, true, blocks.lba),
    }
    .wanting(blocks.len)
}

/// SYNCHRONIZE CACHE(10), SYNCHRONIZE CACHE(16). The whole cache, whatever the range (allowed by
/// SBC-3 §5.26), and with IMMED, too, the status tells the outcome: nobody wants less.
pub(crate) fn synchronize_cache(context: &UnitContext<'_>, command: Command) -> Execution {
    match context.addressed(&command.cdb) {
        Ok(blocks) => flush(context, blocks.lba),
        Err(sense) => sense.into(),
    }
}

pub(crate) fn flush(context: &UnitContext<'_>, lba: u64) -> Execution {
    if !context.info.can_flush {
        return Response::good().into();
    }
    let respond = move |result: Result<(), BlockError>| match result {
        Ok(()) => Response::good(),
        Err(error) => failed(&error, true, lba),
    };
    match context.unit.device.flush().try_ready() {
        Ok(result) => respond(result).into(),
        Err(io) => Execution::later(async move { respond(io.await) }),
    }
}

/// PRE-FETCH(10), PRE-FETCH(16): advice that the devices here have no use for. GOOD, not CONDITION
/// MET, as nothing is promised about a cache (SBC-3 §5.8).
pub(crate) fn pre_fetch(context: &UnitContext<'_>, command: Command) -> Execution {
    context.addressed(&command.cdb).map_or_else(Execution::from, |_| Response::good().into())
}
