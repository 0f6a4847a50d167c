//! Error recovery level 2 (RFC 7143 §7.2.2, §7.13, §11.5.6, §11.14, §11.15): tasks outlive their
//! connection.

use std::thread::sleep;
use std::time::{Duration, Instant};

use iscsi_proto::ids::{Cid, Itt};
use iscsi_proto::pdu::{
    LogoutReason, Pdu, TaskManagementFunction as Function, TaskManagementResponseCode as Code,
};
use iscsi_proto::serial::CmdSn;

use super::{Check, check, require_level, session_of, writing};
use crate::context::Context;
use crate::io::pattern;
use crate::login::Login;
use crate::offer::Offer;
use crate::session::Session;
use crate::verdict::{Stop, Verdict, ensure, failed, require};

pub(super) const CHECKS: &[Check] = &[
    check("level2.reassign-unknown-task", "11.6.1", reassign_unknown_task),
    writing("level2.reassign-while-allegiant", "11.6.1", reassign_while_allegiant),
    writing("level2.reassign-write-after-logout", "11.5.6", reassign_write_after_logout),
    writing("level2.reassign-after-reinstatement", "6.3.4", reassign_after_reinstatement),
    check("level2.reassign-read", "11.5.6", reassign_read),
    check("level2.reassign-lost-status", "11.5.6", reassign_lost_status),
    writing("level2.time2retain-ends", "11.15.4", time2retain_ends),
    check("level2.other-connection-goes-on", "7.2.2", other_connection_goes_on),
];

/// Longest Time2Wait that is waited for.
const WAIT_MAX_S: u32 = 10;

/// Two connections at level 2.
fn open<'a>(context: &'a Context, offer: Offer) -> Result<Session<'a>, Stop> {
    require_level(context, 2)?;
    let offer = offer.with("ErrorRecoveryLevel", 2).with("DefaultTime2Wait", 0);
    let session = session_of(context, 2, offer)?;
    let granted = session.agreed.level;
    require(granted == 2, || format!("ErrorRecoveryLevel=2 became {granted}"))?;
    require(session.agreed.time2wait <= WAIT_MAX_S, || {
        format!("DefaultTime2Wait is {} s", session.agreed.time2wait)
    })?;
    Ok(session)
}

fn reassign(session: &mut Session<'_>, link: usize, itt: Itt, exp: u32) -> Result<Code, Stop> {
    let mut request = session.management(link, Function::TASK_REASSIGN, itt, CmdSn(0));
    request.exp_data_sn = exp;
    session.manage(link, request)
}

/// Takes connection 1 away without a word, logs it out for recovery and waits Time2Wait.
fn lose_connection(session: &mut Session<'_>) -> Result<(), Stop> {
    session.drop_link(1);
    let reason = LogoutReason::REMOVE_CONNECTION_FOR_RECOVERY;
    let response = session.log_out(0, reason, Cid(1))?;
    ensure(response.response.0 == 0, || {
        format!("the logout for recovery was answered with {}", response.response)
    })?;
    let wait = u32::from(response.time2wait);
    ensure(wait <= WAIT_MAX_S, || {
        format!("Time2Wait is {wait} s, {} were agreed", session.agreed.time2wait)
    })?;
    // What the RFC asks of an initiator, nothing that the check could wait for otherwise.
    sleep(Duration::from_secs(wait.into()));
    Ok(())
}

fn reassign_unknown_task(context: &Context) -> Verdict {
    let mut session = open(context, Offer::leading())?;
    let code = reassign(&mut session, 0, Itt(0x00be_ef20), 0)?;
    ensure(code == Code::TASK_DOES_NOT_EXIST, || format!("answered with {code}"))?;
    session.close()?;
    Ok("task does not exist".into())
}

/// The connection of the task is alive and not logged out.
fn reassign_while_allegiant(context: &Context) -> Verdict {
    let mut session = open(context, super::data_out::solicited(context))?;
    let data = pattern(70, 2 * context.unit());
    let itt = session.write(1, context.scratch(0), data.len() as u32)?;
    let r2t = session.next_r2t(1, itt)?;
    let code = reassign(&mut session, 0, itt, 0)?;
    ensure(code == Code::TASK_STILL_ALLEGIANT, || {
        format!("TASK REASSIGN of a task on a living connection was answered with {code}")
    })?;
    session.answer_r2t(1, &r2t, &data)?;
    session.finish_write(1, itt, &data)?.good()?;
    session.close()?;
    Ok("task still allegiant".into())
}

/// After TASK REASSIGN the target asks for the data again, on the new connection.
fn go_on(session: &mut Session<'_>, link: usize, itt: Itt, data: &[u8]) -> Result<(), Stop> {
    let code = reassign(session, link, itt, 0)?;
    ensure(code == Code::COMPLETE, || format!("TASK REASSIGN was answered with {code}"))?;
    let done = session.finish_write(link, itt, data)?.good()?;
    ensure(!done.r2ts.is_empty(), || "the write ended without its data".into())?;
    super::data_out::read_back(session, 0, data)
}

fn reassign_write_after_logout(context: &Context) -> Verdict {
    let mut session = open(context, super::data_out::solicited(context))?;
    let data = pattern(71, 2 * context.unit());
    let itt = session.write(1, context.scratch(0), data.len() as u32)?;
    session.next_r2t(1, itt)?;
    lose_connection(&mut session)?;
    go_on(&mut session, 0, itt, &data)?;
    session.close()?;
    Ok("R2T and status on the other connection".into())
}

/// A login with the CID of the lost connection is its implicit logout.
fn reassign_after_reinstatement(context: &Context) -> Verdict {
    let mut session = open(context, super::data_out::solicited(context))?;
    let data = pattern(72, 2 * context.unit());
    let itt = session.write(1, context.scratch(0), data.len() as u32)?;
    session.next_r2t(1, itt)?;
    session.drop_link(1);
    sleep(Duration::from_secs(session.agreed.time2wait.into()));
    let logged_in = match session.join(Cid(1), &Offer::later())? {
        Login::In(logged_in) => *logged_in,
        Login::Out(answer) => return failed(format!("the login with CID 1 again got {answer}")),
    };
    let link = session.attach(Cid(1), logged_in);
    go_on(&mut session, link, itt, &data)?;
    session.close()?;
    Ok("R2T and status on the connection that took its place".into())
}

/// A read whose data nobody took: all of them on the new connection.
fn reassign_read(context: &Context) -> Verdict {
    let mut session = open(context, Offer::leading())?;
    let expected = session.read_all(0, context.scratch(0), 8 * context.unit_blocks())?;
    let itt = session.read(1, context.scratch(0), 8 * context.unit_blocks())?;
    // The target has it: its first answer is there. None of it is acknowledged.
    session.next(1)?;
    lose_connection(&mut session)?;
    let code = reassign(&mut session, 0, itt, 0)?;
    ensure(code == Code::COMPLETE, || format!("TASK REASSIGN was answered with {code}"))?;
    let found = session.finish(0, itt)?.good()?.payload();
    ensure(found == expected, || format!("{} bytes, not those of the volume", found.len()))?;
    session.close()?;
    Ok("all data on the other connection".into())
}

/// The command was done; its status, never acknowledged, comes again on the new connection.
fn reassign_lost_status(context: &Context) -> Verdict {
    let mut session = open(context, Offer::leading())?;
    let command = session.command(1, [0; 16], 0);
    let itt = command.itt;
    session.send(1, command, &[])?;
    session.finish(1, itt)?.good()?;
    lose_connection(&mut session)?;
    let code = reassign(&mut session, 0, itt, 0)?;
    ensure(code == Code::COMPLETE, || format!("TASK REASSIGN was answered with {code}"))?;
    session.finish(0, itt)?.good()?;
    session.close()?;
    Ok("the status came again".into())
}

/// When Time2Wait and Time2Retain are over, the tasks are gone.
fn time2retain_ends(context: &Context) -> Verdict {
    let offer = super::data_out::solicited(context).with("DefaultTime2Retain", 1);
    let mut session = open(context, offer)?;
    let (wait, retain) = (session.agreed.time2wait, session.agreed.time2retain);
    require(retain <= WAIT_MAX_S, || format!("DefaultTime2Retain is {retain} s"))?;
    let itt = session.write(1, context.scratch(0), context.unit())?;
    session.next_r2t(1, itt)?;
    session.drop_link(1);
    let reason = LogoutReason::REMOVE_CONNECTION_FOR_RECOVERY;
    let response = session.log_out(0, reason, Cid(1))?;
    require(response.response.0 == 0, || {
        format!("the logout for recovery was answered with {}", response.response)
    })?;
    // The times are at least those agreed; a second more is what their unit allows for.
    let over = Duration::from_secs(u64::from(wait + retain + 1));
    let deadline = Instant::now() + over + context.timeout();
    sleep(over);
    loop {
        let code = reassign(&mut session, 0, itt, 0)?;
        match code {
            Code::TASK_DOES_NOT_EXIST => break,
            // Timers may be coarse, but not so coarse.
            _ if Instant::now() < deadline && code != Code::COMPLETE => {
                sleep(Duration::from_millis(100));
            }
            _ => return failed(format!("{} s after the logout: {code}", over.as_secs())),
        }
    }
    session.close()?;
    Ok(format!("gone after {} s", over.as_secs()))
}

/// The loss of one connection is not the loss of the session.
fn other_connection_goes_on(context: &Context) -> Verdict {
    let mut session = open(context, Offer::leading())?;
    session.drop_link(1);
    session.read_all(0, context.scratch(0), context.unit_blocks())?;
    let itt = session.read(0, context.scratch(0), context.unit_blocks())?;
    let arrived = session.next(0)?;
    ensure(matches!(arrived.pdu, Pdu::DataIn(_)) && arrived.header.itt() == itt, || {
        format!("{} for a read", arrived.header.opcode())
    })?;
    Ok("the other connection goes on".into())
}
