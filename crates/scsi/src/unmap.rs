//! UNMAP and GET LBA STATUS (SBC-3 §5.30, §5.6): thin provisioning.

use block::range_lock::held;
use block::{BlockError, Extent};

use crate::abort::{self, Task};
use crate::context::{Blocks, UnitContext};
use crate::data;
use crate::limits::LBA_STATUS_DESCRIPTORS_MAX;
use crate::read_write::{Fua, failed};
use crate::sense::{AdditionalSense, Sense};
use crate::unit::LogicalUnit;
use crate::{Command, Execution, Response};

/// Length of the UNMAP parameter list header and of each of its descriptors.
const HEADER_LEN: usize = 8;
const DESCRIPTOR_LEN: usize = 16;

/// Bytes released at a time; between two steps the command can be aborted.
const STEP_BYTES: u64 = 64 << 20;

/// UNMAP. All descriptors are checked before anything is unmapped.
pub(crate) fn unmap(context: &UnitContext<'_>, command: Command) -> Execution {
    let list_len = usize::from(command.cdb.u16(7));
    let wanted = list_len as u64;
    if list_len == 0 {
        return Response::good().into();
    }
    let list = &command.data_out[..list_len.min(command.data_out.len())];
    let runs = match runs(context, list) {
        Ok(runs) => runs,
        Err(sense) => return Response::check_condition(sense).wanting(wanted).into(),
    };
    let fua = Fua::new(false, context);
    let task = context.task(&command);
    let unit = context.unit.clone();
    Execution::later(async move {
        for blocks in runs {
            let range = blocks.offset..blocks.offset + blocks.len;
            let Some(guard) = task.unless_aborted(held(unit.ranges.shared(range))).await else {
                return abort::aborted();
            };
            let result = release(&unit, blocks, &task).await;
            drop(guard);
            if let Err(error) = result {
                return failed(&error, true, blocks.lba).wanting(wanted);
            }
        }
        if task.is_aborted() {
            return abort::aborted();
        }
        // A trim has no FUA.
        if (fua.flags.fua || fua.is_to_flush(&unit))
            && let Err(error) = unit.device.flush().await
        {
            return failed(&error, true, 0).wanting(wanted);
        }
        Response::good().wanting(wanted)
    })
}

/// Step by step, to the end or to the next step after an abort.
async fn release(unit: &LogicalUnit, blocks: Blocks, task: &Task) -> Result<(), BlockError> {
    let mut done = 0;
    while done < blocks.len && !task.is_aborted() {
        let len = (blocks.len - done).min(STEP_BYTES);
        unit.device.trim(blocks.offset + done, len).await?;
        done += len;
    }
    Ok(())
}

/// The runs of blocks in an UNMAP parameter list (SBC-3 §5.30.2), empty ones left out.
fn runs(context: &UnitContext<'_>, list: &[u8]) -> Result<Vec<Blocks>, Sense> {
    let too_short = Sense::illegal(AdditionalSense::PARAMETER_LIST_LENGTH_ERROR);
    let header = list.get(..HEADER_LEN).ok_or(too_short)?;
    let described = usize::from(u16::from_be_bytes([header[2], header[3]]));
    let descriptors = list.get(HEADER_LEN..HEADER_LEN + described).ok_or(too_short)?;
    // A descriptor cut off at the end is ignored, as the standard says.
    let descriptors = descriptors.chunks_exact(DESCRIPTOR_LEN);
    let limits = &context.unit.limits;
    if descriptors.len() as u32 > limits.unmap_descriptors {
        return Err(Sense::invalid_parameter(2));
    }
    let mut runs = Vec::with_capacity(descriptors.len());
    let mut total = 0;
    for (index, descriptor) in descriptors.enumerate() {
        let (lba, rest) = descriptor.split_at(8);
        let lba = lba.iter().fold(0, |lba, byte| lba << 8 | u64::from(*byte));
        let count = rest[..4].iter().fold(0, |count, byte| count << 8 | u64::from(*byte));
        let blocks = context.blocks(lba, count)?;
        total += count;
        if total > u64::from(limits.unmap_blocks) {
            let field = HEADER_LEN + index * DESCRIPTOR_LEN + 8;
            return Err(Sense::invalid_parameter(field as u16));
        }
        if count > 0 {
            runs.push(blocks);
        }
    }
    Ok(runs)
}

/// GET LBA STATUS: from the given block on, which are mapped and which are not.
pub(crate) fn get_lba_status(context: &UnitContext<'_>, command: Command) -> Execution {
    let lba = command.cdb.u64(2);
    let Some(rest) = context.capacity().checked_sub(lba).filter(|rest| *rest > 0) else {
        return Sense::lba_out_of_range(lba).into();
    };
    let count = rest.min(context.unit.limits.lba_status_blocks);
    let blocks = match context.blocks(lba, count) {
        Ok(blocks) => blocks,
        Err(sense) => return sense.into(),
    };
    if !context.info.can_trim {
        // Fully provisioned, whatever the storage below is like.
        let list = status_list(&[(blocks.lba, blocks.count, MAPPED)]);
        return data::respond(&command, list, command.cdb.u32(10)).into();
    }
    let task = context.task(&command);
    let (unit, block_size) = (context.unit.clone(), context.block_size());
    Execution::later(async move {
        // One at a time: a file system answers by seeking, under a lock that writers need.
        let Some(turn) = task.unless_aborted(held(unit.scans.exclusive(0..1))).await else {
            return abort::aborted();
        };
        let runs = scan(&unit, blocks, block_size, &task).await;
        drop(turn);
        match runs {
            _ if task.is_aborted() => abort::aborted(),
            Ok(runs) => data::respond(&command, status_list(&runs), command.cdb.u32(10)),
            Err(error) => failed(&error, false, lba),
        }
    })
}

/// Bytes that a scan asks the device for at first and, where it finds little to tell, at last: a
/// fragmented file is asked for as much as one answer has room for, a sparse one not a thousand
/// times.
const SCAN_BYTES: std::ops::RangeInclusive<u64> = 1 << 20..=64 << 20;

/// Extents in one step of a scan up to which the next step is twice as long.
const SCAN_FEW: usize = 4;

/// The first runs of blocks of one status, as many as one answer has room for. Stops after an
/// abort.
async fn scan(
    unit: &LogicalUnit,
    blocks: Blocks,
    block_size: u64,
    task: &Task,
) -> Result<Vec<Run>, BlockError> {
    let (mut runs, mut done, mut step) = (Vec::new(), 0, *SCAN_BYTES.start());
    // One more than there is room for shows that the last one is complete.
    while done < blocks.len && runs.len() <= LBA_STATUS_DESCRIPTORS_MAX && !task.is_aborted() {
        let (offset, len) = (blocks.offset + done, step.min(blocks.len - done));
        let extents = unit.device.extents(offset, len).await?;
        let part = Blocks { lba: offset / block_size, count: len / block_size, offset, len };
        add_runs(&mut runs, &extents, part, block_size);
        done += len;
        let few = extents.len() <= SCAN_FEW;
        step = if few { (2 * step).min(*SCAN_BYTES.end()) } else { *SCAN_BYTES.start() };
    }
    runs.truncate(LBA_STATUS_DESCRIPTORS_MAX);
    Ok(runs)
}

/// First block, number of blocks, provisioning status.
type Run = (u64, u64, u8);

const MAPPED: u8 = 0;
const DEALLOCATED: u8 = 1;

/// GET LBA STATUS parameter data (SBC-3 §5.6.2).
fn status_list(runs: &[Run]) -> Vec<u8> {
    let mut out = vec![0; 8];
    for (lba, count, status) in runs {
        out.extend(lba.to_be_bytes());
        out.extend((*count as u32).to_be_bytes());
        out.extend([*status, 0, 0, 0]);
    }
    let len = out.len() as u32 - 4;
    out[..4].copy_from_slice(&len.to_be_bytes());
    out
}

/// Adds runs of blocks of one status. A block of which a part holds data is mapped.
fn add_runs(runs: &mut Vec<Run>, extents: &[Extent], blocks: Blocks, block_size: u64) {
    let mut push = |from: u64, to: u64, status: u8| match runs.last_mut() {
        _ if from >= to => {}
        Some((_, count, last)) if *last == status => *count += to - from,
        _ => runs.push((from, to - from, status)),
    };
    let mut at = blocks.lba;
    for hole in extents.iter().filter(|extent| extent.hole) {
        let from = hole.offset.div_ceil(block_size);
        let to = (hole.offset + hole.len) / block_size;
        if from < to {
            push(at, from, MAPPED);
            push(from, to, DEALLOCATED);
            at = to;
        }
    }
    push(at, blocks.lba + blocks.count, MAPPED);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_rounded_inwards() {
        let blocks = Blocks { lba: 1, count: 8, offset: 512, len: 4096 };
        let extent = |offset, len, hole| Extent { offset, len, hole };
        let extents = [
            extent(512, 100, false),
            extent(612, 1500, true), // whole blocks 2 and 3
            extent(2112, 448, false),
            extent(2560, 512, true),
            extent(3072, 512, true),
            extent(3584, 1024, false),
        ];
        let mut runs = Vec::new();
        add_runs(&mut runs, &extents, blocks, 512);
        assert_eq!(runs, [(1, 1, 0), (2, 2, 1), (4, 1, 0), (5, 2, 1), (7, 2, 0)]);
        let all = [extent(512, 4096, true)];
        let next = Blocks { lba: 9, offset: 4608, ..blocks };
        let mut runs = Vec::new();
        add_runs(&mut runs, &all, blocks, 512);
        add_runs(&mut runs, &[extent(4608, 4096, true)], next, 512);
        assert_eq!(runs, [(1, 16, 1)], "steps of a scan are not seen");
    }
}
