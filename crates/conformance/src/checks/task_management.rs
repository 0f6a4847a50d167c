//! Task management (RFC 7143 §11.5, §11.6): aborts, resets, tasks that are not there.

use iscsi_proto::ids::{Itt, Lun};
use iscsi_proto::pdu::{
    Pdu, TaskManagementFunction as Function, TaskManagementResponseCode as Code,
};
use iscsi_proto::serial::CmdSn;

use super::{Check, check, session_of, writing};
use crate::context::Context;
use crate::offer::Offer;
use crate::session::{Event, Session};
use crate::verdict::{Stop, Verdict, ensure, failed, require};

pub(super) const CHECKS: &[Check] = &[
    writing("tmf.abort-task", "11.5.1", abort_task),
    writing("tmf.abort-task-over-another-connection", "11.5.1", abort_task_elsewhere),
    check("tmf.abort-unknown-task", "11.6.1", abort_unknown_task),
    check("tmf.abort-command-on-its-way", "11.5.1", abort_command_on_its_way),
    writing("tmf.abort-task-set", "11.5.1", abort_task_set),
    writing("tmf.clear-task-set", "11.5.1", clear_task_set),
    writing("tmf.unit-reset", "11.5.1", unit_reset),
    check("tmf.unknown-lun", "11.6.1", unknown_lun),
    check("tmf.unknown-function", "11.6.1", unknown_function),
    check("tmf.reassign-below-level-2", "11.6.1", reassign_below_level_2),
];

/// A write that waits for its data: its tag and CmdSN.
fn waiting_write(session: &mut Session<'_>, link: usize) -> Result<(Itt, CmdSn), Stop> {
    let context = session.context;
    let cmd_sn = session.cmd_sn;
    let itt = session.write(link, context.scratch(0), 2 * context.unit())?;
    session.next_r2t(link, itt)?;
    Ok((itt, cmd_sn))
}

fn complete(code: Code, what: &str) -> Result<(), Stop> {
    ensure(code == Code::COMPLETE, || format!("{what} was answered with {code}"))
}

/// After the function has been answered the task has no status any more, and the session works.
fn gone(session: &mut Session<'_>, link: usize, itt: Itt) -> Result<(), Stop> {
    session.ensure_silent(link, itt, "its task has been aborted")?;
    session.until_ready()?;
    session.read_all(0, session.context.scratch(0), session.context.unit_blocks())?;
    Ok(())
}

fn abort_task(context: &Context) -> Verdict {
    let mut session = Session::open(context, super::data_out::solicited(context))?;
    let (itt, cmd_sn) = waiting_write(&mut session, 0)?;
    let request = session.management(0, Function::ABORT_TASK, itt, cmd_sn);
    complete(session.manage(0, request)?, "ABORT TASK of a write that waits for data")?;
    gone(&mut session, 0, itt)?;
    session.close()?;
    Ok("complete, no status follows".into())
}

fn abort_task_elsewhere(context: &Context) -> Verdict {
    let mut session = session_of(context, 2, super::data_out::solicited(context))?;
    let (itt, cmd_sn) = waiting_write(&mut session, 1)?;
    let request = session.management(0, Function::ABORT_TASK, itt, cmd_sn);
    complete(session.manage(0, request)?, "ABORT TASK over another connection")?;
    gone(&mut session, 1, itt)?;
    session.close()?;
    Ok("complete".into())
}

/// A tag that nobody has, with a CmdSN from before the window.
fn abort_unknown_task(context: &Context) -> Verdict {
    let mut session = Session::open(context, Offer::leading())?;
    session.test_unit_ready(0)?.good()?;
    let before = CmdSn(session.exp_cmd_sn.0.wrapping_sub(2000));
    let request = session.management(0, Function::ABORT_TASK, Itt(0x00be_ef00), before);
    let code = session.manage(0, request)?;
    ensure(code == Code::TASK_DOES_NOT_EXIST, || format!("answered with {code}"))?;
    session.close()?;
    Ok("task does not exist".into())
}

/// Within the window, not received: the target takes its CmdSN as received and says complete.
fn abort_command_on_its_way(context: &Context) -> Verdict {
    let mut session = Session::open(context, Offer::leading())?;
    let lost = session.cmd_sn.take();
    let mut request = session.management(0, Function::ABORT_TASK, Itt(0x00be_ef01), lost);
    request.cmd_sn = session.cmd_sn;
    complete(session.manage(0, request)?, "ABORT TASK of a command that has not come")?;
    let answer = session.barrier(0)?;
    ensure(answer.exp_cmd_sn == lost.next(), || {
        format!("ExpCmdSN is {}: CmdSN {lost} is still awaited", answer.exp_cmd_sn)
    })?;
    session.test_unit_ready(0)?.good()?;
    session.close()?;
    Ok("its CmdSN counts as received".into())
}

/// Ends all tasks; with the R2T unanswered a target may wait for data (§4.2.3.3), so they are sent.
fn ends_all(context: &Context, function: Function) -> Verdict {
    let mut session = Session::open(context, super::data_out::solicited(context))?;
    let mut tasks = Vec::new();
    for _ in 0..3 {
        let itt = session.write(0, context.scratch(0), 2 * context.unit())?;
        tasks.push((itt, session.next_r2t(0, itt)?));
    }
    let request = session.management(0, function, Itt::NONE, CmdSn(0));
    let awaited = request.itt;
    session.send(0, request, &[])?;
    let data = crate::io::pattern(40, 2 * context.unit());
    for (_, r2t) in &tasks {
        session.answer_r2t(0, r2t, &data)?;
    }
    let tags: Vec<_> = tasks.iter().map(|(itt, _)| *itt).collect();
    loop {
        let arrived = session.next(0)?;
        match arrived.pdu {
            Pdu::TaskManagementResponse(response) if response.itt == awaited => {
                // A unit must know how to be reset; the other two are SAM's options.
                let unknown = response.response == Code::NOT_SUPPORTED;
                require(!unknown || function == Function::LOGICAL_UNIT_RESET, || {
                    format!("the target does not support {function}")
                })?;
                complete(response.response, &function.to_string())?;
                break;
            }
            // Until the answer, anything may still come for the tasks (§4.2.3.3 c).
            _ if tags.contains(&arrived.header.itt()) => {}
            _ => return failed(format!("{} in place of the answer", arrived.header.opcode())),
        }
    }
    for itt in tags {
        gone(&mut session, 0, itt)?;
    }
    session.close()?;
    Ok("complete, no status follows".into())
}

fn abort_task_set(context: &Context) -> Verdict {
    ends_all(context, Function::ABORT_TASK_SET)
}

fn clear_task_set(context: &Context) -> Verdict {
    ends_all(context, Function::CLEAR_TASK_SET)
}

fn unit_reset(context: &Context) -> Verdict {
    ends_all(context, Function::LOGICAL_UNIT_RESET)
}

fn unknown_lun(context: &Context) -> Verdict {
    let mut session = Session::open(context, Offer::leading())?;
    let mut request = session.management(0, Function::LOGICAL_UNIT_RESET, Itt::NONE, CmdSn(0));
    request.lun = Lun(0x7ffe_u64 << 48);
    let code = session.manage(0, request)?;
    ensure(code == Code::LUN_DOES_NOT_EXIST, || {
        format!("LOGICAL UNIT RESET of a unit that is not there was answered with {code}")
    })?;
    session.test_unit_ready(0)?;
    session.close()?;
    Ok("LUN does not exist".into())
}

fn unknown_function(context: &Context) -> Verdict {
    let mut session = Session::open(context, Offer::leading())?;
    let request = session.management(0, Function(0x6b), Itt::NONE, CmdSn(0));
    session.send(0, request, &[])?;
    let event = session.event(0)?;
    if let Event::Pdu(arrived) = &event {
        match &arrived.pdu {
            Pdu::TaskManagementResponse(response) => {
                let code = response.response;
                ensure(matches!(code, Code::NOT_SUPPORTED | Code::REJECTED), || {
                    format!("function 0x6b was answered with {code}")
                })?;
                return Ok(code.to_string());
            }
            Pdu::Reject(_) => return Ok(event.to_string()),
            _ => {}
        }
    }
    match event {
        Event::Closed => Ok("the connection was closed".into()),
        event => failed(format!("function 0x6b got {event}")),
    }
}

fn reassign_below_level_2(context: &Context) -> Verdict {
    let offer = super::data_out::solicited(context).with("ErrorRecoveryLevel", 1);
    let mut session = Session::open(context, offer)?;
    let request = session.management(0, Function::TASK_REASSIGN, Itt(0x00be_ef02), CmdSn(0));
    session.send(0, request, &[])?;
    let event = session.event(0)?;
    if let Event::Pdu(arrived) = &event
        && let Pdu::TaskManagementResponse(response) = &arrived.pdu
    {
        let code = response.response;
        let allowed = [Code::REASSIGNMENT_NOT_SUPPORTED, Code::NOT_SUPPORTED];
        ensure(allowed.contains(&code), || {
            format!("TASK REASSIGN at level {} got {code}", session.agreed.level)
        })?;
        return Ok(code.to_string());
    }
    failed(format!("TASK REASSIGN at level {} got {event}", session.agreed.level))
}
