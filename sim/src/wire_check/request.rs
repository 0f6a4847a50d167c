//! What an initiator may send (RFC 7143 §4.2.2, §4.2.3, §11.3, §11.5, §11.7).

use iscsi_proto::ids::Itt;
use iscsi_proto::pdu::{
    LogoutReason, LogoutRequest, NopOut, Pdu, ScsiCommand, TaskManagementFunction,
    TaskManagementRequest, TextRequest,
};
use iscsi_proto::serial::{CmdSn, StatSn};

use super::task::{TaskCheck, check_tag};
use super::{
    Ended, LinkCheck, Request, RequestKind, SessionCheck, Sight, Verdict, ensure, recovery,
};
use crate::coverage::Coverage;

pub(super) fn check(
    sight: Sight,
    check: &mut LinkCheck,
    session: &mut SessionCheck,
    pdu: &Pdu,
    coverage: &mut Coverage,
) -> Verdict {
    let is_answer = matches!(pdu, Pdu::NopOut(nop) if nop.itt == Itt::NONE);
    let leaving = check.logout_requested || session.logout_requested;
    ensure!(is_answer || !leaving, "after a logout request");
    let other = matches!(pdu, Pdu::LogoutRequest(logout) if closes_another(logout, check));
    // A logout carries the ExpStatSN of the connection that it closes (§11.14.4).
    if let Some(exp_stat_sn) = exp_stat_sn(pdu).filter(|_| !other) {
        exp_stat_sn_fits(check, exp_stat_sn)?;
    }
    match pdu {
        Pdu::ScsiCommand(command) => match numbered(session, command.immediate, command.cmd_sn)? {
            Turn::New => new_command(sight, session, command, coverage),
            Turn::Again => command_again(sight, session, command, coverage),
        },
        Pdu::DataOut(pdu) => {
            let task = session.tasks.get_mut(&pdu.itt).ok_or("no such task")?;
            ensure!(task.link == sight.link, "the task belongs to {}", task.link);
            task.data_out(pdu, sight)?;
            coverage.hit("pdu: Data-Out");
            Ok(())
        }
        Pdu::TaskManagementRequest(request) => {
            coverage.hit("pdu: task management");
            if numbered(session, request.immediate, request.cmd_sn)? == Turn::Again {
                return request_again(sight, session, request.itt, coverage);
            }
            new_management(sight, session, request, coverage)
        }
        Pdu::NopOut(nop) => ping(sight, session, nop, coverage),
        Pdu::TextRequest(request) => text(sight, session, request, coverage),
        Pdu::LogoutRequest(request) => logout(sight, check, session, request, coverage),
        Pdu::SnackRequest(request) => recovery::snack(sight, check, session, request, coverage),
        _ => Err("no place for this PDU in full-feature phase".into()),
    }
}

/// Whether a request has been here before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    New,
    Again,
}

/// CmdSN: consecutive over the session, within the window that the initiator knows of; or one that
/// the target has not acknowledged, as far as the initiator knows (§7.2.1).
fn numbered(session: &mut SessionCheck, immediate: bool, cmd_sn: CmdSn) -> Result<Turn, String> {
    let next = session.next_cmd_sn;
    let unacknowledged = !cmd_sn.is_before(session.known_exp_cmd_sn) && cmd_sn.is_before(next);
    // A hole may be filled at any level (§7.3).
    let may_fill = session.recovers() || session.received.is_missing(cmd_sn);
    if may_fill && unacknowledged && !immediate {
        return Ok(Turn::Again);
    }
    ensure!(cmd_sn == next, "CmdSN, expected {next}");
    if immediate {
        return Ok(Turn::New);
    }
    let known = session.known_max_cmd_sn;
    ensure!(!known.is_before(cmd_sn), "CmdSN beyond MaxCmdSN {known} as far as is known");
    session.next_cmd_sn = next.next();
    Ok(Turn::New)
}

fn closes_another(logout: &LogoutRequest, check: &LinkCheck) -> bool {
    logout.reason != LogoutReason::CLOSE_SESSION && logout.cid != check.cid
}

fn exp_stat_sn_fits(check: &mut LinkCheck, exp_stat_sn: StatSn) -> Verdict {
    let (last, delivered) = (check.exp_stat_sn, check.delivered_stat_sn);
    ensure!(!exp_stat_sn.is_before(last), "ExpStatSN went back from {last}");
    ensure!(!delivered.is_before(exp_stat_sn), "ExpStatSN of what has not arrived: {delivered}");
    check.exp_stat_sn = exp_stat_sn;
    Ok(())
}

/// A command again: the same, and where it was before, unless that connection is gone (§7.2.1).
fn command_again(
    sight: Sight,
    session: &mut SessionCheck,
    command: &ScsiCommand,
    coverage: &mut Coverage,
) -> Verdict {
    let Some(task) = session.tasks.get_mut(&command.itt).filter(|t| t.cmd_sn == command.cmd_sn)
    else {
        coverage.hit("CmdSN plugged by another command");
        return new_command(sight, session, command, coverage);
    };
    coverage.hit("command sent again");
    //= https://www.rfc-editor.org/rfc/rfc7143#section-7.2.1
    //= type=test
    //# When an iSCSI command is retried, the command PDU MUST carry the original Initiator Task Tag
    //# and the original operational attributes (e.g., flags, function names, LUN, CDB, etc.) as
    //# well as the original CmdSN.
    ensure!(task.image == sight.image, "a command again, but not the same");
    let moved = task.link != sight.link;
    //= https://www.rfc-editor.org/rfc/rfc7143#section-7.2.1
    //= type=test
    //# The command being retried MUST be sent on the same connection as the original command,
    //# unless the original connection was already successfully logged out.
    ensure!(!moved || session.released.contains(&task.link), "again, but not on {}", task.link);
    if moved {
        session.received.moves(command.cmd_sn);
    }
    if moved || session.received.is_in_doubt(command.cmd_sn) {
        // Whether the target has got it the first time is not known here.
        *task = TaskCheck::new(sight, command, &session.params)?.perhaps(task);
    } else if session.received.is_missing(command.cmd_sn) {
        let ending = task.ending;
        *task = TaskCheck::new(sight, command, &session.params)?;
        task.ending = ending;
    } else {
        task.repeat(sight, command, &session.params);
    }
    Ok(())
}

fn ping(
    sight: Sight,
    session: &mut SessionCheck,
    nop: &NopOut,
    coverage: &mut Coverage,
) -> Verdict {
    let turn = numbered(session, nop.immediate, nop.cmd_sn)?;
    if nop.itt == Itt::NONE {
        ensure!(nop.immediate, "NOP-Out without a tag that is not immediate");
        coverage.hit("pdu: NOP-Out as answer");
        return Ok(());
    }
    coverage.hit("pdu: NOP-Out");
    if turn == Turn::Again {
        // Any command may take the place of one that was given up.
        coverage.hit("CmdSN plugged by a ping");
    }
    new_request(sight, session, nop.itt, RequestKind::Nop)
}

fn text(
    sight: Sight,
    session: &mut SessionCheck,
    request: &TextRequest,
    coverage: &mut Coverage,
) -> Verdict {
    coverage.hit("pdu: text request");
    if numbered(session, request.immediate, request.cmd_sn)? == Turn::Again {
        return request_again(sight, session, request.itt, coverage);
    }
    session.requests.remove(&request.itt); // goes on with the same tag
    new_request(sight, session, request.itt, RequestKind::Text)
}

fn logout(
    sight: Sight,
    check: &mut LinkCheck,
    session: &mut SessionCheck,
    request: &LogoutRequest,
    coverage: &mut Coverage,
) -> Verdict {
    coverage.hit("pdu: logout request");
    let turn = numbered(session, request.immediate, request.cmd_sn)?;
    let (reason, cid) = (request.reason, request.cid);
    if reason == LogoutReason::REMOVE_CONNECTION_FOR_RECOVERY {
        ensure!(session.params.error_recovery_level == 2, "logout for recovery");
        coverage.hit("pdu: logout for recovery");
    }
    session.logout_requested |= reason == LogoutReason::CLOSE_SESSION;
    check.logout_requested |= reason == LogoutReason::CLOSE_SESSION || cid == check.cid;
    if turn == Turn::Again {
        return request_again(sight, session, request.itt, coverage);
    }
    new_request(sight, session, request.itt, RequestKind::Logout(reason, cid))
}

fn request_again(
    sight: Sight,
    session: &mut SessionCheck,
    itt: Itt,
    coverage: &mut Coverage,
) -> Verdict {
    let request = session.requests.get_mut(&itt).ok_or("CmdSN of another request")?;
    ensure!(request.image == sight.image, "a request again, but not the same");
    coverage.hit("request sent again");
    let moved = request.link != sight.link;
    ensure!(!moved || session.released.contains(&request.link), "again on another connection");
    request.link = sight.link;
    Ok(())
}

fn new_command(
    sight: Sight,
    session: &mut SessionCheck,
    command: &ScsiCommand,
    coverage: &mut Coverage,
) -> Verdict {
    is_free(session, command.itt)?;
    let data_len = sight.data_len;
    let task = TaskCheck::new(sight, command, &session.params)?;
    session.tasks.insert(command.itt, task);
    coverage.hit("pdu: SCSI command");
    if data_len > 0 {
        coverage.hit("data: immediate");
    }
    if !command.is_final {
        coverage.hit("data: unsolicited");
    }
    Ok(())
}

fn new_management(
    sight: Sight,
    session: &mut SessionCheck,
    request: &TaskManagementRequest,
    coverage: &mut Coverage,
) -> Verdict {
    if request.function == TaskManagementFunction::TASK_REASSIGN {
        return new_reassign(sight, session, request, coverage);
    }
    let (function, lun) = (request.function, request.lun);
    let referenced = request.referenced_task_tag;
    if function == TaskManagementFunction::ABORT_TASK {
        let task = session.tasks.get(&referenced).ok_or("abort of a task that never was")?;
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.1
        //= type=test
        //# If the connection is still active (i.e., it is not undergoing an implicit or explicit
        //# logout), an ABORT TASK MUST be issued on the same connection to which the task to be
        //# aborted is allegiant at the time the task management request is issued.
        let free = session.released.contains(&task.link);
        let there = task.link == sight.link || free;
        ensure!(there, "abort on another connection than the task's {}", task.link);
        ensure!(task.lun == lun, "abort with another LUN than the task's");
        ensure!(request.ref_cmd_sn == task.cmd_sn, "RefCmdSN, task has {}", task.cmd_sn);
    } else {
        ensure!(referenced == Itt::NONE, "referenced tag without a task");
    }
    let cmd_sn = request.cmd_sn;
    let ended = Ended { function, lun, referenced, cmd_sn };
    session.each_ended(ended, |task| task.ending = true);
    new_request(sight, session, request.itt, RequestKind::Management(ended))
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.1
//= type=test
//# TASK REASSIGN MUST ONLY be received by the target after the connection on which the command was
//# previously executing has been successfully logged out.
fn new_reassign(
    sight: Sight,
    session: &mut SessionCheck,
    request: &TaskManagementRequest,
    coverage: &mut Coverage,
) -> Verdict {
    coverage.hit("pdu: task reassign");
    ensure!(session.params.error_recovery_level == 2, "reassign at a lower level than 2");
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.1
    //= type=test
    //# TASK REASSIGN MUST be issued as an immediate command.
    ensure!(request.immediate, "reassign that is not immediate");
    let itt = request.referenced_task_tag;
    let task = session.tasks.get_mut(&itt).ok_or("reassign of a task that never was")?;
    //= https://www.rfc-editor.org/rfc/rfc7143#section-7.2.2
    //= type=test
    //# Before the allegiance reassignment is attempted for a task, an implicit or explicit Logout
    //# with the reason code "remove the connection for recovery" (see Section 11.14.1) MUST be
    //# successfully completed for the previous connection to which the task was allegiant.
    ensure!(session.released.contains(&task.link), "the task is allegiant to {}", task.link);
    ensure!(!task.end_is_known, "reassign of a task that has ended");
    ensure!(!task.is_write() || request.exp_data_sn == 0, "ExpDataSN of a task without Data-In");
    task.may_move();
    let kind = RequestKind::Reassign(itt, request.exp_data_sn);
    new_request(sight, session, request.itt, kind)
}

fn new_request(sight: Sight, session: &mut SessionCheck, itt: Itt, kind: RequestKind) -> Verdict {
    is_free(session, itt)?;
    let Sight { link, image, .. } = sight;
    session.requests.insert(itt, Request { link, kind, image });
    Ok(())
}

fn is_free(session: &SessionCheck, itt: Itt) -> Verdict {
    check_tag(itt)?;
    let taken = session.tasks.get(&itt).is_some_and(|task| !task.over);
    ensure!(!taken && !session.requests.contains_key(&itt), "task tag is in use");
    Ok(())
}

/// CmdSN of a request that is delivered in its turn.
pub(super) fn cmd_sn(pdu: &Pdu) -> Option<CmdSn> {
    let (immediate, cmd_sn) = match pdu {
        Pdu::ScsiCommand(pdu) => (pdu.immediate, pdu.cmd_sn),
        Pdu::TaskManagementRequest(pdu) => (pdu.immediate, pdu.cmd_sn),
        Pdu::NopOut(pdu) => (pdu.immediate, pdu.cmd_sn),
        Pdu::TextRequest(pdu) => (pdu.immediate, pdu.cmd_sn),
        Pdu::LogoutRequest(pdu) => (pdu.immediate, pdu.cmd_sn),
        _ => return None,
    };
    (!immediate).then_some(cmd_sn)
}

fn exp_stat_sn(pdu: &Pdu) -> Option<StatSn> {
    Some(match pdu {
        Pdu::ScsiCommand(pdu) => pdu.exp_stat_sn,
        Pdu::DataOut(pdu) => pdu.exp_stat_sn,
        Pdu::TaskManagementRequest(pdu) => pdu.exp_stat_sn,
        Pdu::NopOut(pdu) => pdu.exp_stat_sn,
        Pdu::TextRequest(pdu) => pdu.exp_stat_sn,
        Pdu::LogoutRequest(pdu) => pdu.exp_stat_sn,
        Pdu::SnackRequest(pdu) => pdu.exp_stat_sn,
        _ => return None,
    })
}
