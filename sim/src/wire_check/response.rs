//! What a target may send (RFC 7143 §4.2.2, §4.2.3.1, §11.4, §11.6–§11.8).

use iscsi_proto::ids::{Itt, Ttt};
use iscsi_proto::pdu::{
    LogoutReason, LogoutResponse, LogoutResponseCode, Pdu, Reject, RejectReason,
    TaskManagementResponse, TaskManagementResponseCode,
};
use iscsi_proto::serial::{CmdSn, StatSn};

use super::task::TaskCheck;
use super::{
    Ended, LinkCheck, Mark, RequestKind, SentStatus, SessionCheck, Sight, Told, Verdict, ensure,
};
use crate::coverage::Coverage;
use crate::net::Link;

/// Does the PDU use up the StatSN that it carries?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Uses(StatSn),
    Announces(StatSn),
    /// Data-In without status.
    None,
}

pub(super) fn check(
    sight: Sight,
    check: &mut LinkCheck,
    session: &mut SessionCheck,
    pdu: &Pdu,
    at: u64,
    coverage: &mut Coverage,
) -> Verdict {
    if let Pdu::LoginResponse(response) = pdu {
        let expected = check.next_stat_sn.unwrap_or(response.stat_sn);
        ensure!(response.stat_sn == expected, "StatSN, expected {expected}");
        check.next_stat_sn = Some(expected.next());
        return Ok(());
    }
    ensure!(!check.logout_answered, "after its logout response");
    let (status, exp_cmd_sn, max_cmd_sn) = numbers(pdu).ok_or("no place for this PDU")?;
    window_fits(session, exp_cmd_sn, max_cmd_sn)?;
    let stat_sn = match status {
        Status::Uses(stat_sn) => Some(stat_sn),
        _ => None,
    };
    let again = session.recovers() && is_again(sight, check, session, pdu, stat_sn, coverage)?;
    let mut told = match stat_sn.filter(|_| again).and_then(|sn| check.statuses.get(&sn.0)) {
        Some(status) => status.told,
        None => Told { stat_sn, ..Told::default() },
    };
    if !again {
        status_fits(check, status)?;
        told.ended = first_time(sight, check, session, pdu, coverage)?;
    }
    if let Pdu::DataIn(pdu) = pdu {
        told.data_in = Some((pdu.itt, pdu.data_sn.0));
    }
    if let Some(stat_sn) = stat_sn.filter(|_| session.recovers()) {
        check.statuses.insert(stat_sn.0, SentStatus { image: sight.image, told });
    }
    let window = Some((exp_cmd_sn, max_cmd_sn));
    // Where a digest error is survived, a PDU has told nothing before its digest is checked.
    let at = if session.recovers() { check.sent } else { at };
    check.marks.push_back(Mark { at, window, told, is_login: false });
    Ok(())
}

/// A PDU that was sent before is sent again, because it was asked for.
fn is_again(
    sight: Sight,
    check: &mut LinkCheck,
    session: &mut SessionCheck,
    pdu: &Pdu,
    stat_sn: Option<StatSn>,
    coverage: &mut Coverage,
) -> Result<bool, String> {
    let next = check.next_stat_sn.ok_or("no login on this connection")?;
    let data_again = match pdu {
        Pdu::DataIn(pdu) => {
            // As data, or for the status that it carries.
            let asked = pdu.status.is_some() && pdu.stat_sn.is_before(next);
            task(session, sight.link, pdu.itt)?.is_again(pdu.data_sn.0, sight.image, asked)?
        }
        // A target may send R2Ts again unasked (§7.9).
        Pdu::R2t(pdu) => {
            task(session, sight.link, pdu.itt)?.is_again(pdu.r2t_sn.0, sight.image, true)?
        }
        _ => false,
    };
    let Some(stat_sn) = stat_sn.filter(|stat_sn| stat_sn.is_before(next)) else {
        if data_again {
            coverage.hit(if matches!(pdu, Pdu::R2t(_)) { "R2T again" } else { "Data-In again" });
        }
        return Ok(data_again);
    };
    let asked = check.status_asked.answer(stat_sn.0);
    ensure!(asked || data_again, "StatSN again, and nobody asked for it: {next} is next");
    let first = check.statuses.get(&stat_sn.0).ok_or("StatSN of no status")?;
    ensure!(first.image == sight.image, "a status again, but not the same");
    coverage.hit("status again");
    Ok(true)
}

/// Returns which tasks it ends.
fn first_time(
    sight: Sight,
    check: &mut LinkCheck,
    session: &mut SessionCheck,
    pdu: &Pdu,
    coverage: &mut Coverage,
) -> Result<Option<Ended>, String> {
    let (link, params) = (sight.link, session.params);
    match pdu {
        Pdu::DataIn(pdu) => {
            coverage.hit("pdu: Data-In");
            task(session, link, pdu.itt)?.data_in(pdu, sight, &params)?;
            Ok(None)
        }
        Pdu::R2t(pdu) => {
            ensure!(sight.data_len == 0, "R2T with data");
            let rules = (&params, session.data_timeout);
            task(session, link, pdu.itt)?.r2t(pdu, sight, rules, coverage)?;
            coverage.hit("pdu: R2T");
            solicited_fits(session, pdu.ttt)?;
            Ok(None)
        }
        Pdu::ScsiResponse(pdu) => {
            coverage.hit("pdu: SCSI response");
            let rules = (&params, session.data_timeout);
            task(session, link, pdu.itt)?.response(pdu, sight.at, rules)?;
            Ok(None)
        }
        _ => answer(link, check, session, pdu, coverage),
    }
}

/// Answers to requests that are not SCSI commands, and what a target says unasked.
fn answer(
    link: Link,
    check: &mut LinkCheck,
    session: &mut SessionCheck,
    pdu: &Pdu,
    coverage: &mut Coverage,
) -> Result<Option<Ended>, String> {
    match pdu {
        Pdu::NopIn(nop) if nop.itt == Itt::NONE => {
            coverage.hit("pdu: NOP-In as question");
            Ok(None)
        }
        Pdu::NopIn(nop) => {
            ensure!(nop.ttt == Ttt::NONE, "answer with a transfer tag");
            let kind = request(session, link, nop.itt)?;
            ensure!(matches!(kind, RequestKind::Nop), "no NOP-Out has this tag");
            Ok(None)
        }
        Pdu::TaskManagementResponse(response) => managed(link, session, response, coverage),
        Pdu::TextResponse(response) => {
            let kind = request(session, link, response.itt)?;
            ensure!(matches!(kind, RequestKind::Text), "no text request has this tag");
            Ok(None)
        }
        Pdu::LogoutResponse(response) => {
            logged_out(link, check, session, response, coverage)?;
            Ok(None)
        }
        Pdu::AsyncMessage(_) => {
            coverage.hit("pdu: asynchronous message");
            Ok(None)
        }
        Pdu::Reject(reject) => {
            rejected(check, session, reject, coverage)?;
            Ok(None)
        }
        _ => Err("no place for this PDU in full-feature phase".into()),
    }
}

/// Returns which tasks the function has ended.
fn managed(
    link: Link,
    session: &mut SessionCheck,
    response: &TaskManagementResponse,
    coverage: &mut Coverage,
) -> Result<Option<Ended>, String> {
    let ended = match request(session, link, response.itt)? {
        RequestKind::Management(ended) => ended,
        RequestKind::Reassign(itt, exp_data_sn) => {
            reassigned(link, session, response.response, itt, exp_data_sn, coverage)?;
            return Ok(None);
        }
        _ => return Err("no task management request has this tag".into()),
    };
    if response.response != TaskManagementResponseCode::COMPLETE {
        return Ok(None);
    }
    coverage.hit("task management: complete");
    session.each_ended(ended, |task| {
        if !task.over {
            coverage.hit("task management: task ended");
            (task.over, task.over_by_management) = (true, true);
        }
    });
    Ok(Some(ended))
}

fn logged_out(
    link: Link,
    check: &mut LinkCheck,
    session: &mut SessionCheck,
    response: &LogoutResponse,
    coverage: &mut Coverage,
) -> Verdict {
    let RequestKind::Logout(reason, cid) = request(session, link, response.itt)? else {
        return Err("no logout request has this tag".into());
    };
    coverage.hit("pdu: logout response");
    check.logout_answered |= reason == LogoutReason::CLOSE_SESSION || cid == check.cid;
    if reason == LogoutReason::REMOVE_CONNECTION_FOR_RECOVERY
        // It may have been closed by an earlier one, whose answer was lost.
        && [LogoutResponseCode::CLOSED, LogoutResponseCode::CID_NOT_FOUND]
            .contains(&response.response)
        && let Some(link) = session.cids.get(&cid)
    {
        coverage.hit("connection logged out for recovery");
        session.released.insert(*link);
    }
    Ok(())
}

fn rejected(
    check: &mut LinkCheck,
    session: &SessionCheck,
    reject: &Reject,
    coverage: &mut Coverage,
) -> Verdict {
    let due = match reject.reason {
        RejectReason::DATA_DIGEST_ERROR => &mut check.rejects_due,
        _ => &mut check.late_snacks,
    };
    let over = |itt: &Itt| session.tasks.get(itt).is_some_and(|task| task.ending);
    let late = *due > 0 || check.snacked.iter().any(over);
    ensure!(late, "nobody did anything to be rejected");
    *due = due.saturating_sub(1);
    coverage.hit("pdu: Reject");
    Ok(())
}

/// A task goes on elsewhere, or not.
fn reassigned(
    link: Link,
    session: &mut SessionCheck,
    response: TaskManagementResponseCode,
    itt: Itt,
    exp_data_sn: u32,
    coverage: &mut Coverage,
) -> Verdict {
    if response != TaskManagementResponseCode::COMPLETE {
        coverage.hit("task not reassigned");
        return Ok(());
    }
    let task = session.tasks.get_mut(&itt).ok_or("no such task")?;
    coverage.hit(if task.is_write() { "task reassigned: write" } else { "task reassigned: read" });
    task.reassign(link, exp_data_sn)
}

fn task(session: &mut SessionCheck, link: Link, itt: Itt) -> Result<&mut TaskCheck, String> {
    let task = session.tasks.get_mut(&itt).ok_or("no such task")?;
    ensure!(task.link == link, "the task belongs to {}", task.link);
    Ok(task)
}

fn request(session: &mut SessionCheck, link: Link, itt: Itt) -> Result<RequestKind, String> {
    let request = session.requests.remove(&itt).ok_or("no such request")?;
    ensure!(request.link == link, "the request came on {}", request.link);
    Ok(request.kind)
}

/// The transfer tag names one transfer, and the session's budget holds. One R2T may exceed that if
/// it is alone, or nothing longer than the budget would ever move.
fn solicited_fits(session: &SessionCheck, ttt: Ttt) -> Verdict {
    let live = session.tasks.values().filter(|task| !task.over);
    let named = live.clone().filter(|task| task.is_asked(ttt)).count();
    ensure!(named == 1, "transfer tag is in use by another task");
    // Tasks of a lost connection go on when another takes them over, with the memory that they
    // have.
    let kept = |task: &TaskCheck| task.has_moved() || session.gone.contains(&task.link);
    let here = live.filter(|task| !task.ending && !kept(task));
    let asking = here.map(TaskCheck::outstanding);
    let mut asking: Vec<u64> = asking.collect();
    asking.sort_unstable();
    // One write may be longer than all the memory there is, and one more may go beyond the limit
    // because its turn has come.
    let solicited: u64 = asking.iter().rev().skip(2).sum();
    let limit = session.solicited_max;
    ensure!(solicited <= limit, "{solicited} bytes asked for at once, limit {limit}");
    Ok(())
}

fn status_fits(check: &mut LinkCheck, status: Status) -> Verdict {
    let next = check.next_stat_sn.ok_or("no login on this connection")?;
    match status {
        Status::None => {}
        Status::Announces(stat_sn) => ensure!(stat_sn == next, "StatSN, expected {next}"),
        Status::Uses(stat_sn) => {
            ensure!(stat_sn == next, "StatSN, expected {next}");
            check.next_stat_sn = Some(next.next());
        }
    }
    Ok(())
}

fn window_fits(session: &mut SessionCheck, exp_cmd_sn: CmdSn, max_cmd_sn: CmdSn) -> Verdict {
    let (last_exp, last_max) = (session.exp_cmd_sn, session.max_cmd_sn);
    ensure!(!exp_cmd_sn.is_before(last_exp), "ExpCmdSN went back from {last_exp}");
    ensure!(!max_cmd_sn.is_before(last_max), "MaxCmdSN went back from {last_max}");
    let next = session.next_cmd_sn;
    ensure!(!next.is_before(exp_cmd_sn), "ExpCmdSN of a command not sent yet ({next} is next)");
    let passed = session.received.acknowledge(exp_cmd_sn);
    ensure!(passed.is_none(), "ExpCmdSN beyond a command that was not received: {passed:?}");
    ensure!(!max_cmd_sn.next().is_before(exp_cmd_sn), "MaxCmdSN below ExpCmdSN − 1");
    let width = max_cmd_sn.since(exp_cmd_sn) + 1;
    let fits = u32::try_from(width).is_ok_and(|width| width <= session.window);
    ensure!(fits, "window of {width} commands, {} agreed", session.window);
    (session.exp_cmd_sn, session.max_cmd_sn) = (exp_cmd_sn, max_cmd_sn);
    Ok(())
}

fn numbers(pdu: &Pdu) -> Option<(Status, CmdSn, CmdSn)> {
    use Status::{Announces, Uses};
    Some(match pdu {
        Pdu::DataIn(p) => {
            let status = p.status.map_or(Status::None, |_| Uses(p.stat_sn));
            (status, p.exp_cmd_sn, p.max_cmd_sn)
        }
        Pdu::R2t(p) => (Announces(p.stat_sn), p.exp_cmd_sn, p.max_cmd_sn),
        Pdu::NopIn(p) if p.itt == Itt::NONE => (Announces(p.stat_sn), p.exp_cmd_sn, p.max_cmd_sn),
        Pdu::NopIn(p) => (Uses(p.stat_sn), p.exp_cmd_sn, p.max_cmd_sn),
        Pdu::ScsiResponse(p) => (Uses(p.stat_sn), p.exp_cmd_sn, p.max_cmd_sn),
        Pdu::TaskManagementResponse(p) => (Uses(p.stat_sn), p.exp_cmd_sn, p.max_cmd_sn),
        Pdu::TextResponse(p) => (Uses(p.stat_sn), p.exp_cmd_sn, p.max_cmd_sn),
        Pdu::LogoutResponse(p) => (Uses(p.stat_sn), p.exp_cmd_sn, p.max_cmd_sn),
        Pdu::AsyncMessage(p) => (Uses(p.stat_sn), p.exp_cmd_sn, p.max_cmd_sn),
        Pdu::Reject(p) => (Uses(p.stat_sn), p.exp_cmd_sn, p.max_cmd_sn),
        _ => return None,
    })
}
