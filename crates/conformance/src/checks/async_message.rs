//! Asynchronous Messages that can be caused from outside (RFC 7143 §4.2.3.4, §11.9).

use iscsi_proto::ids::Itt;
use iscsi_proto::pdu::{AsyncEvent, TaskManagementFunction, TaskManagementResponseCode};
use iscsi_proto::serial::CmdSn;

use super::{Check, session_of, writing};
use crate::context::Context;
use crate::offer::Offer;
use crate::verdict::{Verdict, ensure, require};

pub(super) const CHECKS: &[Check] =
    &[writing("async.fast-abort-tells-others", "4.2.3.4", fast_abort_tells_others)];

/// With FastAbort, a reset of the unit is told on the session's other connections by AsyncEvent 5.
fn fast_abort_tells_others(context: &Context) -> Verdict {
    let offer = Offer::leading().with("TaskReporting", "FastAbort,ResponseFence,RFC3720");
    let mut session = session_of(context, 2, offer)?;
    require(session.agreed.fast_abort, || "TaskReporting=FastAbort was not granted".into())?;
    // A task of connection 1 that the reset ends.
    let itt = session.write(1, context.scratch(0), context.unit())?;
    session.next_r2t(1, itt)?;
    let function = TaskManagementFunction::LOGICAL_UNIT_RESET;
    let request = session.management(0, function, Itt::NONE, CmdSn(0));
    let code = session.manage(0, request)?;
    ensure(code == TaskManagementResponseCode::COMPLETE, || format!("the reset got {code}"))?;
    session.barrier(1)?;
    let told = session.links[1].events.iter().any(|m| m.event == AsyncEvent::TASK_TERMINATION);
    ensure(told, || format!("no AsyncEvent 5 on connection 1, but {:?}", session.links[1].events))?;
    Ok("AsyncEvent 5 on the other connection".into())
}
