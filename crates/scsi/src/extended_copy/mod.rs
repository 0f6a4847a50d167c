//! EXTENDED COPY(LID1) (SPC-4 §6.4): copies blocks between logical units of this target, without
//! sending them to the initiator and back.
//!
//! One buffer per command, as long as its longest run and [`STEP_BYTES`] at most, so memory is
//! bounded by the number of copies. A copy is reads and writes of the nexus that asked for it:
//! reservations and write protection of the units concerned hold.

mod page;
mod parameters;
mod results;

pub(crate) use page::vpd_page;
pub(crate) use results::{Copies, copy_status, failed_segment_details, operating_parameters};

use std::sync::Arc;

use block::Buf;
use block::range_lock::held;
use parameters::{Cscd, Parameters, SEGMENT_BYTES_MAX, Segment};

use crate::abort::Task;
use crate::context::UnitContext;
use crate::memory::STEP_BYTES;
use crate::nexus::NexusState;
use crate::opcodes::Access;
use crate::read_write::failed;
use crate::sense::{AdditionalSense, Sense, SenseKey};
use crate::unit::LogicalUnit;
use crate::{Command, Execution, Response, Status};

/// log₂ of the granularity that copies are fastest with, told to initiators.
pub(crate) const GRANULARITY_EXPONENT: u8 = STEP_BYTES.ilog2() as u8;

/// EXTENDED COPY(LID1).
pub(crate) fn extended_copy(context: &UnitContext<'_>, command: Command) -> Execution {
    let list_len = command.cdb.u32(10) as usize;
    if list_len == 0 {
        return Response::good().into();
    }
    let wanted = list_len as u64;
    let refuse =
        |sense: Sense| -> Execution { Response::check_condition(sense).wanting(wanted).into() };
    // No more than came, and no more than was meant.
    let list = &command.data_out[..list_len.min(command.data_out.len())];
    let parameters = match Parameters::parse(list) {
        Ok(parameters) => parameters,
        Err(sense) => return refuse(sense),
    };
    let (unit, nexus, task) = (context.unit.clone(), context.nexus.clone(), context.task(&command));
    match unit.copies.begin(nexus.id, parameters.list_id) {
        results::Begin::Started => {}
        results::Begin::Busy => return Response::status(Status::BUSY).wanting(wanted).into(),
        results::Begin::SameId => {
            return refuse(Sense::illegal(AdditionalSense::OPERATION_IN_PROGRESS));
        }
    }
    Execution::later(async move {
        let mut done_bytes = 0;
        let mut outcome = Ok(());
        let mut segments_done: u16 = 0;
        for segment in &parameters.segments {
            outcome = copy(&nexus, &parameters.cscds, segment, &mut done_bytes, &task).await;
            if let Err(sense) = &mut outcome {
                // Which segment it was: bytes 2 and 3 of COMMAND-SPECIFIC INFORMATION.
                sense.command_specific = Some(u64::from(segments_done));
                break;
            }
            segments_done += 1;
        }
        let failure = outcome.err();
        unit.copies.end(nexus.id, parameters.list_id, segments_done, done_bytes, failure);
        failure.map_or_else(Response::good, Response::check_condition).wanting(wanted)
    })
}

/// Bytes of the buffer that a copy with this parameter list needs, at most.
pub(crate) fn working(list: &[u8]) -> u64 {
    STEP_BYTES.min(Parameters::run_bytes(list))
}

fn aborted(additional: AdditionalSense) -> Sense {
    Sense::new(SenseKey::COPY_ABORTED, additional)
}

/// A run of bytes of a unit.
struct Place {
    unit: Arc<LogicalUnit>,
    offset: u64,
}

async fn copy(
    nexus: &Arc<NexusState>,
    cscds: &[Cscd],
    segment: &Segment,
    done_bytes: &mut u64,
    task: &Task,
) -> Result<(), Sense> {
    let (source, from) = find(nexus, cscds, segment.source)?;
    let (destination, to) = find(nexus, cscds, segment.destination)?;
    let block_len = if segment.count_of_destination { to } else { from };
    let len = u64::from(segment.count) * block_len;
    if len % from != 0 || len % to != 0 {
        return Err(aborted(AdditionalSense::UNEXPECTED_INEXACT_SEGMENT));
    }
    if len > u64::from(SEGMENT_BYTES_MAX) {
        return Err(Sense::illegal(AdditionalSense::INVALID_FIELD_IN_PARAMETER_LIST));
    }
    let source = place(nexus, source, segment.source_lba, len / from, Access::Read)?;
    let destination = place(nexus, destination, segment.destination_lba, len / to, Access::Write)?;
    move_bytes(&source, &destination, len, done_bytes, task).await
}

/// The unit that a descriptor names, and its block size.
fn find(nexus: &NexusState, cscds: &[Cscd], index: u16) -> Result<(Arc<LogicalUnit>, u64), Sense> {
    let cscd = cscds.get(usize::from(index));
    let cscd = cscd.ok_or(aborted(AdditionalSense::UNREACHABLE_COPY_TARGET))?;
    let units = nexus.target.units();
    let unit = units.into_iter().find(|unit| unit.identity.is(cscd.kind, &cscd.designator));
    let unit = unit.ok_or(aborted(AdditionalSense::COPY_TARGET_DEVICE_NOT_REACHABLE))?;
    let block_size = unit.device.info().block_size;
    if cscd.block_len != block_size {
        return Err(aborted(AdditionalSense::INCORRECT_COPY_TARGET_DEVICE_TYPE));
    }
    Ok((unit, u64::from(block_size)))
}

/// The run of blocks, if the nexus may use it in this way.
fn place(
    nexus: &Arc<NexusState>,
    unit: Arc<LogicalUnit>,
    lba: u64,
    count: u64,
    access: Access,
) -> Result<Place, Sense> {
    let info = nexus.info_of(&unit);
    let admitted = unit.reservations.admits(nexus.id, nexus.port(), access);
    let protected = access == Access::Write && unit.is_write_protected(&info);
    let ready = unit.medium.check().and(unit.sanitize.check(false));
    if !admitted || protected || ready.is_err() {
        return Err(aborted(AdditionalSense::THIRD_PARTY_DEVICE_FAILURE));
    }
    let context = UnitContext { nexus, unit: &unit, info: &info };
    let blocks = context.blocks(lba, count);
    let blocks = blocks.map_err(|_| aborted(AdditionalSense::NO_ADDITIONAL_SENSE_INFORMATION))?;
    Ok(Place { offset: blocks.offset, unit })
}

/// Copies as if through one big buffer, even where both runs overlap, until aborted.
async fn move_bytes(
    source: &Place,
    destination: &Place,
    len: u64,
    done_bytes: &mut u64,
    task: &Task,
) -> Result<(), Sense> {
    if len == 0 {
        return Ok(());
    }
    let same = Arc::ptr_eq(&source.unit, &destination.unit);
    let backwards = same && destination.offset > source.offset;
    let range = destination.offset..destination.offset + len;
    let given_up = || aborted(AdditionalSense::NO_ADDITIONAL_SENSE_INFORMATION);
    let taken = held(destination.unit.ranges.shared(range));
    let guard = task.unless_aborted(taken).await.ok_or_else(given_up)?;
    let block_size = u64::from(destination.unit.device.info().block_size);
    let _work = destination.unit.statistics.change(len / block_size, block_size);
    let mut done = 0;
    while done < len {
        if task.is_aborted() {
            return Err(given_up());
        }
        let step = STEP_BYTES.min(len - done);
        let at = if backwards { len - done - step } else { done };
        let buf = source.unit.device.read(source.offset + at, Buf::new(step as usize)).await;
        let device = &destination.unit.device;
        let written = match buf {
            Ok(buf) => {
                let flags = block::WriteFlags::NONE;
                let written = device.write(destination.offset + at, buf.freeze(), flags).await;
                written.map_err(|error| (error, true))
            }
            Err(error) => Err((error, false)),
        };
        if let Err((error, writing)) = written {
            failed(&error, writing, at); // says so in the log
            return Err(aborted(AdditionalSense::THIRD_PARTY_DEVICE_FAILURE));
        }
        done += step;
        *done_bytes += step;
    }
    drop(guard);
    if destination.unit.mode.write_through() && destination.unit.device.flush().await.is_err() {
        return Err(aborted(AdditionalSense::THIRD_PARTY_DEVICE_FAILURE));
    }
    Ok(())
}
