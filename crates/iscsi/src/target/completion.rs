//! What the core is told of commands that have ended, by execution or instead of it, and how their
//! order is called in SCSI.

use bytes::Bytes;
use iscsi_proto::ids::Lun;
use iscsi_proto::pdu::TaskAttribute;
use iscsi_proto::target::{Completion, Execute, Receipt};
use tracing::error;

use super::budget::Charge;
use super::session::SharedSession;
use super::shared::Shared;

/// What the core is told of a command that has ended; its data keeps the memory charged for it.
pub(super) fn finish(
    server: &Shared,
    session: &SharedSession,
    lun: Lun,
    response: scsi::Response,
    reading: Option<Charge>,
) -> Completion {
    note_sense(server, session, lun, &response);
    let mut completion = completion(response);
    session.moved(completion.data_in.len(), 0);
    if let Some(charge) = reading {
        completion.data_in = charge.cover(completion.data_in);
    }
    completion
}

/// An answer of the SCSI layer.
pub(super) fn completion(response: scsi::Response) -> Completion {
    Completion {
        status: response.status.0,
        sense: response.sense.map_or_else(Bytes::new, |sense| Bytes::from(sense.to_bytes())),
        data_in: response.data_in,
        wanted_length: response.data_len_wanted,
        status_qualifier: 0,
        receipt: response.receipt.map(|receipt| Receipt(receipt.0)),
    }
}

/// Why a command is not given to the SCSI layer at all, of whose data so many bytes have come.
pub(super) fn unexecuted(execute: &Execute, no_memory: bool, len: usize) -> Option<Completion> {
    if let Some(sense) = &execute.failed {
        let status = scsi::Status::CHECK_CONDITION.0;
        return Some(Completion { status, sense: sense.clone(), ..Completion::default() });
    }
    if no_memory {
        return Some(task_set_full());
    }
    if execute.too_long {
        return Some(completion(scsi::Response::check_condition(scsi::Sense::new(
            scsi::SenseKey::ILLEGAL_REQUEST,
            scsi::AdditionalSense::INVALID_FIELD_IN_CDB,
        ))));
    }
    let lacks = execute.write && len != execute.expected_data_transfer_length as usize;
    lacks.then(|| incomplete(execute, len))
}

/// The end of a command that the SCSI layer has not seen. Behind one with NACA nothing may be
/// carried out, which only CHECK CONDITION brings about (SAM-5 §5.9): it takes the place of TASK
/// SET FULL.
pub(super) fn noted(
    session: &SharedSession,
    lun: Lun,
    cdb: &[u8; 16],
    ended: Completion,
) -> Completion {
    let cdb = scsi::Cdb::from_array(*cdb);
    if !cdb.naca() {
        return ended;
    }
    session.nexus.note_failed(lun.0, &cdb);
    if ended.status == scsi::Status::CHECK_CONDITION.0 {
        return ended;
    }
    completion(scsi::Response::check_condition(scsi::Sense::new(
        scsi::SenseKey::ABORTED_COMMAND,
        scsi::AdditionalSense::INSUFFICIENT_RESOURCES,
    )))
}

/// A write without all of its data: a fault of ours, and the last place where it does no harm. To
/// execute it would leave old blocks behind a good status.
fn incomplete(execute: &Execute, len: usize) -> Completion {
    error!(?execute, len, "a write lacks data: it is not executed");
    completion(scsi::Response::check_condition(scsi::Sense::new(
        scsi::SenseKey::ABORTED_COMMAND,
        scsi::AdditionalSense::INTERNAL_TARGET_FAILURE,
    )))
}

/// There is no memory for the command: the initiator tries again later (SAM-5 §5.3.1).
pub(super) fn task_set_full() -> Completion {
    /// Retry delay in units of 100 ms (SAM-5 §5.3.2), for this unit only.
    const RETRY_DELAY: u16 = 1;
    let status = scsi::Status::TASK_SET_FULL.0;
    Completion { status, status_qualifier: RETRY_DELAY, ..Completion::default() }
}

/// Counts what ended with sense data, by unit. Unit attentions are news, not errors, and count too.
fn note_sense(server: &Shared, session: &SharedSession, lun: Lun, response: &scsi::Response) {
    if let (Some(sense), Some(target)) = (&response.sense, &session.about.target_name)
        && let Some(number) = scsi::Lun::decode(lun.0)
        && session.nexus.has_lun(lun.0)
    {
        server.counters.sense(target, number.number(), sense.key.0);
    }
}

/// How a command is ordered among others, in the terms of SAM-5.
pub(super) fn attribute(attribute: TaskAttribute) -> scsi::TaskAttribute {
    match attribute {
        TaskAttribute::ORDERED => scsi::TaskAttribute::Ordered,
        TaskAttribute::HEAD_OF_QUEUE => scsi::TaskAttribute::HeadOfQueue,
        TaskAttribute::ACA => scsi::TaskAttribute::Aca,
        _ => scsi::TaskAttribute::Simple,
    }
}
