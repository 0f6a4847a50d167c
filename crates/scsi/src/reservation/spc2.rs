//! RESERVE and RELEASE, 6 and 10 (SPC-2 §7.21, §7.22, §7.16, §7.17): the whole unit for one nexus.
//!
//! Third-party and extent reservations are obsolete and their bits refused.

use crate::context::UnitContext;
use crate::{Command, Execution, Response, Status};

/// RESERVE(6), RESERVE(10).
pub(crate) fn reserve(context: &UnitContext<'_>, _: Command) -> Execution {
    let nexus = context.nexus;
    answer(context.unit.reservations.reserve_spc2(nexus.id, &nexus.registrant))
}

/// RELEASE(6), RELEASE(10).
pub(crate) fn release(context: &UnitContext<'_>, _: Command) -> Execution {
    let nexus = context.nexus;
    answer(context.unit.reservations.release_spc2(nexus.id, &nexus.registrant))
}

fn answer(good: bool) -> Execution {
    if good {
        Response::good().into()
    } else {
        Response::status(Status::RESERVATION_CONFLICT).into()
    }
}
