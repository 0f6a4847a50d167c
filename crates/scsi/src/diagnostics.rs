//! TEST UNIT READY, REQUEST SENSE, START STOP UNIT, SEND DIAGNOSTIC.

use crate::context::{Context, UnitContext};
use crate::data;
use crate::medium::load_eject as load_eject_medium;
use crate::opcodes::Access;
use crate::read_write::flush;
use crate::sense::{AdditionalSense, Sense};
use crate::{Command, Execution, Response, Status};

/// TEST UNIT READY (SPC-4 §6.47): a unit that exists is ready.
pub(crate) fn test_unit_ready(_: &UnitContext<'_>, _: Command) -> Execution {
    Response::good().into()
}

/// REQUEST SENSE (SPC-4 §6.39): the pending unit attention as data, or NO SENSE.
pub(crate) fn request_sense(context: &Context<'_>, command: &Command) -> Execution {
    let (sense, receipt) = match context.unit {
        Some(unit) => match context.nexus.tell(unit) {
            Some((condition, receipt)) => (Sense::unit_attention(condition), receipt),
            None => (unit.sanitize.pending().unwrap_or(Sense::NONE), None),
        },
        None => (Sense::illegal(AdditionalSense::LOGICAL_UNIT_NOT_SUPPORTED), None),
    };
    let descriptor_format = command.cdb.bit(1, 0);
    let bytes = match descriptor_format {
        true => sense.to_descriptor_bytes(),
        false => sense.to_fixed_bytes().to_vec(),
    };
    data::respond(command, bytes, u32::from(command.cdb.byte(4))).with_receipt(receipt).into()
}

/// START STOP UNIT (SBC-3 §5.25). There is no spindle, and other initiators may be using the unit:
/// stopping it makes its data stable and leaves it ready. Only a removable medium can be ejected.
pub(crate) fn start_stop_unit(context: &UnitContext<'_>, command: Command) -> Execution {
    let flags = command.cdb.byte(4);
    let power_condition = flags >> 4;
    // Only starting is everybody's right while the unit is reserved (SPC-4 table 51).
    if (flags & 1 == 0 || power_condition != 0) && !context.admits(Access::Manage) {
        return Response::status(Status::RESERVATION_CONFLICT).into();
    }
    let (no_flush, load_eject, start) = (flags & 4 != 0, flags & 2 != 0, flags & 1 != 0);
    match power_condition {
        0x0 if load_eject && context.nexus.is_protected(context.unit.lun) => {
            Sense::write_protected().into()
        }
        0x0 if load_eject => match load_eject_medium(context, start) {
            Ok(()) if !start && !no_flush => flush(context, 0),
            Ok(()) => Response::good().into(),
            Err(sense) => sense.into(),
        },
        0x0 if start || no_flush => Response::good().into(),
        0x0 => flush(context, 0),
        // ACTIVE and LU_CONTROL: what it is and does anyway.
        0x1 | 0x7 => Response::good().into(),
        _ => Sense::invalid_cdb(4, 7).into(),
    }
}

/// SEND DIAGNOSTIC (SPC-4 §6.42): the default self-test, which finds nothing.
pub(crate) fn send_diagnostic(_: &UnitContext<'_>, _: Command) -> Execution {
    Response::good().into()
}
